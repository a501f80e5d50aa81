"""Parameters of masks where FSDP2 has divided them: every process needs all of them, and they are few."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def whole(parameter: Tensor) -> Tensor:
    """All of a parameter, wherever its parts are; its gradient is the mean over processes, as FSDP2 takes it of others.

    Call on all processes. FSDP2 gathers what a module's own forward reads; masks have none.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    mesh = parameter.device_mesh
    everywhere = parameter.full_tensor(grad_placements=[Partial()] * mesh.ndim)  # which adds
    fixed = everywhere.detach()
    return fixed + (everywhere - fixed) / mesh.size()  # the same value: the difference is 0
