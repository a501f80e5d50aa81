"""What a scorecard says of live decoding: of the draft alone, and of the ways beside it. Pure."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedModel

from eval.acceptance.counts import Counts
from eval.acceptance.estimates import Resampling
from eval.decoding.texts import Decoded
from eval.policies.tune import Tuned
from eval.proposing.ngram import NgramLookup
from eval.records import scorecard_speeds
from eval.records.scorecard_speeds import LOOKUP, POLICY, Live, OverLookup, RoundCounts, Spent, SpentByBoth, WayRow
from eval.scorecard.live import DRAFT, Agreement, LiveAnswer, LiveWay, decoding_speedup, whole_speedup


def ways_of(draft: PreTrainedModel, lookahead: int, lookup: int, policy: Tuned | None) -> dict[str, LiveWay]:
    """Every way, by its name.

    Args:
        draft: The model.
        lookahead: Of it alone.
        lookup: Tokens looked up per round, of looking up alone.
        policy: Of the draft with what the text proposes; None where none was tuned.
    """
    ways = {DRAFT: LiveWay(draft, lookahead), LOOKUP: LiveWay(NgramLookup(), lookup)}
    if policy is not None:
        ways[POLICY] = LiveWay(draft, policy.lookahead, policy.policy)
    return ways


def way_rows(ways: Mapping[str, LiveWay], live: Sequence[LiveAnswer], resampling: Resampling) -> tuple[WayRow, ...]:
    """What each way beside the draft alone is worth over the target alone."""
    return tuple(way_row(name, way, live, resampling) for name, way in ways.items() if name != DRAFT)


def over_lookup(
    ways: Mapping[str, LiveWay], live: Sequence[LiveAnswer], resampling: Resampling
) -> tuple[OverLookup, ...]:
    """What each way with a draft is worth over looking up alone."""
    return tuple(
        OverLookup(way=name, speedup=whole_speedup(live, resampling, name, over=LOOKUP))
        for name in ways
        if name != LOOKUP
    )


def way_row(name: str, way: LiveWay, live: Sequence[LiveAnswer], resampling: Resampling) -> WayRow:
    texts = [answer.by(name) for answer in live]
    rounds = [round_ for text in texts for round_ in text.rounds]
    spent = spent_on(texts)
    return WayRow(
        way=name,
        lookahead=way.lookahead,
        tau=spent.tokens / len(rounds),
        looked_up_rounds=sum(round_.looked_up for round_ in rounds),
        plain_rounds=sum(round_.proposed == 0 for round_ in rounds),
        rounds=len(rounds),
        same_text=sum(answer.by(name).token_ids == answer.plain.token_ids for answer in live),
        speedup=whole_speedup(live, resampling, name),
        decoding_speedup=decoding_speedup(live, resampling, name),
        spent=spent,
    )


def live_record(
    draft: str,
    answers: Sequence[LiveAnswer],
    ways: Mapping[str, LiveWay],
    agreement: Agreement,
    *,
    temperature: float,
    predicted: float,
    resampling: Resampling,
) -> Live:
    """Measured speed-up of the live loop, and whether it did what the replay says."""
    rounds = [round_ for answer in answers for round_ in answer.speculative.rounds]
    return Live(
        draft=draft,
        temperature=temperature,
        lookahead=answers[0].lookahead,
        prompts=len(answers),
        speedup=whole_speedup(answers, resampling),
        decoding_speedup=decoding_speedup(answers, resampling),
        predicted_decoding_speedup=predicted,
        plain=spent_on([answer.plain for answer in answers]),
        speculative=SpentByBoth(
            **vars(spent_on([answer.speculative for answer in answers])),
            draft_s=sum(round_.draft_s for round_ in rounds),
            verify_s=sum(round_.verify_s for round_ in rounds),
        ),
        agreement=agreement_record(agreement),
        ways=way_rows(ways, answers, resampling),
        over_lookup=over_lookup(ways, answers, resampling),
    )


def agreement_record(agreement: Agreement) -> scorecard_speeds.Agreement:
    return scorecard_speeds.Agreement(
        exact=agreement.is_exact,
        same_text=agreement.same_text,
        same_as_recorded=agreement.same_as_recorded,
        same_counts=agreement.same_counts,
        loop=round_counts(agreement.loop),
        replay=round_counts(agreement.replay),
        p_value=agreement.p_value,
    )


def spent_on(texts: Sequence[Decoded]) -> Spent:
    num_tokens = sum(len(text.token_ids) for text in texts)
    decode_s = sum(text.decode_s for text in texts)
    return Spent(
        tokens=num_tokens,
        prefill_s=sum(text.prefill_s for text in texts),
        decode_s=decode_s,
        ms_per_token=1000 * decode_s / num_tokens,
    )


def round_counts(counts: Counts) -> RoundCounts:
    """The counts that loop and replay must share."""
    return RoundCounts(rounds=counts.rounds, accepted=counts.accepted_tokens, proposed=counts.proposed_tokens)
