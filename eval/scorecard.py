"""Score drafts against their target: record the target's responses, measure, write the scorecard.

Writes into one directory: scorecard.json (eval/scorecard_schema.py), scorecard.md, responses/, examples.json (texts of
wall-clock decoding, each token with its writer), and latency.json (step times at other batches).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from architectures.console import markdown
from architectures.files import write_text
from architectures.manifest import fingerprint_value
from architectures.settings import WHOLE, Holding
from architectures.sharing import ALONE, Share
from eval import scorecard_schema as schema
from eval.acceptance_rates import (
    Responses,
    acceptance_row,
    difference_row,
    prompt_limit,
    record_responses,
    replay_drafts,
    require_fitting,
)
from eval.config import EvalConfig
from eval.decoding.generate import Kind
from eval.decoding.kv_cache import takes_rows
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import LookupFirst, NgramLookup
from eval.intervals import CONFIDENCE, NUM_RESAMPLES, RATIO_INTERVALS, Resampling
from eval.large_targets import load_target
from eval.latency import Grid, Setting, lack_of_memory, measure_grid, measure_latency
from eval.machine import share_threads, torch_threads
from eval.models import load_model, load_tokenizer, model_facts, require_same_tokenizer, stop_token_ids
from eval.prompts import Prompt, tasks_record
from eval.replay import DraftScore, ReplayCounts, ReplayedDraft, replay_counts, replay_pair, rule_name, tau
from eval.responses import Trace
from eval.scorecard_tables import find_warnings, scorecard_page
from eval.side_by_side import write_examples
from eval.speedup import StepTimes, best_k, break_even_alpha, predicted_speedup
from eval.wall_clock import DRAFT, LiveResponse, LiveWay, best_lookup, compare_with_replay, decode_live, live_record

GRID_NAME, EXAMPLES_NAME = "latency.json", "examples.json"


@dataclass(frozen=True)
class Replayed:
    """A target and its drafts by name, its responses, and every draft replayed along them; both by temperature."""

    target: PreTrainedModel
    drafts: Mapping[str, PreTrainedModel]
    responses: Mapping[float, Responses]
    along: Mapping[float, Sequence[ReplayedDraft]]

    @property
    def primary(self) -> str:
        return list(self.drafts)[-1]


def score_drafts(
    target: Path,
    drafts: Mapping[str, Path],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    out: Path,
    *,
    seed: int,
    generated_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
    on_stream: tuple[schema.StreamRow, ...] = (),
) -> schema.Scorecard:
    """Score drafts of one target on the same prompts, and write everything into a directory.

    Args:
        drafts: Directories of the drafts by name: baselines first, last the one that the scorecard is about.
        prompts: The first config.num_prompts of them are used.
        out: Directory of the scorecard and of the target's responses, which a rerun reads again.
        seed: Of sampled responses, resampling, and the order of timed steps.
        share: This process's part of responses and replays; only the first process measures times.
        on_stream: Acceptance of an online draft and its baselines on the requests that it served.

    Raises:
        UserError: If target and draft do not fit together, or no prompt is short enough.
    """
    for draft in drafts.values():
        require_same_tokenizer(target, draft)
    used = prompts[: config.num_prompts]
    longest = prompt_limit(config, [target, *drafts.values()], used)
    config = config.model_copy(update={"max_prompt_len": longest})

    with torch_threads(share_threads(share)):
        # Responses of the target, at every temperature.
        how = {"seed": seed, "generated_by": generated_by, "holding": holding, "share": share}
        responses = {t: record_responses(target, used, config, out, temperature=t, **how) for t in config.temperatures}
        require_fitting([target, *drafts.values()], responses, out, config)

        # Exact acceptance of every draft along them.
        target_model = load_target(target, dtype=config.dtype, holding=holding)
        models = {name: load_model(folder, dtype=config.dtype) for name, folder in drafts.items()}
        along = {
            t: replay_drafts(target_model, models, group, sampling=Sampling.of(t, config.sampling), share=share)
            for t, group in responses.items()
        }
    replayed = Replayed(target_model, models, responses, along) if share.leads else None
    del target_model, models

    if share.count > 1:
        print(f"   one of {share.count} processes measures step times and speedups; the others wait", flush=True)

    def measured() -> schema.Scorecard:
        assert replayed is not None, "of the first process"
        with torch_threads(None):
            card = measure(replayed, target, drafts, prompts, config, out=out, seed=seed, holding=holding)
        card = card.model_copy(update={"on_stream": on_stream})
        write_text(f"{markdown(scorecard_page(card))}\n", out / "scorecard.md")
        schema.write_record(card, out / schema.CARD_NAME)
        return card

    return share.lead(measured)


def measure(
    replayed: Replayed,
    target: Path,
    drafts: Mapping[str, Path],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    *,
    out: Path,
    seed: int,
    holding: Holding,
) -> schema.Scorecard:
    """Time steps, decode, and assemble the scorecard; writes latency.json and examples.json."""
    resampling = Resampling(CONFIDENCE, NUM_RESAMPLES, seed)
    responses, primary = replayed.responses, replayed.primary

    # Acceptance of every draft at every temperature, by every method; the last draft minus each of the others.
    replays = [draft for group in replayed.along.values() for draft in group]
    scores = [draft.scores(config.num_speculative_tokens) for draft in replays]
    acceptance = [
        acceptance_row(by_rule, draft.parted_scores(config.num_speculative_tokens), resampling)
        for draft, by_rule in zip(replays, scores, strict=True)
    ]
    differences = [
        difference_row(ours, theirs, resampling)
        for ours in scores
        for theirs in scores
        if ours[0].draft == primary != theirs[0].draft and ours[0].temperature == theirs[0].temperature
    ]

    # Step times at batch 1, after a sequence of median length, and the speedups that they predict.
    text = typical_context(next(iter(responses.values())).traces)
    latency = measure_latency(
        {schema.TARGET: replayed.target, **replayed.drafts},
        Setting(text),
        ks=config.num_speculative_tokens,
        repeats=config.latency_repeats,
        resampling=resampling,
    )
    speedups = [speedup_row(score, latency.step_times(score.draft)) for score, *_ in scores]

    # Wall-clock decoding at every temperature, greedy first.
    decoded = [
        measure_live(replayed, score, row, latency.step_times(primary), config=config, resampling=resampling)
        for (score, *_), row in zip(scores, speedups, strict=True)
        if score.draft == primary
    ]
    decoded.sort(key=lambda each: each[0].temperature != 0)

    # Step times at other batches.
    pair = {schema.TARGET: replayed.target, primary: replayed.drafts[primary]}
    grid, left_out = measure_batches(pair, text, config, resampling)

    placement = None if holding.placement == "whole" else holding.placement
    card = schema.Scorecard(
        warnings=(),
        target=schema.ScoredModel(**model_facts(target, replayed.target), bits=holding.bits, placement=placement),
        drafts=tuple(
            schema.DraftModel(draft=name, **model_facts(drafts[name], replayed.drafts[name])) for name in drafts
        ),
        prompts=prompts_section(prompts, responses, config),
        settings=schema.Settings.of(
            config,
            resampling,
            threads=torch.get_num_threads(),
            device=str(replayed.target.device),
            speedup_intervals=RATIO_INTERVALS,
        ),
        acceptance=tuple(acceptance),
        differences=tuple(differences),
        latency=latency,
        speedup=tuple(speedups),
        lives=tuple(live for live, _ in decoded),
        provenance=schema.Provenance.of_this_process(),
    )
    shown = decoded[0][1]
    write_examples(
        out / EXAMPLES_NAME,
        [trace for _, trace in responses[card.live.temperature].first_turns()[: len(shown)]],
        [response.speculative for response in shown],
        load_tokenizer(target),
        target=card.target.fingerprint,
        draft=card.drafts[-1].fingerprint,
    )
    write_grid(grid, card, out)
    return card.model_copy(update={"warnings": (*find_warnings(card), *left_out)})


def typical_context(traces: Sequence[Trace]) -> list[int]:
    """Return prompt and half of the response of the sequence with the median length."""
    texts = sorted(
        ([*trace.prompt_ids, *trace.response_ids[: len(trace.response_ids) // 2]] for trace in traces), key=len
    )
    return texts[len(texts) // 2]


def measure_live(
    replayed: Replayed,
    score: DraftScore,
    predicted: schema.SpeedupRow,
    steps: StepTimes,
    *,
    config: EvalConfig,
    resampling: Resampling,
) -> tuple[schema.Live, list[LiveResponse]]:
    """Decode some prompts in every way, draft and prompt lookup each at its best number of speculative tokens."""
    draft, responses = replayed.drafts[score.draft], replayed.responses[score.temperature]
    k, sampling = predicted.best_k, Sampling.of(score.temperature, config.sampling)
    texts = [(trace.prompt_ids, trace.response_ids) for trace in responses.traces]
    looked_up = best_lookup(texts, steps, max_new_tokens=config.max_new_tokens)
    ways = {
        DRAFT: LiveWay(draft, k),
        schema.LOOKUP: LiveWay(NgramLookup(), looked_up),
        schema.LOOKUP_THEN_DRAFT: LiveWay(draft, k, LookupFirst()),
    }
    chosen = responses.first_turns()[: config.wall_clock_prompts]
    decoded = decode_live(
        replayed.target,
        ways,
        [trace for _, trace in chosen],
        max_new_tokens=config.max_new_tokens,
        stop_ids=stop_token_ids(replayed.target),
        sampling=sampling,
        seed=resampling.seed,
    )

    # Greedy texts were replayed already; sampled ones are replayed along the texts just generated.
    if sampling.is_greedy:
        expected: list[ReplayCounts] = [score.responses[index].counts[k] for index, _ in chosen]
    else:
        rule = rule_name(sampling.temperature)
        expected = []
        for response, (_, trace) in zip(decoded, chosen, strict=True):
            ids = response.speculative.token_ids
            replay = replay_pair(replayed.target, draft, trace.prompt_ids, ids, sampling=sampling)
            expected.append(replay_counts(replay.rules[rule].accept, num_speculative_tokens=k))
    agreement = compare_with_replay(decoded, expected, is_greedy=sampling.is_greedy)
    live = live_record(
        score.draft,
        decoded,
        ways,
        agreement,
        temperature=sampling.temperature,
        predicted=predicted.predicted,
        resampling=resampling,
    )
    return live, decoded


def speedup_row(score: DraftScore, times: StepTimes) -> schema.SpeedupRow:
    rows = tuple(forecast(score, k, times) for k in score.ks)
    return schema.SpeedupRow(
        draft=score.draft,
        temperature=score.temperature,
        rule=score.rule,
        cost_ratio=times.cost_ratio,
        best_k=best_k({row.num_speculative_tokens: row.predicted for row in rows}),
        by_k=rows,
    )


def forecast(score: DraftScore, num_speculative_tokens: int, times: StepTimes) -> schema.Forecast:
    counts = score.pooled(num_speculative_tokens)
    full_rate, tokens_per_step = counts.fully_accepted_steps / counts.steps, tau(counts)
    return schema.Forecast(
        num_speculative_tokens=num_speculative_tokens,
        predicted=predicted_speedup(tokens_per_step, full_rate, num_speculative_tokens, times),
        break_even_alpha=break_even_alpha(num_speculative_tokens, times),
    )


def prompts_section(
    prompts: Sequence[Prompt], responses: Mapping[float, Responses], config: EvalConfig
) -> schema.Prompts:
    taken = prompts[: config.num_prompts]
    [first, *_] = responses.values()
    num_scored = len(set(first.prompt_numbers))
    return schema.Prompts(
        given=len(prompts),
        taken=len(taken),
        too_long=len(taken) - num_scored,
        scored=num_scored,
        tasks=tuple(schema.TaskRow(**task) for task in tasks_record(taken)),
        sources=tuple(trace.source for _, trace in first.first_turns()),
        ids_sha256=fingerprint_value([list(trace.prompt_ids) for _, trace in first.first_turns()]),
        responses=tuple(
            schema.ResponsesRow(
                temperature=temperature,
                responses=len(group.traces),
                tokens=sum(len(trace.response_ids) for trace in group.traces),
                stopped=sum(trace.finish_reason == "stop" for trace in group.traces),
                longest=max(len(trace.token_ids) for trace in group.traces),
                ids_sha256=fingerprint_value([list(trace.response_ids) for trace in group.traces]),
            )
            for temperature, group in responses.items()
        ),
    )


def measure_batches(
    models: Mapping[str, PreTrainedModel], text_ids: Sequence[int], config: EvalConfig, resampling: Resampling
) -> tuple[tuple[schema.GridCell, ...] | None, list[str]]:
    """Time steps at every batch that fits.

    Returns:
        The cells, None if there are no batches; and a warning for each batch that was left out.
    """
    problems = {
        batch: lack_of_memory(models, batch=batch, context=len(text_ids)) for batch in config.latency_batch_sizes
    }
    if not all(takes_rows(model) for model in models.values()):
        problems |= {batch: "this model type decodes one sequence at a time." for batch in problems if batch > 1}
    warnings = [f"Steps at batch {batch} were not timed: {why}" for batch, why in problems.items() if why is not None]
    batches = [batch for batch, why in problems.items() if why is None]
    if not batches:
        return None, warnings
    # Both ends and the powers of 2 show which number of speculative tokens is best for a batch.
    ends = {config.num_speculative_tokens[0], config.num_speculative_tokens[-1]}
    ks = sorted(ends | {k for k in config.num_speculative_tokens if k.bit_count() == 1})
    grid = Grid(batches, (len(text_ids),), ks, max(2, config.latency_repeats // 4), prefill=False)
    return measure_grid(models, text_ids, grid, resampling), warnings


def write_grid(grid: tuple[schema.GridCell, ...] | None, card: schema.Scorecard, out: Path) -> None:
    """Write latency.json next to a scorecard, or remove an outdated one."""
    if grid is None:
        (out / GRID_NAME).unlink(missing_ok=True)
        return
    device = card.settings.device
    models = {
        schema.TARGET: schema.GridModel(**vars(card.target), device=device),
        card.primary: schema.GridModel(**card.drafts[-1].model_dump(exclude={"draft"}), device=device),
    }
    file = schema.GridFile(models=models, threads=card.settings.threads, cells=grid, provenance=card.provenance)
    schema.write_record(file, out / GRID_NAME)
