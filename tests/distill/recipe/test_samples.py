"""distill.samples beside everything it meets, as one table: taken, or refused with the reason and the remedy."""

from itertools import product

import pytest
from pydantic import ValidationError

from distill.formulas.losses import LOSSES
from distill.recipe.recipe import Recipe
from distill.recipe.sections.samples import SamplesConfig
from distill.recipe.sections.training import DistillConfig

SOURCES = ("teacher", "student", "mix_request", "mix_token")
TEACHERS = {
    "live": {},
    "sharded": {"parallelism": "fsdp2"},
    "hidden": {"source": "cache"},
    "top_k": {"source": "cache", "contents": "top_k"},
    "samples": {"source": "cache", "contents": "samples"},
    "none": {"source": "none"},
}
REFUSED = "distill.samples must be left out when distill.{}, got source {}: {}"
CACHED = "a cache holds what the teacher said of the answers that are there and cannot score fresh text. "
TO_LIVE = "Set distill.teacher.source to live."


OTHERS = (
    {"packing": True},
    {"unknown_inputs": 0.5},
    {"token_selection": {"reference": "runs/reference"}},
    {"freeze_input_embeddings": True},
    {"precision": "fp32"},
    {"device_train_microbatch_size": "auto"},
    {"max_duration": "900_000tok", "scheduler": {"t_warmup": "0.1dur"}},
)


def refusal(**distill):
    """What section distill is refused for; None where it is taken."""
    try:
        DistillConfig.model_validate({"device_train_microbatch_size": 1, **distill})
    except ValidationError as error:
        [mistake] = error.errors()
        return f"distill.{'.'.join(map(str, mistake['loc']))} {mistake['msg'].removeprefix('Value error, ')}"
    return None


@pytest.mark.parametrize(("source", "teacher"), [*product(SOURCES, TEACHERS)])
def test_every_source_beside_every_teacher(source, teacher):
    said = refusal(samples={"source": source}, teacher=TEACHERS[teacher])
    of_cache, writes = TEACHERS[teacher].get("source") == "cache", source != "teacher"
    if writes and of_cache:
        assert said == REFUSED.format("teacher.source is cache", source, CACHED + TO_LIVE)
    elif writes and teacher == "none":
        why = f"nobody would score what the student writes. {TO_LIVE}"
        assert said == REFUSED.format("teacher.source is none", source, why)
    elif (source, teacher) == ("mix_token", "sharded"):
        assert said is not None
        assert said.startswith(
            "distill.samples must have source student or mix_request when distill.teacher.parallelism is fsdp2, got "
            "mix_token: the teacher's shards would be gathered for every token"
        )
    else:
        assert said is None


@pytest.mark.parametrize(("source", "loss"), [*product(SOURCES, LOSSES)])
def test_every_source_beside_every_loss(source, loss):
    said = refusal(samples={"source": source}, loss=loss)
    if source != "teacher" and loss == "cross_entropy":
        why = "the student would learn its own tokens. Take a loss that asks the teacher, alone or beside it."
        assert said == REFUSED.format("loss is cross_entropy alone", source, why)
        beside = [{"name": "forward_kl"}, {"name": "cross_entropy", "weight": 0.1}]
        assert refusal(samples={"source": source}, loss=beside) is None
    else:
        assert said is None


@pytest.mark.parametrize(
    ("source", "others"),
    [*product(SOURCES, OTHERS)],
    ids=str,
)
def test_every_source_beside_what_leaves_it_alone(source, others):
    assert refusal(samples={"source": source}, **others) is None


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_beside_text_and_shards_of_the_student(source):
    text = refusal(samples={"source": source}, train_on="text", max_duration="9ba", eval_interval="3ba")
    shards = refusal(samples={"source": source}, parallelism="fsdp2")
    if source == "teacher":
        assert (text, shards) == (None, None)
        return
    why = "text holds no answers to write anew. Train on answers."
    assert text == REFUSED.format("train_on is text", source, why)
    assert shards == (
        f"distill.parallelism must be ddp when distill.samples.source is {source}, got fsdp2: a student in shards "
        "would be gathered for every token, and processes write answers of different lengths. A draft fits one device."
    )


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ({"probability": 0.5}, "probability", "must be left out when distill.samples.source is teacher, got 0.5"),
        ({"temperature": 0.0}, "temperature", "must be left out when distill.samples.source is teacher, got 0.0"),
        ({"max_new_tokens": 9}, "max_new_tokens", "must be left out when distill.samples.source is teacher, got 9"),
        ({"ramp": "0.5dur"}, "ramp", "must be left out when distill.samples.source is teacher, got 0.5dur"),
        (
            {"source": "student", "probability": 0.5},
            "probability",
            "must be left out when distill.samples.source is student, got 0.5: the student writes all. mix_request ",
        ),
        ({"source": "student", "ramp": "9ba"}, "ramp", "A mix has a probability that can rise"),
        ({"source": "mix_token", "begin": 0.2}, "begin", "must be left out without distill.samples.ramp, got 0.2."),
        (
            {"source": "mix_token", "probability": 0.3, "ramp": "9ba", "begin": 0.4},
            "begin",
            "must be at most distill.samples.probability, got 0.4 and 0.3. It rises.",
        ),
        ({"source": "mix_token", "ramp": "2ep"}, "ramp", "should match pattern"),
        ({"source": "nobody"}, "source", "Input should be 'teacher', 'student', 'mix_request' or 'mix_token'"),
        ({"source": "mix_token", "probability": 1.5}, "probability", "less than or equal to 1"),
    ],
    ids=str,
)
def test_a_key_that_nothing_would_read_is_refused(section, key, words):
    with pytest.raises(ValidationError) as raised:
        SamplesConfig.model_validate(section)
    [mistake] = raised.value.errors()
    assert mistake["loc"] == (key,)
    assert words in mistake["msg"]


def test_a_name_that_does_not_exist_is_told_with_those_that_do(mistakes):
    text = "run_name: r\ntarget: {path: models/x}\narchitecture: {layers: 2}\ndata: {self_written_prompts: 9}\n"
    [line] = mistakes(text, "distill.samples.source=studnet")
    assert "distill.samples.source" in line
    assert "studnet" in line
    assert "mix_request" in line
    [line] = mistakes(text, "distill.samples.source=student", "distill.samples.max_new_tokens=1024")
    assert "must have samples.max_new_tokens < data.max_seq_len, got 1024 and 1024. The prompt needs room too." in line


@pytest.mark.parametrize(
    ("samples", "chances"),
    [
        ({"source": "student"}, [1.0, 1.0, 1.0]),
        ({"source": "mix_token"}, [0.5, 0.5, 0.5]),
        ({"source": "mix_request", "probability": 0.8, "ramp": "10ba"}, [0.0, 0.4, 0.8]),
        ({"source": "mix_request", "probability": 1.0, "begin": 0.5, "ramp": "10ba"}, [0.5, 0.75, 1.0]),
        ({"source": "mix_request", "probability": 0.8, "ramp": "1dur"}, [0.0, 0.8, 0.8]),
    ],
    ids=str,
)
def test_the_probability_rises_from_begin_and_stays(samples, chances):
    config = SamplesConfig(**samples)
    assert [config.probability_after(passed) for passed in (0, 5, 99)] == pytest.approx(chances)


def test_a_recipe_with_samples_is_saved_and_read_again(tmp_path):
    from distill.recipe.recipe import load_recipe, save_recipe

    recipe = Recipe.model_validate(
        {
            "run_name": "r",
            "target": {"path": "models/x"},
            "architecture": {"layers": 2},
            "data": {"self_written_prompts": 9},
            "distill": {"samples": {"source": "mix_token", "ramp": "0.5dur"}},
        }
    )
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
