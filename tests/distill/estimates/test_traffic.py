"""Bytes of a step: what DDP sends is what it is predicted to send, and formulas add up."""

from dataclasses import replace

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.targets.target import read_config
from distill.estimates.traffic import Traffic, num_passes, step_traffic
from distill.estimates.trainings import Training

STUDENT, TEACHER = (NAMED_SHAPES[name].shape for name in ("wide-290m", "llama-7b"))
ONE = Training(
    title="distillation", student=STUDENT, teacher=TEACHER, teacher_dtype="bfloat16", precision="amp_bf16", batch=64,
    microbatch=4, seq_len=2048, loss_tokens=1024,
)  # fmt: skip


@pytest.fixture
def alone():
    """A group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_ddp_reduces_as_many_bytes_as_predicted(tiny_draft):
    model = AutoModelForCausalLM.from_pretrained(tiny_draft, dtype=torch.float32)
    wrapped, sent = DistributedDataParallel(model), []

    def count(state, bucket):
        sent.append(bucket.buffer().nbytes)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped.register_comm_hook(None, count)
    ids = torch.randint(0, 200, (2, 9))
    wrapped(input_ids=ids, labels=ids).loss.backward()
    shape = Shape.from_config(read_config(tiny_draft), where="tiny")
    training = replace(ONE, student=shape)
    assert sum(sent) == step_traffic(training, 2).reduced == 4 * shape.parameters()


def test_a_ring_sends_twice_what_it_reduces_and_once_what_it_gathers():
    assert Traffic(8, reduced=800).sent == 2 * 700
    assert Traffic(8, gathered=800).sent == Traffic(8, scattered=800).sent == 700
    assert Traffic(1, reduced=800, gathered=800, scattered=800).sent == 0


def test_ddp_sends_gradients_once_a_step_whatever_its_micro_batches():
    for microbatch in (1, 4, None):
        assert step_traffic(replace(ONE, microbatch=microbatch), 8) == Traffic(8, reduced=4 * STUDENT.parameters())
    frozen = replace(ONE, frozen_embeddings=True)
    assert step_traffic(frozen, 8).reduced == 4 * (STUDENT.parameters() - STUDENT.vocab * STUDENT.hidden)


def test_fsdp2_gathers_twice_and_scatters_once_in_every_pass():
    training = replace(ONE, sharded=True)
    assert [num_passes(training, processes) for processes in (1, 8, 16, 64)] == [16, 2, 1, 1]
    assert num_passes(replace(training, microbatch=None), 8) == 1
    size = STUDENT.parameters()
    assert step_traffic(training, 8) == Traffic(8, gathered=2 * 2 * 2 * size, scattered=2 * 4 * size)
    assert step_traffic(replace(training, precision="fp32"), 16) == Traffic(
        16, gathered=2 * 4 * size, scattered=4 * size
    )


def test_a_divided_teacher_is_gathered_in_every_pass():
    training = replace(ONE, teacher_sharded=True)
    weights = TEACHER.weight_bytes("bfloat16")
    assert step_traffic(training, 8).gathered == 2 * weights
    assert step_traffic(replace(training, teacher=None), 8).gathered == 0
