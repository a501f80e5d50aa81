"""Score drafts against their target: record the target's answers, measure, and write what was found.

Writes scorecard.json (schema widedraft.scorecard/3, every field explained in docs/scoring.md) and scorecard.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.files.atomic import write_text
from architectures.kept import remove_kept
from architectures.pages.markdown import markdown
from architectures.settings.holding import WHOLE, Holding
from architectures.sharing import ALONE, Share
from eval.acceptance import paired_ratios
from eval.acceptance.estimates import INTERVALS, Resampling
from eval.acceptance.kept_replays import Keeping
from eval.answers.writing import Kind
from eval.config import EvalConfig, SamplingConfig
from eval.latency.machine import torch_threads
from eval.latency.threads import Threads, choose_threads, threads_of_a_share
from eval.models.identity import model_facts
from eval.models.loading import load_model, require_positions, require_same_tokenizer
from eval.policies.policy_file import write_policies
from eval.prompts import Prompt, tasks_record
from eval.records.files import CARD_NAME, write_record
from eval.records.origin import AnswersRow, DraftModel, Prompts, Provenance, ScoredModel, TaskRow
from eval.records.scorecard import Scorecard, ScoredSettings
from eval.scorecard.answers import Answers, context_of, longest_text, record_answers, require_rows_of
from eval.scorecard.grid import measure_batches, write_grid
from eval.scorecard.loaded_models import Pair, Replayed, replay_all
from eval.scorecard.measure import measure
from eval.scorecard.policies import FOLDER as TUNING_FOLDER
from eval.scorecard.policies import policy_file, record_tuning_answers, tuning_prompts
from eval.scorecard.sidecars import write_sidecars
from eval.scorecard_tables import find_warnings, scorecard_page
from eval.targets.loading import held_facts, load_target

REPLAYS_NAME = "replays"  # of the folder of passes that are made, until their scorecard is


def score_drafts(
    target: Path,
    drafts: Mapping[str, Path],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    out: Path,
    *,
    seed: int,
    answered_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> Scorecard:
    """Score drafts of one target on the same prompts; write out/scorecard.json, its page and what is beside it.

    Args:
        target: Folder of the model that decides every token.
        drafts: Folders of its drafts by name. The last one is decoded live, and every other is compared with it.
        prompts: What the target is asked; the first config.num_prompts of them are used.
        config: How to score.
        out: Folder for these files, and for the target's answers, which a rerun reads again.
        seed: Of sampled answers, resampling, and the order of what is timed.
        answered_by: What writes the target's answers, as write_traces has it.
        holding: How the target is held.
        share: This process's part of answers and replays. What is timed is timed by the first process while the others
            wait with nothing in memory.

    Returns:
        What scorecard.json holds.

    Raises:
        UserError: If target and draft do not fit together, or no prompt is short enough.
    """
    for draft in drafts.values():
        require_same_tokenizer(target, draft)
    load = partial(load_target, target, dtype=config.dtype, holding=holding)
    threads = share.lead(lambda: choose_threads(config.num_threads, load))
    how = {"seed": seed, "answered_by": answered_by, "holding": holding, "share": share}
    with threads_of_a_share(threads, share):
        replayed = replay_prompts(target, drafts, prompts, config, out, **how)
    if share.count > 1:
        print(f"   one of {share.count} processes measures step times and live decoding, the others wait", flush=True)

    def measured_card() -> Scorecard:
        assert replayed is not None, "of the first process"
        facts = ScoredModel(**model_facts(target, replayed.pair.target), **held_facts(holding))
        with torch_threads(threads.count):
            card = measure_card(replayed, facts, drafts, prompts, config, out=out, seed=seed, threads=threads)
        write_text(f"{markdown(scorecard_page(card))}\n", out / "scorecard.md")
        write_record(card, out / CARD_NAME)
        remove_kept(out / REPLAYS_NAME)
        return card

    return share.lead(measured_card)


def replay_prompts(
    target: Path,
    drafts: Mapping[str, Path],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    out: Path,
    *,
    seed: int,
    answered_by: Kind | None,
    holding: Holding,
    share: Share,
) -> Replayed | None:
    """Let the target answer, and replay its drafts along what it said; None but for the first process."""
    taken, to_tune_on = prompts[: config.num_prompts], tuning_prompts(prompts, config)
    load = partial(load_target, target, dtype=config.dtype, holding=holding)
    how = {"seed": seed, "answered_by": answered_by, "holding": holding, "share": share}
    answers = {t: record_answers(target, taken, config, out, temperature=t, **how) for t in config.temperatures}
    tuning = record_tuning_answers(target, to_tune_on, config, out, **how)
    for group, folder in ((answers, out), (tuning, out / TUNING_FOLDER)):
        require_fitting([target, *drafts.values()], group, folder, config.sampling)
    pair = Pair(load(), {name: load_model(folder, dtype=config.dtype) for name, folder in drafts.items()})
    made_by = {name: fingerprint_checkpoint(folder) for name, folder in drafts.items()}
    keeping = Keeping(out / REPLAYS_NAME, replay_inputs(target, made_by, config, holding))
    replayed = replay_all(pair, answers, tuning, sampling=config.sampling, share=share, keeping=keeping)
    return replayed if share.leads else None


def replay_inputs(target: Path, drafts: Mapping[str, str], config: EvalConfig, holding: Holding) -> dict[str, str]:
    """What replays depend on beside the answers; drafts by their fingerprints."""
    return {
        "target": fingerprint_checkpoint(target),
        "bits": str(holding.bits),
        "drafts": fingerprint_value(dict(drafts)),
        "dtype": config.dtype,
        "sampling": fingerprint_value(config.sampling.model_dump()),
    }


def measure_card(
    replayed: Replayed,
    target: ScoredModel,
    drafts: Mapping[str, Path],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    *,
    out: Path,
    seed: int,
    threads: Threads,
) -> Scorecard:
    """Measure what replays cannot say; the scorecard, and on the disk what stands beside it."""
    pair, answers = replayed.pair, replayed.answers
    resampling = Resampling(config.confidence, config.num_resamples, seed)
    measured = measure(replayed, config, resampling)
    grid, left_out = measure_batches(pair.target_and_primary, context_of(answers), config, resampling)
    scorecard = Scorecard(
        warnings=(),
        target=target,
        drafts=tuple(DraftModel(draft=name, **model_facts(drafts[name], pair.drafts[name])) for name in drafts),
        prompts=prompts_section(prompts, answers, config),
        settings=ScoredSettings(
            **config.model_dump(mode="json", exclude={"answer_steps"}),
            seed=seed,
            threads=threads.count,
            device=pair.device,
            intervals=INTERVALS,
            speedup_intervals=paired_ratios.INTERVALS,
        ),
        acceptance=measured.acceptance,
        differences=measured.differences,
        latency=replace(measured.latency, evidence=threads.noted(measured.latency.evidence)),
        speedup=measured.speedup,
        policies=measured.policies,
        stopping=measured.stopping,
        live=measured.live[0],
        live_at=measured.live[1:],
        provenance=Provenance.of_this_process(),
    )
    write_sidecars(scorecard, measured.run, answers[measured.live[0].temperature].first_turns(), out)
    write_grid(grid, scorecard, out)
    if measured.tuned:
        models = {"target": scorecard.target, "draft": scorecard.drafts[-1]}
        how = {"num_threads": threads.count, "sampling": config.sampling}
        write_policies(policy_file(measured.tuned, replayed.tuning, **models, **how), out)
    return replace(scorecard, warnings=(*find_warnings(scorecard), *left_out))


def require_fitting(
    models: Sequence[Path], answers: Mapping[float, Answers], folder: Path, sampling: SamplingConfig
) -> None:
    """Raise UserError if a model was not made for texts so long, or has no row for one of their tokens."""
    if answers:
        for model in models:
            require_positions(model, longest_text(answers))
        require_rows_of(models, answers, folder, sampling)


def prompts_section(prompts: Sequence[Prompt], answers: Mapping[float, Answers], config: EvalConfig) -> Prompts:
    """Which prompts were asked, and how the target answered."""
    num_taken = min(len(prompts), config.num_prompts)
    [first, *_] = answers.values()
    num_scored = len(set(first.prompt_numbers))
    return Prompts(
        given=len(prompts),
        taken=num_taken,
        too_long=num_taken - num_scored,
        scored=num_scored,
        tasks=tuple(TaskRow(**task) for task in tasks_record(prompts[:num_taken])),
        sources=tuple(trace.source for _, trace in first.first_turns()),
        ids_sha256=fingerprint_value([list(trace.prompt_ids) for _, trace in first.first_turns()]),
        answers=tuple(
            AnswersRow(
                temperature=temperature,
                answers=len(group.traces),
                tokens=sum(len(trace.answer_ids) for trace in group.traces),
                stopped=sum(trace.finish_reason == "stop" for trace in group.traces),
                ids_sha256=fingerprint_value([list(trace.answer_ids) for trace in group.traces]),
            )
            for temperature, group in answers.items()
        ),
    )
