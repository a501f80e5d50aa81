"""Score drafts against their target: record the target's answers, replay the drafts, time the steps, decode live.

Writes scorecard.json (schema widedraft.scorecard/2, every field explained in docs/scoring.md) and scorecard.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from architectures.atomic import write_json, write_text
from architectures.draft_vocabulary.head import head_ids
from architectures.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.manifest import provenance
from architectures.progress import track
from eval import paired_ratios
from eval.acceptance import INTERVALS, Resampling
from eval.bins import ReplayedAnswer
from eval.config import EvalConfig
from eval.latency.floor import byte_ratio
from eval.latency.machine import torch_threads
from eval.latency.measure import Latency, measure_latency, timing_ticks
from eval.latency.steps import TARGET, Setting
from eval.live import compare_with_replay, decode_live, live_run
from eval.models import load_model, require_positions, require_same_tokenizer, shared_vocab_size, stop_token_ids
from eval.replay import answer_logits, replay_answer
from eval.rounds.round_trace import Run
from eval.scorecard.acceptance_record import acceptance_record, comparison_record
from eval.scorecard.answers import Answers, context_of, longest_text, record_answers, require_rows_of
from eval.scorecard.beside import write_beside
from eval.scorecard.grid import measure_batches, write_grid
from eval.scorecard.page import scorecard_page
from eval.scorecard.record import Record, latency_record, live_record, speedup_record
from eval.scorecard.scores import DraftScore, ReplayedDraft
from eval.scorecard.verdict import find_warnings, verdict
from eval.tasks.forms import Prompt
from eval.tasks.prompts import tasks_record

SCHEMA = "widedraft.scorecard/2"


def score_drafts(
    target: Path, drafts: Mapping[str, Path], prompts: Sequence[Prompt], config: EvalConfig, out: Path, *, seed: int
) -> dict[str, Any]:
    """Score drafts of one target on the same prompts; write out/scorecard.json, its page and what is beside it.

    Args:
        target: Folder of the model that decides every token.
        drafts: Folders of its drafts by name. The last one is decoded live, and every other is compared with it.
        prompts: What the target is asked; the first config.max_prompts of them are used.
        config: How to score.
        out: Folder for these files, and for the target's answers, which a rerun reads again.
        seed: Of sampled answers, resampling, and the order of what is timed.

    Returns:
        What scorecard.json holds.

    Raises:
        UserError: If target and draft do not fit together, or no prompt is short enough.
    """
    for draft in drafts.values():
        require_same_tokenizer(target, draft)
    taken = prompts[: config.max_prompts]
    with torch_threads(config.num_threads) as num_threads:
        answers = {t: record_answers(target, taken, config, out, temperature=t, seed=seed) for t in config.temperature}
        for folder in (target, *drafts.values()):
            require_positions(folder, longest_text(answers))
        require_rows_of([target, *drafts.values()], answers, out)
        pair = Pair(
            load_model(target, dtype=config.dtype),
            {name: load_model(folder, dtype=config.dtype) for name, folder in drafts.items()},
        )
        resampling = Resampling(config.confidence, config.num_resamples, seed)
        measured, run = measure(pair, answers, config, resampling)
        grid, left_out = measure_batches(pair.target_and_primary, context_of(answers), config, resampling)
        scorecard = {
            "schema": SCHEMA,
            "verdict": "",
            "warnings": [],
            "target": model_record(target, pair.target),
            "drafts": [{"draft": name, **model_record(drafts[name], pair.drafts[name])} for name in drafts],
            "prompts": prompts_record(prompts, answers, config),
            "settings": {
                **config.model_dump(mode="json"),
                "seed": seed,
                "threads": num_threads,
                "device": pair.device,
                "intervals": INTERVALS,
                "speedup_intervals": paired_ratios.INTERVALS,
            },
            **measured,
            "provenance": provenance(),
        }
        write_beside(scorecard, run, answers[0.0].first_turns() if run else [], out)
        write_grid(grid, scorecard, out)
    scorecard["warnings"] = find_warnings(scorecard) + left_out
    scorecard["verdict"] = verdict(scorecard)
    write_text(scorecard_page(scorecard), out / "scorecard.md")
    write_json(scorecard, out / "scorecard.json")
    return scorecard


@dataclass(frozen=True)
class Pair:
    """The target and its drafts, loaded."""

    target: PreTrainedModel
    drafts: Mapping[str, PreTrainedModel]

    @property
    def device(self) -> str:
        """Where they all are."""
        return str(self.target.device)

    @property
    def primary(self) -> str:
        """The draft that is decoded live: the last."""
        return list(self.drafts)[-1]

    @property
    def target_and_primary(self) -> dict[str, PreTrainedModel]:
        """The models of live decoding, by the names that steps have."""
        return {TARGET: self.target, self.primary: self.drafts[self.primary]}


def measure(
    pair: Pair, answers: Mapping[float, Answers], config: EvalConfig, resampling: Resampling
) -> tuple[Record, Run | None]:
    """The measured sections of a scorecard, and what was decoded live."""
    first, last = config.lookahead
    lookaheads = range(first, last + 1)
    replayed = [draft for t in answers for draft in replay_drafts(pair, answers[t], temperature=t)]
    by_rule = [draft.scores(lookaheads) for draft in replayed]
    scores = [leading for leading, *_ in by_rule]
    latency = measure_latency(
        pair.target,
        pair.drafts,
        Setting(context_of(answers)),
        lookaheads=lookaheads,
        repetitions=timing_ticks(config.latency_repeats),
        resampling=resampling,
    )
    forecasts = [forecast(pair, score, latency) for score in scores]
    live = run = None
    if 0.0 in answers:
        [greedy] = [place for place, one in enumerate(scores) if one.draft == pair.primary and one.temperature == 0]
        live, run = measure_live(
            pair, answers[0.0], scores[greedy], promised=forecasts[greedy], config=config, resampling=resampling
        )
    record = {
        "acceptance": [
            acceptance_record(rules, draft.parted_scores(lookaheads), resampling)
            for draft, rules in zip(replayed, by_rule, strict=True)
        ],
        "differences": [
            comparison_record(draft, baseline, resampling)
            for draft in by_rule
            for baseline in by_rule
            if draft[0].temperature == baseline[0].temperature and draft[0].draft == pair.primary != baseline[0].draft
        ],
        "latency": latency_record(latency),
        "speedup": forecasts,
        "live": live,
    }
    return record, run


def forecast(pair: Pair, score: DraftScore, latency: Latency) -> Record:
    """What the acceptance of a draft is worth, by its step times and by the bytes that steps read."""
    ratio = byte_ratio(pair.target, pair.drafts[score.draft], context=latency.context)
    return speedup_record(score, latency.step_times(score.draft), ratio)


def replay_drafts(pair: Pair, answers: Answers, *, temperature: float) -> list[ReplayedDraft]:
    """Every draft along every answer; the target's pass over an answer serves all of them."""
    replayed: dict[str, list[ReplayedAnswer]] = {name: [] for name in pair.drafts}
    numbered = list(zip(answers.prompt_numbers, answers.traces, strict=True))
    for prompt, trace in track(numbered, description=f"replay at T={temperature:g}", total=len(numbered)):
        target_logits_TV = answer_logits(pair.target, trace.prompt_ids, trace.answer_ids)
        for name, draft in pair.drafts.items():
            vocab_size = shared_vocab_size(pair.target, draft)
            draft_logits_TV = answer_logits(draft, trace.prompt_ids, trace.answer_ids)
            replay = replay_answer(
                target_logits_TV[:, :vocab_size],
                draft_logits_TV[:, :vocab_size],
                trace.answer_ids,
                temperature=temperature,
            )
            replayed[name].append(ReplayedAnswer(prompt, trace.category, replay, trace.task))
    return [
        ReplayedDraft(name, temperature, rows, has_small_head=head_ids(pair.drafts[name]) is not None)
        for name, rows in replayed.items()
    ]


def measure_live(
    pair: Pair,
    answers: Answers,
    score: DraftScore,
    *,
    promised: Record,
    config: EvalConfig,
    resampling: Resampling,
) -> tuple[Record, Run]:
    """Decode some prompts with the last draft at the lookahead that promises most."""
    lookahead = promised["best_lookahead"]
    chosen = answers.first_turns()[: config.live_prompts]
    live = decode_live(
        pair.target,
        pair.drafts[score.draft],
        [trace for _, trace in chosen],
        lookahead=lookahead,
        max_new_tokens=config.max_new_tokens,
        stop_ids=stop_token_ids(pair.target),
        seed=resampling.seed,
    )
    agreement = compare_with_replay(live, [score.answers[place].counts[lookahead] for place, _ in chosen])
    record = live_record(score.draft, live, agreement, promised["predicted"], resampling)
    return record, live_run(live, max_new_tokens=config.max_new_tokens)


def model_record(folder: Path, model: PreTrainedModel) -> Record:
    """Which model it was; of one that says some ids alone, how many."""
    config, ids_K = model.config.get_text_config(decoder=True), head_ids(model)
    return {
        "path": str(folder),
        "fingerprint": fingerprint_checkpoint(folder),
        "model_type": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        **({} if ids_K is None else {"head_vocab_size": len(ids_K)}),
    }


def prompts_record(prompts: Sequence[Prompt], answers: Mapping[float, Answers], config: EvalConfig) -> Record:
    """Which prompts were asked, and how the target answered."""
    num_taken = min(len(prompts), config.max_prompts)
    [first, *_] = answers.values()
    num_scored = len(set(first.prompt_numbers))
    return {
        "given": len(prompts),
        "taken": num_taken,
        "too_long": num_taken - num_scored,
        "scored": num_scored,
        "tasks": tasks_record(prompts[:num_taken]),
        "sources": [trace.source for _, trace in first.first_turns()],
        "ids_sha256": fingerprint_value([list(trace.prompt_ids) for _, trace in first.first_turns()]),
        "answers": [
            {
                "temperature": temperature,
                "answers": len(group.traces),
                "tokens": sum(len(trace.answer_ids) for trace in group.traces),
                "stopped": sum(trace.finish_reason == "stop" for trace in group.traces),
                "ids_sha256": fingerprint_value([list(trace.answer_ids) for trace in group.traces]),
            }
            for temperature, group in answers.items()
        ],
    }
