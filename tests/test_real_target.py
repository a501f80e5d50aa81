"""The laws on a real model: SmolLM2-135M-Instruct, which `make test` puts under models/."""

from pathlib import Path

import pytest

TARGET = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"
QUESTION = "A farmer has 3 fields with 12 apple trees each. Half of the trees are cut down. How many are left?"
K = 4
NEW_TOKENS = 16

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def target() -> Path:
    if not TARGET.is_dir():
        pytest.skip(f"{TARGET} is not there; `make test` makes it")
    return TARGET


@pytest.fixture(scope="module")
def prompt_ids(target) -> list[int]:
    from eval.chat import Turn, render_prompt
    from eval.models import load_tokenizer

    return render_prompt(load_tokenizer(target), Turn(({"role": "user", "content": QUESTION},)))


@pytest.fixture(scope="module")
def model(target):
    from eval.models import load_model

    return load_model(target, dtype="float32")


@pytest.fixture(scope="module")
def cut(target, tmp_path_factory):
    """Cut a draft of so many layers out of the target."""
    from architectures.hub import read_config
    from architectures.pruning.plan import plan_pruning
    from architectures.pruning.prune import prune_checkpoint
    from architectures.requested_shape import ArchitectureConfig
    from architectures.shapes import Shape

    def make(layers: int) -> Path:
        out = tmp_path_factory.mktemp("cut") / f"{layers}-layers"
        plan = plan_pruning(
            Shape.from_config(read_config(target)), ArchitectureConfig(layers=layers, method="first_last")
        )
        prune_checkpoint(target, plan, out, dtype="float32", finish=lambda _: None)
        return out

    return make


def test_keeping_every_layer_keeps_every_logit(model, cut, prompt_ids):
    import torch

    from eval.models import load_model

    with torch.inference_mode():
        whole, same = (lm(torch.tensor([prompt_ids])).logits for lm in (model, load_model(cut(30), dtype="float32")))
    assert torch.equal(whole, same)


def test_live_loop_replay_and_plain_decoding_agree_in_float32(model, cut, prompt_ids):
    from eval.decoding.sampling import Limits, Sampling, Speculation
    from eval.decoding.speculative import plain_decode, speculative_decode
    from eval.models import load_model, stop_token_ids
    from eval.replay import count_trace, replay_counts, replay_response, response_logits

    draft = load_model(cut(26), dtype="float32")
    limits = Limits(NEW_TOKENS, stop_token_ids(model))
    [plain] = plain_decode(model, [prompt_ids], limits=limits)
    [decoded] = speculative_decode(model, draft, [prompt_ids], limits=limits, speculation=Speculation(K))
    assert decoded.token_ids == plain.token_ids
    loop = count_trace(
        [(one.start, one.accepted) for one in decoded.steps],
        num_tokens=len(decoded.token_ids),
        num_speculative_tokens=K,
    )
    logits = [response_logits(each, prompt_ids, plain.token_ids) for each in (model, draft)]
    replay = replay_response(*logits, plain.token_ids, sampling=Sampling(0))
    assert loop == replay_counts(replay.rules["exact_greedy_draft"].accept, num_speculative_tokens=K)
    assert 0 < loop.accepted_tokens < loop.proposed_tokens  # neither nothing nor everything: not a vacuous pass
