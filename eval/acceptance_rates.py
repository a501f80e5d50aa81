"""The target's responses to the prompts of a scorecard, and every draft replayed along them."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from architectures.console import track
from architectures.settings import WHOLE, Holding
from architectures.sharing import ALONE, Share
from architectures.vocabulary_head import head_ids
from eval import scorecard_schema as schema
from eval.chat import render_prompt
from eval.config import PROMPT_TOKENS, EvalConfig, SamplingConfig
from eval.decoding.generate import Kind, write_traces
from eval.decoding.sampling import Sampling
from eval.intervals import Columns, Resampling, paired_ratio_difference, pooled_ratio, sign_flip_p
from eval.large_targets import Pass, run_passes
from eval.models import (
    context_length_of,
    load_tokenizer,
    require_finite,
    require_positions,
    text_config,
)
from eval.prompts import Prompt
from eval.replay import (
    DraftScore,
    PartedScores,
    Replay,
    ReplayedDraft,
    ReplayedResponse,
    replay_pair,
    response_logits,
)
from eval.responses import DecodingSettings, Trace, read_traces, require_known_ids

TRACES_NAME = "eval"


@dataclass(frozen=True)
class Responses:
    """The target's responses at one temperature, each with the number of its prompt."""

    traces: Sequence[Trace]
    prompt_numbers: Sequence[int]

    def first_turns(self) -> list[tuple[int, Trace]]:
        return [
            (index, trace)
            for index, trace in enumerate(self.traces)
            if index == 0 or self.prompt_numbers[index] != self.prompt_numbers[index - 1]
        ]


def prompt_limit(config: EvalConfig, models: Sequence[Path], prompts: Sequence[Prompt]) -> int:
    """Return max_prompt_len: by default the longest prompt, limited by context and memory.

    Args:
        models: The target first; all of them read prompts and responses.
    """
    if config.max_prompt_len is not None:
        return config.max_prompt_len
    tokenizer, new = load_tokenizer(models[0]), config.max_new_tokens

    def longest(prompt: Prompt) -> int:
        length = len(render_prompt(tokenizer, prompt))
        return max(length, new + longest(prompt.following("."))) if prompt.later_turns else length

    contexts = [context.tokens - new for folder in models if (context := context_length_of(folder)) is not None]
    most = min([*contexts, config.batch_size * PROMPT_TOKENS, max(map(longest, prompts), default=1)])
    return max(1, most)


def record_responses(
    target: Path,
    prompts: Sequence[Prompt],
    config: EvalConfig,
    out: Path,
    *,
    temperature: float,
    seed: int,
    generated_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> Responses:
    """Generate the target's responses into out/responses unless they exist; each process generates a part."""
    assert config.max_prompt_len is not None, "set by the scorecard"
    settings = DecodingSettings(
        max_new_tokens=config.max_new_tokens,
        temperature=temperature,
        **SamplingConfig.model_validate(config.sampling.that_count(temperature)).model_dump(),
        batch_size=config.batch_size,
        shard_size=config.batch_size,
        max_prompt_len=config.max_prompt_len,
        seed=seed,
        dtype=config.dtype,
        holding=holding,
        batch_tokens=config.batch_size * PROMPT_TOKENS,
    )
    folder = responses_folder(out, temperature, config.sampling)
    write_traces(target, prompts, folder, settings, name=TRACES_NAME, generated_by=generated_by, share=share)
    traces = read_traces(folder, TRACES_NAME)
    # A prompt that was too long has no response; another one of n turns has n.
    sources = {trace.source for trace in traces}
    num_turns = (1 + len(prompt.later_turns) for prompt in prompts if prompt.source in sources)
    first_ids = list(accumulate(num_turns, initial=0))
    return Responses(traces, [bisect_right(first_ids, trace.id) - 1 for trace in traces])


def responses_folder(out: Path, temperature: float, sampling: SamplingConfig = SamplingConfig()) -> Path:  # noqa: B008
    """Return the directory of the responses at one temperature: "responses/T1", "responses/T0.8,top_p=0.9"."""
    chosen = (f"{name}={value:g}" for name, value in sampling.that_count(temperature).items())
    return out / "responses" / ",".join([f"T{temperature:g}", *chosen])


def require_fitting(
    models: Sequence[Path], responses: Mapping[float, Responses], out: Path, config: EvalConfig
) -> None:
    """Raise UserError if a response exceeds a model's context length or vocabulary."""
    longest = max(len(t.prompt_ids) + len(t.response_ids) for group in responses.values() for t in group.traces)
    for model in models:
        require_positions(model, longest)
    vocab_sizes = {folder: text_config(folder).vocab_size for folder in models}
    for temperature, group in responses.items():
        folder = responses_folder(out, temperature, config.sampling)
        require_known_ids((trace.token_ids for trace in group.traces), folder, TRACES_NAME, vocab_sizes)


def replay_drafts(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    responses: Responses,
    *,
    sampling: Sampling,
    share: Share = ALONE,
) -> list[ReplayedDraft]:
    """Replay every draft along every response; one pass of the target serves all drafts.

    Args:
        sampling: Settings with which they were generated.
    """
    own = share.mine(responses.traces)
    replayed = share.together(list(replay_some(target, drafts, own, sampling=sampling, whose=share.words)))
    numbered = list(zip(responses.prompt_numbers, responses.traces, replayed, strict=True))
    return [
        ReplayedDraft(
            name,
            sampling.temperature,
            [
                ReplayedResponse(prompt, trace.category, each[name], trace.task, len(trace.prompt_ids))
                for prompt, trace, each in numbered
            ],
            has_small_head=head_ids(draft) is not None,
        )
        for name, draft in drafts.items()
    ]


def replay_some(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    traces: Sequence[Trace],
    *,
    sampling: Sampling,
    whose: str,
) -> Iterator[dict[str, Replay]]:
    passes = [
        Pass(partial(response_logits, target, trace.prompt_ids, trace.response_ids), rows=1, width=len(trace.token_ids))
        for trace in traces
    ]
    read = track(
        zip(traces, run_passes(target, passes), strict=True),
        description=f"replay at T={sampling.temperature:g}{whose}",
        total=len(passes),
        works=lambda read: len(read[0].token_ids),
        whole=sum(each.width for each in passes),
    )
    for trace, target_logits_TV in read:
        require_finite(target_logits_TV, target)
        texts = trace.prompt_ids, trace.response_ids
        yield {
            name: replay_pair(target, draft, *texts, sampling=sampling, target_logits_TV=target_logits_TV)
            for name, draft in drafts.items()
        }


def acceptance_row(scores: Sequence[DraftScore], parted: PartedScores, resampling: Resampling) -> schema.AcceptanceRow:
    """Summarise the acceptance of one draft at one temperature.

    Args:
        scores: One per acceptance method, the leading one first, along the same responses.
        parted: By the leading method, by kind of bin and by bin.
    """
    score, *others = scores
    return schema.AcceptanceRow(
        draft=score.draft,
        temperature=score.temperature,
        responses=len(score.responses),
        **vars(rule_row(score, resampling)),
        **token_figures(score, resampling),
        target_changed_tokens=sum(response.num_changed for response in score.responses),
        other_rules=tuple(rule_row(other, resampling) for other in others),
        # Leave out a kind of bin if a single bin holds everything.
        bins=tuple(
            schema.Bins(by=by, bins=tuple(bin_of(label, score, resampling) for label, score in scores.items()))
            for by, scores in parted.items()
            if len(scores) > 1
        ),
        by_prompt=prompt_sums(score),
    )


def prompt_sums(score: DraftScore) -> schema.PromptSums:
    alpha_sums, tokens = score.alpha_columns()
    matches, _ = score.match_columns()
    return schema.PromptSums(
        tokens=tuple(tokens),
        alpha=tuple(alpha_sums),
        greedy_match=tuple(matches),
        steps=tuple(
            schema.StepsByPrompt(num_speculative_tokens=g, counts=tuple(score.tau_columns(g)[1])) for g in score.ks
        ),
    )


def token_figures(score: DraftScore, resampling: Resampling) -> dict[str, Any]:
    return {
        "prompts": len(score.alpha_columns()[0]),
        "greedy_match": mean(score.match_columns(), resampling),
        "coverage": mean(score.coverage_columns(), resampling) if score.has_small_head else None,
    }


def rule_row(score: DraftScore, resampling: Resampling) -> schema.RuleRow:
    return schema.RuleRow(
        rule=score.rule,
        alpha=mean(score.alpha_columns(), resampling),
        alpha_of_text=mean(score.accept_columns(), resampling),
        by_k=tuple(steps_at(score, k, resampling) for k in score.ks),
    )


def bin_of(label: str, score: DraftScore, resampling: Resampling) -> schema.Bin:
    return schema.Bin(
        bin=label,
        alpha=mean(score.alpha_columns(), resampling),
        alpha_of_text=mean(score.accept_columns(), resampling),
        **token_figures(score, resampling),
        by_k=tuple(
            schema.BinStepsAtK(**step_figures(score, k, resampling), tau=ratio_of(score.tau_columns(k), resampling))
            for k in score.ks
        ),
    )


def steps_at(score: DraftScore, num_speculative_tokens: int, resampling: Resampling) -> schema.StepsAtK:
    return schema.StepsAtK(
        **step_figures(score, num_speculative_tokens, resampling),
        tau=pooled_ratio(*score.tau_columns(num_speculative_tokens), resampling),
        positions=tuple(
            position_of(score, num_speculative_tokens, index, resampling) for index in range(num_speculative_tokens)
        ),
    )


def step_figures(score: DraftScore, num_speculative_tokens: int, resampling: Resampling) -> dict[str, Any]:
    pooled = score.pooled(num_speculative_tokens)
    accepted = score.count_column(num_speculative_tokens, lambda counts: counts.accepted_tokens)
    proposed = score.count_column(num_speculative_tokens, lambda counts: counts.proposed_tokens)
    return {
        "num_speculative_tokens": num_speculative_tokens,
        "steps": pooled.steps,
        "proposed": pooled.proposed_tokens,
        "accepted": pooled.accepted_tokens,
        "emitted": pooled.emitted_tokens,
        "fully_accepted": pooled.fully_accepted_steps,
        "histogram": pooled.histogram,
        "utilisation": ratio_of((accepted, proposed), resampling),
    }


def position_of(score: DraftScore, num_speculative_tokens: int, index: int, resampling: Resampling) -> schema.Position:
    """Compute counts and rates of one position of a verification step; index 0 is position 1."""
    steps = score.count_column(num_speculative_tokens, lambda counts: counts.steps)
    possible = score.count_column(num_speculative_tokens, lambda counts: counts.possible[index])
    reached = score.count_column(num_speculative_tokens, lambda counts: counts.reached[index])
    accepted = score.count_column(num_speculative_tokens, lambda counts: counts.accepted[index])
    return schema.Position(
        position=index + 1,
        possible=sum(possible),
        reached=sum(reached),
        accepted=sum(accepted),
        joint=pooled_ratio(accepted, steps, resampling),
        conditional=ratio_of((accepted, reached), resampling),
    )


def difference_row(
    draft: Sequence[DraftScore], baseline: Sequence[DraftScore], resampling: Resampling
) -> schema.DifferenceRow:
    """Compute draft minus baseline on the same responses: paired differences by every method, and a sign-flip test.

    Args:
        draft: One score per acceptance method, the leading one first.
        baseline: The same of the other draft.
    """
    leading, *others = (rule_difference(*pair, resampling) for pair in zip(draft, baseline, strict=True))
    ours, theirs = draft[0], baseline[0]
    return schema.DifferenceRow(
        draft=ours.draft,
        baseline=theirs.draft,
        temperature=ours.temperature,
        **vars(leading),
        other_rules=tuple(others),
        greedy_match=paired_ratio_difference(ours.match_columns(), theirs.match_columns(), resampling),
        greedy_match_p=sign_flip_p(np.subtract(ours.match_columns()[0], theirs.match_columns()[0]), resampling),
    )


def rule_difference(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> schema.RuleDifference:
    return schema.RuleDifference(
        rule=draft.rule,
        alpha=paired_ratio_difference(draft.alpha_columns(), baseline.alpha_columns(), resampling),
        by_k=tuple(
            schema.TauDifference(
                num_speculative_tokens=k,
                tau=paired_ratio_difference(draft.tau_columns(k), baseline.tau_columns(k), resampling),
            )
            for k in draft.ks
        ),
    )


def mean(columns: Columns, resampling: Resampling) -> schema.Mean:
    sums, tokens = columns
    return schema.Mean(**vars(pooled_ratio(*columns, resampling)), sum=sum(sums), tokens=sum(tokens))


def ratio_of(columns: Columns, resampling: Resampling) -> schema.Ratio:
    """Compute a ratio of two columns with one entry per prompt; None if nothing was counted."""
    return schema.Ratio(**vars(pooled_ratio(*columns, resampling))) if any(columns[1]) else schema.Ratio(None, None)
