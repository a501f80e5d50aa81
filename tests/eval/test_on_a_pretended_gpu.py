"""Decoding, replays and the proofs of a pair mix no tensor of the processor with one of a GPU: see pretended_gpu.py."""

from copy import deepcopy

import pytest

import widedraft
from eval.decoding.sampling import RULES, Limits, Sampling, Speculation
from eval.decoding.speculative import NgramLookup, plain_decode, speculative_decode
from eval.replay import replay_response, response_logits
from tests.eval.decoding.small_heads import with_head_of
from tests.pretended_gpu import pretended_gpu

WARPED = Sampling(1.3, top_p=0.9, top_k=30, min_p=0.01, repetition_penalty=1.3)
PENALISED = Sampling(0.0, repetition_penalty=1.4)
LIMITS = Limits(5, frozenset({2}))


@pytest.fixture
def small(make_checkpoint):
    """Folders of a target of two layers and a draft of one."""
    return [make_checkpoint(seed=1, num_hidden_layers=layers, pad_token_id=2) for layers in (2, 1)]


@pytest.fixture(params=["all ids", "some ids"])
def pair(small_pair, request):
    """A target and a draft of four ids, or of three of them."""
    return small_pair if request.param == "all ids" else [small_pair[0], with_head_of(small_pair[1], [0, 1, 3])]


@pytest.fixture
def gpu(monkeypatch):
    """Where every command puts its models."""
    monkeypatch.setattr("eval.models.default_device", lambda: "cuda")
    with pretended_gpu() as device:
        yield device


def moved(models, device):
    return [deepcopy(model).to(device) for model in models]


def texts(decoded):
    return [(one.token_ids, [(each.proposed, each.accepted) for each in one.steps]) for one in decoded]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sampling", [Sampling(), PENALISED, WARPED], ids=["greedy", "penalised", "warped"])
def test_a_batch_is_decoded_as_on_the_processor(pair, gpu, rule, sampling):
    wanted = {
        "limits": LIMITS,
        "speculation": Speculation(3, rule=rule),
        "sampling": sampling,
        "row_seeds": range(3),
    }
    prompts = [[1], [2, 3, 1, 0], [3, 3]]
    expected = speculative_decode(*pair, prompts, **wanted)
    there = moved(pair, gpu)
    assert there[0].device == gpu
    assert texts(speculative_decode(*there, prompts, **wanted)) == texts(expected)


def test_other_ways_to_decode_are_those_of_the_processor(small_pair, translators, gpu):
    prompts, how = [[1, 2, 3, 1, 2], [2, 3, 1, 2, 3, 1]], {"limits": LIMITS, "sampling": WARPED, "row_seeds": range(2)}
    target, encoder_decoder = moved([small_pair[0], translators[0]], gpu)
    assert texts(plain_decode(target, prompts, **how)) == texts(plain_decode(small_pair[0], prompts, **how))
    looked_up = [speculative_decode(each, NgramLookup(), prompts, **how) for each in (target, small_pair[0])]
    assert texts(looked_up[0]) == texts(looked_up[1])
    translated = [
        speculative_decode(each, each, [[3, 4, 5]], limits=Limits(3)) for each in (encoder_decoder, translators[0])
    ]
    assert texts(translated[0]) == texts(translated[1])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_replay_is_that_of_the_processor(pair, gpu, temperature):
    response = [3, 0, 2, 1]
    found = [
        replay_response(
            *(response_logits(one, [1, 2], response) for one in models), response, sampling=Sampling(temperature)
        )
        for models in (pair, moved(pair, gpu))
    ]
    assert found[0].target_logp == pytest.approx(found[1].target_logp, rel=1e-5)
    for rule, accepts in found[0].rules.items():
        assert accepts.accept == pytest.approx(found[1].rules[rule].accept, rel=1e-5)


@pytest.mark.parametrize("sampled", [[], ["--temperature", "0.9"]], ids=["greedy", "sampled"])
def test_a_pair_is_verified(small, tmp_path, gpu, sampled):
    (tmp_path / "p.jsonl").write_text('{"prompt": "why"}\n')
    words = ["--target", str(small[0]), "--draft", str(small[1]), "--prompts", str(tmp_path / "p.jsonl")]
    words += ["--max-new-tokens", "3", "--num-speculative-tokens", "2", "--dtype", "float32"]
    assert widedraft.main(["verify", *words, *sampled]) in (0, 1)  # three tokens prove nothing
