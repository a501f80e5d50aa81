"""`widedraft certify --as-served`: an engine with its default settings under load, as in production.

CONCURRENCY requests run at once; the engine keeps its defaults of prefix caching, chunked prefill, compilation, CUDA
graphs and asynchronous scheduling. Target only, then with the draft:

    short       every prompt
    turns       every prompt with its response and a second question, whose prefix is cached
    mixed       one prompt of half the context, among short ones
    middle      prompts of half the context
    long        prompts that fill the context
    sampled     every prompt at temperature 1

Of the laws in eval.engines.runs, `same text` and `counts` are checked per part, and `sampled acceptance`: texts sampled
without and with the draft have the same accepted tokens per step in exact replay.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import cast, get_args

from architectures.errors import UserError
from eval.chat import render_prompt
from eval.decoding.sampling import Sampling
from eval.engines.certificate import (
    Counted,
    Engine,
    Finding,
    PartName,
    ServedCertificate,
    ServedPart,
    TextPair,
    pooled,
)
from eval.engines.external_generate import engine_seed, sampling_fields
from eval.engines.runs import (
    TOLERANCE,
    Prepared,
    counted_by,
    enough,
    facts_of,
    near_ties,
    replay_text,
    same_counts,
    same_text,
)
from eval.engines.worker import EngineRequest
from eval.engines.worker_process import WorkerProcess
from eval.intervals import Resampling, paired_ratio_difference
from eval.models import context_length_of, default_device

CONCURRENCY = 16
NUM_LONG = 4  # prompts of the parts middle and long
MIN_STEPS = 4  # verification steps per text; a part with fewer counts as not exercised
BEYOND = 32768  # a context beyond it is named in the certificate
CPU_MODEL_LEN = 4096  # default there, where longer prompts take minutes
CONFIDENCE, RESAMPLES = 0.99, 2000
Texts = dict[PartName, list[list[int]]]


def rendered_parts(
    given: Prepared, max_model_len: int, first_turns: Sequence[Sequence[int]]
) -> Iterator[tuple[PartName, list[list[int]]]]:
    """Yield the parts after `short`, with the responses to its prompts."""
    after = [*given.prompts[1:], given.prompts[0]]
    turns = []
    for prompt, response, other in zip(given.prompts, first_turns, after, strict=True):
        text = str(given.tokenizer.decode(list(response), skip_special_tokens=True))
        question = other.messages[-1]["content"]
        turns.append(render_prompt(given.tokenizer, replace(prompt, later_turns=(question,)).following(text)))
    room = given.settings.max_new_tokens + given.settings.num_speculative_tokens + 1
    if max(map(len, turns)) + room > max_model_len:
        raise UserError(
            f"--max-model-len: {max_model_len} tokens do not hold two turns of these prompts, which need "
            f"{max(map(len, turns)) + room}. Raise it, or use shorter prompts."
        )
    # Before the prompt are as many tokens of prompts with their responses as make it that long, the last ones whole.
    answered = chain.from_iterable(chain(*pair) for pair in zip(given.ids, first_turns, strict=True))
    backwards = [*answered][::-1]
    middle, long = (
        [[*islice(cycle(backwards), max(0, n - len(ids)))][::-1] + ids for ids in given.ids[:NUM_LONG]]
        for n in (max_model_len // 2, max_model_len - room)
    )
    yield "turns", turns
    yield "mixed", [*given.ids[: CONCURRENCY // 2], middle[0], *given.ids[CONCURRENCY // 2 : CONCURRENCY - 1]]
    yield "middle", middle
    yield "long", long
    yield "sampled", list(given.ids)


def served_length(folders: Sequence[Path], wanted: int | None) -> int:
    """Return the context to serve: as wanted, or the shorter of both models', on a CPU at most CPU_MODEL_LEN.

    Raises:
        UserError: If a model has a shorter one than wanted.
    """
    found = [(length.tokens, folder) for folder in folders if (length := context_length_of(folder)) is not None]
    if wanted is None:
        most = [CPU_MODEL_LEN] if default_device() == "cpu" or not found else []
        return min([*most, *(tokens for tokens, _ in found)])
    for tokens, folder in found:
        if tokens < wanted:
            raise UserError(f"--max-model-len: {wanted} is above the {tokens} tokens of {folder}. Lower it.")
    return wanted


def serve_parts(
    given: Prepared, request: EngineRequest, parts: Texts
) -> tuple[Texts, dict[PartName, Counted], str, dict[str, bool]]:
    """Decode all parts in one process; without a draft this first fills `parts`, which follow from its texts.

    Returns:
        The texts and counters of each part, the engine's version, and which of its features were used.
    """
    settings, drafted = given.settings, request.draft is not None
    texts: Texts = {}
    counts: dict[PartName, Counted] = {}
    assert settings.python is not None  # validated by the settings
    with closing(WorkerProcess(settings.python, str(settings.engine), flag="--python")) as worker:
        engine = worker.open(request)
        for part in get_args(PartName):
            how = f"{settings.engine} {'with the draft' if drafted else 'without a draft'}"
            print(f"{how}: {part}, {len(parts[part])} prompts", file=sys.stderr, flush=True)
            fields = sampling_fields(Sampling(float(part == "sampled")), no_top_k=0)
            fields |= {"max_tokens": settings.max_new_tokens}
            seeds = [engine_seed(settings.seed + drafted, row) for row in range(len(parts[part]))]
            reply = engine.decode(parts[part], [fields | {"seed": seed} for seed in seeds])
            texts[part], counts[part] = reply["ids"], counted_by(reply)
            if part == "short" and not drafted:
                parts.update(rendered_parts(given, request.max_model_len, reply["ids"]))
        return texts, counts, engine.version, engine.features()


def certify_as_served(given: Prepared) -> ServedCertificate:
    """Serve without and with the draft, replay, and check every part.

    Raises:
        UserError: If the engine fails, or the context is too short for two turns.
    """
    settings, k = given.settings, given.settings.num_speculative_tokens
    max_model_len = served_length((given.target, given.draft), settings.max_model_len)
    longest = 2 * max(map(len, given.ids)) + 2 * settings.max_new_tokens + k
    cache_tokens = NUM_LONG * max_model_len + CONCURRENCY * longest
    request = given.request(max_model_len, concurrency=CONCURRENCY, as_served=True, cache_tokens=cache_tokens)
    parts: Texts = {"short": list(given.ids)}
    plain, _, version, _ = serve_parts(given, replace(request, draft=None), parts)
    drafted, counts, _, features = serve_parts(given, request, parts)

    # A drafted token is accepted exactly if it is the text's, whatever the target's probability of it: sampled texts
    # are replayed like greedy ones, since these engines draft greedily.
    draft = given.load_draft()
    replays = {
        part: [replay_text(draft, *pair, k, given.own) for pair in zip(prompts, drafted[part], strict=True)]
        for part, prompts in parts.items()
    }
    unaided = [replay_text(draft, *pair, k, given.own) for pair in zip(parts["sampled"], plain["sampled"], strict=True)]
    done = [
        ServedPart(
            name=part,
            texts=tuple(
                TextPair(prompt_ids=tuple(prompt), plain_ids=tuple(without), drafted_ids=tuple(with_draft))
                for prompt, without, with_draft in zip(prompts, plain[part], drafted[part], strict=True)
            ),
            counted=counts[part],
            replay=pooled(replays[part]),
        )
        for part, prompts in parts.items()
    ]

    facts = facts_of(cast("Engine", settings.engine), version, request, settings.max_new_tokens)
    exercised, missed = coverage(max_model_len, features, done)
    return ServedCertificate(
        **vars(facts),
        exercised=exercised,
        not_exercised=missed,
        parts=tuple(done),
        findings=(
            enough(len(given.ids), settings.max_new_tokens),
            *same_texts(done, given.target, facts.dtype),
            *map(part_counts, done),
            sampled_acceptance(unaided, replays["sampled"], settings.seed),
        ),
        **given.made,
    )


def coverage(
    max_model_len: int, features: Mapping[str, bool], parts: Sequence[ServedPart]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was exercised, and what was not."""
    beyond = f"contexts beyond {BEYOND:,} tokens"
    short = [part for part in parts if part.replay.steps < MIN_STEPS * len(part.texts)]
    checked = {
        f"{CONCURRENCY} requests at once": True,
        "two turns": True,
        f"contexts up to {max_model_len:,} tokens": True,
        beyond: max_model_len > BEYOND,
        "temperatures 0 and 1": True,
        **features,
        **{f"{part.name} ({part.replay.steps} steps)": False for part in short},
    }
    return tuple(name for name, used in checked.items() if used), tuple(n for n, used in checked.items() if not used)


def same_texts(parts: Sequence[ServedPart], target: Path, dtype: str) -> list[Finding]:
    greedy = [part for part in parts if part.name != "sampled"]
    ties = near_ties(target, [part.texts for part in greedy], dtype)
    return [same_text(f"same text, {part.name}", part.texts, tied) for part, tied in zip(greedy, ties, strict=True)]


def part_counts(part: ServedPart) -> Finding:
    """Compare accepted tokens per step; one step of each text may differ, where it ends."""
    tolerance = TOLERANCE + len(part.texts) / max(part.replay.steps, 1)
    return same_counts(f"counts, {part.name}", part.counted, part.replay, tolerance)


def sampled_acceptance(plain: Sequence[Counted], drafted: Sequence[Counted], seed: int) -> Finding:
    """Compare accepted tokens per step between texts sampled without and with the draft, paired by prompt."""
    both = [
        ([float(each.accepted) for each in counts], [float(each.steps) for each in counts])
        for counts in (drafted, plain)
    ]
    difference = paired_ratio_difference(both[0], both[1], Resampling(CONFIDENCE, RESAMPLES, seed))
    low, high = difference.interval or (float("-inf"), float("inf"))
    with_draft, without = (pooled(counts).accepted / max(pooled(counts).steps, 1) for counts in (drafted, plain))
    return Finding(
        law="sampled acceptance",
        holds=low <= 0 <= high,
        detail=f"accepted tokens per step {with_draft:.3f} with the draft, {without:.3f} in texts without it; "
        f"difference {difference.value:+.3f}, {CONFIDENCE:.0%} interval [{low:+.3f}, {high:+.3f}]",
    )
