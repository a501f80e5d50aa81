"""States kept while a model decodes are those of reading the finished text, in every family, and change no token.

Shape suffixes: A = tokens of a text, H = width of the last hidden state.
"""

import pytest
import torch

from eval.decoding import speculative
from eval.decoding.generate import HiddenStates
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import Wanted, decode_steps, finished
from eval.decoding.texts import Limits
from eval.models.loading import load_model
from eval.models.products import quicken_products
from tests.architectures.conftest import FAMILY_SETTINGS, perturb_vectors

PROMPTS = [[5], [9, 10, 11, 12, 13, 14, 15], [7, 8, 9], [200, 100], [6] * 20, [41, 42, 43, 44]]
NAMES = [30, 10, 50, 20, 60, 40]
SEEDS = [11, 12, 13, 14, 15, 16]
LONGEST = 24
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.2, top_p=0.95)
AS_READ = {"rtol": 1e-4, "atol": 1e-4}  # float32: a step of few rows sums in another order than a whole text does


def model_of(make_checkpoint, family: str):
    folder = perturb_vectors(make_checkpoint(seed=3, model_type=family, **FAMILY_SETTINGS[family]))
    return load_model(folder, dtype="float32", device="cpu")


@pytest.fixture(scope="module", params=FAMILY_SETTINGS)
def model(make_checkpoint, request):
    return model_of(make_checkpoint, request.param)


@pytest.fixture
def llama(make_checkpoint):
    return model_of(make_checkpoint, "llama")


def steps_of(model, sampling=GREEDY, stop_ids=frozenset()):
    return decode_steps([model], Wanted(PROMPTS, Limits(LONGEST, stop_ids), sampling), row_seeds=SEEDS)


def texts_of(steps) -> list[tuple[int, ...]]:
    """What follows each prompt."""
    texts = dict(finished(steps))
    return [texts[place].token_ids for place in range(len(PROMPTS))]


def some_tokens(model, sampling=GREEDY) -> frozenset[int]:
    """Tokens of two texts: where they stop a text, texts end at different steps."""
    texts = texts_of(steps_of(model, sampling))
    return frozenset([texts[0][3], texts[3][9]])


@torch.inference_mode()
def read(model, prompt, answer) -> torch.Tensor:
    """hidden_AH of reading a finished text, alone."""
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    return model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) - 1 :]


def require_as_read(model, answers, states: HiddenStates) -> None:
    for name, prompt, answer in zip(NAMES, PROMPTS, answers, strict=True):
        hidden_AH = states.take(name)
        assert len(hidden_AH) == len(answer)
        torch.testing.assert_close(hidden_AH, read(model, prompt, answer), **AS_READ)
    assert not states.texts


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_kept_states_are_those_of_reading_the_finished_text_and_no_token_changes(model, sampling):
    stop_ids = some_tokens(model, sampling)
    plain = texts_of(steps_of(model, sampling, stop_ids))
    states = HiddenStates(model)
    assert texts_of(states.along(steps_of(model, sampling, stop_ids), NAMES)) == plain
    assert len(set(map(len, plain))) >= 2
    require_as_read(model, plain, states)


def test_each_token_was_chosen_from_the_state_kept_for_it(model):
    """Through the head alone, a softcap included: what is kept is the head's input and nothing before it."""
    states = HiddenStates(model)
    answers = texts_of(states.along(steps_of(model), NAMES))
    head = model.get_output_embeddings()
    for name, answer in zip(NAMES, answers, strict=True):
        with torch.inference_mode():
            assert head(states.take(name)).argmax(dim=-1).tolist() == list(answer)


def test_texts_decoded_one_at_a_time_keep_theirs(llama, monkeypatch):
    """What is noted while the next prompt is read belongs to no text."""
    monkeypatch.setattr(speculative, "takes_rows", lambda *_, **__: False)
    states = HiddenStates(llama)
    require_as_read(llama, texts_of(states.along(steps_of(llama), NAMES)), states)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="packed products are oneDNN's")
def test_packed_weights_keep_the_same_states(llama):
    quicken_products(llama)
    states = HiddenStates(llama)
    require_as_read(llama, texts_of(states.along(steps_of(llama), NAMES)), states)


def test_states_have_the_models_number_type_and_are_ordinary_tensors(make_checkpoint):
    model = load_model(make_checkpoint(seed=3), dtype="bfloat16", device="cpu")
    states = HiddenStates(model)
    answers = texts_of(states.along(steps_of(model), NAMES))
    for name, answer in zip(NAMES, answers, strict=True):
        hidden_AH = states.take(name)
        assert (hidden_AH.dtype, tuple(hidden_AH.shape)) == (torch.bfloat16, (len(answer), 64))
        assert not hidden_AH.is_inference()


def test_a_text_in_the_middle_holds_a_state_for_each_of_its_tokens(llama):
    """And those that have ended can be let go of while others go on: one batch is held at most."""
    stop_ids, told = some_tokens(llama), [0] * len(PROMPTS)
    states = HiddenStates(llama)
    for step in states.along(steps_of(llama, stop_ids=stop_ids), NAMES):
        if isinstance(step, tuple):
            assert len(states.take(NAMES[step[0]])) == len(step[1].token_ids)
            told[step[0]] = 0
        else:
            told[step.index] += 1
        assert {name: len(rows) for name, rows in states.texts.items()} == {
            NAMES[place]: count for place, count in enumerate(told) if count
        }
