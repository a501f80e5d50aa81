"""Processor time of scoring a draft at 16 lookaheads: one replay against 16 runs of the live loop.

    python benchmarks/replay.py --target models/SmolLM2-135M-Instruct

Cuts an undistilled draft out of the target (first_last), lets the target answer some prompts greedily, and then, prompt
by prompt in one process of one thread, replays the answer and decodes it with the live loop at each lookahead. Time is
what the process worked (seconds of processor time), which other programs on the machine hardly lengthen.

    replay_s     one pass of target and draft over the answer, accept chances, counts at every lookahead
    answer_s     the target's own decoding of the answer, which a scorecard needs once for all drafts
    loop_s       speculative decoding, summed over lookaheads
    ratio        loop_s / replay_s
    ratio_with_answer   loop_s / (answer_s + replay_s)

Stops if any count of the loop differs from the replay's: a fast replay that is wrong is worth nothing.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from architectures.checkpoints.manifest import provenance
from architectures.files.atomic import write_json
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from eval.acceptance.counts import Counts, count_trace
from eval.acceptance.replay import answer_logits, replay_answer, replay_counts
from eval.decoding.rules import EXACT_GREEDY_DRAFT
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.models.loading import load_model, load_tokenizer, stop_token_ids
from eval.prompts.loading import load_prompts
from eval.prompts.rendering import render_prompt
from eval.prompts.source import PromptSource

RESULTS = Path(__file__).parent / "results" / "replay.json"
PROMPTS = Path(__file__).parents[1] / "recipes" / "prompts" / "quickstart.jsonl"
LOOKAHEADS = range(1, 17)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=6, help="of the draft")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cut = Path(folder) / "draft"
        cut_draft(options.target, cut, layers=options.layers)
        target, draft = (load_model(each, dtype="float32", device="cpu") for each in (options.target, cut))
    tokenizer = load_tokenizer(options.target)
    prompts = load_prompts([PromptSource(path=str(options.prompts), num_prompts=options.num_prompts)])
    texts = [render_prompt(tokenizer, prompt.messages) for prompt in prompts]
    measure(target, draft, texts[0], new_tokens=4)  # the first sets up buffers
    rows = [measure(target, draft, text, new_tokens=options.new_tokens) for text in texts]
    result = {"target": options.target.name, "layers": options.layers, "lookaheads": list(LOOKAHEADS), **summary(rows)}
    write_json({**result, "provenance": provenance()}, options.out)
    print(json.dumps(result, indent=2))


def cut_draft(target: Path, out: Path, *, layers: int) -> None:
    """Write the undistilled draft."""
    config = ArchitectureConfig(layers=layers, method="first_last")
    plan = plan_pruning(Shape.from_config(read_config(target)), config)
    prune_checkpoint(target, plan, out, dtype="float32", finish=lambda _: None)


def measure(
    target: PreTrainedModel, draft: PreTrainedModel, prompt_ids: Sequence[int], *, new_tokens: int
) -> dict[str, Any]:
    """One prompt both ways."""
    limits = Limits(new_tokens, stop_token_ids(target))
    answer, answer_s = timed(lambda: plain_decode(target, [prompt_ids], limits=limits)[0].token_ids)
    replayed, replay_s = timed(lambda: replay_all(target, draft, prompt_ids, answer))
    loops = []
    for lookahead in LOOKAHEADS:
        decoded, loop_s = timed(
            lambda lookahead=lookahead: speculative_decode(
                target, draft, [prompt_ids], limits=limits, speculation=Speculation(lookahead)
            )[0]
        )
        rounds = [(each.start, each.accepted) for each in decoded.rounds]
        counts = count_trace(rounds, num_tokens=len(decoded.token_ids), lookahead=lookahead)
        if (decoded.token_ids, counts) != (answer, replayed[lookahead]):
            raise SystemExit(f"lookahead {lookahead}: the loop counted {counts}, the replay {replayed[lookahead]}.")
        loops.append(loop_s)
    return {"tokens": len(answer), "answer_s": answer_s, "replay_s": replay_s, "loop_s": loops}


def replay_all(
    target: PreTrainedModel, draft: PreTrainedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> dict[int, Counts]:
    """Counts at every lookahead from one pass of each model."""
    logits = [answer_logits(model, prompt_ids, answer_ids) for model in (target, draft)]
    accept_T = replay_answer(*logits, answer_ids, sampling=Sampling()).rules[EXACT_GREEDY_DRAFT].accept
    return {lookahead: replay_counts(accept_T, lookahead=lookahead) for lookahead in LOOKAHEADS}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the work gives, and the seconds of processor time it took."""
    start_s = time.process_time()
    result = work()
    return result, time.process_time() - start_s


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums over prompts, and the ratios of sums."""
    answer_s, replay_s = (sum(row[name] for row in rows) for name in ("answer_s", "replay_s"))
    by_lookahead = [sum(column) for column in zip(*(row["loop_s"] for row in rows), strict=True)]
    loop_s = sum(by_lookahead)
    return {
        "prompts": len(rows),
        "tokens": sum(row["tokens"] for row in rows),
        "answer_s": round(answer_s, 3),
        "replay_s": round(replay_s, 3),
        "loop_s": round(loop_s, 3),
        "loop_s_by_lookahead": [round(seconds, 3) for seconds in by_lookahead],
        "ratio": round(loop_s / replay_s, 1),
        "ratio_by_prompt": [round(sum(row["loop_s"]) / row["replay_s"], 1) for row in rows],
        "ratio_with_answer": round(loop_s / (answer_s + replay_s), 2),
    }


if __name__ == "__main__":
    main()
