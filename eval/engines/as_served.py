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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, get_args

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.errors import UserError
from architectures.manifest import processor_name
from eval.chat import render_prompt
from eval.decoding.sampling import Sampling
from eval.engines.certificate import (
    Counted,
    Finding,
    PartName,
    ServedCertificate,
    ServedEngine,
    ServedPart,
    TextPair,
    pooled,
)
from eval.engines.external_generate import engine_seed, sampling_fields
from eval.engines.runs import (
    TOLERANCE,
    OwnTokens,
    command_of,
    differs,
    enough,
    find_ties,
    rates,
    replay_text,
    shown,
)
from eval.engines.worker_process import WorkerProcess
from eval.intervals import Resampling, paired_ratio_difference
from eval.models import context_length_of, default_device, load_model, stop_token_ids
from eval.prompts import Prompt

CONCURRENCY = 16
NUM_LONG = 4  # prompts of the parts middle and long
BEYOND = 32768  # a context beyond it is named in the certificate
CPU_MODEL_LEN = 4096  # default there, where longer prompts take minutes
CONFIDENCE, RESAMPLES = 0.99, 2000
Texts = Mapping[PartName, list[list[int]]]


@dataclass(frozen=True)
class ServedSetup:
    """What is served.

    Attributes:
        target: What the engine loads: a directory, or a GGUF file.
        ids: Of every prompt, rendered with the target's tokenizer.
        own: Token mapping of a draft with its own tokenizer.
    """

    engine: ServedEngine
    python: Path
    target: Path
    draft: Path
    prompts: Sequence[Prompt]
    ids: Sequence[list[int]]
    tokenizer: PreTrainedTokenizerBase
    own: OwnTokens | None
    num_speculative_tokens: int
    max_new_tokens: int
    max_model_len: int
    dtype: str
    threads: int
    seed: int

    @property
    def request(self) -> dict[str, Any]:
        longest = 2 * max(map(len, self.ids)) + 2 * self.max_new_tokens + self.num_speculative_tokens
        return {
            "target": str(self.target.resolve()),
            "draft": str(self.draft.resolve()),
            "num_speculative_tokens": self.num_speculative_tokens,
            "max_model_len": self.max_model_len,
            "cache_tokens": NUM_LONG * self.max_model_len + CONCURRENCY * longest,
            "batch_size": CONCURRENCY,
            "dtype": self.dtype,
            "threads": self.threads,
            "draft_settings": {} if self.own is None else {"use_heterogeneous_vocab": True},
            "engine_settings": {"max_num_seqs": CONCURRENCY},
            "as_served": True,
        }

    def rendered_parts(self, first_turns: Sequence[Sequence[int]]) -> Iterator[tuple[PartName, list[list[int]]]]:
        """Yield the parts after `short`, with the responses to its prompts."""
        after = [*self.prompts[1:], self.prompts[0]]
        turns = []
        for prompt, response, other in zip(self.prompts, first_turns, after, strict=True):
            text = str(self.tokenizer.decode(list(response), skip_special_tokens=True))
            question = other.messages[-1]["content"]
            turns.append(render_prompt(self.tokenizer, replace(prompt, later_turns=(question,)).following(text)))
        room = self.max_new_tokens + self.num_speculative_tokens + 1
        if max(map(len, turns)) + room > self.max_model_len:
            raise UserError(
                f"--max-model-len: {self.max_model_len} tokens do not hold two turns of these prompts, which need "
                f"{max(map(len, turns)) + room}. Raise it, or use shorter prompts."
            )
        middle, long = (
            [self.lengthened(ids, length) for ids in self.ids[:NUM_LONG]]
            for length in (self.max_model_len // 2, self.max_model_len - room)
        )
        yield "turns", turns
        yield "mixed", [*self.ids[: CONCURRENCY // 2], middle[0], *self.ids[CONCURRENCY // 2 : CONCURRENCY - 1]]
        yield "middle", middle
        yield "long", long
        yield "sampled", list(self.ids)

    def lengthened(self, ids: list[int], length: int) -> list[int]:
        """Return a prompt after as many tokens of all prompts as make it `length` tokens long."""
        return [*islice(cycle(chain.from_iterable(self.ids)), max(0, length - len(ids))), *ids]

    def sampling(self, part: PartName, row: int, *, drafted: bool) -> dict[str, Any]:
        how = Sampling(1.0) if part == "sampled" else Sampling()
        own = {"max_tokens": self.max_new_tokens, "seed": engine_seed(self.seed + drafted, row)}
        return sampling_fields(how, no_top_k=0) | own


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
    setup: ServedSetup, parts: dict[PartName, list[list[int]]], *, drafted: bool
) -> tuple[Texts, dict[PartName, Counted], str, dict[str, bool]]:
    """Decode all parts in one process; the first time this fills `parts`, which follow from its texts.

    Returns:
        The texts and counters of each part, the engine's version, and which of its features were used.
    """
    request = setup.request if drafted else {**setup.request, "draft": None}
    texts: dict[PartName, list[list[int]]] = {}
    counts: dict[PartName, Counted] = {}
    with closing(WorkerProcess(setup.python, "serve", setup.engine, flag="--python")) as worker:
        version = worker.exchange(request)["version"]
        for part in get_args(PartName):
            how = f"{setup.engine} {'with the draft' if drafted else 'without a draft'}"
            print(f"{how}: {part}, {len(parts[part])} prompts", file=sys.stderr, flush=True)
            rows = range(len(parts[part]))
            sampling = [setup.sampling(part, row, drafted=drafted) for row in rows]
            reply = worker.exchange({"prompts": parts[part], "sampling": sampling})
            texts[part], counts[part] = reply["ids"], counted(setup.engine, reply)
            if part == "short" and not drafted:
                parts.update(setup.rendered_parts(reply["ids"]))
        return texts, counts, version, worker.exchange({})


def counted(engine: ServedEngine, reply: Mapping[str, Any]) -> Counted:
    counters = reply["counters"]
    if engine == "vllm":
        return Counted(
            steps=counters.get("drafts", 0),
            proposed=counters.get("draft_tokens", 0),
            accepted=counters.get("accepted_tokens", 0),
            by_position=tuple(counters["accepted_tokens_per_pos"]) if counters else None,
        )
    accepted = counters["draft_n_accepted"]
    steps = sum(map(len, reply["ids"])) - len(reply["ids"]) - accepted
    return Counted(steps=steps, proposed=counters["draft_n"], accepted=accepted)


def certify_as_served(setup: ServedSetup, folders: tuple[Path, Path]) -> ServedCertificate:
    """Serve without and with the draft, replay, and check every part.

    Args:
        folders: Checkpoint directories of target and draft, for replay and near-ties.

    Raises:
        UserError: If the engine fails, or the context is too short for two turns.
    """
    parts: dict[PartName, list[list[int]]] = {"short": list(setup.ids)}
    plain, _, version, _ = serve_parts(setup, parts, drafted=False)
    drafted, counts, _, features = serve_parts(setup, parts, drafted=True)
    texts = {
        part: tuple(
            TextPair(prompt_ids=tuple(prompt), plain_ids=tuple(without), drafted_ids=tuple(with_draft))
            for prompt, without, with_draft in zip(parts[part], plain[part], drafted[part], strict=True)
        )
        for part in parts
    }

    dtype = "float32" if setup.engine == "llama.cpp" else setup.dtype
    draft = load_model(folders[1], dtype=dtype)
    replays = {part: replay_texts(draft, setup, drafted[part], parts[part]) for part in parts}
    unaided = replay_texts(draft, setup, plain["sampled"], parts["sampled"])
    done = [
        ServedPart(name=part, texts=texts[part], counted=counts[part], replay=pooled(replays[part])) for part in parts
    ]

    files = f"{setup.target.stem} with {setup.draft.stem}"
    served_dtype = files if setup.engine == "llama.cpp" else setup.dtype
    exercised, missed = coverage(setup, features)
    return ServedCertificate(
        engine=setup.engine,
        version=version,
        command=command_of(setup.engine, setup.request),
        dtype=served_dtype,
        num_speculative_tokens=setup.num_speculative_tokens,
        max_new_tokens=setup.max_new_tokens,
        exercised=exercised,
        not_exercised=missed,
        parts=tuple(done),
        findings=(
            enough(len(setup.ids), setup.max_new_tokens),
            *same_texts(done, folders[0], served_dtype),
            *map(same_counts, done),
            sampled_acceptance(unaided, replays["sampled"], setup.seed),
        ),
        hardware=f"{processor_name()}, {setup.threads} threads",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def coverage(setup: ServedSetup, features: Mapping[str, bool]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was exercised, and what was not."""
    beyond = f"contexts beyond {BEYOND:,} tokens"
    checked = {
        f"{CONCURRENCY} requests at once": True,
        "two turns": True,
        f"contexts up to {setup.max_model_len:,} tokens": True,
        beyond: setup.max_model_len > BEYOND,
        "temperatures 0 and 1": True,
        **features,
    }
    return tuple(name for name, used in checked.items() if used), tuple(n for n, used in checked.items() if not used)


def replay_texts(
    draft: PreTrainedModel, setup: ServedSetup, texts: Sequence[list[int]], prompts: Sequence[list[int]]
) -> list[Counted]:
    """Compute exact counts; sampled texts are replayed like greedy ones, since these engines draft greedily.

    A drafted token is accepted exactly if it is the text's, whatever the target's probability of it.
    """
    return [  # prefill gives the first token
        replay_text(draft, [*prompt, *text[:1]], text[1:], setup.num_speculative_tokens, setup.own)
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def same_texts(parts: Sequence[ServedPart], target: Path, dtype: str) -> Iterator[Finding]:
    """Yield a finding for each greedy part; the target is loaded only if texts differ."""
    greedy, model = [part for part in parts if part.name != "sampled"], None
    if any(differs(text) for part in greedy for text in part.texts):
        model = load_model(target, dtype="float32")
    for part in greedy:
        parted = [number for number, text in enumerate(part.texts, start=1) if differs(text)]
        ties: list[int] = []
        if parted and model is not None:
            ties = find_ties(model, part.texts, dtype, next(iter(sorted(stop_token_ids(model))), 0))
        changed = [number for number in parted if number not in ties]
        yield Finding(
            law=f"same text, {part.name}",
            holds=not changed,
            detail=f"equal {len(part.texts) - len(parted)} of {len(part.texts)}, near-ties {len(ties)}, "
            f"changed {len(changed)}",
        )


def same_counts(part: ServedPart) -> Finding:
    """Compare accepted tokens per step; one step of each text may differ, where it ends."""
    positions = 1 if part.counted.by_position is not None else len(part.replay.by_position or ())
    allowed = (TOLERANCE + len(part.texts) / max(part.replay.steps, 1)) * positions
    theirs, ours = rates(part.counted, part.counted), rates(part.replay, part.counted)
    worst = max((abs(a - b) for a, b in zip(theirs, ours, strict=True)), default=float("inf"))
    return Finding(
        law=f"counts, {part.name}",
        holds=worst <= allowed,
        detail=f"accepted {shown(part.counted)} in {part.counted.steps} steps, replay "
        f"{shown(part.replay, like=part.counted)} in {part.replay.steps}; largest difference of a rate {worst:.3f} "
        f"(allowed: {allowed:.3f})",
    )


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
