"""Responses by captured steps: the eager texts, one batch's captures at a time, and no claim of their own.

Graphs themselves need a GPU; here a pass is traced and run again as a graph is, on the same tensors.
"""

import dataclasses
import gc
import weakref

import pytest
import torch

from eval.chat import user_turn
from eval.decoding import cuda_graphs, generate
from eval.decoding.cuda_graphs import BatchSteps, bytes_per_slot, generation_opener
from eval.decoding.generate import write_traces
from eval.decoding.kv_cache import RowSequencer, TextSequencer, open_sequencer
from eval.models import load_model
from eval.prompts import Prompt
from eval.responses import read_traces
from tests.conftest import stopped_by_many
from tests.eval.decoding.stand_ins import watched_maker
from tests.eval.responses import test_traces
from tests.pretended_gpu import pretended_gpu

OPT = {"model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
GREEDY = dataclasses.replace(test_traces.GREEDY, max_new_tokens=10, max_prompt_len=400)
SAMPLED = dataclasses.replace(GREEDY, temperature=1.3, top_p=0.9, repetition_penalty=1.2)
TEXTS = ("one", "a much longer prompt number two", "3", "four " * 60, "the fifth of them")
ASKED = [Prompt(f"file.jsonl:{number}", (user_turn(text),)) for number, text in enumerate(TEXTS, start=1)]
PROMPTS = [*ASKED, Prompt("talk.jsonl:1", (user_turn("first"),), ("second",))]


@pytest.fixture(scope="module")
def target(make_checkpoint):
    return stopped_by_many(make_checkpoint(seed=1, num_hidden_layers=2))


@pytest.fixture
def maker(monkeypatch):
    """What captures: passes traced, or with their Python where a test asks for `itself`."""
    return capturing("traced", monkeypatch)


def capturing(kind, monkeypatch):
    maker = watched_maker(kind)
    monkeypatch.setattr(cuda_graphs, "CapturedSteps", maker.opener)
    return maker


def responses(target, out, settings, steps, prompts=PROMPTS):
    """Into out/eager or out/captured; the free memory of a GPU is not asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "free_bytes", lambda _device: 1 << 40)
        opener = open_sequencer if steps == "eager" else BatchSteps(cuda_graphs.CapturedSteps())
        patch.setattr(generate, "generation_opener", lambda _model: opener)
        write_traces(target, prompts, out / steps, settings)


def require_the_same(out, found="captured", wanted="eager"):
    """Texts token for token, claims byte for byte; what is rounded as it is summed, closely."""
    claims = [(out / steps / "settings.json").read_bytes() for steps in (found, wanted)]
    assert claims[0] == claims[1]
    for one, other in zip(*(read_traces(out / steps, "train") for steps in (found, wanted)), strict=True):
        assert dataclasses.replace(one, response_logp=None) == dataclasses.replace(other, response_logp=None)
        assert one.response_logp == (
            None if other.response_logp is None else pytest.approx(other.response_logp, abs=1e-5)
        )
    assert {path.name for path in (out / found).iterdir()} == {path.name for path in (out / wanted).iterdir()}


def test_texts_are_the_eager_ones(target, tmp_path, maker):
    """Rows of many lengths, stop tokens, conversations, batches of 3, 2 and 1 rows and of several capacities."""
    for steps in ("eager", "captured"):
        responses(target, tmp_path, SAMPLED, steps)
    require_the_same(tmp_path)
    assert len({len(trace.response_ids) for trace in read_traces(tmp_path / "eager", "train")}) > 2
    assert len({shape[0] for shape in maker.made}) > 1


def test_captures_of_one_batch_are_freed_before_those_of_the_next_are_made(target, tmp_path, monkeypatch):
    """And kept where the next one has the same shape."""
    maker, alive, most = capturing("itself", monkeypatch), weakref.WeakSet(), []
    make = maker.make

    def counted(capture, model, cache, feed, *, rows):
        alive.add(cache)
        most.append(len(alive))
        return make(capture, model, cache, feed, rows=rows)

    monkeypatch.setattr(maker, "make", counted)
    gc.disable()  # nothing may wait for a collection
    try:
        responses(target, tmp_path, dataclasses.replace(GREEDY, shard_size=6), "captured")
    finally:
        gc.enable()
    assert len(most) >= 3
    assert set(most) == {1}
    assert sum(fed == (3, 1, False) for fed in maker.fed) > sum(made == (3, 1, False) for made in maker.made)


def test_steps_are_captured_on_a_gpu_and_nowhere_else(target, maker, capsys):
    model = load_model(target, dtype="float32", device="cpu")
    assert generation_opener(model) is open_sequencer
    with pretended_gpu() as gpu:
        assert generation_opener(load_model(target, dtype="float32", device="cpu").to(gpu)).steps.maker is maker
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("settings", [OPT, DYNAMIC], ids=["opt", "dynamic"])
def test_what_cannot_be_captured_is_eager_and_said_once(make_checkpoint, maker, capsys, settings):
    folder = make_checkpoint(seed=3, **settings)
    model = load_model(folder, dtype="float32", device="cpu")
    with pretended_gpu() as gpu:
        assert generation_opener(model.to(gpu)) is open_sequencer
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line
    assert not maker.made


def test_a_cache_that_is_too_large_for_what_is_free_is_said_once_and_grows(target, maker, capsys, monkeypatch):
    model, free = load_model(target, dtype="float32", device="cpu"), []
    monkeypatch.setattr(cuda_graphs, "free_bytes", lambda _device: free.pop(0))
    opener = BatchSteps(maker.opener())
    whole = 2 * 256 * bytes_per_slot(model)  # two rows, each of the fewest slots
    free += [int(whole / 0.75) - 9, int(whole / 0.75) - 9, int(whole / 0.75) + 9]
    asked = {"capacity": 30, "vocab_size": 264, "feeds": [(1, False)], "goes_back": False}
    with torch.inference_mode():
        kinds = [type(opener(model, [[1], [2, 3]], **asked)) for _ in range(3)]
        opener(model, [[1], [2, 3]], **asked)  # its cache is there: nothing is asked
    assert kinds[:2] == [RowSequencer] * 2
    assert kinds[2] not in (RowSequencer, TextSequencer)
    assert maker.made == [(2, 1, False)]
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 x 256" in line


def test_responses_on_a_device_are_those_of_eager_steps(target, tmp_path, device, monkeypatch):
    """float32, token for token: batches of several sizes, a real graph on a GPU."""
    if device == "cpu":
        capturing("itself", monkeypatch)
    monkeypatch.setattr(
        generate, "load_target", lambda folder, dtype, holding: load_model(folder, dtype=dtype, device=device)
    )
    for steps in ("eager", "captured"):
        responses(target, tmp_path, GREEDY, steps)
    require_the_same(tmp_path)
