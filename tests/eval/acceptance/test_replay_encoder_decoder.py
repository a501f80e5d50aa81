"""Behind an encoder: what replay says of recorded responses is what the loop counts, over prompts of many lengths."""

import pytest
import torch

from eval.decoding.sampling import LOSSLESS, Decoded, Limits, Sampling, Speculation
from eval.decoding.speculative import speculative_decode
from eval.replay import ReplayCounts, count_trace, replay_counts, replay_pair

LENGTH, K, ROWS = 6, 3, 24
WARM = Sampling(40.0)  # of logits in the hundreds


def counted(text: Decoded) -> ReplayCounts:
    trace = [(step.start, step.accepted) for step in text.steps]
    return count_trace(trace, num_tokens=len(text.token_ids), num_speculative_tokens=K)


def replayed(pair, prompt, ids, rule, sampling) -> ReplayCounts:
    return replay_counts(
        replay_pair(*pair, prompt, ids, sampling=sampling).rules[rule].accept,
        num_speculative_tokens=K,
    )


@pytest.mark.parametrize("rule", LOSSLESS)
def test_sampled_steps_are_those_that_are_expected(translators, prompts, rule):
    """Within four standard errors over many texts."""
    many = (prompts * ROWS)[:ROWS]
    how = {
        "limits": Limits(LENGTH),
        "speculation": Speculation(K, rule=rule),
        "row_seeds": range(ROWS),
    }
    decoded = speculative_decode(*translators, many, sampling=WARM, **how)
    differences = torch.tensor(
        [
            counted(text).steps - replayed(translators, prompt, text.token_ids, rule, WARM).steps
            for prompt, text in zip(many, decoded, strict=True)
        ],
        dtype=torch.double,
    )
    assert abs(differences.mean()) <= 4 * differences.std() / ROWS**0.5 + 1e-9
    assert sum(step.accepted for text in decoded for step in text.steps) > 0
