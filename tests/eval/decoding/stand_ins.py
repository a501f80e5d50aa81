"""Captured steps without a GPU, watched: the shapes that were made, and those that were fed."""

from functools import partial

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eval.decoding.cuda_graphs import CapturedSteps


class WatchedSteps(CapturedSteps):
    """Whose steps a Watched makes."""

    def __init__(self, maker, recorder_on):
        super().__init__(recorder_on)
        self.maker = maker

    def make(self, model, cache, feed, *, rows):
        return self.maker.make(super().make, model, cache, feed, rows=rows)


class Watched:
    """`.opener()` makes an opener; `.made` are the shapes that were captured, `.fed` those that were fed."""

    def __init__(self, recorder_on):
        self.made, self.fed = [], []
        self.opener = partial(WatchedSteps, self, recorder_on)

    def make(self, capture, model, cache, feed, *, rows):
        step = capture(model, cache, feed, rows=rows)
        self.made.append((rows, *feed))

        def watched(ids_BT, positions_BT):
            assert ids_BT.shape == positions_BT.shape == (rows, feed[0])
            self.fed.append((rows, *feed))
            return step(ids_BT, positions_BT)

        return watched


class Recorder:
    """Records a pass, to be run again on the same tensors.

    Graphs of one model write over each other's results, as they may where they share a pool of memory.

    Args:
        graph_of: What a pass becomes.
    """

    def __init__(self, graph_of, device):
        self.graph_of = graph_of
        self.pool = torch.full((2**20,), torch.nan)

    def __call__(self, run):
        shape = run().shape
        graph = self.graph_of(run)
        made = self.pool[: shape.numel()].view(shape)

        def replay():
            self.pool.fill_(torch.nan)
            made.copy_(graph())

        return replay, made


def traced(run):
    """As a CUDA graph does: the same operations on the same tensors, and none of the Python around them."""
    return make_fx(run)()


def itself(run):
    """The pass with its Python, which takes no time to make."""
    return run


def watched_maker(kind="captured"):
    """Of captured steps on a processor; traced ones run none of the Python around them."""
    return Watched(partial(Recorder, traced if kind == "traced" else itself))
