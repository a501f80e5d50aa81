"""A pair of tiny models that agree on some tokens and not on others, and prompts for them."""

import pytest
import torch

from eval.models import load_model, load_tokenizer


@pytest.fixture(scope="session")
def target_folder(make_checkpoint):
    """As tiny_target, with its stop token as the pad token: id 0 then has an embedding like any other."""
    return make_checkpoint(seed=1, pad_token_id=2)


@pytest.fixture(scope="session")
def target(target_folder):
    return load_model(target_folder, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def noisy_folder(target_folder, tmp_path_factory):
    """The target with noise on its weights: a draft that is right about half of the time."""
    model = load_model(target_folder, dtype="float32", device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.005)
    folder = tmp_path_factory.mktemp("noisy")
    model.save_pretrained(folder)
    load_tokenizer(target_folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def noisy_draft(noisy_folder):
    return load_model(noisy_folder, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def random_draft(tiny_draft):
    return load_model(tiny_draft, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def prompts():
    """Token ids, among them id 0 and a prompt of one token."""
    generator = torch.Generator().manual_seed(3)
    lengths = (1, 2, 7, 19, 40)
    drawn = [torch.randint(3, 259, (length,), generator=generator).tolist() for length in lengths]
    return [*drawn, [0], [0, 5, 0, 0]]
