"""Records of few figures, for tests that read them."""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from eval.benchmark import DRAFT, BenchmarkFile, MethodRow
from eval.intervals import Estimate
from eval.scorecard_schema import (
    AcceptanceRow,
    Agreement,
    DraftModel,
    DraftSteps,
    Forecast,
    Hardware,
    Live,
    Mean,
    ModelIdentity,
    Percentile,
    Position,
    Prompts,
    PromptSums,
    Provenance,
    Ratio,
    ResponsesRow,
    Scorecard,
    ScoredLatency,
    ScoredModel,
    Settings,
    SpeedupRow,
    Spent,
    SpentByBoth,
    StepCounts,
    StepsAtK,
    StepsByPrompt,
    StepTime,
    VerifyStep,
)

NOTHING = Ratio(None, None)


def changed(record: Any, **values: Any) -> Any:
    """A record with other values; `live__speedup` is a field of a field, `speedup__0__best` of one in a row."""
    for path, value in values.items():
        record = changed_at(record, path.split("__"), value)
    return record


def changed_at(record, path, value):
    if not path:
        return value
    name, *rest = path
    if isinstance(record, tuple):
        place = int(name) % len(record)
        return (*record[:place], changed_at(record[place], rest, value), *record[place + 1 :])
    update = {name: changed_at(getattr(record, name), rest, value)}
    return record.model_copy(update=update) if isinstance(record, BaseModel) else replace(record, **update)


def percentiles(median_ms, wide_ms=None):
    """A step whose median has an interval that reaches so far to either side."""
    interval = None if wide_ms is None else (median_ms - wide_ms, median_ms + wide_ms)
    near = Percentile(median_ms, None)
    return {"p10_ms": near, "p50_ms": Estimate(median_ms, interval), "p90_ms": near}


def latency(target_ms, verify_ms, drafts, wide_ms=0.0):
    """Steps of a target, of its verification by num_speculative_tokens, and of drafts: (one token, two) by name."""
    return ScoredLatency(
        batch=1,
        context_tokens=9,
        repeats=9,
        warm_up_repeats=20,
        settled=True,
        target=StepTime(**percentiles(target_ms, wide_ms)),
        verify=tuple(VerifyStep(num_speculative_tokens=at, **percentiles(ms, wide_ms)) for at, ms in verify_ms.items()),
        drafts=tuple(
            DraftSteps(
                draft=name,
                cost_ratio=one_ms / target_ms,
                one_token=StepTime(**percentiles(one_ms, wide_ms)),
                two_tokens=StepTime(**percentiles(two_ms, wide_ms)),
            )
            for name, (one_ms, two_ms) in drafts.items()
        ),
    )


def steps_at(num_speculative_tokens, counts, tokens):
    """Rounds of prompts, none of which kept everything."""
    total, emitted = sum(counts), sum(tokens)
    place = Position(
        position=1,
        possible=total,
        reached=total,
        accepted=0,
        joint=Estimate(0.0, None),
        conditional=NOTHING,
    )
    return StepsAtK(
        num_speculative_tokens=num_speculative_tokens,
        steps=total,
        proposed=total,
        accepted=0,
        emitted=emitted,
        fully_accepted=0,
        histogram=(total,),
        tau=Estimate(emitted / total, None),
        utilisation=NOTHING,
        positions=(place,),
    )


def acceptance(draft, temperature, counts_by_k, tokens, *, alpha=0.5, interval=None, changed=0):
    """A row of acceptance from the steps and tokens of every prompt."""
    mean = Mean(alpha, interval, sum=alpha * sum(tokens), tokens=sum(tokens))
    return AcceptanceRow(
        draft=draft,
        temperature=temperature,
        rule=f"rule {temperature:g}",
        responses=len(tokens),
        prompts=len(tokens),
        alpha=mean,
        alpha_of_text=mean,
        greedy_match=mean,
        coverage=None,
        target_changed_tokens=changed,
        by_k=tuple(steps_at(at, counts, tokens) for at, counts in counts_by_k.items()),
        other_rules=(),
        bins=(),
        by_prompt=PromptSums(
            tokens=tuple(tokens),
            alpha=tuple(tokens),
            greedy_match=tuple(tokens),
            steps=tuple(
                StepsByPrompt(num_speculative_tokens=at, counts=tuple(counts)) for at, counts in counts_by_k.items()
            ),
        ),
    )


def speedup(draft, temperature, predicted, best, ks, break_even=None):
    """What an acceptance is worth, the same at every num_speculative_tokens."""
    entries = tuple(Forecast(num_speculative_tokens=at, predicted=predicted, break_even_alpha=break_even) for at in ks)
    return SpeedupRow(
        draft=draft,
        temperature=temperature,
        rule="rule",
        cost_ratio=0.1,
        best_k=best,
        by_k=entries,
    )


def live(draft="draft", num_speculative_tokens=3, *, value=1.12, interval=(1.05, 1.2), exact=True):
    """Four prompts decoded live; loop and replay are told apart by their counts."""
    spent = {"tokens": 10, "prefill_s": 1.0, "decode_s": 2.0}
    return Live(
        draft=draft,
        temperature=0.0,
        num_speculative_tokens=num_speculative_tokens,
        prompts=4,
        speedup=Estimate(value, interval),
        decoding_speedup=Estimate(1.5, (1.25, 1.75)),
        predicted_decoding_speedup=1.5,
        plain=Spent(**spent, ms_per_token=20.5),
        speculative=SpentByBoth(**spent, ms_per_token=18.0, draft_s=0.5, verify_s=1.5),
        agreement=Agreement(
            exact=exact,
            same_text=3,
            same_as_recorded=2,
            same_counts=1,
            loop=StepCounts(steps=10.0, accepted=5.0, proposed=20.0),
            replay=StepCounts(steps=9.0, accepted=6.0, proposed=20.0),
        ),
        ways=(),
        over_lookup=(),
    )


LIVE = live()


def settings(**changes):
    found = {
        "confidence": 0.95,
        "num_resamples": 100,
        "seed": 17,
        "dtype": "float32",
        "device": "cpu",
        "threads": 2,
        "intervals": "bootstrap",
        "max_new_tokens": 8,
        "max_prompt_len": 100,
        "batch_size": 2,
    }
    return Settings(**{**found, **changes})


def scorecard(rows, steps, speedups, *, live=None, scored=6, **changes):
    """A scorecard of these sections; a verdict and warnings by `changes`."""
    model = {"path": "m", "fingerprint": "f", "layers": 2, "hidden": 8, "parameters": 9, "dtype": "float32"}
    found = {
        "warnings": (),
        "target": ScoredModel(**model),
        "drafts": tuple(DraftModel(draft=one.draft, **model) for one in steps.drafts),
        "prompts": Prompts(
            given=scored,
            taken=scored,
            too_long=0,
            scored=scored,
            tasks=(),
            sources=tuple(f"p.jsonl:{n}" for n in range(len(rows[0].by_prompt.tokens))),
            ids_sha256="i",
            responses=tuple(
                ResponsesRow(temperature=at, responses=1, tokens=1, stopped=0, ids_sha256="i")
                for at in dict.fromkeys(row.temperature for row in rows)
            ),
        ),
        "settings": settings(),
        "acceptance": tuple(rows),
        "differences": (),
        "latency": steps,
        "speedup": tuple(speedups),
        "lives": (live or LIVE,),
        "provenance": Provenance(
            argv=(),
            created="",
            git_commit=None,
            python="3.11",
            versions={},
            hardware=Hardware(processor="Abacus 9", cores=2, memory_gib=1.0, accelerators=("Beads 2",)),
        ),
    }
    return Scorecard(**{**found, **changes})


def engine_benchmark(target: str, draft: str, *, engine: str = "vllm 0.32.0") -> BenchmarkFile:
    """Of a draft next to a local directory of its name, 1.53 times as fast; target and draft are fingerprints."""
    row = MethodRow(
        method=DRAFT,
        draft="draft /home/me/drafts/own",
        num_speculative_tokens=3,
        tokens=100,
        tokens_per_s=61.2,
        speedup=Estimate(1.53, (1.41, 1.66)),
        decode_speedup=None,
        ttft_ms=12.0,
        tpot_ms=3.4,
        acceptance_length=2.0,
        accepted_by_position=(0.6, 0.3, 0.1),
        step_ms=None,
        concurrency=8,
    )
    return BenchmarkFile(
        target=ModelIdentity("target", target, "bfloat16"),
        drafts={"draft": ModelIdentity("own", draft, "bfloat16")},
        settings={},
        engine=engine,
        prompts={8: 96},
        rows=(row,),
        best=(),
        confidence=0.95,
        threads=1,
        provenance=Provenance.of_this_process(),
    )
