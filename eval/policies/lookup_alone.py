"""What looking up alone does along recorded answers: its rounds follow from the text, greedy or drawn. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

from eval.acceptance.speedup import StepTimes
from eval.policies.policy_replay import Rounds, num_kept, pooled_rounds
from eval.proposing.ngram import NgramLookup

LOOKUP = NgramLookup()

Texts = Iterable[tuple[Sequence[int], Sequence[int]]]  # prompts and answers


def lookup_rounds(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], *, lookahead: int, max_new_tokens: int
) -> Rounds:
    """The rounds of one text, as eval/decoding takes them: what is looked up is kept where the text has it too.

    Args:
        prompt_ids: Tokens before the answer.
        answer_ids: Its own.
        lookahead: Tokens looked up per round at most.
        max_new_tokens: The answer could have had.
    """
    start, counts = 0, Counter[int]()
    while start < len(answer_ids):
        count = min(lookahead, max_new_tokens - start - 1)
        ids = LOOKUP.continuation([*prompt_ids, *answer_ids[:start]], count) if count else []
        counts[len(ids)] += 1
        start += 1 + num_kept(ids, answer_ids[start:])  # past the end where the last token is proposed too
    return Rounds(len(answer_ids), {}, 0.0, counts)


def best_lookup(texts: Texts, steps: StepTimes, *, max_new_tokens: int) -> tuple[int, Rounds]:
    """The lookahead at which looking up alone is fastest, of those whose verification was timed, and its rounds."""
    listed = list(texts)
    rounds = {
        lookahead: pooled_rounds(
            [
                lookup_rounds(prompt, answer, lookahead=lookahead, max_new_tokens=max_new_tokens)
                for prompt, answer in listed
            ]
        )
        for lookahead in sorted(steps.verify_s)
    }
    best = max(rounds, key=lambda lookahead: rounds[lookahead].speedup(lookahead, steps))
    return best, rounds[best]
