"""Every rule of every engine: a folder that breaks it alone is told so, and of nothing else."""

from typing import Any

import pytest

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import Severity
from architectures.engines.pair.read_facts import read_draft, read_model
from architectures.engines.table import ENGINES, findings
from architectures.families import FAMILIES
from tests.architectures.engines.cases import (
    ALL,
    ALWAYS,
    CASES,
    GPU_ENGINES,
    LOSSY,
    REFUSED,
    TEXTS,
    TRT,
    UNKNOWN,
    config,
    edit,
    of_both,
    of_target,
)
from tests.architectures.engines.conftest import files


def told(engine: str, pair: Pair) -> set[tuple[Severity, str]]:
    found = findings(engine, pair)  # pyright: ignore[reportArgumentType]
    return {(each.severity, each.rule) for each in found if each.severity is not Severity.FINE}


@pytest.fixture
def pair_of(write):
    """pair_of(change, **of the pair) -> the pair of folders that a change of their files makes."""

    def make(change=None, *, name: str = "draft", **keys: Any) -> Pair:
        draft, target = files(), files()
        if change is not None:
            change(draft, target)
        return Pair(draft=read_draft(write(name, draft)), target=read_model(write("target", target)), **keys)

    return make


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("case", CASES)
def test_what_breaks_one_rule_is_told_of_that_rule_alone(pair_of, engine, case):
    change, expected = CASES[case]
    assert told(engine, pair_of(change)) == expected.get(engine, set()) | ALWAYS.get(engine, set())


@pytest.mark.parametrize("name", ["EAGLE-1b", "my-eagle3", "runs/dflash/draft", "a.dspark.b"])
def test_a_name_that_misleads_vllm_is_refused(pair_of, name):
    pair = pair_of(name=name)
    assert told("vllm", pair) == {(REFUSED, "name")}
    assert not told("sglang", pair)


def test_a_model_type_nobody_knows_is_not_called_fine(pair_of):
    pair = pair_of(of_both(model_type="other"))
    for engine in ALL:
        severities = {each.rule: each.severity for each in findings(engine, pair)}
        assert severities["shape"] is severities["model type"] is UNKNOWN
        assert REFUSED not in severities.values()


def test_code_of_its_own_of_a_model_type_nobody_knows_is_refused(pair_of):
    pair = pair_of(config(model_type="other", auto_map={"AutoModelForCausalLM": "code.Model"}))
    assert all((REFUSED, "custom code") in told(engine, pair) for engine in ALL)


# heads, key/value heads and neurons, and over how many of 1, 2, 3, 4, 6, 8 devices they go
DIVISIONS = {
    (8, 4, 512): (1, 2, 4, 8),
    (8, 1, 512): (1, 2, 4, 8),
    (8, 8, 516): (1, 2, 4),
    (4, 2, 512): (1, 2, 4),
    (12, 6, 768): (1, 2, 3, 6),
}


@pytest.mark.parametrize("engine", GPU_ENGINES)
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("sizes", DIVISIONS)
def test_devices_share_heads_and_neurons_evenly(pair_of, engine, degree, sizes):
    heads, kv_heads, neurons = sizes
    whole = {"hidden_size": 768, "num_attention_heads": 24, "num_key_value_heads": 24, "intermediate_size": 768}

    def change(draft, target):
        of_target(**whole)(draft, target)
        keys = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": neurons}
        config(**keys, hidden_size=768)(draft, target)

    found = told(engine, pair_of(change, tensor_parallel=degree))
    assert found == (set() if degree in DIVISIONS[sizes] else {(REFUSED, "tensor parallelism")})


def test_devices_that_the_target_cannot_be_shared_by_are_refused_too(pair_of):
    change = of_target(num_attention_heads=4, num_key_value_heads=4, head_dim=64)
    (finding,) = [each for each in findings("vllm", pair_of(change, tensor_parallel=8)) if each.severity is REFUSED]
    assert finding.explanation.startswith("8 devices cannot share the 4 heads, 4 key/value heads and 512 neurons of th")
    assert finding.remedy == "Serve both on 1, 2 or 4 devices."


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers", TRT])
def test_devices_of_other_engines_are_not_called_fine(pair_of, engine):
    assert told(engine, pair_of(tensor_parallel=2)) == {(UNKNOWN, "devices")} | ALWAYS.get(engine, set())


def test_a_target_known_by_its_name_alone_leaves_tokenizers_unchecked(write):
    of = files()
    edit(of, "config.json", vocab_size=32000, max_position_embeddings=4096)
    pair = Pair(draft=read_draft(write("draft", of)), target=read_model("meta-llama/Llama-2-7b-hf"))
    unknown = {(UNKNOWN, TEXTS), (UNKNOWN, "chat template")}
    expected = {
        "vllm": {*unknown, (UNKNOWN, "number type")},
        "sglang": unknown,
        "llama.cpp": {*unknown, (UNKNOWN, "vocabulary type"), (UNKNOWN, "BOS and EOS")},
        "transformers": {*unknown, (UNKNOWN, "ensemble")},
        TRT: {*unknown, (UNKNOWN, "model type")},
    }
    assert {engine: told(engine, pair) for engine in ALL} == expected
    (texts_of,) = [each for each in findings("vllm", pair) if each.rule == TEXTS]
    assert "the tokenizer of the target (meta-llama/Llama-2-7b-hf)" in texts_of.explanation


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_an_answer_or_an_explained_refusal(write, engine, family):
    sizes = {
        "layers": 2,
        "hidden": 256,
        "intermediate": 512,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 32,
        "vocab": 300,
        "positions": 512,
        "encoder_layers": 2,
    }
    keys = FAMILIES[family].keys
    of = files()
    of["config.json"] = {"model_type": family, **{keys[size]: sizes[size] for size in sizes if size in keys}}
    pair = Pair(draft=read_draft(write("draft", of)), target=read_model(write("target", of)))
    found = findings(engine, pair)
    assert len({each.rule for each in found}) == len(found) == len(ENGINES[engine].rules)
    assert all(each.explanation.endswith((".", ",")) and each.source for each in found)
    assert all(each.remedy for each in found if each.severity in (REFUSED, LOSSY))
    refused = {each.rule for each in found if each.severity is REFUSED}
    assert refused == ({"model type"} if engine == "llama.cpp" and family in ("opt", "t5") else set())
    assert ENGINES[engine].serve(pair)


def remedies(engine: str, pair: Pair, severity: Severity) -> dict[str, str]:
    return {each.rule: each.remedy for each in findings(engine, pair) if each.severity is severity}  # pyright: ignore[reportArgumentType]


def test_devices_that_are_advised_share_both_models(pair_of):
    change = config(num_attention_heads=4, num_key_value_heads=4, head_dim=64)
    assert remedies("vllm", pair_of(change, tensor_parallel=8), REFUSED) == {
        "tensor parallelism": "Serve both on 1, 2 or 4 devices, or cut the draft to other heads and widths."
    }


def test_a_draft_of_its_own_tokens_is_advised_to_be_made_whole(pair_of):
    told = remedies("sglang", pair_of(CASES["a tokenizer of its own"][0]), REFUSED)
    assert told["vocabulary size"] == "Run `widedraft convert --form whole` on the draft that this was made from."


def test_a_shorter_draft_is_advised_to_be_stretched(pair_of):
    short = config(max_position_embeddings=256)
    assert remedies("vllm", pair_of(short), LOSSY) == {
        "length": "Export it with max_position_embeddings 512, or serve texts of at most 256 tokens."
    }


@pytest.mark.parametrize("engine", ALL)
def test_the_worst_is_told_first(pair_of, engine):
    pair = pair_of(config(vocab_size=429, max_position_embeddings=256, dtype=None))
    order = [list(Severity).index(each.severity) for each in findings(engine, pair)]
    assert order[0] == 0
    assert order == sorted(order)
