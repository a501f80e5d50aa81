"""The GPU in name refuses what a GPU refuses."""

import pytest
import torch

from tests.pretended_gpu import pretended_gpu


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
