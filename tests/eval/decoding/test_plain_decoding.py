"""Plain decoding of a batch: the same as one row at a time, as transformers' generate, and as the probabilities say."""

from functools import partial

import pytest
import torch

from eval.decoding.sampling import DRAWS, Limits, Sampling, Seeds, distribution, invert_cumulative, stream
from eval.decoding.speculative import DecodingRequest, decode_steps, first_tokens, plain_decode
from eval.models import load_model

GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_p=0.9)
PROMPTS = [[5], [9, 10, 11, 12, 13, 14, 15], [7, 8, 9], [200, 100], [6] * 20, [41, 42, 43, 44]]
FAMILIES = {  # read by rows; with transformers' cache; with one that forgets what left the window; behind an encoder
    "llama": {},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom": {},
    "mistral": {"sliding_window": 9},
    "cohere2": {"sliding_window": 9},
    "t5": {"num_layers": 4, "tied": False},  # as many as the decoder has: transformers' cache counts the encoder's
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(make_checkpoint, make_translator, request):
    make = make_translator if request.param == "t5" else partial(make_checkpoint, model_type=request.param)
    folder = make(seed=1, **FAMILIES[request.param])
    return load_model(folder, dtype="float32", device="cpu")


def decode(model, prompts, *, sampling=GREEDY, stop_ids=frozenset(), max_new_tokens=24, seeds=None):
    limits = Limits(max_new_tokens, stop_ids)
    return [
        list(text.token_ids) for text in plain_decode(model, prompts, limits=limits, sampling=sampling, row_seeds=seeds)
    ]


def read_as(model) -> str:
    """Names of the tokens that a model's forward pass generates."""
    return "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"


def transformers_greedy(model, prompt, stop_ids, max_new_tokens=24):
    ids = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(stop_ids) or [10**6],
        pad_token_id=0,
    )
    return ids[0, 1 if model.config.is_encoder_decoder else len(prompt) :].tolist()


@pytest.fixture(scope="module")
def stop_ids(model):
    """Tokens that end some of the rows early, at different steps, and some not at all."""
    responses = decode(model, PROMPTS)
    return frozenset([responses[0][3], responses[1][9], responses[4][14]])


def test_greedy_batch_equals_transformers_row_by_row(model, stop_ids):
    ours = decode(model, PROMPTS, stop_ids=stop_ids)
    assert ours == [transformers_greedy(model, prompt, stop_ids) for prompt in PROMPTS]
    assert len({len(response) for response in ours}) >= 3  # rows left the batch at different steps


def test_a_step_feeds_one_token_of_every_unfinished_row(model, stop_ids):
    shapes = []
    hook = model.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs[read_as(model)].shape)), with_kwargs=True
    )
    lengths = [len(response) for response in decode(model, PROMPTS, stop_ids=stop_ids)]
    hook.remove()
    steps = [(sum(length > step for length in lengths), 1) for step in range(max(lengths))]
    prompts_read = [] if model.config.is_encoder_decoder else [(len(PROMPTS), max(map(len, PROMPTS)) - 1)]
    assert shapes == [*prompts_read, *steps]


@pytest.mark.parametrize("sampling", [SAMPLED, Sampling(temperature=1.5)])
def test_a_sampled_row_depends_on_its_own_seed_alone(model, sampling):
    seeds, stop_ids = [11, -12, 13, 14, 2**63 - 1, -(2**63)], frozenset(range(0, 264, 12))
    together = decode(model, PROMPTS, sampling=sampling, stop_ids=stop_ids, seeds=seeds)
    alone = [
        decode(model, [prompt], sampling=sampling, stop_ids=stop_ids, seeds=[seed])[0]
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert together == alone
    assert len({len(response) for response in together}) >= 3
    assert decode(model, PROMPTS, sampling=sampling, stop_ids=stop_ids, seeds=[s + 1 for s in seeds]) != together


def test_a_sampled_row_is_the_plain_loop_over_its_draws(model):
    encoder_reads = {"input_ids": torch.tensor([PROMPTS[2]])} if model.config.is_encoder_decoder else {}
    text = list(first_tokens(model, PROMPTS[2]))
    begins = len(text)
    with torch.inference_mode():
        for draw in stream(Seeds().target, [13], 25, model.device)[0, :24]:
            logits_1V = model(**encoder_reads, **{read_as(model): torch.tensor([text])}).logits[:, -1]
            text.append(int(invert_cumulative(distribution(logits_1V, SAMPLED), draw[None])))
    assert decode(model, PROMPTS[2:3], sampling=SAMPLED, seeds=[13]) == [text[begins:]]


def test_draws_are_those_their_name_stands_for():
    """Folders of sampled responses claim the name: whoever draws otherwise gives the way another."""
    assert DRAWS == "torch.rand by SeedSequence((stream, row))"
    expected = torch.tensor([[0.65706509, 0.93922615], [0.90146017, 0.64210176]])
    torch.testing.assert_close(stream(2, [7, -7], 2, torch.device("cpu")), expected)


def test_models_run_without_gradients_and_whoever_reads_the_texts_keeps_his(model):
    modes = []
    hook = model.register_forward_pre_hook(lambda *_: modes.append(torch.is_inference_mode_enabled()))
    try:
        for _ in decode_steps([model], DecodingRequest(PROMPTS[1:3], Limits(3), GREEDY)):
            assert not torch.is_inference_mode_enabled()
    finally:
        hook.remove()
    assert modes
    assert all(modes)
