"""Bytes of a step: what DDP sends is what it is predicted to send, and formulas add up."""

from dataclasses import replace

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.targets.target import read_config
from distill.estimates.traffic import Collective, num_passes, step_traffic
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
    assert sum(sent) == step_traffic(training, 2).size("reduced") == 4 * shape.parameters()


def test_a_ring_sends_twice_what_it_reduces_and_once_what_it_gathers():
    assert Collective("reduced", 800, 8).sent == 2 * 700
    assert Collective("gathered", 800, 8).sent == Collective("scattered", 800, 8).sent == 700
    assert Collective("reduced", 800, 1).sent == 0


def test_a_ring_leaves_a_machine_once_and_rings_beside_each_other_each():
    inside, across = Collective("reduced", 800, 8), Collective("reduced", 800, 16)
    assert (inside.out_of(8), across.out_of(8)) == (0, across.sent)
    copies = Collective("reduced", 100, 2, stride=8)  # shards of 8 GPUs, on 2 machines
    assert copies.out_of(8) == 8 * copies.sent == 8 * 100
    assert copies.out_of(16) == 0


def test_ddp_sends_gradients_once_a_step_whatever_its_micro_batches():
    for microbatch in (1, 4, None):
        [once] = step_traffic(replace(ONE, microbatch=microbatch), 8).collectives
        assert once == Collective("reduced", 4 * STUDENT.parameters(), 8)
    frozen = replace(ONE, frozen_embeddings=True)
    assert step_traffic(frozen, 8).size("reduced") == 4 * (STUDENT.parameters() - STUDENT.vocab * STUDENT.hidden)
    assert step_traffic(ONE, 1).sent == 0


def test_shards_gather_twice_and_scatter_once_in_every_pass():
    training = replace(ONE, sharded=True)
    assert [num_passes(training, processes) for processes in (1, 8, 16, 64)] == [16, 2, 1, 1]
    assert num_passes(replace(training, microbatch=None), 8) == 1
    size = STUDENT.parameters()
    assert step_traffic(training, 8).collectives == (
        Collective("gathered", 2 * 2 * 2 * size, 8),
        Collective("scattered", 2 * 4 * size, 8),
    )
    assert step_traffic(replace(training, precision="fp32"), 16).size("gathered") == 2 * 4 * size


def test_copies_on_machines_add_their_shards_alone():
    training, size = replace(ONE, sharded=True), 4 * STUDENT.parameters()
    hybrid, whole = step_traffic(training, 16, degree=8), step_traffic(training, 16)
    assert hybrid.collectives[2] == Collective("reduced", -(-size // 8), 2, stride=8)
    assert [each.over for each in hybrid.collectives[:2]] == [8, 8]
    assert hybrid.out_of(8) == pytest.approx(size, rel=1e-6)  # each machine's half of an all-reduce over two
    assert hybrid.out_of(8) < whole.out_of(8)


def test_a_divided_teacher_is_gathered_in_every_pass():
    training = replace(ONE, teacher_sharded=True)
    weights = TEACHER.weight_bytes("bfloat16")
    assert step_traffic(training, 8).size("gathered") == 2 * weights
    assert step_traffic(replace(training, teacher=None), 8).size("gathered") == 0
