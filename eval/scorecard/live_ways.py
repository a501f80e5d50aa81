"""The ways of live decoding beside the draft alone: looking up alone, and the draft with its policy."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedModel

from eval.acceptance.estimates import Resampling
from eval.decoding.ngram import NgramLookup
from eval.pages.verdict import LOOKUP, POLICY
from eval.policies.tune import Tuned
from eval.scorecard.acceptance_record import estimate_record
from eval.scorecard.live import DRAFT, LiveAnswer, LiveWay, decoding_speedup, whole_speedup
from eval.scorecard.record import Record, spent_record


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


def ways_record(ways: Mapping[str, LiveWay], live: Sequence[LiveAnswer], resampling: Resampling) -> Record:
    """What each other way is worth over the target alone, and each way with a draft over looking up alone."""
    others = [name for name in ways if name != DRAFT]
    return {
        "ways": [way_record(name, ways[name], live, resampling) for name in others],
        "over_lookup": [
            {"way": name, "speedup": estimate_record(whole_speedup(live, resampling, name, over=LOOKUP))}
            for name in ways
            if name != LOOKUP
        ],
    }


def way_record(name: str, way: LiveWay, live: Sequence[LiveAnswer], resampling: Resampling) -> Record:
    """One of them over the target alone."""
    texts = [one.by(name) for one in live]
    rounds = [one for text in texts for one in text.rounds]
    spent = spent_record(texts)
    return {
        "way": name,
        "lookahead": way.lookahead,
        "tau": spent["tokens"] / len(rounds),
        "looked_up_rounds": sum(one.looked_up for one in rounds),
        "plain_rounds": sum(one.proposed == 0 for one in rounds),
        "rounds": len(rounds),
        "same_text": sum(one.by(name).token_ids == one.plain.token_ids for one in live),
        "speedup": estimate_record(whole_speedup(live, resampling, name)),
        "decoding_speedup": estimate_record(decoding_speedup(live, resampling, name)),
        "spent": spent,
    }
