"""The GPU in name refuses what a GPU refuses, and computes what the processor computes."""

import numpy as np
import pytest
import torch

from tests.pretended_gpu import OnGpu, pretended_gpu


@pytest.fixture
def x():
    with pretended_gpu() as device:
        yield torch.arange(12.0).view(3, 4).to(device).requires_grad_()


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(4),
        lambda x: torch.cat([x, torch.ones(3, 4)]),
        lambda x: torch.ones(3, 4)[x > 0],
        lambda x: torch.ones(3, 4).add_(x),
        lambda x: x.index_put_((torch.tensor([0]),), torch.ones(4)),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 4)),
        torch.nn.Linear(4, 4),
        lambda x: torch.zeros(()).add_(x.sum()),
        lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
        lambda x: torch.multinomial(x, 1, generator=torch.Generator()),
    ],
)
def test_two_devices_do_not_meet(x, mixed):
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device|for generator"):
        mixed(x.detach())


@pytest.mark.parametrize("made", [lambda x: x.numpy(), np.asarray])
def test_no_array_is_made_of_a_gpus_tensor(x, made):
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
        made(x.detach())


def test_numbers_indices_and_copies_may_come_from_the_processor(x):
    one = x.detach()
    assert (one + torch.tensor(1.0)).tolist() == (torch.arange(12.0).view(3, 4) + 1).tolist()
    assert one[torch.tensor([0, 2])].is_cuda
    one[0] = torch.zeros(4)
    assert one.cpu()[0].tolist() == [0] * 4
    assert type(one.cpu()) is torch.Tensor


def test_what_is_made_beside_it_is_there_too(x):
    found = (x.new_zeros(2), torch.zeros_like(x), torch.ones(2, device="cuda"), x[None], x.half(), x.split(1)[0])
    assert all(each.device == x.device and isinstance(each, OnGpu) for each in found)
    assert torch.ones(2).device.type == "cpu"


def test_gradients_flow_and_modules_move(x):
    layer, here = torch.nn.Linear(4, 2), torch.arange(12.0).view(3, 4).requires_grad_()
    layer(here).square().sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    layer(x.cpu()).square().sum().backward()  # through a copy
    assert torch.equal(layer.weight.grad, expected)
    assert torch.equal(x.grad.cpu(), here.grad)
    layer = layer.to(x.device)
    assert isinstance(layer.weight, torch.nn.Parameter)
    layer(x).square().sum().backward()
    assert layer.weight.grad.is_cuda
    torch.testing.assert_close(x.grad.cpu(), 2 * here.grad)


def test_autocast_is_that_of_the_processor(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x.mT).dtype == torch.bfloat16
        assert torch.is_autocast_enabled("cuda")
