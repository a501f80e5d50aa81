"""The laws of decoding where the models are: on the processor, and with `-m gpu` on a GPU.

All in float32, whose products torch keeps whole on a GPU (no tf32). Logits of other batch sizes differ in their last
bits there, some 1e-6; the choices of these random models are further apart, so texts are compared token for token.
"""

from copy import deepcopy

import pytest
import torch

from eval.decoding.sampling import Limits, Sampling
from eval.models import load_model
from eval.replay import replay_response, response_logits
from tests.eval.decoding.laws import (
    law_exact_rules_write_what_plain_sampling_writes,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    law_sampled_texts_are_the_targets,
    law_the_target_accepts_its_own_proposals,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32 products in another order, through four layers
WARPED = Sampling(1.3, top_p=0.9, top_k=30, min_p=0.01, repetition_penalty=1.3)


@pytest.fixture
def pair(target_folder, noisy_folder, device):
    return [load_model(folder, dtype="float32", device=device) for folder in (target_folder, noisy_folder)]


def test_greedy_text_is_the_targets(pair, prompts):
    law_greedy_text_is_the_targets(*pair, prompts, Limits(14, frozenset({2})))


def test_rows_of_a_batch_do_not_feel_each_other(pair, prompts):
    law_rows_do_not_feel_each_other(*pair, prompts[:4], WARPED)


def test_the_target_accepts_its_own_proposals(pair, prompts):
    law_the_target_accepts_its_own_proposals(pair[0], prompts, WARPED)


def test_exact_rules_write_what_plain_sampling_writes(pair, prompts):
    law_exact_rules_write_what_plain_sampling_writes(*pair, prompts, "exact_sampled_draft")


def test_sampled_texts_are_the_targets(small_pair, device):
    law_sampled_texts_are_the_targets(*(deepcopy(model).to(device) for model in small_pair))


def test_an_encoder_decoder_decodes_by_the_same_laws(translators, prompts, device):
    law_greedy_text_is_the_targets(*(deepcopy(model).to(device) for model in translators), prompts[:3], Limits(8))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_replay_says_what_it_says_on_the_processor(pair, target, noisy_draft, prompts, temperature):
    prompt, response = prompts[3][:9], prompts[3][9:]
    here, expected = (
        replay_response(
            *(response_logits(model, prompt, response) for model in models), response, sampling=Sampling(temperature)
        )
        for models in (pair, (target, noisy_draft))
    )
    for rule, accepts in expected.rules.items():
        torch.testing.assert_close(torch.tensor(here.rules[rule].accept), torch.tensor(accepts.accept), **CLOSE)
    torch.testing.assert_close(torch.tensor(here.target_logp), torch.tensor(expected.target_logp), **CLOSE)
    torch.testing.assert_close(torch.tensor(here.target_entropy), torch.tensor(expected.target_entropy), **CLOSE)
