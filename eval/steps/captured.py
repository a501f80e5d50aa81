"""Steps of fixed shapes made by capturing the model's own forward pass in CUDA graphs: milliseconds each.

A graph holds the kernels that one pass of eval.steps.row_step.forward launched, and the addresses they read and
write: replaying it launches them all at once and runs no Python. So tokens and positions are copied to where the graph
reads them, and its logits stand where the next step of the same model may write: all graphs of a model share one pool
of memory, since only one of them runs at a time. What is fed to the steps is in eval/steps/fixed_steps.py.

Shape suffixes used in this file:
    B = rows, T = tokens fed, V = vocabulary
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval.steps.fixed_steps import SHORTEST, CannotMakeError, FixedStep, FixedSteps, filling, require_fixed_shapes
from eval.steps.head_inputs import tell, with_head_input
from eval.steps.row_cache import RowCache
from eval.steps.row_step import Sight, forward
from eval.steps.sequencer import Feed

WARM_UPS = 3  # passes before a capture, as torch's manual has it: libraries choose kernels and take memory in them

Run = Callable[[], tuple[Tensor, ...]]
Recorder = Callable[[Run], tuple[Callable[[], None], tuple[Tensor, ...]]]  # what replays a pass, and where it puts all


class Capturer:
    """An eval.steps.fixed_steps.Maker.

    Args:
        recorder_on: Makes the recorder of one model, on its device.
    """

    def __init__(self, recorder_on: Callable[[torch.device], Recorder]) -> None:
        self.recorder_on = recorder_on
        self.recorders: dict[int, Recorder] = {}  # by the id of a model, which FixedSteps keeps taken

    def require(self, model: PreTrainedModel) -> None:
        """See Maker."""
        require_fixed_shapes(model, "--capture")
        if id(model) not in self.recorders:
            self.recorders[id(model)] = self.recorder_on(model.device)

    def capacity(self, needed: int) -> int:
        """See Maker; up to a quarter more than is needed, for every slot is read at every step."""
        unit = max(SHORTEST, 1 << (needed - 1).bit_length()) // 8
        return max(SHORTEST, -(-needed // unit) * unit)

    def make(self, model: PreTrainedModel, cache: RowCache, feed: Feed, *, rows: int) -> FixedStep:
        """See Maker."""
        tokens, whole = feed
        ids_BT, positions_BT = filling(model, rows=rows, tokens=tokens)
        run = partial(forward, model, ids_BT, positions_BT, cache, Sight.of(model), width=cache.capacity, whole=whole)
        replay, (logits_BTV, *given) = self.recorders[id(model)](with_head_input(model, run))

        def step(new_ids_BT: Tensor, new_positions_BT: Tensor) -> Tensor:
            ids_BT.copy_(new_ids_BT)
            positions_BT.copy_(new_positions_BT)
            replay()
            for hidden_BTH in given:
                tell(model, hidden_BTH)
            return logits_BTV

        return step


class CudaRecorder:
    """Captures passes of one model in graphs that share a pool of memory.

    Raises:
        UserError: If the device is no GPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise CannotMakeError(
                f"--capture needs a GPU, and the models are on {device}: what is captured are CUDA graphs.",
                "Use --compile, which is for processors too, or leave out --capture.",
            )
        self.device = device
        self.stream = cast("torch.cuda.Stream", torch.cuda.Stream(device))
        self.first: torch.cuda.CUDAGraph | None = None  # a pool that no graph uses any longer cannot be used again

    def __call__(self, run: Run) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """Run a pass beside the stream of the caller until it is warm, then capture it."""
        caller = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(caller):  # gone back to even after a capture that failed, where torch would stay
            self.stream.wait_stream(caller)
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UPS):
                    run()
            caller.wait_stream(self.stream)
            graph, pool = torch.cuda.CUDAGraph(), None if self.first is None else self.first.pool()
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                made = run()
            self.first = self.first or graph
        return graph.replay, made


CapturedSteps = partial(FixedSteps, partial(Capturer, CudaRecorder))  # CapturedSteps() is an Opener: one for all calls
