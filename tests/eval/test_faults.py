"""Faults found in other tools for speculative decoding, each with a test; docs/library_bugs.md lists all.

Those of training are in tests/distill/test_model.py, of commands in test_verify.py; some have stood
elsewhere before.
"""

import json
from pathlib import Path

import pytest
import torch

from eval import pair as opened
from eval.decoding.sampling import Decoded, Limits, Sampling, Speculation, distribution
from eval.decoding.speculative import DecodingRequest, Emitted, decode_steps
from eval.pair import PROMPTS
from eval.replay import count_trace
from eval.side_by_side import Runner, race, writers_of
from eval.wall_clock import spent_on

GREEDY = Sampling()


@pytest.mark.parametrize("length", range(1, 10))
def test_the_bonus_token_of_a_full_step_is_not_counted_as_wrong(target, prompts, length):
    """The target as its own draft: nothing is wrong, whatever room the last step has."""
    [prompt] = prompts[2:3]
    wanted = DecodingRequest([prompt], Limits(length), GREEDY, Speculation(3))
    events = list(decode_steps([target, target], wanted))
    writers = [writer for step in events if isinstance(step, Emitted) for writer in writers_of(step, drafts=True)]
    assert len(writers) == length
    assert set(writers) <= {"accepted", "bonus"}
    _, decoded = events[-1]
    steps = [(one.start, one.accepted) for one in decoded.steps]
    counts = count_trace(steps, num_tokens=length, num_speculative_tokens=3)
    assert sum(counts.reached) == counts.accepted_tokens == counts.proposed_tokens


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e38])
def test_temperature_zero_divides_by_nothing_and_takes_the_argmax(size):
    logits = size * torch.tensor([[1.0, 3.0, 2.0, 3.0], [-3.0, -1.0, -2.0, -1.5]])
    assert distribution(logits, GREEDY).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]  # of equals the first, and it alone


def test_a_rate_counts_tokens_and_not_characters(target_tokenizer):
    """One character of three tokens, and four characters of four."""
    for text, count in (("漢", 3), ("abcd", 4)):
        ids = tuple(target_tokenizer.encode(text, add_special_tokens=False))
        decoded = Decoded(ids, (), prefill_s=0.0, decode_s=1.0)
        runner = Runner(iter([Emitted(0, ids), (0, decoded)]), drafts=False)
        for _ in race(runner):
            pass
        assert runner.rate == count / runner.spent_s
        assert runner.summary.startswith(f"without draft: {count} tokens, ")
        assert spent_on([decoded]).ms_per_token == 1000 / count


def test_no_built_in_prompt_is_one_that_the_quickstart_trains_on():
    path = Path(__file__).parents[2] / "recipes" / "prompts" / "quickstart.jsonl"
    trained = {json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()}
    assert not trained & set(PROMPTS)


def test_no_row_is_left_out_for_the_data_set_it_names(tmp_path):
    names = ("gsm8k", "finance", "spider", "gsm8k")
    path = tmp_path / "prompts.jsonl"
    lines = [f'{{"prompt": "{i}", "dataset": "{name}", "language": "en"}}' for i, name in enumerate(names)]
    path.write_text("\n".join(lines))
    assert [prompt.messages[0]["content"] for prompt in opened.prompts_of([str(path)], count=None)] == [*"0123"]
