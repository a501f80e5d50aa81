"""New responses of encoder-decoder models: the encoder reads the prompt, and what is written is learned there."""

import pytest
import torch

from distill.chunked_loss import ResponseLogits
from distill.data.batches import Example, collate
from distill.losses import LossTerm, build_objective, forward_kl
from distill.model import DistillModel
from distill.rollouts import COINS, Generation, RolloutPrompt, examples_of, generate_rollouts, places_in
from distill.teacher import Teacher
from eval.decoding.sampling import Limits, Sampling, stream
from eval.decoding.speculative import plain_decode
from eval.models import load_model

PROMPTS = [(5, 6, 7, 8, 9, 10, 11), (12,), (13, 14, 15)]
SEEDS = [11, 2**63 - 5, 77]
ROLLOUTS = [RolloutPrompt(prompt, seed, 7) for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]
GREEDY = Generation(Sampling(), frozenset({2}), 264)


@pytest.fixture(scope="module")
def pair(make_translator):
    """Student and teacher."""
    folders = make_translator(seed=2, num_layers=2, num_decoder_layers=1), make_translator(seed=1)
    return [load_model(folder, dtype="float32", device="cpu") for folder in folders]


def next_logits(lm, prompt, response):
    """logits_V of transformers behind a response so far."""
    with torch.inference_mode():
        ids = torch.tensor([[lm.config.decoder_start_token_id, *response]])
        return lm(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0, -1]


def test_the_student_writes_what_plain_decoding_says(pair):
    student, _ = pair
    decoded = plain_decode(student, PROMPTS, limits=Limits(7, frozenset({2})))
    assert [one.token_ids for one in generate_rollouts(student, None, ROLLOUTS, GREEDY, probability=1)] == [
        one.token_ids for one in decoded
    ]


def test_both_read_what_was_written_whoever_wrote_it(pair):
    rollouts = generate_rollouts(*pair, ROLLOUTS, GREEDY, probability=0.5)
    for prompt, seed, written in zip(PROMPTS, SEEDS, rollouts, strict=True):
        response, coins = [], stream(COINS, [seed], 7, torch.device("cpu"))[0]
        for coin in coins[: len(written.token_ids)]:
            response.append(int(next_logits(pair[0 if coin < 0.5 else 1], prompt, response).argmax()))
        assert list(written.token_ids) == response
        assert written.by_student == int((coins[: len(response)] < 0.5).sum())


def test_the_loss_sits_on_the_new_tokens(pair):
    """KL(teacher || student) of transformers' own logits, token by token."""
    student, teacher = pair
    batch = collate([Example((*prompt, 30), 31, ((len(prompt) - 1, len(prompt) + 1),)) for prompt in PROMPTS])
    places = places_in(batch, seed=3, batch_number=0)
    responses = generate_rollouts(student, None, ROLLOUTS, GREEDY, probability=1)
    new = collate([place.with_response(each.token_ids) for place, each in zip(places, responses, strict=True)])
    assert [example.spans[0][0] + 1 for example in examples_of(new)] == new["prompt_len"][:, 0].tolist()
    objective = build_objective([LossTerm(name="forward_kl")], temperature=1.0)
    model = DistillModel(
        ResponseLogits(student), Teacher(ResponseLogits(teacher)), objective=objective, cpu_bfloat16=False
    )
    expected = 0.0
    for prompt, each in zip(PROMPTS, responses, strict=True):
        for index in range(len(each.token_ids)):
            logits = [next_logits(lm, prompt, each.token_ids[:index])[None] for lm in (student, teacher)]
            expected += float(forward_kl(*logits, temperature=1.0).sum())
    torch.testing.assert_close(float(model(new).detach()), expected, rtol=1e-4, atol=0)
