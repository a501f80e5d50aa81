"""Teacher cache: hidden states, top-k entries or sampled tokens of the teacher at each response token.

Each content is a set of named tensors with one row per response token:
    hidden:  hidden_AH in the teacher's dtype, after its final norm. With the target's head it gives every logit.
    top_k:   ids_AK, most likely first; log_probs_AK, float16; log_tail_A, float32, log of the remaining mass.
    samples: ids_AS, drawn at temperature 1, with repetitions.
Ids have the smallest integer dtype that holds the vocabulary.

A batch is one of distill/data/batches.py with each tensor of the cache, under "teacher_" and its name: rows_BM...,
padded on the right. Row m of a sequence belongs to the m-th position that `keep` marks there.

Shards are written atomically, from fixed batches and with a seed per response: an interrupted capture resumes at its
first missing shard and ends with the same bytes.

Shape suffixes used in this file:
    A = response tokens, one row each
    B = sequences in the batch
    T = tokens per sequence
    H = hidden width
    M = response tokens of the longest response
    V = vocabulary entries
    K = entries of top_k
    S = sampled tokens
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedModel
from typing_extensions import TypedDict

from architectures.checkpoint import open_weights
from architectures.console import progress
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.files import checked, format_bytes, free_bytes, write_bytes, write_json
from architectures.hub import read_config
from architectures.manifest import MANIFEST_NAME, read_manifest
from architectures.settings import WHOLE, Holding, command_of
from architectures.shapes import model_shape
from architectures.sharing import ALONE, Share
from distill import cache_files
from distill.chunked_loss import Head, ResponseLogits, head_of, logit_divisor
from distill.data.batches import Example, ResponseDataset, collate
from distill.recipe.sections import TeacherConfig, bytes_per_token, id_bytes, kept_of, reject_k_beyond
from eval.decoding.generate import derive_seed
from eval.decoding.kv_cache import without_cudnn
from eval.large_targets import Pass, load_target, run_passes
from eval.models import default_device, require_finite, text_config

# A change of either limit needs another FORMAT.
MAX_SHARD_BYTES = 2**28  # of memory while a shard is built
MAX_SHARD_TOKENS = 2**16  # of work lost by an interruption
ID_TYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}
LOG_PROB_TYPE = torch.float16  # log p = -10 to 0.004; bfloat16 would round it to 0.03


OTHER_HEADS = ("lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight")


def load_head(target: Path, *, dtype: str, device: str) -> Head:
    """Load only the output head of a target."""
    config = read_config(target)
    is_tied = model_shape(config, where=str(target / "config.json")).tied
    family = FAMILIES.get(config["model_type"])
    weights = open_weights(target, base_prefix="" if family is None else family.base_prefix)
    if family is None:  # by the names that causal LMs of transformers have
        name = next((name for name in OTHER_HEADS if name in weights.info), None)  # a tied head is not stored
        if name is None:
            raise UserError(f"{target}: contains none of {', '.join(OTHER_HEADS)}. Use a live teacher.")
    else:
        name = family.weight("embedding" if is_tied else "head")
    weight_VH = weights.read(name).to(device=device, dtype=getattr(torch, dtype))
    settings = text_config(target)
    softcap = getattr(settings, "final_logit_softcapping", None)
    bias_V, bias = None, name.replace(".weight", ".bias")
    if bias in weights.info:
        bias_V = weights.read(bias).to(device=device, dtype=getattr(torch, dtype))
    return Head(weight_VH, bias_V, softcap=softcap, vocab_size=len(weight_VH), divisor=logit_divisor(settings))


def top_k_rows(logits_AV: Tensor, k: int) -> dict[str, Tensor]:
    """Return the K most likely tokens, their log-probabilities and the log of the remaining mass, in float32."""
    logits_AV = logits_AV.float()
    total_A1 = logits_AV.logsumexp(dim=-1, keepdim=True)
    kept_AK, ids_AK = logits_AV.topk(k)
    rest_A = logits_AV.scatter(-1, ids_AK, -torch.inf).logsumexp(dim=-1)
    return {
        "ids": narrow_ids(ids_AK, logits_AV.shape[-1]),
        "log_probs": (kept_AK - total_A1).to(LOG_PROB_TYPE),
        "log_tail": rest_A - total_A1[:, 0],
    }


def sampled_rows(logits_AV: Tensor, uniform_AS: Tensor) -> dict[str, Tensor]:
    """Return S tokens of each row, sampled at temperature 1, in ascending order.

    Each uniform in (0, 1], float64, selects the first token whose cumulative probability reaches it, so a token of
    probability 0 is never drawn.
    """
    cumulated_AV = logits_AV.double().softmax(dim=-1).cumsum(dim=-1)
    ids_AS = torch.searchsorted(cumulated_AV, uniform_AS * cumulated_AV[:, -1:])
    return {"ids": narrow_ids(ids_AS.sort(dim=-1).values, logits_AV.shape[-1])}


def uniform_numbers(num_tokens: int, num_samples: int, *, seed: int) -> Tensor:
    """Return uniform_AS in (0, 1], float64, the same for the same seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    return 1 - torch.rand(num_tokens, num_samples, dtype=torch.float64, generator=generator)


def narrow_ids(ids: Tensor, vocab: int) -> Tensor:
    return ids.to(ID_TYPES[id_bytes(vocab)])


def widen(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert rows to the dtypes of the losses: int64 ids, float32 log-probabilities; hidden states keep theirs."""
    types = {"ids": torch.int64, "log_probs": torch.float32}
    return {name: tensor.to(types.get(name, tensor.dtype)) for name, tensor in rows.items()}


def join_rows(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate the rows of several sequences, in the order of a batch's keep mask."""
    return {name: torch.cat([tensors[name] for tensors in rows]) for name in rows[0]}


@dataclass(frozen=True)
class Shard:
    """A file with the rows of consecutive responses."""

    file: str
    responses: range


@dataclass(frozen=True)
class Index:
    """Location of each response's rows.

    Attributes:
        first_rows: First row of each response, counted over all shards; one more entry for the end.
        first_responses: First response of each shard; one more entry for the end.
    """

    first_rows: list[int]
    first_responses: list[int]

    def __len__(self) -> int:
        return len(self.first_rows) - 1

    def locate(self, response: int) -> tuple[int, slice]:
        """Return the shard number of a response, and its rows in that shard."""
        shard = bisect_right(self.first_responses, response) - 1
        offset = self.first_rows[self.first_responses[shard]]
        return shard, slice(self.first_rows[response] - offset, self.first_rows[response + 1] - offset)


def cut_into_shards(name: str, num_kept: Sequence[int], *, token_bytes: int) -> list[Shard]:
    """Divide the responses, in order, into shards, each filled until the next response would exceed the maximum size.

    Args:
        num_kept: Response tokens of each response.
        token_bytes: Bytes of one row.
    """
    capacity = min(MAX_SHARD_TOKENS, max(1, MAX_SHARD_BYTES // token_bytes))
    starts, filled = [0], 0
    for response, tokens in enumerate(num_kept):
        if filled and filled + tokens > capacity:
            starts.append(response)
            filled = 0
        filled += tokens
    ends = [*starts[1:], len(num_kept)]
    return [
        Shard(f"{name}-{number:05d}.safetensors", range(start, end))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def index_file(name: str) -> str:
    return f"{name}-index.safetensors"


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> cache_files.FileRecord:
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_bytes(content, path)
    return cache_files.FileRecord(len(content), sha256(content).hexdigest())


def fingerprint_examples(examples: Sequence[Example]) -> str:
    """Return the sha256 of the token ids and response spans of all examples: cached rows fit only these."""
    digest = sha256()
    for example in examples:
        bounds = [bound for span in example.spans for bound in span]
        counts = [len(example.input_ids), len(example.spans)]
        digest.update(np.array([*counts, *bounds, *example.input_ids], dtype="<i4").tobytes())
    return digest.hexdigest()


class SplitRecord(TypedDict):
    """A split in the manifest of a cache."""

    contents: str
    examples: str
    shards: list[str]


SPLITS = TypeAdapter(dict[str, SplitRecord])


class TeacherCache:
    """Teacher outputs for the responses of one split. Safe to pickle, fork and share among threads.

    Opening checks the file sizes. `rows` maps a file only while it reads (55 µs), so any number of shards needs no
    open files.

    Raises:
        UserError: If the cache is not finished, a file is missing or truncated, or there is no such split.
    """

    def __init__(self, folder: Path, name: str):
        damaged = cache_files.ill_sized_files(folder)
        if damaged:
            raise UserError(
                f"{folder / damaged[0]}: missing or of the wrong size, as are {len(damaged)} files in total. "
                f"Run {command_of('cache')}: it writes them again."
            )
        splits = checked(SPLITS, (read_manifest(folder) or {}).get("splits"), f"{folder}: splits", cache_files.hint())
        if name not in splits:
            raise UserError(
                f"{folder}: contains no {name} responses, only {', '.join(splits)}. Delete it, and create it again."
            )
        self.folder = folder
        self.name = name
        self.contents = splits[name]["contents"]
        self.examples = splits[name]["examples"]
        self.files = splits[name]["shards"]
        tensors = load_file(folder / index_file(name))
        self.index = Index(tensors["first_rows"].tolist(), tensors["first_responses"].tolist())

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, response: int) -> dict[str, Tensor]:
        """Read the rows of one response, one per response token in order.

        Returns:
            hidden_AH; or ids_AK (int64), log_probs_AK and log_tail_A (float32); or ids_AS (int64).

        Raises:
            IndexError: If there is no such response.
            UserError: If the file was damaged after the cache was opened.
        """
        if not 0 <= response < len(self):
            raise IndexError(f"response must be from 0 to {len(self) - 1}, got {response}.")
        shard, rows = self.index.locate(response)
        path = self.folder / self.files[shard]
        try:
            with safe_open(path, framework="pt") as shard_file:
                return widen({name: shard_file.get_slice(name)[rows] for name in shard_file.keys()})  # noqa: SIM118 - no dict
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path}: damaged ({error}). Delete it and run {command_of('cache')} to write it again."
            ) from error

    def require_examples(self, examples: Sequence[Example]) -> None:
        """Raise UserError if the cached rows belong to other tokens or response spans than these examples."""
        if fingerprint_examples(examples) != self.examples:
            raise UserError(
                f"{self.folder}: its {self.name} rows belong to other responses than those in the data directory. "
                f"Delete {self.folder} and run {command_of('cache')}."
            )


PREFIX = "teacher_"

Sample = tuple[Example, dict[str, Tensor]]


class CachedResponses(Dataset[Sample]):
    """Examples, each with the cached teacher rows of its response tokens.

    Raises:
        UserError: If the cached rows belong to other responses.
    """

    def __init__(self, responses: ResponseDataset, cache: TeacherCache):
        cache.require_examples(responses.examples)
        self.responses, self.tasks = responses, responses.tasks
        self.cache = cache

    def __len__(self) -> int:
        return len(self.responses)

    def __getitem__(self, index: int) -> Sample:
        return self.responses[index], self.cache.rows(index)

    @staticmethod
    def collate(samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Collate examples and their rows, padded on the right."""
        examples, rows = zip(*samples, strict=True)
        kept = {PREFIX + name: pad_sequence([each[name] for each in rows], batch_first=True) for name in rows[0]}
        return {**collate(examples), **kept}


def rows_in(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the teacher rows of a batch, sequence after sequence: A rows, one per position of `keep`.

    Rows of positions that were removed from `keep` later, and are marked in `unsaid`, are left out.
    """
    keep_BT, unsaid_BT = batch["keep"], batch.get("unsaid")
    response_BT = keep_BT if unsaid_BT is None else keep_BT | unsaid_BT
    num_kept_B1 = response_BT.sum(dim=1, keepdim=True)
    kept = {name.removeprefix(PREFIX): rows for name, rows in batch.items() if name.startswith(PREFIX)}
    rows = {
        name: rows_BM[torch.arange(rows_BM.shape[1], device=rows_BM.device) < num_kept_B1]
        for name, rows_BM in kept.items()
    }
    return rows if unsaid_BT is None else {name: each[keep_BT[response_BT]] for name, each in rows.items()}


ROWS_AT_ONCE = 256  # logits of these rows are in memory together
INDEX_BYTES = 8  # per response


@dataclass(frozen=True)
class CaptureSettings:
    """Settings of a capture.

    Attributes:
        dtype: Of the teacher's weights, arithmetic and hidden states.
        batch_size: Responses per forward pass.
        ids: Ascending ids that the entries are restricted to: the teacher's distribution conditioned on them; None for
            all.
    """

    cache: TeacherConfig
    dtype: str
    seed: int
    batch_size: int
    ids: tuple[int, ...] | None = None
    holding: Holding = WHOLE

    def rows_among(self, vocab_size: int) -> int:
        """Return the number of ids that entries are drawn from, for a vocabulary of this size."""
        return vocab_size if self.ids is None else bisect_left(self.ids, vocab_size)


@dataclass(frozen=True)
class Split:
    """The "train" or "eval" responses, and the shards of their rows."""

    name: str
    examples: Sequence[Example]
    kept: TeacherConfig
    token_bytes: int
    shards: list[Shard]

    @property
    def num_kept(self) -> list[int]:
        """Response tokens of each response."""
        return [example.num_kept for example in self.examples]

    @property
    def num_bytes(self) -> int:
        """Bytes of rows and index, without file headers of a few hundred bytes each."""
        return sum(self.num_kept) * self.token_bytes + (len(self.examples) + 1) * INDEX_BYTES


def capture_teacher(
    target: Path,
    responses: Mapping[str, Sequence[Example]],
    out: Path,
    settings: CaptureSettings,
    *,
    inputs: Mapping[str, str],
    finish: Callable[..., None],
    share: Share = ALONE,
) -> None:
    """Write the teacher's outputs at every response token into a cache directory; resume an interrupted capture.

    Args:
        responses: Examples of each split, in the order in which their rows will be read.
        inputs: Named fingerprints of everything the rows depend on.
        finish: Called with the details of the cache; writes the manifest.

    Raises:
        UserError: If the disk has too little space, k exceeds the number of ids, or `out` is a cache of other inputs.
    """
    splits = plan_splits(target, responses, settings)
    present = share.lead(lambda: begin(out, inputs, splits))
    reading = TargetReading(target, settings)
    written: dict[str, cache_files.FileRecord] = {}
    for split in splits:
        missing = share.mine([shard for shard in split.shards if shard.file not in present])
        written |= write_shards(split, missing, reading, out, share)
    files = {name: record for each in share.exchange(written) for name, record in each.items()}
    if share.leads:
        files |= {name: cache_files.record_file(out / name) for name in present if name not in files}
        for split in splits:
            first_rows = torch.tensor(list(accumulate(split.num_kept, initial=0)))
            first_responses = torch.tensor([*(shard.responses.start for shard in split.shards), len(split.examples)])
            index, name = {"first_rows": first_rows, "first_responses": first_responses}, index_file(split.name)
            files[name] = write_tensors(index, out / name)
        finish(
            format=cache_files.FORMAT,
            splits={split.name: describe(split, settings) for split in splits},
            files={name: vars(files[name]) for name in sorted(files)},
        )
        (out / cache_files.CAPTURE_NAME).unlink()


def begin(out: Path, inputs: Mapping[str, Any], splits: Sequence[Split]) -> list[str]:
    """Return the names of the shards already written, after checking that the rest fits on the disk."""
    cache_files.require_same_capture(out, inputs)
    present = [shard.file for split in splits for shard in split.shards if (out / shard.file).is_file()]

    # Space on the disk.
    missing_bytes = sum(split.num_bytes for split in splits) - sum((out / name).stat().st_size for name in present)
    free = free_bytes(out)
    print(f"{out}: {format_bytes(missing_bytes)} to be written, {format_bytes(free)} free", file=sys.stderr)
    if missing_bytes > free:
        raise UserError(
            f"{out}: the teacher cache needs {format_bytes(missing_bytes)}, the disk has {format_bytes(free)} free. "
            "Free disk space, set run_dir to another disk, or set distill.teacher.contents to top_k or samples."
        )

    # Mark the directory as an unfinished cache of these inputs.
    write_json({"format": cache_files.FORMAT, "inputs": dict(inputs)}, out / cache_files.CAPTURE_NAME)
    (out / MANIFEST_NAME).unlink(missing_ok=True)
    return present


def plan_splits(target: Path, responses: Mapping[str, Sequence[Example]], settings: CaptureSettings) -> list[Split]:
    """Plan the shards of every split from the target's config and the lengths of the responses."""
    shape = model_shape(read_config(target), where=str(target / "config.json"))
    rows = settings.rows_among(shape.vocab)
    reject_k_beyond(settings.cache, vocab=shape.vocab, rows=rows)
    splits = []
    for name, examples in responses.items():
        token_bytes = bytes_per_token(settings.cache, name, hidden=shape.hidden, rows=rows, dtype=settings.dtype)
        shards = cut_into_shards(name, [example.num_kept for example in examples], token_bytes=token_bytes)
        splits.append(Split(name, examples, kept_of(settings.cache, name), token_bytes, shards))
    return splits


def write_shards(
    split: Split, missing: Sequence[Shard], reading: "TargetReading", out: Path, share: Share = ALONE
) -> dict[str, cache_files.FileRecord]:
    """Write this process's missing shards of a split; return their sizes and checksums by name."""
    files: dict[str, cache_files.FileRecord] = {}
    lengths = [len(example.input_ids) for example in split.examples]
    responses = [response for shard in missing for response in shard.responses]
    whole = sum(lengths[response] for response in responses)
    with progress(f"teacher of {split.name}{share.words}", total=len(responses), whole=whole) as advance:
        for shard in missing:
            rows: dict[int, dict[str, Tensor]] = {}
            for response, kept in reading.read(split, shard.responses):
                rows[response] = kept
                advance(lengths[response])
            content = join_rows([rows[response] for response in shard.responses])
            files[shard.file] = write_tensors(content, out / shard.file)
    return files


def describe(split: Split, settings: CaptureSettings) -> dict[str, Any]:
    contents = split.kept.contents
    counts = split.kept.model_dump(include={"hidden": set(), "top_k": {"k"}, "samples": {"num_samples"}}[contents])
    rows = {"rows": len(settings.ids)} if counts and settings.ids is not None else {}
    return {
        "contents": contents,
        **counts,
        **rows,
        "bytes_per_token": split.token_bytes,
        "responses": len(split.examples),
        "response_tokens": sum(split.num_kept),
        "examples": fingerprint_examples(split.examples),
        "shards": [shard.file for shard in split.shards],
    }


class TargetReading:
    """Computes the cached rows of responses with the teacher, which is loaded on first use."""

    def __init__(self, target: Path, settings: CaptureSettings):
        self.target = target
        self.settings = settings

    @cached_property
    def lm(self) -> PreTrainedModel:
        return load_target(self.target, dtype=self.settings.dtype, holding=self.settings.holding)

    @cached_property
    def reads(self) -> ResponseLogits:
        return ResponseLogits(self.lm)

    @cached_property
    def head(self) -> Head:
        """The teacher's output head, restricted to `ids`; loaded separately if the teacher is not held whole."""
        if self.settings.holding.placement == "whole":
            head = head_of(self.lm)
        else:
            head = load_head(self.target, dtype=self.settings.dtype, device=default_device())
        if self.settings.ids is None:
            return head
        rows = self.settings.rows_among(head.vocab_size)
        return head.rows_of(torch.tensor(self.settings.ids[:rows], device=head.weight_VH.device))

    def read(self, split: Split, responses: Sequence[int]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield responses with their rows on the CPU, sorted by length to minimise padding."""
        ordered = sorted(responses, key=lambda response: len(split.examples[response].input_ids))
        starts = range(0, len(ordered), self.settings.batch_size)
        batches = [ordered[start : start + self.settings.batch_size] for start in starts]
        passes = []
        for batch in batches:
            examples = [split.examples[response] for response in batch]
            width = max(len(example.input_ids) for example in examples)
            passes.append(Pass(partial(self.hidden_states, examples), len(examples), width))
        for batch, states in zip(batches, run_passes(self.lm, passes), strict=True):
            for response, hidden_AH in zip(batch, states, strict=True):
                yield response, {name: rows.cpu() for name, rows in self.rows(split, response, hidden_AH).items()}

    @torch.inference_mode()
    def rows(self, split: Split, response: int, hidden_AH: Tensor) -> dict[str, Tensor]:
        kept = split.kept
        if kept.contents == "hidden":
            return {"hidden": hidden_AH}
        device = self.head.weight_VH.device
        chunks = hidden_AH.to(device).split(ROWS_AT_ONCE)
        if kept.contents == "top_k":
            return join_rows([top_k_rows(self.head.logits(chunk), kept.k) for chunk in chunks])
        seed = derive_seed(self.settings.seed, f"teacher_cache/{split.name}", response)
        uniform_AS = uniform_numbers(len(hidden_AH), kept.num_samples, seed=seed).to(device)
        draws = uniform_AS.split(ROWS_AT_ONCE)
        return join_rows(
            [sampled_rows(self.head.logits(chunk), draw) for chunk, draw in zip(chunks, draws, strict=True)]
        )

    @torch.inference_mode()
    @without_cudnn()
    def hidden_states(self, examples: Sequence[Example]) -> list[Tensor]:
        """Return one hidden_AH per example."""
        batch = collate(examples)
        ids_BT, keep_BT = batch["input_ids"].to(self.lm.device), batch["keep"].to(self.lm.device)
        hidden_AH = self.reads.hidden(ids_BT, keep_BT, prompt_len_B1=batch["prompt_len"].to(self.lm.device))
        require_finite(hidden_AH, self.lm)
        return list(hidden_AH.split([example.num_kept for example in examples]))
