"""An encoder-decoder pair through training: nothing to learn of itself, live as cached, resumed as uninterrupted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import distill.trainer
from distill.chunked_loss import ResponseLogits
from distill.data.batches import ResponseDataset, collate
from distill.losses import LOSSES, build_objective
from distill.model import DistillModel
from distill.pipeline import cache_stage, generate_stage, prune_stage
from distill.recipe.recipe import Recipe, save_recipe
from distill.run import Run
from distill.teacher import load_teacher
from distill.train import train
from eval.models import load_model
from eval.responses import read_traces
from tests.distill.after_training import assert_resumes, last_state, metrics
from tests.distill.conftest import DISTILL
from tests.distill.recipe_files import tiny_recipe

NUM_PROMPTS, NUM_EVAL = 14, 4
CORNERS = ("total_variation", "negative_log_acceptance", "lk_hybrid")  # no gradient at equality: |p - q| has none
SAME_TO_ROUNDING = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def begun(make_translator, tmp_path_factory) -> Callable[..., Recipe]:
    """begun(folder, **keys of distill) -> Recipe, with folder/init and folder/data as stages leave them."""
    target, place = make_translator(tied=False), tmp_path_factory.mktemp("begun")
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": "word " * (index % 5) + f"and {index}?"} for index in range(NUM_PROMPTS)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def recipe_of(folder: Path, **distill) -> Recipe:
        cut = {"layers": 1, "encoder_layers": 2, "method": "first_last"}
        lengths = {"num_eval_prompts": NUM_EVAL, "max_new_tokens": 9, "max_seq_len": 128}
        data = {"prompts": [{"path": str(prompts)}], **lengths}
        settings = {**DISTILL, "optimizer": {"lr": 1e-2}, **distill}
        more = {"export": {"dtype": "float32"}, "eval": {"num_prompts": 2}}
        return tiny_recipe(folder, target, cut, data, distill=settings, **more)

    for stage in (prune_stage, generate_stage):
        stage(Run.of(recipe_of(place / "first")))

    def make(folder: Path, **distill) -> Recipe:
        recipe = recipe_of(folder, **distill)
        shutil.copytree(place / "first", folder)
        save_recipe(recipe, folder / "recipe.yaml")
        return recipe

    return make


@pytest.fixture
def make_translation_run(begun, tmp_path) -> Callable[..., Recipe]:
    """make_translation_run(name, **keys of distill) -> Recipe that is ready to be trained."""
    return lambda name, **distill: begun(tmp_path / name, **distill)


def responses_of(recipe: Recipe) -> ResponseDataset:
    return ResponseDataset(read_traces(Run.of(recipe).data.path, "train"), max_seq_len=128)


def loss_of_transformers(lm, responses: ResponseDataset) -> torch.Tensor:
    """Nats per response token by the model's own loss, which shifts labels itself: a loss one token off differs."""
    total, count = torch.zeros(()), 0
    for example in responses.examples[:6]:
        [(first, _)], said = example.spans, list(example.response_ids)
        prompt = torch.tensor([example.input_ids[: first + 1]])
        total = total + lm(input_ids=prompt, labels=torch.tensor([said])).loss * len(said)
        count += len(said)
    return total / count


@pytest.mark.parametrize("loss", LOSSES)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(make_translator, make_translation_run, loss):
    """At its own distribution each loss of distributions is as small as it gets, and no gradient points anywhere."""
    recipe = make_translation_run("run")
    target = Path(recipe.target.path)
    student = ResponseLogits(load_model(target, dtype="float32", device="cpu"))
    teacher = load_teacher(target, dtype="float32", device="cpu")
    objective = build_objective(loss, temperature=1.0)
    model = DistillModel(student, teacher, objective=objective, cpu_bfloat16=False).eval()
    batch = collate(responses_of(recipe).examples[:6])
    value = model.loss(model(batch), batch)
    if loss == "cross_entropy":
        torch.testing.assert_close(value, loss_of_transformers(student.lm, responses_of(recipe)), **SAME_TO_ROUNDING)
        return
    assert abs(value.item()) < 1e-5
    if loss not in CORNERS:
        value.backward()
        gradients = [parameter.grad.abs().max() for parameter in student.parameters() if parameter.grad is not None]
        assert max(gradients) < 1e-4


def test_it_learns_and_leaves_a_folder_that_transformers_opens(make_translation_run):
    recipe = make_translation_run("run", max_duration="8ep", save_interval="1dur")
    train(recipe)
    log = metrics(recipe)
    last = max(batch for batch in log if "metrics/eval/alpha" in log[batch])
    assert log[last]["metrics/eval/alpha"] > log[0]["metrics/eval/alpha"]
    draft = AutoModelForSeq2SeqLM.from_pretrained(Run.of(recipe).draft.path)
    assert (len(draft.decoder.block), len(draft.encoder.block)) == (1, 2)
    state = last_state(recipe)["model"]
    assert torch.equal(draft.lm_head.weight, state["student.lm.lm_head.weight"])
    assert torch.equal(draft.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight, state[BIAS])


BIAS = "student.lm.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(make_translation_run, stopped):
    straight, resumed = make_translation_run("straight"), make_translation_run("resumed")
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 3))


def test_a_cached_teacher_teaches_what_the_live_one_does(make_translation_run):
    live = make_translation_run("live")
    teacher = {"source": "cache", "contents": "hidden"}
    cached = make_translation_run("cached", teacher=teacher)
    cache_stage(Run.of(cached))
    train(live)
    train(cached)
    for name, tensor in last_state(live)["model"].items():
        torch.testing.assert_close(last_state(cached)["model"][name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("source", ["student", "mix_token"])
def test_responses_can_be_the_students_own(make_translation_run, source):
    recipe = make_translation_run("run", samples=source, max_duration="2ba")
    train(recipe)
    logged = metrics(recipe)[1]
    assert logged["samples/student_tokens"] > 0
    assert (logged["samples/teacher_tokens"] == 0) == (source == "student")
