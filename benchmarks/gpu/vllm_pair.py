"""A real pair in vLLM: SmolLM2-135M-Instruct and a draft distilled on the device, with n-gram and plain decoding."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import median

import numpy as np

from architectures.convert import convert_draft
from benchmarks.gpu.stage import Row, Setting, SkippedError, free_memory
from benchmarks.gpu.steps import listed
from benchmarks.gpu.trained_draft import TRAINING, trained_draft, within
from benchmarks.gpu.vllm_engine import Engine, running
from benchmarks.gpu.vllm_steps import PLAIN, REPLY_S, common_kwargs, noted, require_vllm
from eval.engines.runs import own_tokens, replay_text
from eval.intervals import Resampling, paired_ratio_quotient
from eval.models import load_model

K = 3
RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
FORMS = ("whole", "own-tokenizer")  # of `widedraft export --form`: all token ids; a tokenizer that has only the draft's
BATCHES, PROMPTS = (1, 8), 24
REPEATS, NEW_TOKENS = {"full": 5, "laptop": 5, "tiny": 1}, {"full": 64, "laptop": 64, "tiny": 8}
START_S = {"full": 150.0, "laptop": 600.0, "tiny": 600.0}  # of all engines together


def rows(setting: Setting) -> Iterator[Row]:
    """The training run, then a row for each way to decode and batch size.

    Raises:
        SkippedError: If the target was not carried, or time is too short to train.
        RuntimeError: If an engine failed; its row has the last lines of its log.
    """
    require_vllm()
    if not (setting.target / "config.json").is_file():
        raise SkippedError(f"{setting.target}: no target there")
    work = setting.work / "forms"
    trained = trained_draft(setting, within(TRAINING[setting.size], setting))
    yield trained.row
    free_memory()
    ways: dict[str, Row | None] = {
        PLAIN: None,
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
    end_s = time.monotonic() + min(START_S[setting.size], setting.left_s)
    failed: dict[str, str] = {}
    with running(kwargs, setting.out / "vllm-logs") as engines:
        facts: dict[str, Row] = {}
        for way, engine in engines.items():
            with noted(way, failed):
                facts[way] = engine.reply(end_s - time.monotonic())
        for batch in [batch for batch in BATCHES if batch <= len(prompts)]:
            groups = [prompts[start : start + batch] for start in range(0, len(prompts) - batch + 1, batch)]
            runs = decode_in_turn({way: engines[way] for way in facts}, groups, setting, failed)
            for way in runs if PLAIN in runs else ():
                replayed = replay(setting, work / way, groups, runs[PLAIN]) if batch == 1 and way in FORMS else {}
                cell = {"way": way, "batch": batch, "k": K * (way != PLAIN)}
                yield cell | compared(runs, way) | replayed | facts[way]
    yield from ({"way": way, "failed": reason} for way, reason in failed.items())
    if failed:
        raise RuntimeError(f"vLLM failed: {', '.join(failed)}")


def pair_kwargs(setting: Setting, speculative: Row | None) -> Row:
    """Arguments of `vllm.LLM`."""
    kwargs = common_kwargs(setting) | {
        "model": str(setting.target),
        "max_model_len": 512,
        "max_num_seqs": max(BATCHES),
        "kv_cache_memory_bytes": 2**29,
    }
    if speculative is not None:
        kwargs["speculative_config"] = speculative | {"num_speculative_tokens": K}
    return kwargs


def decode_in_turn(
    engines: Mapping[str, Engine], groups: Sequence[list[list[int]]], setting: Setting, failed: dict[str, str]
) -> dict[str, list[list[Row]]]:
    """Every group by every engine, repetition after repetition while time is left; [way][group] holds repetitions."""
    runs: dict[str, list[list[Row]]] = {way: [[] for _ in groups] for way in engines if way not in failed}
    start_s = time.monotonic()
    for repeat in range(REPEATS[setting.size] + 1):  # the first one warms up
        if repeat > 1 and setting.left_s < 1.5 * (time.monotonic() - start_s) / repeat:
            break
        for number, way in product(range(len(groups)), engines):
            if way not in failed:
                with noted(way, failed):
                    run = engines[way].decode(groups[number], NEW_TOKENS[setting.size], REPLY_S)
                    runs[way][number] += [run] * (repeat > 0)
    return {way: each for way, each in runs.items() if way not in failed}


def compared(runs: Mapping[str, list[list[Row]]], way: str) -> Row:
    """Speed of a way, prefill included, and its speedup over plain decoding; groups are the units of the interval."""
    seconds = {name: np.array([median(run["seconds"] for run in each) for each in runs[name]]) for name in (way, PLAIN)}
    ones = np.ones(len(seconds[way]))
    speedup = paired_ratio_quotient((seconds[PLAIN], ones), (seconds[way], ones), RESAMPLING)
    last = [each[-1] for each in runs[way]]
    tokens = sum(len(ids) for run in last for ids in run["token_ids"])
    accepted = sum(run["accepted"] for run in last)
    drafted = tokens - sum(len(run["token_ids"]) for run in last)  # the first token of each text is the prefill's
    texts = [(run["token_ids"], plain[-1]["token_ids"]) for run, plain in zip(last, runs[PLAIN], strict=True)]
    return {
        "tokens_per_s": tokens / float(seconds[way].sum()),
        "speedup": speedup.value,
        "interval": listed(speedup),
        "acceptance_length": drafted / (drafted - accepted),
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
    return {"replayed_per_position": added([each.by_position or () for each in counts])}


def added(lists: Sequence[Sequence[float]]) -> list[int]:
    return [round(sum(values)) for values in zip(*lists, strict=True)]
