"""Faults found in other tools for speculative decoding, each with a test; docs/library_bugs.md lists all.

Those of training are in tests/distill/test_model.py, of commands in test_verify.py; some have stood
elsewhere before.
"""

import json
from pathlib import Path

import pytest
import torch

from eval import pair as opened
from eval.decoding.sampling import Decoded, Limits, Sampling, Seeds, Speculation, distribution
from eval.decoding.speculative import DecodingRequest, Emitted, Streams, decode_steps, plain_decode, speculative_decode
from eval.models import load_model
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


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 8])
def test_no_bonus_token_follows_a_stop_token_at_the_end_of_a_full_round(target, prompts, num_speculative_tokens):
    """The last token of the first step's proposal is the stop token, and the target agrees with all of them."""
    for prompt in prompts:
        [plain] = plain_decode(target, [prompt], limits=Limits(num_speculative_tokens))
        *before, stop = plain.token_ids
        if stop in before:
            continue
        wanted = DecodingRequest([prompt], Limits(24, frozenset({stop})), GREEDY, Speculation(num_speculative_tokens))
        step, (_, decoded) = decode_steps([target, target], wanted)
        assert decoded.token_ids == plain.token_ids == step.token_ids
        assert decoded.steps[-1].accepted == num_speculative_tokens - 1
        assert "corrected" not in writers_of(step, drafts=True)
        break
    else:
        pytest.fail("no such prompt")


def test_acceptance_draws_of_a_seeded_text_are_not_all_equal():
    wanted = DecodingRequest([[5], [6]], Limits(50), Sampling(1.0), Speculation(4))
    for seed in (0, 17):
        first, again = (Streams.of(wanted, Seeds.of(seed), [0, 1], torch.device("cpu")).accept_BD for _ in range(2))
        assert first.equal(again)
        assert len(first.unique()) == first.numel()


def test_token_id_zero_can_be_sampled_and_goes_on(small_pair):
    """Of four tokens every eighth text or so has no zero; one that has is as long as any other."""
    decoded = speculative_decode(
        *small_pair, [(1,)] * 60, limits=Limits(8), sampling=Sampling(1.5), row_seeds=range(60)
    )
    assert sum(0 in text.token_ids[:-1] for text in decoded) > 30
    assert {len(text.token_ids) for text in decoded} == {8}
    assert not any(text.stopped for text in decoded)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e38])
def test_temperature_zero_divides_by_nothing_and_takes_the_argmax(size):
    logits = size * torch.tensor([[1.0, 3.0, 2.0, 3.0], [-3.0, -1.0, -2.0, -1.5]])
    assert distribution(logits, GREEDY).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]  # of equals the first, and it alone


@pytest.fixture(scope="module")
def untied_pairs(make_checkpoint):
    """A target, and itself with noise for a draft; and both again with another embedding of id 0, but not its logit."""
    folder = make_checkpoint(seed=5, tie_word_embeddings=False, pad_token_id=None)
    pairs = [[load_model(folder, dtype="float32", device="cpu") for _ in range(2)] for _ in range(2)]
    for number, (target, draft) in enumerate(pairs):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in draft.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.005)
            for model in (target, draft):
                model.get_input_embeddings().weight[0] += 3.0 * number
    return pairs


def written(models, prompts, sampling):
    """Texts of a batch with a draft and without, each with what its steps kept."""
    how = {"limits": Limits(12), "sampling": sampling, "row_seeds": range(len(prompts))}
    drafted, plain = speculative_decode(*models, prompts, **how), plain_decode(models[0], prompts, **how)
    return [(text.token_ids, [one.accepted for one in text.steps]) for text in [*drafted, *plain]]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8)], ids=["greedy", "sampled"])
def test_the_id_that_fills_rows_on_the_left_is_not_read(untied_pairs, prompts, sampling):
    """Its embedding may be anything, as long as no text has it."""
    first, second = (written(models, prompts[:5], sampling) for models in untied_pairs)
    same = [one == other for one, other in zip(first, second, strict=True) if 0 not in one[0]]
    assert len(same) >= 8
    assert all(same)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8)], ids=["greedy", "sampled"])
def test_id_0_on_the_left_of_a_prompt_is_not_taken_for_filling(untied_pairs, sampling):
    together = [[0, 0, 9], [9], [0, 9], [7] * 9]
    zeros_read, others = (written(models, together, sampling) for models in untied_pairs)
    for place in (0, 2, 4, 6):  # another embedding of id 0 makes other texts of the prompts that have it
        assert zeros_read[place][0] != others[place][0]
    for models in untied_pairs:
        alone = [written(models, [prompt], GREEDY) for prompt in together]
        assert written(models, together, GREEDY) == [each[kind] for kind in (0, 1) for each in alone]


def test_tokens_of_the_prompt_do_not_count_as_new_ones(target, noisy_draft, prompts):
    decoded = speculative_decode(target, noisy_draft, prompts, limits=Limits(9))
    assert {len(prompt) for prompt in prompts} >= {1, 40}
    assert [len(text.token_ids) for text in decoded] == [9] * len(prompts)
    assert spent_on(decoded).tokens == 9 * len(prompts)
    for prompt in (prompts[0], prompts[4]):
        runner = Runner(decode_steps([target], DecodingRequest([prompt], Limits(9), GREEDY)), drafts=False)
        for _ in race(runner):
            pass
        assert runner.rate == 9 / runner.spent_s


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
