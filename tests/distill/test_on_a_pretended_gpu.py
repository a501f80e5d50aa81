"""Losses, training steps, masks, caches and pruning mix no tensor of the processor with one of a GPU.

What is moved by hand here is moved by Composer in a training; see tests/pretended_gpu.py for what this does not show.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from architectures.pruning.masks import plan_from_masks
from distill.callbacks import total_norm
from distill.learned_masks import build_mask_model, build_text, mask_metrics, write_masks
from distill.losses import LOSSES, LossTerm
from distill.metrics import eval_metrics
from distill.model import HeldOut
from distill.pipeline import cache_stage, generate_stage, prune_stage
from distill.response_batches import count_tokens, cut_padding, read_responses, split_batch
from distill.run import Run
from distill.teacher import load_teacher
from distill.teacher_cache import CachedResponses, TeacherCache
from distill.text_training import collate_text, student_losses, teacher_losses
from distill.trainer import build_model, build_optimizer
from eval.decoding.kv_cache import open_sequencer
from tests.distill.losses.test_chunked import BFLOAT16_RTOL, Problem, assert_same
from tests.distill.recipe_files import tiny_recipe, write_prompts
from tests.pretended_gpu import OnGpu, pretended_gpu


@pytest.fixture
def gpu(monkeypatch):
    """Where stages put their models."""
    monkeypatch.setattr("eval.models.default_device", lambda: "cuda")
    # No graph is captured of what only pretends.
    monkeypatch.setattr("eval.decoding.generate.generation_opener", lambda _model: open_sequencer)
    with pretended_gpu() as device:
        yield device


def moved(batch, device):
    return {name: tensor.to(device) for name, tensor in batch.items()}


def model_of(recipe, **more):
    model = build_model(Run.of(recipe), eval_tasks=())
    model.held_out = HeldOut(("a", "b"), **more)
    return model


def on_gpu(model, recipe, device, *, packing=False):
    """The same model where a training has it."""
    model.teacher = load_teacher(Path(recipe.target.path), dtype="float32", device=str(device), packing=packing)
    return model.to(device)


def batch_of(recipe, count=4):
    responses, _ = read_responses(Run.of(recipe))
    return responses.collate([responses[place] for place in range(count)])


def step(model, batch):
    """The loss, and the norm of the gradients after it."""
    loss = model.loss(model(batch), batch)
    loss.backward()
    return loss.item(), total_norm([each.grad for each in model.parameters()]).item()


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_in_chunks(gpu, name):
    for bfloat16 in (False, True):
        problems = [Problem(11, terms=[LossTerm(name=name)], bias=True, device=gpu) for _ in range(2)]
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bfloat16):
            found, expected = problems[0].chunked(4), problems[1].plain()
        assert all(isinstance(each, OnGpu) for each in (found[0], *found[1]))
        assert_same(found, expected, rtol=BFLOAT16_RTOL if bfloat16 else 1e-5)


@pytest.mark.parametrize("packing", [False, True])
def test_a_step_is_that_of_the_processor(make_run, gpu, packing):
    recipe = make_run(packing=packing)
    batch = batch_of(recipe)
    expected = step(model_of(recipe), batch)
    model, there = on_gpu(model_of(recipe), recipe, gpu, packing=packing), moved(batch, gpu)
    optimizer = build_optimizer(recipe.distill.optimizer, model)
    assert step(model, there) == pytest.approx(expected, rel=1e-6)
    optimizer.step()
    assert step(model, there) != pytest.approx(expected, rel=1e-6)
    assert count_tokens(cut_padding(split_batch(there, 2)[0]))["total"] > 0
    assert model.flops_per_batch(there) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_held_out_responses_are_measured(make_run, gpu, temperature):
    recipe = make_run()
    found = []
    here, there = (model_of(recipe, temperature=temperature, top_p=0.9) for _ in range(2))
    for model, batch in ((here, batch_of(recipe)), (on_gpu(there, recipe, gpu), moved(batch_of(recipe), gpu))):
        model.eval()
        metrics = {name: metric.to(batch["keep"].device) for name, metric in eval_metrics().items()}
        for metric in metrics.values():
            model.update_metric(batch, model.eval_forward(batch), metric)
        found.append([metric.compute().item() for metric in metrics.values()])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("contents", ["hidden", "top_k", "samples"])
def test_a_cache_is_written_and_learned_from(make_run, gpu, contents):
    recipe = make_run(teacher={"source": "cache", "contents": contents})
    cache_stage(Run.of(recipe))
    responses, _ = read_responses(Run.of(recipe))
    cached = CachedResponses(responses, TeacherCache(Path(recipe.run_dir) / "teacher_cache", "train"))
    batch = cached.collate([cached[place] for place in range(3)])
    expected = step(model_of(recipe), batch)
    model = model_of(recipe).to(gpu)
    model.teacher.head = replace(model.teacher.head, weight_VH=model.teacher.head.weight_VH.to(gpu))
    assert step(model, moved(batch, gpu)) == pytest.approx(expected, rel=1e-6)


def test_text_is_learned_and_measured(make_run, gpu):
    recipe = make_run()
    samples = [{"input_ids": torch.tensor(row)} for row in ([5, 6, 2, 9, 8, 7], [4, 2, 4, 4, 2, 4])]
    batch = collate_text(samples, end_id=2)
    here, there = model_of(recipe), on_gpu(model_of(recipe), recipe, gpu)
    assert step(there, moved(batch, gpu)) == pytest.approx(step(here, batch), rel=1e-6)
    for losses_of in (student_losses, teacher_losses):
        found, expected = losses_of(there, moved(batch, gpu)), losses_of(here, batch)
        assert [each.sum().item() for each in found] == pytest.approx([each.sum().item() for each in expected])


def test_masks_are_trained_and_written(make_masks, gpu):
    recipe = make_masks()
    target, ids = Path(recipe.target.path), torch.randint(3, 250, (3, 20))
    found, models = [], [build_mask_model(Run.of(recipe)) for _ in range(2)]
    models[1].teacher = load_teacher(target, dtype="float32", device="cuda")
    for model, place in ((models[0], "cpu"), (models[1].to(gpu), gpu)):
        model.step, batch = 3, {"input_ids": ids.to(place)}
        losses = model.loss(model(batch), batch)
        losses["total"].backward()
        model.masks.limit()
        _, mixture = build_text(Run.of(recipe), model)
        found.append([losses["total"].item(), *mask_metrics(model).values(), *mixture.measure(None).values()])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    plans = [plan_from_masks(each.masks) for each in models]
    assert plans[0] == plans[1]
    write_masks(Run.of(recipe), models[1].state_dict(), mask_metrics(models[1]))


@pytest.mark.parametrize("method", ["block_influence", "greedy", "merge"])
def test_a_target_is_cut_and_responses(tiny_target, tmp_path, gpu, method):
    architecture = {"layers": 2, "intermediate": 96, "hidden": 48, "method": method}
    architecture["calibration"] = {"tokens": 64}
    data = {"prompts": [{"path": str(write_prompts(tmp_path))}], "num_eval_prompts": 2, "max_new_tokens": 3}
    recipe = tiny_recipe(tmp_path / "run", tiny_target, architecture, data)
    prune_stage(Run.of(recipe))
    if method == "greedy":
        generate_stage(Run.of(recipe))
