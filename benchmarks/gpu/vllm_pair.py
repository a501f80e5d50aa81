"""A real pair in vLLM: SmolLM2-135M-Instruct and a draft distilled on the device, with n-gram and plain decoding."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from architectures.conversion.folders import convert_draft
from benchmarks.gpu.memory import free_memory
from benchmarks.gpu.stage import Row, Setting, Size, SkippedError
from benchmarks.gpu.steps import listed
from benchmarks.gpu.trained_draft import TRAINING, trained_draft, within
from benchmarks.gpu.vllm_engine import Engine, running
from benchmarks.gpu.vllm_steps import REPLY_S, common_kwargs, require_vllm
from eval.acceptance.estimates import Resampling
from eval.acceptance.paired_ratios import paired_ratio_quotient
from eval.certificate.replayed import own_tokens, replay_text
from eval.models.loading import load_model

K = 3
RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
FORMS = ("whole", "own-tokenizer")  # of `widedraft convert`: all token ids; a tokenizer that has only the draft's
BATCHES, PROMPTS = (1, 8), 48
REPEATS, NEW_TOKENS = {"full": 5, "laptop": 5, "tiny": 1}, {"full": 64, "laptop": 64, "tiny": 8}
START_S = 240.0


def rows(setting: Setting) -> Iterator[Row]:
    """The training run, then a row for each way to decode and batch size.

    Raises:
        SkippedError: If the target was not carried, or time is too short to train.
        EngineError: If an engine does not start.
    """
    require_vllm()
    if not (setting.target / "config.json").is_file():
        raise SkippedError(f"{setting.target}: no target there")
    work = setting.work / "forms"
    trained = trained_draft(setting, within(TRAINING[setting.size], setting))
    yield trained.row
    free_memory()
    ways: dict[str, Row | None] = {
        "plain": None,
        "n-gram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    }
    for form in FORMS:
        shutil.rmtree(work / form, ignore_errors=True)
        convert_draft(trained.draft, work / form, form)
        draft = {"method": "draft_model", "model": str(work / form)}
        ways[form] = draft | {"use_heterogeneous_vocab": form == "own-tokenizer"}
    longest = 512 - NEW_TOKENS[setting.size] - K
    prompts = [ids for ids in trained.held_out() if len(ids) <= longest][:PROMPTS]
    kwargs = {way: pair_kwargs(setting, speculative) for way, speculative in ways.items()}
    with running(kwargs, setting.out / "vllm-logs") as engines:
        facts = {way: engine.reply(min(START_S, setting.left_s)) for way, engine in engines.items()}
        for batch in [batch for batch in BATCHES if batch <= len(prompts)]:
            groups = [prompts[start : start + batch] for start in range(0, len(prompts) - batch + 1, batch)]
            runs = decode_in_turn(engines, groups, setting.size)
            for way in ways:
                replayed = replay(setting, work / way, groups, runs["plain"]) if batch == 1 and way in FORMS else {}
                yield (
                    {"way": way, "batch": batch, "k": K * (way != "plain")}
                    | compared(runs, way)
                    | replayed
                    | facts[way]
                )


def pair_kwargs(setting: Setting, speculative: Row | None) -> Row:
    """Arguments of `vllm.LLM`."""
    kwargs = common_kwargs(setting) | {
        "model": str(setting.target),
        "max_model_len": 512,
        "max_num_seqs": max(BATCHES),
        "kv_cache_memory_bytes": 2**29,
    }
    return (
        kwargs if speculative is None else kwargs | {"speculative_config": speculative | {"num_speculative_tokens": K}}
    )


def decode_in_turn(
    engines: Mapping[str, Engine], groups: Sequence[list[list[int]]], size: Size
) -> dict[str, list[list[Row]]]:
    """Every group by every engine, repetition after repetition; [way][group] holds the repetitions."""
    runs: dict[str, list[list[Row]]] = {way: [[] for _ in groups] for way in engines}
    for repeat in range(REPEATS[size] + 1):  # the first one warms up
        for number, group in enumerate(groups):
            for way, engine in engines.items():
                run = engine.decode(group, NEW_TOKENS[size], REPLY_S)
                if repeat:
                    runs[way][number].append(run)
    return runs


def compared(runs: Mapping[str, list[list[Row]]], way: str) -> Row:
    """Speed of a way, prefill included, and its speedup over plain decoding; groups are the units of the interval."""
    seconds = {
        name: np.array([median(run["seconds"] for run in each) for each in runs[name]]) for name in (way, "plain")
    }
    ones = np.ones(len(seconds[way]))
    speedup = paired_ratio_quotient((seconds["plain"], ones), (seconds[way], ones), RESAMPLING)
    last = [each[-1] for each in runs[way]]
    tokens = sum(len(ids) for run in last for ids in run["token_ids"])
    drafts = sum(run["drafts"] for run in last)
    texts = [(run["token_ids"], plain[-1]["token_ids"]) for run, plain in zip(last, runs["plain"], strict=True)]
    return {
        "tokens_per_s": tokens / float(seconds[way].sum()),
        "speedup": speedup.value,
        "interval": listed(speedup),
        "acceptance_length": 1 + sum(run["accepted"] for run in last) / drafts if drafts else 1.0,
        "accepted_per_position": added([run["accepted_per_position"] for run in last if run["accepted_per_position"]]),
        "equal_texts": sum(ours == plain for ours, plain in texts),
        "groups": len(texts),
        "repeats": len(runs[way][0]),
    }


def replay(setting: Setting, draft: object, groups: Sequence[list[list[int]]], plain: list[list[Row]]) -> Row:
    """Accepted tokens per position that replay predicts for the texts of plain decoding, first tokens left out."""
    model = load_model(draft, dtype=common_kwargs(setting)["dtype"], device=str(setting.device))
    own = own_tokens(setting.target, draft)
    texts = [(prompt, run[-1]["token_ids"][0]) for [prompt], run in zip(groups, plain, strict=True)]
    counts = [replay_text(model, [*prompt, *ids[:1]], ids[1:], K, own) for prompt, ids in texts]
    return {"replayed_per_position": added([each.accepted for each in counts])}


def added(lists: Sequence[Sequence[float]]) -> list[int]:
    return [round(sum(values)) for values in zip(*lists, strict=True)]
