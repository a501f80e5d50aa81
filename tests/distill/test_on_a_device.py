"""Training where it runs: on the processor, and with `-m gpu` on a GPU, each against the processor in float32.

Tolerances are of tests/distill/after_training.py, which says where they come from. Masks and text have theirs where the
other tests of them are.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import distill.model
import distill.trainer
from distill.pipeline import cache_stage
from distill.recipe.recipe import save_recipe
from distill.run import Run
from distill.train import train
from tests.distill.after_training import (
    BFLOAT16_RTOL,
    DEVICE_RTOL,
    REPEAT_RTOL,
    assert_equal,
    assert_same_update,
    last_state,
    mean_gradients,
    metrics,
    relative_difference,
    weights,
)

ROOT = Path(__file__).parents[2]
ONE_STEP = {"max_duration": "1ba", "scheduler": {"t_warmup": "0ba"}, "gradient_clipping": None}


@pytest.fixture
def calm(make_checkpoint):
    """A student of small weights: bfloat16 moves the gradients of the wide ones of other tests by a fifth."""
    return make_checkpoint(seed=2, num_hidden_layers=2, initializer_range=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_fsdp2_under_nccl_is_ddp_on_the_processor(make_run, calm, gpu, processor_only, precision):
    """As test_distributed.py has it under gloo. In bfloat16 Composer gathers rounded weights, and rounds residuals."""
    settings = {**ONE_STEP, "init": calm}
    sharded = make_run(
        "sharded", parallelism="fsdp2", precision=precision, teacher={"parallelism": "fsdp2"}, **settings
    )
    plain = make_run("plain", **settings)
    path = Path(sharded.run_dir) / "recipe.yaml"
    save_recipe(sharded, path)
    command = [sys.executable, "-m", "composer", "-n", "1", "-m", "distill.train", str(path)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    with processor_only():
        train(plain)
    assert_same_update(sharded, plain, DEVICE_RTOL if precision == "fp32" else BFLOAT16_RTOL)


@pytest.mark.parametrize(("precision", "rtol"), [("fp32", DEVICE_RTOL), ("amp_bf16", BFLOAT16_RTOL)])
def test_one_step_is_that_of_the_processor(make_run, calm, device, processor_only, precision, rtol):
    settings = {**ONE_STEP, "init": calm, "optimizer": {"lr": 1e-3}}
    here, expected = make_run("here", precision=precision, **settings), make_run("expected", **settings)
    train(here)
    with processor_only():
        train(expected)
    assert_same_update(here, expected, rtol)
    assert {tensor.dtype for tensor in weights(here).values()} == {torch.float32}
    moved = [relative_difference(weights(recipe), initial(recipe)) for recipe in (here, expected)]
    assert moved[0] == pytest.approx(moved[1], rel=rtol)


def initial(recipe):
    """Weights before the first step, under their names in a checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(Path(recipe.run_dir) / "init")
    return {f"student.lm.{name}": tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("size", [1, 3])
def test_microbatches_do_not_change_the_update(make_run, device, size):
    """float32 on both sides, on one device."""
    whole, cut = make_run("whole", **ONE_STEP), make_run("cut", device_train_microbatch_size=size, **ONE_STEP)
    train(whole)
    train(cut)
    assert_same_update(cut, whole, REPEAT_RTOL)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_resumed_equals_uninterrupted(make_run, make_checkpoint, stopped, device, precision):
    """Dropout included, whose draws go on where they stopped."""
    init = make_checkpoint(num_hidden_layers=2, attention_dropout=0.5)
    settings = {"init": init, "precision": precision, "max_duration": "3ba"}
    straight, resumed = (make_run(name, **settings) for name in ("straight", "resumed"))
    train(straight)
    with stopped(distill.trainer, "build_loggers", 2):
        train(resumed)
    train(resumed)
    if device == "cpu":
        assert_equal(last_state(straight)["model"], last_state(resumed)["model"])
    assert relative_difference(mean_gradients(straight), mean_gradients(resumed)) <= REPEAT_RTOL


def test_a_training_leaves_what_it_leaves_on_the_processor(make_run, device, processor_only):
    """float32, six steps with evaluations, clipping, checkpoints and export: the same curve and a draft that loads."""
    settings = {"eval_interval": "2ba", "device_train_microbatch_size": 2, "packing": True}
    here, expected = make_run("here", **settings), make_run("expected", **settings)
    train(here)
    with processor_only():
        train(expected)
    logs = [metrics(recipe) for recipe in (here, expected)]
    for name in ("loss/train/total", "metrics/eval/alpha", "metrics/eval/tau_5", "l2_norm/grad/global"):
        found, wanted = ([record[name] for record in log.values() if name in record] for log in logs)
        assert found == pytest.approx(wanted, rel=1e-3), name
    assert all(record["step/student_s"] > 0 for record in logs[0].values() if "step/student_s" in record)
    assert AutoModelForCausalLM.from_pretrained(Path(here.run_dir) / "draft").dtype == torch.bfloat16


@pytest.mark.parametrize("contents", ["hidden", "top_k", "samples"])
def test_a_cached_teacher_teaches_what_it_teaches_on_the_processor(make_run, device, processor_only, contents):
    """float32; the cache is written where the training runs. Samples are drawn again, from another device's logits."""
    teacher = {"source": "cache", "contents": contents}
    here, expected = (make_run(name, teacher=teacher, **ONE_STEP) for name in ("here", "expected"))
    cache_stage(Run.of(here))
    train(here)
    with processor_only():
        cache_stage(Run.of(expected))
        train(expected)
    assert_same_update(here, expected, 1e-3)  # log-probabilities of entries are kept in float16


def test_recomputed_layers_do_not_change_the_update(make_run, device):
    """Activation checkpointing, float32 on both sides, on one device."""
    again, plain = make_run("again", activation_checkpointing=True, **ONE_STEP), make_run("plain", **ONE_STEP)
    train(again)
    train(plain)
    assert_same_update(again, plain, REPEAT_RTOL)


@pytest.mark.gpu
def test_auto_microbatches_shrink_until_they_fit_and_change_nothing(make_run, gpu, monkeypatch):
    """float32. Whatever is larger than one sequence runs out of memory; Composer looks for it on GPUs alone."""
    auto = make_run("auto", device_train_microbatch_size="auto", **ONE_STEP)
    whole = make_run("whole", **ONE_STEP)
    train(whole)
    loss, sizes = distill.model.DistillModel.loss, []

    def full(self, outputs, batch):
        sizes.append(len(batch["keep"]))
        if sizes[-1] > 1:
            message = "CUDA out of memory. Tried to allocate 2.00 GiB."
            raise torch.cuda.OutOfMemoryError(message)
        return loss(self, outputs, batch)

    monkeypatch.setattr(distill.model.DistillModel, "loss", full)
    with pytest.warns(RuntimeWarning, match="microbatch size will be decreased"):
        train(auto)
    assert sizes == [4, 2, 1, 1, 1, 1]
    assert_same_update(auto, whole, REPEAT_RTOL)
