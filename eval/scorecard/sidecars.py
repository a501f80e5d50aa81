"""What stands beside a scorecard of live decoding: every round in rounds.jsonl, a few texts in examples.json."""

from collections.abc import Sequence
from pathlib import Path

from eval.answers.traces import Trace
from eval.models.loading import load_tokenizer
from eval.records.scorecard import Scorecard
from eval.rounds.examples import write_examples
from eval.rounds.round_trace import ModelIdentity, Run, write_round_trace

ROUNDS_NAME, EXAMPLES_NAME = "rounds.jsonl", "examples.json"


def write_sidecars(scorecard: Scorecard, run: Run, first_turns: Sequence[tuple[int, Trace]], out: Path) -> None:
    """Write the files of live decoding.

    Args:
        scorecard: Models, sources of the prompts and settings are read from it.
        run: What was decoded with the draft alone, of the live decoding that the verdict is about.
        first_turns: The answer to every prompt's first turn at its temperature, in the order of the sources.
        out: Folder of the scorecard.
    """
    target, draft = (
        ModelIdentity(model.path, model.fingerprint, model.dtype) for model in (scorecard.target, scorecard.drafts[-1])
    )
    sources, device = scorecard.prompts.sources, scorecard.settings.device
    write_round_trace(out / ROUNDS_NAME, [run], sources, target=target, draft=draft, device=device)
    traces = [first_turns[index][1] for index in run.prompt_indices]
    tokenizer = load_tokenizer(Path(target.path))
    write_examples(
        out / EXAMPLES_NAME, traces, run.decoded, tokenizer, target=target.fingerprint, draft=draft.fingerprint
    )
