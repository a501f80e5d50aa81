"""Captured steps say what plain ones say, take the shapes they were made for, and share nothing in use."""

import pytest
import torch

from eval.decoding.cuda_graphs import CudaRecorder
from eval.decoding.sampling import Limits, Sampling, Speculation
from eval.decoding.speculative import DecodingRequest, decode_steps, plain_decode, speculative_decode
from eval.models import load_model
from tests.eval.decoding.laws import law_greedy_text_is_the_targets, law_rows_do_not_feel_each_other
from tests.eval.decoding.small_heads import WITHOUT_WINDOW
from tests.eval.decoding.stand_ins import Watched, watched_maker
from tests.rejections import rejects


@pytest.fixture
def maker(request):
    return watched_maker(getattr(request, "param", "captured"))


@pytest.mark.parametrize("num_speculative_tokens", [1, 4])
def test_a_batch_is_fed_the_shapes_it_was_opened_for(target, noisy_draft, prompts, maker, num_speculative_tokens):
    opener = maker.opener()
    law_greedy_text_is_the_targets(
        target, noisy_draft, prompts, Limits(17, frozenset({2})), num_speculative_tokens, opener
    )
    rows = len(prompts)
    assert (
        set(maker.made)
        == set(maker.fed)
        == {(rows, 1, False), (rows, 2, False), (rows, num_speculative_tokens + 1, True)}
    )


def test_fewer_tokens_than_a_step_takes_are_filled_up(target, prompts, maker):
    """On the left where the logits after the last token are asked for, on the right where all are."""
    text = torch.tensor(prompts[3][:9])
    with torch.inference_mode():
        expected_TV = target(text[None], use_cache=False).logits[0]
        feeds = [(4, False), (4, True)]
        sequencer = maker.opener()(target, [prompts[3]], capacity=20, vocab_size=264, feeds=feeds)
        last_1V = sequencer.feed(text[None, :3], [(0, 3)], whole=False)[0]
        all_TV = sequencer.feed(text[None, 3:5], [(3, 2)], whole=True)[0]
    torch.testing.assert_close(last_1V, expected_TV[2:3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(all_TV, expected_TV[3:5], rtol=1e-4, atol=1e-4)
    assert {shape[1] for shape in maker.fed} == {4}


def test_steps_of_several_widths_are_verified_by_steps_of_their_own(target, noisy_draft, prompts, maker):
    wanted = {"limits": Limits(30), "speculation": Speculation(2, draft_p_min=0.02)}
    decoded = speculative_decode(target, noisy_draft, prompts[:1], **wanted, opener=maker.opener())
    eager = speculative_decode(target, noisy_draft, prompts[:1], **wanted)
    assert [one.token_ids for one in decoded] == [one.token_ids for one in eager]
    proposed = {1 + one.proposed for one in decoded[0].steps}
    assert len(proposed) > 1
    assert {tokens for _, tokens, whole in maker.fed if whole} == proposed


def test_rows_of_a_batch_do_not_feel_each_other(target, noisy_draft, prompts, maker):
    sampling = Sampling(1.3, top_p=0.9, repetition_penalty=1.3)
    law_rows_do_not_feel_each_other(target, noisy_draft, prompts, sampling, opener=maker.opener())
    assert maker.fed


@pytest.mark.parametrize("maker", ["traced"], indirect=True)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2", "gpt_bigcode"])
def test_every_attention_and_windows_far_shorter_than_the_cache(make_checkpoint, prompts, maker, family):
    window = {} if family in WITHOUT_WINDOW else {"sliding_window": 6}
    folder = make_checkpoint(seed=4, model_type=family, num_hidden_layers=2, **window)
    model = load_model(folder, dtype="float32", device="cpu")
    law_greedy_text_is_the_targets(model, model, prompts[2:5], Limits(10), opener=maker.opener())
    assert maker.fed


def test_texts_decoded_in_turns_have_caches_of_their_own(target, prompts, maker):
    """And a text that is done leaves its cache to the next."""
    opener, limits = maker.opener(), Limits(10)
    alone = [plain_decode(target, [prompt], limits=limits)[0] for prompt in prompts[2:4]]
    runs = [
        decode_steps([target], DecodingRequest([prompt], limits, Sampling()), opener=opener) for prompt in prompts[2:4]
    ]
    steps = list(zip(*runs, strict=True))
    for (_, decoded), own in zip(steps[-1], alone, strict=True):
        assert decoded.token_ids == own.token_ids
    del runs
    [caches] = opener.free.values()
    assert len(caches) == 2
    plain_decode(target, prompts[2:3], limits=limits, opener=opener)
    assert len(caches) == 2
    assert maker.fed


def test_a_step_is_made_once_and_before_the_clock_starts(target, prompts, maker):
    opener = maker.opener()
    for _ in range(2):
        plain_decode(target, prompts[:1], limits=Limits(5), opener=opener)
    assert maker.made == [(1, 1, False)]
    assert maker.fed == [(1, 1, False)] * (5 + 5)


def test_logits_that_were_handed_out_stay_what_they_were(target, maker):
    """The next step of the model may write where a step put its own."""
    with torch.inference_mode():
        sequencer = maker.opener()(target, [[5]], capacity=9, vocab_size=264, feeds=[(1, False), (2, True)])
        first = sequencer.feed(torch.tensor([[5]]), [(0, 1)], whole=False)
        kept = first.clone()
        sequencer.feed(torch.tensor([[7, 8]]), [(1, 2)], whole=True)
    assert torch.equal(first, kept)


def test_a_family_that_takes_one_row_is_refused(make_checkpoint, prompts, maker):
    folder = make_checkpoint(seed=4, model_type="opt", ffn_dim=128, word_embed_proj_dim=64)
    model = load_model(folder, dtype="float32", device="cpu")
    with rejects("opt", "--capture"):
        plain_decode(model, prompts[:1], limits=Limits(2), opener=maker.opener())


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_a_rotary_embedding_that_looks_at_positions_is_refused(make_checkpoint, prompts, maker, scaling):
    """transformers reads the largest position back from the device at every step."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8} if scaling == "longrope" else {"factor": 2.0}
    rope = {"rope_type": scaling, "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    folder = make_checkpoint(seed=4, rope_parameters=rope)
    model = load_model(folder, dtype="float32", device="cpu")
    with rejects(scaling, "--capture"):
        plain_decode(model, prompts[:1], limits=Limits(2), opener=maker.opener())


@pytest.fixture
def maker_there(device):
    """Real graphs on a GPU; a stand-in on the processor."""
    return watched_maker() if device == "cpu" else Watched(CudaRecorder)


@pytest.fixture
def pair_there(target_folder, noisy_folder, device):
    return [load_model(folder, dtype="float32", device=device) for folder in (target_folder, noisy_folder)]


def test_steps_on_a_device_say_what_plain_ones_say(pair_there, target, prompts, maker_there):
    """float32; 1e-4, products in another order. Each step is taken three times: made, captured and replayed."""
    text, model = torch.tensor(prompts[3][:9]), pair_there[0]
    with torch.inference_mode():
        expected_TV = target(text[None], use_cache=False).logits[0]
        sequencer = maker_there.opener()(
            model, [prompts[3]], capacity=20, vocab_size=264, feeds=[(1, False), (4, True)]
        )
        ids_1T = text[None].to(model.device)
        for start in (0, 1, 2):
            last_1V = sequencer.feed(ids_1T[:, start : start + 1], [(start, 1)], whole=False)[0]
            torch.testing.assert_close(last_1V.cpu(), expected_TV[start : start + 1], rtol=1e-4, atol=1e-4)
        for _ in range(3):
            all_TV = sequencer.feed(ids_1T[:, 3:7], [(3, 4)], whole=True)[0]
            torch.testing.assert_close(all_TV.cpu(), expected_TV[3:7], rtol=1e-4, atol=1e-4)
    assert sorted(maker_there.made) == [(1, 1, False), (1, 4, True)]


def test_steps_on_a_device_write_the_targets_texts(pair_there, prompts, maker_there):
    """float32, token for token; a batch that shrinks, and one after it that takes the same steps."""
    opener = maker_there.opener()
    for some in (prompts[:3], prompts[1:4]):
        law_greedy_text_is_the_targets(*pair_there, some, Limits(14, frozenset({2})), opener=opener)
    assert maker_there.fed


def test_sampled_rows_on_a_device_do_not_feel_each_other(pair_there, prompts, maker_there):
    """float32, token for token."""
    law_rows_do_not_feel_each_other(*pair_there, prompts[:2], Sampling(0.8), opener=maker_there.opener())
    assert maker_there.fed
