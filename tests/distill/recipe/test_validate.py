"""Every rule between keys of a recipe: what breaks it is reported under the key to change, and nothing else is."""

from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import ValidationError

from architectures.families import FAMILIES
from architectures.requested_shape import ArchitectureConfig, MasksConfig
from distill.check import check_recipe
from distill.losses import LOSSES, Knowledge
from distill.recipe.recipe import Recipe, RuleError
from distill.recipe.validate import FEATURES, NOT_ONLINE, reject_unfit
from distill.run import Run
from tests.distill.recipe_files import tiny_recipe, write_prompts
from tests.families import DECODER_ONLY, ENCODER_DECODER
from tests.rejections import rejects

BASE = {
    "run_name": "demo",
    "target": {"path": "somewhere"},
    "architecture": {"layers": 2, "method": "first_last"},
    "data": {"self_written_prompts": 100},
}
TEXT = {"domains": [{"name": "all", "path": "a.txt"}]}
REFERENCES = {"domains": [{"name": "all", "path": "a.txt", "reference_loss_nats": 2.0}]}
ON_TEXT = {"train_on": "text", "max_duration": "9ba", "eval_interval": "3ba", "save_interval": "3ba"}
MASKS = {"layers": 2, "method": "learned_masks"}
CACHE, TOP_K, NONE = {"source": "cache"}, {"source": "cache", "contents": "top_k"}, {"source": "none"}
SHARDED = {"source": "live", "parallelism": "fsdp2"}
VLLM = {"engine": "vllm", "python": "python3"}
STREAM = {"stream": {"sources": [{"path": "requests.jsonl"}]}}
ONLINE = {"online": STREAM, "teacher": CACHE}
MIXED = {"temperature": [0.0, 1.0]}


def broken(**sections) -> list[str]:
    """Keys of the rules that a recipe with these sections breaks."""
    merged = {**BASE, **{name: value for name, value in sections.items() if name not in ("data", "target")}}
    for name in ("data", "target"):
        merged[name] = {**BASE[name], **sections.get(name, {})}
    try:
        Recipe.model_validate(merged)
    except ValidationError as error:
        [mistake] = error.errors()
        rules = mistake["ctx"]["error"]
        assert isinstance(rules, RuleError)
        return [key for key, _ in rules.broken]
    return []


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({}, []),
        # data
        ({"data": {"temperature": [0.0, 1.0], "top_p": 0.9}}, []),
        ({"data": {"temperature": [0.0], "top_p": 0.9}}, ["data.top_p"]),
        ({"data": MIXED, "distill": ON_TEXT, "text": TEXT}, ["data.temperature"]),
        ({"data": MIXED, "distill": {"samples": "student"}}, ["data.temperature"]),
        ({"data": MIXED, "distill": ONLINE}, ["data.temperature"]),
        ({"data": {**MIXED, "prompts": [{"path": "p.jsonl"}], "responses": "given", "self_written_prompts": 0}},
         ["data.temperature"]),
        # target
        ({"target": {"bits": 4}, "architecture": MASKS, "text": TEXT}, ["architecture.method"]),
        (
            {"target": {"bits": 4}, "distill": {"teacher": SHARDED, "device_train_microbatch_size": 1}},
            ["distill.teacher.parallelism"],
        ),
        ({"target": {"bits": 4}, "generate": VLLM}, ["generate.engine"]),
        ({"target": {"placement": "layers"}}, ["distill.teacher.source"]),
        ({"target": {"placement": "layers"}, "distill": {"teacher": CACHE}}, []),
        ({"target": {"placement": "layers"}, "distill": ONLINE}, ["distill.online"]),
        ({"target": {"placement": "spread"}, "distill": {"teacher": NONE}, "architecture": MASKS, "text": TEXT},
         ["architecture.method"]),
        # text
        ({"text": TEXT}, ["text"]),
        ({"architecture": MASKS}, ["text"]),
        ({"distill": ON_TEXT}, ["text"]),
        ({"architecture": {"layers": 2, "vocabulary": {"size": 99, "from": "text"}}}, ["text"]),
        ({"distill": ON_TEXT, "text": TEXT}, []),
        ({"distill": {**ON_TEXT, "teacher": CACHE}, "text": TEXT}, ["distill.teacher.source"]),
        ({"distill": {**ON_TEXT, "max_duration": "1ep"}, "text": TEXT}, ["distill.max_duration"]),
        ({"distill": {**ON_TEXT, "samples": "student"}, "text": TEXT}, ["distill.samples"]),
        ({"distill": {**ON_TEXT, "teacher": NONE}, "text": TEXT}, ["text.mixture"]),
        ({"distill": {**ON_TEXT, "teacher": NONE}, "text": REFERENCES}, []),
        ({"distill": {**ON_TEXT, "scheduler": {"t_warmup": "1ep"}}, "text": TEXT}, ["distill.scheduler.t_warmup"]),
        ({"distill": ON_TEXT, "text": TEXT, "architecture": {"layers": 2, "vocabulary": {"size": 99}}},
         ["architecture.vocabulary.from"]),
        # training
        ({"distill": {"teacher": {"source": "cache", "parallelism": "fsdp2"}}}, ["distill.teacher.parallelism"]),
        ({"distill": {"teacher": {"contents": "top_k"}}}, ["distill.teacher.contents"]),
        ({"distill": {"teacher": {"k": 5}}}, ["distill.teacher.k"]),
        ({"distill": {"teacher": {**CACHE, "k": 5}}}, ["distill.teacher.k"]),
        ({"distill": {"teacher": {**TOP_K, "num_samples": 5}}}, ["distill.teacher.num_samples"]),
        ({"distill": {"teacher": {**TOP_K, "k": 5}}}, []),
        ({"distill": {"unknown_inputs": 0.2}}, ["distill.unknown_inputs"]),
        ({"distill": {"unknown_inputs": 0.2, "freeze_input_embeddings": True},
          "architecture": {"layers": 2, "vocabulary": {"size": 99}}}, ["distill.freeze_input_embeddings"]),
        ({"distill": {"teacher": TOP_K, "temperature": 2.0}}, ["distill.temperature"]),
        ({"distill": {"loss": "cross_entropy", "temperature": 2.0}}, ["distill.temperature"]),
        ({"distill": {"samples": "student", "teacher": CACHE}}, ["distill.samples"]),
        ({"distill": {"samples": "student", "teacher": NONE}}, ["distill.samples"]),
        ({"distill": {"samples": "student", "loss": "cross_entropy"}}, ["distill.samples"]),
        ({"distill": {"samples": "mix_token", "teacher": SHARDED, "device_train_microbatch_size": 1}},
         ["distill.samples"]),
        ({"distill": {"samples": "student", "parallelism": "fsdp2", "device_train_microbatch_size": 1}},
         ["distill.parallelism"]),
        ({"distill": {"device_train_microbatch_size": 99}}, ["distill.device_train_microbatch_size"]),
        ({"distill": {"teacher": SHARDED}}, ["distill.device_train_microbatch_size"]),
        ({"distill": {"parallelism": "fsdp2"}}, ["distill.parallelism"]),
        ({"distill": {"shard_degree": 2}}, ["distill.shard_degree"]),
        ({"distill": {"max_duration": "9tok", "scheduler": {"t_warmup": "1ba"}}}, ["distill.scheduler.t_warmup"]),
        # requests
        ({"distill": ONLINE}, []),
        ({"distill": {"online": STREAM}}, ["distill.teacher"]),
        ({"distill": {**ONLINE, "teacher": TOP_K}}, ["distill.teacher"]),
        ({"distill": {**ONLINE, "packing": True}}, ["distill.packing"]),
        ({"distill": {**ONLINE, "global_train_batch_size": 2}}, ["distill.online.update_interval"]),
        ({"distill": {**ONLINE, "max_duration": "9tok"}}, ["distill.max_duration"]),
        ({"distill": {**ONLINE, "online": {}}}, []),
        ({"distill": {**ONLINE, "online": {"responses": "recorded"}}}, ["distill.online.stream"]),
        ({"distill": {**ONLINE, "parallelism": "fsdp2", "device_train_microbatch_size": 1}}, ["distill.parallelism"]),
        ({"distill": ONLINE, "architecture": {"layers": 2, "vocabulary": {"size": 9, "from": "responses"}}},
         ["architecture.vocabulary.from"]),
        ({"distill": ONLINE,
          "data": {"prompts": [{"path": "p.jsonl"}], "responses": "given", "self_written_prompts": 0}},
         ["data.responses"]),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_reported_under_the_key_to_change(sections, keys):
    assert broken(**sections) == keys


def test_keys_that_online_mode_leaves_alone_exist():
    assert NOT_ONLINE.keys() <= Recipe.model_fields["distill"].annotation.model_fields.keys()


TELLS = {"live": Knowledge.LOGITS, "hidden": Knowledge.LOGITS, "top_k": Knowledge.ENTRIES, "none": Knowledge.TOKENS}
TEACHERS = {"live": {}, "hidden": CACHE, "top_k": TOP_K, "none": NONE}


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_needs_what_its_teacher_gives(loss, teacher):
    expected = ["distill.loss"] if LOSSES[loss].needs > TELLS[teacher] else []
    assert broken(distill={"teacher": TEACHERS[teacher], "loss": loss}) == expected


def test_all_broken_rules_are_reported_at_once():
    found = broken(text=TEXT, distill={"shard_degree": 2, "teacher": TOP_K, "temperature": 2.0})
    assert sorted(found) == ["distill.shard_degree", "distill.temperature", "text"]


LEARNED = {"layers": 2, "method": "learned_masks"}


@pytest.mark.parametrize(
    ("architecture", "named"),
    [
        ({**LEARNED, "width_method": "flap"}, ("width_method", "learned_masks")),
        ({**LEARNED, "scores": "s"}, ("scores", "learned_masks")),
        ({**LEARNED, "source": "s"}, ("source", "learned_masks")),
        ({"stages": [3, 2], "method": "learned_masks"}, ("stages", "learned_masks")),
        ({"plan": "p.json", "method": "learned_masks"}, ("plan", "learned_masks")),
        ({"layers": 2, "masks": {"mask_lr": 0.5}}, ("masks", "greedy")),
    ],
)
def test_nothing_is_accepted_and_ignored(architecture, named):
    with rejects(*named, error=ValidationError):
        ArchitectureConfig.model_validate(architecture)


def test_a_length_in_epochs_is_refused():
    with rejects("max_duration", error=ValidationError):
        MasksConfig.model_validate({"max_duration": "1ep"})


# What a family cannot be given is refused by check and by every stage, and by nothing else: one table for all

ROOT = Path(__file__).parents[3]
RESPONSEED = {"prompts": [{"path": "prompts.jsonl"}], "num_eval_prompts": 2}
ASKS = MappingProxyType(  # feature -> sections that ask for it
    {
        "merge": {"architecture": {"layers": 2, "method": "merge"}},
        "learned_masks": {"architecture": {"layers": 2, "method": "learned_masks"}, "text": {}},
        "vocabulary": {"architecture": {"layers": 2, "vocabulary": {"size": 64, "from": "responses"}}},
        "stages": {"architecture": {"stages": [3, 2]}},
        "packing": {"distill": {"packing": True}},
        "text": {"distill": {"train_on": "text", "max_duration": "9ba"}, "text": {}},
        "self_written_prompts": {"data": {**RESPONSEED, "self_written_prompts": 4}},
        "generation engine": {"generate": {"engine": "endpoint", "urls": ["http://a"]}},
        "sharded teacher": {
            "distill": {"teacher": {"source": "live", "parallelism": "fsdp2"}, "device_train_microbatch_size": 1}
        },
        "fsdp2": {"distill": {"parallelism": "fsdp2", "device_train_microbatch_size": 1}},
    }
)


def recipe_of(folder: Path, target: Path, sections: dict[str, dict[str, object]]) -> Recipe:
    prompts, text = write_prompts(folder, 9), folder / "text.txt"
    text.write_text("some words. " * 400)
    data = {**RESPONSEED, **sections.get("data", {}), "prompts": [{"path": str(prompts)}]}
    words = {"text": {"domains": ({"name": "all", "path": str(text)},)}} if "text" in sections else {}
    calibration = {"text": str(text), "tokens": 64}
    architecture = {"layers": 2, **sections.get("architecture", {})}
    if architecture.get("method") != "learned_masks":
        architecture["calibration"] = calibration
    if "stages" in architecture:
        del architecture["layers"]
    rest = {name: sections.get(name, {}) for name in ("distill", "generate")}
    return tiny_recipe(folder / "run", target, architecture, data, **rest, eval={"num_prompts": 2}, **words)


@pytest.mark.parametrize("feature", ASKS)
@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_what_a_family_cannot_be_given_is_refused_before_anything_is_computed(
    feature, family, make_translator, tmp_path
):
    recipe = recipe_of(tmp_path, make_translator(), ASKS[feature])
    named = FEATURES[feature][0], family, FAMILIES[family].unsupported[feature]
    with rejects(*named):
        check_recipe(recipe)
    with rejects(*named):
        Run.of(recipe).begin()


@pytest.mark.parametrize("feature", ASKS)
def test_the_same_is_given_to_others(feature, tiny_target, tmp_path):
    recipe = recipe_of(tmp_path, tiny_target, ASKS[feature])
    for name, family in DECODER_ONLY.items():
        with rejects(name) if feature in family.unsupported else nullcontext():
            reject_unfit(recipe, name)


def test_a_plain_recipe_is_refused_nothing(make_translator, tmp_path):
    recipe = recipe_of(tmp_path, make_translator(), {})
    check_recipe(recipe)
    Run.of(recipe).begin()


def test_every_refusal_is_asked_for_and_told_on_the_page():
    page = (ROOT / "docs" / "prune.md").read_text(encoding="utf-8")
    assert FEATURES.keys() == ASKS.keys()
    for family in ENCODER_DECODER.values():
        assert family.unsupported.keys() == FEATURES.keys() | {"choose"}
    for key, _ in FEATURES.values():
        assert f"`{key}`" in page, key
