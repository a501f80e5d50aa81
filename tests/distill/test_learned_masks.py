"""Training of masks as a whole: what it leaves, that resuming and ranks change nothing, and what comes after it."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composer import Event
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import distill.learned_masks
import widedraft
from architectures.hub import read_config
from architectures.manifest import read_manifest
from architectures.pruning.masks import Masks, masked
from architectures.pruning.plan import PruningPlan
from architectures.shapes import Shape
from distill.callbacks import GradientNorm
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.chunked_loss import ResponseLogits
from distill.learned_masks import MaskModel, build_mask_model, build_mask_optimizer, weights
from distill.recipe.recipe import Recipe, save_recipe
from distill.run import Run
from distill.stage_inputs import masks_are_due
from distill.teacher import Teacher
from distill.train import train
from tests.distill.after_training import (
    DEVICE_RTOL,
    REPEAT_RTOL,
    assert_same_end,
    assert_same_update,
    in_a_pickle,
    last_state,
    mean_gradients,
    metrics,
    plant,
    relative_difference,
    train_in_two_sessions,
)
from tests.distill.two_processes import train_by
from tests.rejections import rejects

CLOSE = {"rtol": 1e-3, "atol": 2e-4}  # as in test_prune_families


def test_a_training_leaves_folded_weights_whose_plan_cuts_a_draft(make_masks, tmp_path):
    """And writes them again from its checkpoint, where they are lost."""
    recipe = make_masks()
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert masks_are_due(Run.of(recipe))
    train(recipe)
    assert not masks_are_due(Run.of(recipe))
    assert_folded(recipe)
    folder = Path(recipe.run_dir) / "masks"
    first = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)
    train(recipe)
    assert (folder / "model.safetensors").read_bytes() == first
    assert widedraft.main(["prune", str(tmp_path / "recipe.yaml")]) == 0
    assert_cut(recipe)

    state = last_state(recipe, "mask_checkpoints")
    assert {name.split(".")[0] for name in state["model"]} == {"student", "masks"}
    assert (state["model"]["masks.multipliers.channels"] > 0).all()  # too much was open
    assert (state["model"]["masks.log_alpha.layers"] < 5).all()


def assert_folded(recipe) -> None:
    folder = Path(recipe.run_dir) / "masks"
    plan, manifest = PruningPlan.from_json((folder / "plan.json").read_text()), read_manifest(folder)
    assert (plan.draft.layers, plan.draft.intermediate, plan.draft.hidden) == (2, 64, 32)
    assert (plan.draft.heads, plan.draft.kv_heads, plan.method) == (2, 1, "learned_masks")
    assert manifest is not None
    assert 0 < manifest["metrics"]["masks/layers/expected"] <= 4
    model = build_mask_model(Run.of(recipe))
    model.load_state_dict(last_state(recipe, "mask_checkpoints")["model"])
    ids = torch.arange(3, 35)[None]
    with torch.inference_mode():
        with masked(model.student.lm, model.masks.final(), model.masks.source):
            expected = model.student.lm(ids).logits
        found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()(ids).logits
    torch.testing.assert_close(found, expected, **CLOSE)
    assert not torch.equal(found, build_mask_model(Run.of(recipe)).student.lm(ids).logits)


def assert_cut(recipe) -> None:
    run, ids = Path(recipe.run_dir), torch.arange(3, 35)[None]
    assert (run / "init" / "plan.json").read_text() == (run / "masks" / "plan.json").read_text()
    with torch.inference_mode():
        draft, whole = (
            AutoModelForCausalLM.from_pretrained(run / name, dtype="auto").eval() for name in ("init", "masks")
        )
        torch.testing.assert_close(draft(ids).logits, whole(ids).logits, **CLOSE)
    for folder in (run / "masks", run / "init"):
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            assert (folder / name).read_bytes() == (Path(recipe.target.path) / name).read_bytes()


def test_resumed_equals_uninterrupted_bit_for_bit(make_masks, stopped):
    straight = make_masks("straight")
    train(straight)
    one = metrics(straight, "masks.jsonl")
    names = [name for name in one[5] if name.startswith(("masks/", "loss/", "mixture/"))]
    assert len(names) > 10
    for batch in (2, 5):
        resumed = make_masks(f"resumed-{batch}")
        stop = stopped(distill.learned_masks, "build_mask_loggers", batch)
        train_in_two_sessions(resumed, stop, batch, "mask_checkpoints")
        assert_same_end(straight, resumed, "mask_checkpoints")
        other = metrics(resumed, "masks.jsonl")
        assert all(one[step].get(name) == other[step].get(name) for step in one for name in names)
        plans = [(Path(recipe.run_dir) / "masks" / "plan.json").read_text() for recipe in (straight, resumed)]
        assert plans[0] == plans[1]


def test_planted_masks_are_not_continued(make_masks, tmp_path):
    recipe = make_masks(max_duration="1ba")
    train(recipe)
    shutil.rmtree(Path(recipe.run_dir) / "masks")
    plant(find_checkpoints(Path(recipe.run_dir) / "mask_checkpoints")[-1], in_a_pickle, tmp_path / "mark")
    with rejects("posix.system"):
        train(recipe)
    assert not (tmp_path / "mark").exists()


def test_microbatches_do_not_change_the_update(make_masks):
    """Of unequal size, too: three and one."""
    whole = make_masks("whole", max_duration="2ba")
    cut = make_masks("cut", max_duration="2ba", distill={"device_train_microbatch_size": 3})
    train(whole)
    train(cut)
    assert_close_training(whole, cut)


def assert_close_training(one: Recipe, other: Recipe) -> None:
    """Adam's first moments, which keep the size of the gradients, and the losses; weights and masks at 1e-5."""
    moments = [mean_gradients(recipe, "mask_checkpoints") for recipe in (one, other)]
    for part in ("student.", "masks.log_alpha.", "masks.multipliers."):
        of_part = ({name: each for name, each in some.items() if name.startswith(part)} for some in moments)
        assert relative_difference(*of_part) < 1e-5, part
    logs = [metrics(recipe, "masks.jsonl") for recipe in (one, other)]
    last = max(logs[0])
    for name in ("masks/layers/expected", "masks/neurons/gap"):
        assert logs[0][last][name] == pytest.approx(logs[1][last][name], rel=1e-5)


SHARDS = {"parallelism": "fsdp2", "teacher": {"parallelism": "fsdp2"}}


def test_two_processes_equal_one(pair, make_masks):
    settings, size = {"max_duration": "3ba", "update_interval": "1ba"}, {"device_train_microbatch_size": 2}
    alone = make_masks("alone", distill=size, **settings)
    train(alone)
    for shared in ({}, SHARDS, {**SHARDS, "parallelism": "hsdp", "shard_degree": 1}):
        parallelism = shared.get("parallelism", "ddp")
        together = make_masks(parallelism, distill={**size, **shared}, **settings)
        train_by(pair, together)
        assert pair.shares == pytest.approx([0.5 if parallelism == "fsdp2" else 1.0] * 2, rel=0.02)
        assert_close_training(alone, together)
        states = [last_state(recipe, "mask_checkpoints")["model"] for recipe in (alone, together)]
        for name, tensor in states[0].items():
            torch.testing.assert_close(tensor, states[1][name], rtol=0.0, atol=1e-5 if "student" in name else 1e-4)
        plans = [(Path(recipe.run_dir) / "masks" / "plan.json").read_text() for recipe in (alone, together)]
        assert plans[0] == plans[1]


def test_weights_and_masks_are_optimized_and_the_teacher_is_not(make_masks):
    recipe = make_masks()
    model = build_mask_model(Run.of(recipe))
    assert model.teacher is not None
    optimizer = build_mask_optimizer(recipe.architecture.masks, model)
    inside = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert inside == {id(parameter) for parameter in model.parameters()}
    assert [group["lr"] for group in optimizer.param_groups] == [1e-4, 0.3]


def test_log_alphas_stay_within_their_limits(make_masks):
    recipe = make_masks(max_duration="5ba", mask_lr=30.0)
    train(recipe)
    masks = build_mask_model(Run.of(recipe)).masks
    for name, axis in masks.axes.items():
        found, (low, high) = last_state(recipe, "mask_checkpoints")["model"][f"masks.log_alpha.{name}"], axis.limits
        assert low - 1e-5 <= float(found.min()) <= low + 1e-5
        assert float(found.max()) <= high + 1e-5


def test_the_gradients_of_weights_alone_are_clipped(make_masks, tiny_target, tmp_path):
    model = build_mask_model(Run.of(make_masks()))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    log: Any = SimpleNamespace(log_metrics=lambda _: None)
    state: Any = SimpleNamespace(model=model)
    GradientNorm(tmp_path, 1.0, weights).apply(Event.AFTER_TRAIN_BATCH, state, log)
    norm = torch.stack([parameter.grad.norm() for parameter in model.student.parameters()]).norm()
    assert float(norm) == pytest.approx(1.0, rel=1e-4)
    assert all((parameter.grad == 1).all() for parameter in model.masks.parameters())


def test_another_recipe_does_not_continue_these_masks(make_masks, stopped):
    with stopped(distill.learned_masks, "build_mask_loggers", 3):
        train(make_masks())
    with rejects("mask_checkpoints"):
        train(make_masks(mask_lr=0.5))
    train(make_masks(distill={"device_train_microbatch_size": 2}))


def test_a_target_with_nothing_to_cut_is_refused(make_masks):
    with rejects("architecture"):
        train(make_masks(architecture={"layers": 4}))


def test_shares_of_the_training_are_times_too(make_masks):
    recipe = make_masks(max_duration="4ba", update_interval="0.5dur")
    train(recipe)
    logged = metrics(recipe, "masks.jsonl")
    assert [batch for batch in logged if "mixture/letters/loss" in logged[batch]] == [2, 4]


def test_masks_are_trained_as_on_the_processor(make_masks, device, processor_only):
    """float32, one step; then the plan of six, whose gates may differ by rounding but not in number."""
    here, expected = (make_masks(name, max_duration="1ba") for name in ("here", "expected"))
    train(here)
    with processor_only():
        train(expected)
    assert_same_update(here, expected, DEVICE_RTOL, "mask_checkpoints")
    plans = [
        PruningPlan.from_json((Path(recipe.run_dir) / "masks" / "plan.json").read_text()) for recipe in (here, expected)
    ]
    assert plans[0].draft == plans[1].draft


def test_masks_are_resumed_on_the_device(make_masks, stopped, device):
    """bfloat16, by the norm of Adam's first moments after three steps."""
    how = {"precision": "amp_bf16", "device_train_microbatch_size": 1}
    straight, resumed = (make_masks(name, distill=how, max_duration="3ba") for name in ("straight", "resumed"))
    train(straight)
    with stopped(distill.learned_masks, "build_mask_loggers", 2):
        train(resumed)
    train(resumed)
    moments = [mean_gradients(recipe, "mask_checkpoints") for recipe in (straight, resumed)]
    assert relative_difference(*moments) <= (0 if device == "cpu" else REPEAT_RTOL)


IDS = torch.arange(3, 43).reshape(2, 20) % 250 + 3


def build(folder: Path) -> MaskModel:
    source = Shape.from_config(read_config(folder))
    student, teacher = (AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for _ in range(2))
    return MaskModel(
        ResponseLogits(student),
        Masks(source, replace(source, layers=2, intermediate=64), seed=5),
        Teacher(ResponseLogits(teacher)),
        warmup_batches=10,
        cpu_bfloat16=False,
    )


def losses(model: MaskModel) -> dict[str, torch.Tensor]:
    batch = {"input_ids": IDS}
    return model.loss(model(batch), batch)


def test_losses_are_those_of_whole_logits(tiny_target):
    model = build(tiny_target)
    model.step = 4
    with torch.no_grad():
        for values in model.masks.log_alpha.values():
            values.fill_(0.3)
        for values in model.masks.multipliers.values():
            values.fill_(1.5)
        found = losses(model)
        target = model.teacher.model.lm(IDS).logits[:, :-1].log_softmax(-1)
        with masked(model.student.lm, model.masks.sampled(4), model.masks.source):
            student = model.student.lm(IDS).logits[:, :-1].log_softmax(-1)
        lm = cross_entropy(student.flatten(0, 1), IDS[:, 1:].flatten())
        kl = (target.exp() * (target - student)).sum(-1).mean()
    assert float(found["lm"]) == pytest.approx(float(lm), rel=1e-5)
    assert float(found["kl"]) == pytest.approx(float(kl), rel=1e-4)
    assert float(kl) > 0.01
    assert float(found["constraint"]) == pytest.approx(float(model.masks.lagrangian(0.4)), rel=1e-6)
    assert float(found["total"]) == pytest.approx(float(lm + kl + found["constraint"]), rel=1e-5)


@pytest.mark.parametrize("size", [1, 7, 38, 100])
def test_chunks_do_not_change_losses_or_gradients(tiny_target, monkeypatch, size):
    gradients, values = [], []
    for tokens in (10**6, size):
        monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda _, tokens=tokens: tokens)
        model = build(tiny_target)
        found = losses(model)
        found["total"].backward()
        values.append(float(found["total"].detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()


def test_nothing_to_learn_where_all_gates_are_open(tiny_target):
    model = build(tiny_target)
    with torch.no_grad():
        for values in model.masks.log_alpha.values():
            values.fill_(50.0)
    assert float(losses(model)["kl"].detach()) == pytest.approx(0.0, abs=1e-6)


def test_gradients_reach_weights_masks_and_multipliers_and_not_the_teacher(tiny_target):
    model = build(tiny_target)
    model.step = 3
    losses(model)["total"].backward()
    named = dict(model.named_parameters())
    assert all(parameter.grad is not None for parameter in named.values())
    assert {name.split(".")[0] for name in named} == {"student", "masks"}
    assert all(parameter.grad is None for parameter in model.teacher.model.parameters())
    assert not any(name.startswith("teacher") for name in model.state_dict())
    assert {name for name in named if name.startswith("masks")} == {
        f"masks.{kind}.{axis}" for kind in ("log_alpha", "multipliers") for axis in ("layers", "neurons")
    }


def test_progress_is_linear_and_ends(tiny_target):
    model = build(tiny_target)
    for step, progress in ((0, 0.0), (5, 0.5), (10, 1.0), (11, 1.0)):
        model.step = step
        assert model.progress == progress
