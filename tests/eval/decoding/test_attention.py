"""New shapes run without cuDNN's attention, fixed ones with it, and the process stays as it was."""

import pytest
import torch
from torch.nn import functional

from eval.decoding.cuda_graphs import FixedSequencer
from eval.decoding.kv_cache import TextSequencer, TranslationSequencer, open_sequencer
from eval.decoding.sampling import Limits, Speculation
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.models import load_model
from eval.replay import response_logits
from tests.eval.decoding.stand_ins import watched_maker

OPT = {"model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64}
TWO = Limits(2)


@pytest.fixture
def allowed(monkeypatch):
    """Whether cuDNN's attention was allowed, of every call of attention; it is, before and afterwards."""
    attend, found = functional.scaled_dot_product_attention, []

    def watched(*arguments, **settings):
        found.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*arguments, **settings)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    yield found
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert found


@pytest.fixture
def seen(allowed):
    """The same of calls that all are without it."""
    yield allowed
    assert not any(allowed)


def test_plain_decoding_steps_and_replays_run_without(target, noisy_draft, prompts, seen):
    plain_decode(target, prompts[:2], limits=TWO)
    speculative_decode(target, noisy_draft, prompts[:2], limits=TWO, speculation=Speculation(2))
    response_logits(target, [5, 6], [7, 8])


def test_steps_of_fixed_shapes_are_made_with_it_and_prompts_read_without(
    target, noisy_draft, prompts, monkeypatch, allowed
):
    """A graph keeps the kernels it was captured with, so one plan serves all of a step's replays."""
    read, of_prompts = FixedSequencer.read_by_model, []

    def watched(self, *arguments, **settings):
        before = len(allowed)
        logits = read(self, *arguments, **settings)
        of_prompts.extend(range(before, len(allowed)))
        return logits

    monkeypatch.setattr(FixedSequencer, "read_by_model", watched)
    opener = watched_maker().opener()
    speculative_decode(target, noisy_draft, prompts[:2], limits=TWO, speculation=Speculation(2), opener=opener)
    caches = 2 * target.config.num_hidden_layers  # a token at no position, when the caches of the two are made
    without = [place for place, is_allowed in enumerate(allowed) if not is_allowed]
    assert of_prompts
    assert set(of_prompts) <= set(without)
    assert len(without) - len(of_prompts) <= caches
    assert any(allowed)


@torch.inference_mode()
def test_models_that_are_not_decoded_in_rows_run_without(make_checkpoint, seen):
    model = load_model(make_checkpoint(seed=3, **OPT), dtype="float32", device="cpu")
    for goes_back in (True, False):
        sequencer = open_sequencer(model, [[5, 6]], capacity=9, vocab_size=264, goes_back=goes_back)
        assert type(sequencer) is TextSequencer
        sequencer.feed(torch.tensor([[5, 6]]), [(0, 2)], whole=False)


@torch.inference_mode()
def test_encoder_decoder_models_run_without(make_translator):
    """T5 calls no function of torch for attention: its encoder and decoder are asked what they see."""
    model = load_model(make_translator(seed=3), dtype="float32", device="cpu")
    found = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda *_: found.append(torch.backends.cuda.cudnn_sdp_enabled()))
    sequencer = open_sequencer(model, [[5, 6]], capacity=9, vocab_size=264, goes_back=False)
    assert type(sequencer) is TranslationSequencer
    sequencer.feed(torch.tensor([[0]]), [(0, 1)], whole=False)
    assert found == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled()
