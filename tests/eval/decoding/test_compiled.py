"""Compiled steps say what plain ones say, take the shapes they were made for, and share nothing while in use."""

import io
import shutil

import pytest
import torch
from rich.console import Console
from torch._dynamo.utils import counters

from architectures.errors import UserError
from eval.decoding import compiled
from eval.decoding.compiled import CompiledSequencer, CompiledSteps
from eval.decoding.row_step import forward
from eval.decoding.sampling import Sampling
from eval.decoding.sequencer import RowSequencer
from eval.decoding.speculative import decode_steps, plain_decode, speculative_decode
from eval.decoding.texts import Limits, Seeds, Speculation
from eval.decoding.wanted import Wanted
from eval.models import load_model
from eval.pair.compare import Comparison, compare
from eval.pair.opened import open_pair
from eval.pair.race import race
from eval.tasks.forms import Prompt, user_turn
from tests.eval.decoding.laws import law_greedy_text_is_the_targets, law_rows_do_not_feel_each_other
from widedraft import main

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


@pytest.fixture
def fed(monkeypatch):
    """Shapes that steps are fed, which are not compiled: [rows, tokens, whole]."""
    shapes = []

    def step(model, ids_BT, positions_BT, cache, sight, *, width, whole):
        assert width == cache.capacity
        shapes.append((*ids_BT.shape, whole))
        return forward(model, ids_BT, positions_BT, cache, sight, width=width, whole=whole)

    monkeypatch.setattr(compiled, "compiled_forward", lambda _model: step)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: name)
    return shapes


@needs_compiler
@pytest.mark.timeout(900)  # of which a C++ compiler takes nearly all
def test_compiled_steps_write_the_targets_texts(small_pair):
    """By TorchInductor itself: a batch that shrinks, lookaheads cut short at the end, caches used again."""
    opener = CompiledSteps()
    for prompts in ([[1], [2, 3, 1, 0]], [[3, 3], [0]]):
        law_greedy_text_is_the_targets(*small_pair, prompts, Limits(13, frozenset({0})), 3, opener)


@pytest.mark.parametrize("lookahead", [1, 4, 9])
def test_a_batch_is_fed_the_shapes_it_was_opened_for(target, noisy_draft, prompts, fed, lookahead):
    opener = CompiledSteps()
    law_greedy_text_is_the_targets(target, noisy_draft, prompts, Limits(17, frozenset({2})), lookahead, opener)
    rows = len(prompts)
    assert set(fed) == {(rows, 1, False), (rows, 2, False), (rows, lookahead + 1, True)}


def test_fewer_tokens_than_a_step_takes_are_filled_up(target, prompts, fed):
    """On the left where the logits after the last token are asked for, on the right where all are."""
    text = torch.tensor(prompts[3][:9])
    with torch.inference_mode():
        expected_TV = target(text[None], use_cache=False).logits[0]
        feeds = [(4, False), (4, True)]
        sequencer = CompiledSteps()(target, [prompts[3]], capacity=20, vocab_size=264, feeds=feeds)
        last_1V = sequencer.feed(text[None, :3], [(0, 3)], whole=False)[0]
        all_TV = sequencer.feed(text[None, 3:5], [(3, 2)], whole=True)[0]
    torch.testing.assert_close(last_1V, expected_TV[2:3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(all_TV, expected_TV[3:5], rtol=1e-4, atol=1e-4)
    assert {shape[1] for shape in fed} == {4}


def test_an_adaptive_lookahead_has_two_widths(target, noisy_draft, prompts, fed):
    speculation = Speculation(3, adaptive=True)
    wanted = {"limits": Limits(30), "speculation": speculation}
    decoded = speculative_decode(target, noisy_draft, prompts[:2], **wanted, opener=CompiledSteps())
    assert [one.token_ids for one in decoded] == [
        one.token_ids for one in speculative_decode(target, noisy_draft, prompts[:2], **wanted)
    ]
    assert {tokens for _, tokens, whole in fed if whole} == {4, 17}


@pytest.mark.parametrize("sampling", [Sampling(0.8), Sampling(1.3, top_p=0.9, repetition_penalty=1.3)])
def test_rows_of_a_compiled_batch_do_not_feel_each_other(target, noisy_draft, prompts, fed, sampling):
    law_rows_do_not_feel_each_other(target, noisy_draft, prompts, sampling, opener=CompiledSteps())
    assert fed


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_neox"])
def test_windows_and_other_families(make_checkpoint, prompts, fed, family):
    """A sliding window is far shorter than the cache."""
    window = {} if family == "gpt_neox" else {"sliding_window": 6}
    kinds = {"use_sliding_window": True, "max_window_layers": 2} if family == "qwen2" else {}
    folder = make_checkpoint(seed=4, model_type=family, **window, **kinds)
    model = load_model(folder, dtype="float32", device="cpu")
    law_greedy_text_is_the_targets(model, model, prompts, Limits(12), opener=CompiledSteps())
    assert fed


def test_texts_decoded_in_turns_have_caches_of_their_own(target, prompts, fed):
    """And a text that is done leaves its cache to the next."""
    opener, limits = CompiledSteps(), Limits(10)
    alone = [plain_decode(target, [prompt], limits=limits)[0] for prompt in prompts[2:4]]
    runs = [decode_steps([target], Wanted([prompt], limits, Sampling()), opener=opener) for prompt in prompts[2:4]]
    steps = list(zip(*runs, strict=True))
    for (_, decoded), own in zip(steps[-1], alone, strict=True):
        assert decoded.token_ids == own.token_ids
    del runs
    [caches] = opener.free.values()
    assert len(caches) == 2
    plain_decode(target, prompts[2:3], limits=limits, opener=opener)
    assert len(caches) == 2
    assert fed


def test_a_shape_is_compiled_once_and_before_the_clock_starts(target, prompts, fed):
    opener = CompiledSteps()
    for _ in range(2):
        plain_decode(target, prompts[:1], limits=Limits(5), opener=opener)
    assert fed == [(1, 1, False)] * (2 + 5 + 5)


def test_a_family_that_takes_one_row_is_refused(make_checkpoint, prompts):
    folder = make_checkpoint(seed=4, model_type="opt", ffn_dim=128, word_embed_proj_dim=64)
    model = load_model(folder, dtype="float32", device="cpu")
    with pytest.raises(UserError, match=r"steps of a model of type opt are not compiled here\. Leave out --compile"):
        plain_decode(model, prompts[:1], limits=Limits(2), opener=CompiledSteps())


def test_without_a_compiler_the_user_is_told(target, prompts, monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda _name: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler .* Install g\+\+, name one in CXX"):
        plain_decode(target, prompts[:1], limits=Limits(2), opener=CompiledSteps())


@pytest.fixture
def pair_words(target_folder, noisy_folder, tmp_path):
    """Words that name two models and a prompt."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "why"}\n', encoding="utf-8")
    return ["--target", str(target_folder), "--draft", str(noisy_folder), "--prompts", str(questions)]


@pytest.mark.parametrize("command", ["verify", "compare"])
def test_commands_compile_where_they_are_told_to(command, pair_words, fed, capsys, monkeypatch):
    words = [command, *pair_words, "--max-new-tokens", "8", "--lookahead", "2"]
    assert main(words) == 0
    assert fed == []
    assert "compiling" not in capsys.readouterr().err
    monkeypatch.delattr(RowSequencer, "feed")
    assert main([*words, "--compile"]) == 0
    assert {(1, False), (2, False), (3, True)} == {shape[1:] for shape in fed}
    assert "compiling the models' steps" in capsys.readouterr().err


def test_the_clocks_of_an_answer_do_not_count_compiling(target_folder, noisy_folder, fed, monkeypatch):
    """Every shape was met by every cache before the race begins."""
    compiling = []
    monkeypatch.setattr(CompiledSequencer, "compile", lambda _self, feed: compiling.append(feed))
    raced = []

    def watched(*runners):
        raced.append(len(compiling))
        yield from race(*runners)
        raced.append(len(compiling))

    monkeypatch.setattr("eval.pair.compare.race", watched)
    pair = open_pair(str(target_folder), str(noisy_folder), dtype="float32")
    wanted = Comparison(Limits(8), Speculation(2), Sampling(), Seeds(), CompiledSteps())
    compare(pair, [Prompt("p.jsonl:1", (user_turn("why"),))], wanted, Console(file=io.StringIO()))
    assert sorted(compiling) == [(1, False), (1, False), (2, False), (3, True)]  # of the target alone, and of both
    assert raced == [4, 4]
    assert fed


@pytest.fixture
def made(device, monkeypatch):
    """Shapes of steps that were made: captured by CUDA graphs on a GPU, not compiled on the processor, see `fed`."""
    shapes, step = [], CompiledSequencer.compile

    def watched(self, feed):
        shapes.append((self.num_rows, *feed))
        step(self, feed)

    monkeypatch.setattr(CompiledSequencer, "compile", watched)
    if device == "cpu":
        monkeypatch.setattr(compiled, "compiled_forward", lambda _model: forward)
        monkeypatch.setattr(compiled.shutil, "which", lambda name: name)
    counters["inductor"].clear()
    yield shapes
    assert shapes
    assert counters["inductor"]["cudagraph_skips"] == 0, "steps were compiled, and not captured"


@pytest.fixture
def pair(target_folder, noisy_folder, device):
    return [load_model(folder, dtype="float32", device=device) for folder in (target_folder, noisy_folder)]


@pytest.mark.timeout(900)
def test_captured_steps_say_what_plain_ones_say(pair, target, prompts, made):
    """float32; 1e-4, products in another order. Each step is taken three times: made, captured and replayed."""
    text = torch.tensor(prompts[3][:9])
    with torch.inference_mode():
        expected_TV = target(text[None], use_cache=False).logits[0]
        sequencer = CompiledSteps()(pair[0], [prompts[3]], capacity=20, vocab_size=264, feeds=[(1, False), (4, True)])
        ids_1T = text[None].to(pair[0].device)
        for start in (0, 1, 2):
            last_1V = sequencer.feed(ids_1T[:, start : start + 1], [(start, 1)], whole=False)[0]
            torch.testing.assert_close(last_1V.cpu(), expected_TV[start : start + 1], rtol=1e-4, atol=1e-4)
        for _ in range(3):
            all_TV = sequencer.feed(ids_1T[:, 3:7], [(3, 4)], whole=True)[0]
            torch.testing.assert_close(all_TV.cpu(), expected_TV[3:7], rtol=1e-4, atol=1e-4)
    assert sorted(made) == [(1, 1, False), (1, 4, True)]


@pytest.mark.timeout(900)
def test_captured_steps_write_the_targets_texts(pair, prompts, made):
    """float32, token for token; a batch that shrinks, and one after it that takes the same steps."""
    opener = CompiledSteps()
    for some in (prompts[:3], prompts[1:4]):
        law_greedy_text_is_the_targets(*pair, some, Limits(14, frozenset({2})), opener=opener)


@pytest.mark.timeout(900)
def test_sampled_rows_of_a_captured_batch_do_not_feel_each_other(pair, prompts, made):
    """float32, token for token."""
    law_rows_do_not_feel_each_other(*pair, prompts[:2], Sampling(0.8), opener=CompiledSteps())
