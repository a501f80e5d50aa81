"""What a step asks of its device can be captured in a CUDA graph; graphs themselves are tested where there is a GPU."""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from architectures.families import FAMILIES
from eval.decoding.cuda_graphs import CudaRecorder, captured_capacity
from eval.decoding.kv_cache import RowCache, Sight, forward
from tests.conftest import TINY_SHAPE
from tests.eval.decoding.small_heads import WITHOUT_WINDOW
from widedraft import main

READS_BACK = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


class Operations(TorchDispatchMode):
    """What a forward pass asks of the device, and where its tensors are."""

    def __init__(self):
        super().__init__()
        self.names, self.devices = [], set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        self.names.append(function.overloadpacket.__name__)
        tensors = [leaf for leaf in tree_leaves((arguments, keywords, result)) if isinstance(leaf, torch.Tensor)]
        self.devices |= {tensor.device.type for tensor in tensors}
        return result


def operations_of(family, attention, *, tokens, whole):
    """Of a step, by a model without values: to read one back is an error, as to mix devices is."""
    window = {} if family in WITHOUT_WINDOW else {"sliding_window": 6}
    config = AutoConfig.for_model(family, **{**TINY_SHAPE, **window, "pad_token_id": 0})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention).eval()
        ids_BT = torch.zeros(3, tokens, dtype=torch.int64)
    arguments = (model, ids_BT, torch.full_like(ids_BT, -1), RowCache(32), Sight.of(model))
    with torch.no_grad():
        forward(*arguments, width=32, whole=whole)
        rooms = [*arguments[3].keys, *arguments[3].values]
        with Operations() as operations:
            forward(*arguments, width=32, whole=whole)
    for room, before in zip((*arguments[3].keys, *arguments[3].values), rooms, strict=True):
        assert room is before  # a graph writes to where the cache was when it was captured
    return operations


@pytest.mark.parametrize(("tokens", "whole"), [(1, False), (2, False), (5, True)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [name for name, of in FAMILIES.items() if of.by_rows])
def test_a_step_reads_nothing_back_and_copies_nothing_to_its_device(family, attention, tokens, whole):
    if family == "gemma2" and attention == "sdpa":
        pytest.skip("transformers runs Gemma 2 by its eager attention alone")
    operations = operations_of(family, attention, tokens=tokens, whole=whole)
    assert operations.devices == {"meta"}
    assert len(operations.names) > 100
    assert not set(READS_BACK) & set(operations.names)


@pytest.mark.parametrize(
    ("needed", "capacity"), [(1, 256), (136, 256), (256, 256), (257, 320), (1032, 1280), (4104, 5120), (8192, 8192)]
)
def test_a_cache_is_at_most_a_quarter_longer_than_its_texts(needed, capacity):
    assert captured_capacity(needed) == capacity
    assert capacity == 256 or capacity <= 1.25 * needed


@pytest.mark.parametrize("command", ["verify", "benchmark", "benchmark --grid"])
def test_every_command_refuses_it_on_a_processor(command, target_folder, noisy_folder, tmp_path, capsys):
    """Before anything is decoded or measured."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "why"}\n', encoding="utf-8")
    asked = ["--prompts", str(questions)]
    words = ["--target", str(target_folder), "--draft", str(noisy_folder), *asked]
    assert main([*command.split(), *words, "--capture"]) == 2
    printed = capsys.readouterr()
    assert "--capture" in printed.err
    assert printed.out == ""


class Calls:
    """A stand-in for parts of torch.cuda: notes what is done, in which order, on which stream."""

    def __init__(self, monkeypatch):
        self.done, self.stream = [], "caller's"
        calls = self

        class Stream:
            def __init__(self, device=None, name="side"):
                self.name = name

            def wait_stream(self, other):
                calls.done.append((self.name, "waits for", other.name))

        class Graph:
            def pool(self):
                return "its pool"

            def replay(self):
                calls.done.append((calls.stream, "replays"))

        @contextmanager
        def on(stream):
            before, calls.stream = calls.stream, stream.name
            try:
                yield
            finally:
                calls.stream = before

        @contextmanager
        def capture(graph, *, pool, stream, capture_error_mode):
            calls.done.append((stream.name, "captures into", pool))
            calls.stream = stream.name
            yield
            calls.stream = "caller's"  # torch, too, stays where it is after an error

        parts = {
            "Stream": Stream,
            "CUDAGraph": Graph,
            "graph": capture,
            "stream": on,
            "current_stream": lambda device: Stream(name=calls.stream),
        }
        for name, part in parts.items():
            monkeypatch.setattr(torch.cuda, name, part)


def test_passes_are_warm_before_they_are_captured_and_wait_for_their_inputs(monkeypatch):
    """As torch's manual has it; all on one stream beside the caller's, into one pool, that of the first."""
    calls = Calls(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda:0"))
    logits = torch.zeros(1)

    def run():
        calls.done.append((calls.stream, "runs"))
        return logits

    replay, found = recorder(run)
    replay()
    assert found is logits
    warm = [("side", "waits for", "caller's"), *[("side", "runs")] * 3, ("caller's", "waits for", "side")]
    assert calls.done == [*warm, ("side", "captures into", None), ("side", "runs"), ("caller's", "replays")]
    calls.done.clear()
    recorder(run)
    assert calls.done == [*warm, ("side", "captures into", "its pool"), ("side", "runs")]


def test_a_capture_that_fails_leaves_the_stream_and_the_next_capture_alone(monkeypatch):
    calls = Calls(monkeypatch)
    recorder, passes = CudaRecorder(torch.device("cuda:0")), []

    def run():
        passes.append(calls.stream)
        if len(passes) == 4:
            raise torch.cuda.OutOfMemoryError
        return torch.zeros(1)

    with pytest.raises(torch.cuda.OutOfMemoryError):
        recorder(run)
    assert calls.stream == "caller's"
    recorder(run)
    assert [done for done in calls.done if "captures into" in done] == [("side", "captures into", None)] * 2
