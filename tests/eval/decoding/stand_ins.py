"""Makers of steps with the slow or absent part replaced, watched: the shapes they made, and those that were fed."""

from functools import partial

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eval.decoding import cuda_graphs as compiled
from eval.decoding.cuda_graphs import Capturer, FixedSteps
from eval.decoding.kv_cache import forward


class Watched:
    """An eval.decoding.cuda_graphs.Maker."""

    def __init__(self, maker):
        self.maker, self.made, self.fed = maker, [], []
        self.opener = partial(FixedSteps, lambda: self)
        self.require, self.capacity = maker.require, maker.capacity

    def make(self, model, cache, feed, *, rows):
        step = self.maker.make(model, cache, feed, rows=rows)
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


def watched_maker(kind, monkeypatch):
    """Of compiled or of captured steps, on a processor without a compiler."""
    if kind != "compiled":
        return Watched(Capturer(partial(Recorder, traced if kind == "traced" else itself)))
    monkeypatch.setattr(compiled, "compiled_forward", lambda _model: forward)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: name)
    return Watched(compiled.Compiler())
