"""Batches that sequences join and leave, the text of a growing response, and which pairs are served."""

import time

import pytest
import torch

from architectures.errors import UserError
from eval import serving_engine
from eval.config import ServeSettings
from eval.decoding.sampling import Limits, Sampling, Seeds, Speculation
from eval.decoding.speculative import (
    Batch,
    DecodingRequest,
    SpeculativeSteps,
    Streams,
    decode_steps,
    finished,
    plain_decode,
)
from eval.models import load_model, load_tokenizer
from eval.pair import LoadedPair, load_pair
from eval.serving_engine import ResponseText, ServedRequest, ServedRows, ServingEngine
from tests.eval.running_server import until

SAMPLINGS = [Sampling(), Sampling(0.8, top_p=0.9), Sampling(0.7, repetition_penalty=1.3)]
K = Speculation(3)
LONG = tuple(3 + place % 200 for place in range(600))


def request_of(rows, sampling, speculation):
    """Of rows (prompt, limit, seed)."""
    prompts, limits, _ = zip(*rows, strict=True)
    return DecodingRequest(prompts, Limits(max(limits), {2}), sampling, speculation, max_new_tokens=limits)


@torch.inference_mode()
def new_batch(models, rows, sampling, speculation=K):
    request = request_of(rows, sampling, speculation)
    streams = Streams.of(request, Seeds(), [seed for _, _, seed in rows], torch.device("cpu"))
    return Batch(models, request, streams, range(len(rows)), ServedRows)


@torch.inference_mode()
def advance(batch, texts, count=40):
    """Decode some steps; finished sequences leave, and `texts` gets the tokens of all, by their prompt."""
    for _ in range(count if batch.texts else 0):
        before = list(batch.texts)
        list(SpeculativeSteps(batch).step() if batch.drafter is not None else batch.plain_step())
        texts |= {text.context: tuple(text.emitted) for text in before}
        list(batch.retire())
        if not batch.texts:
            return


@pytest.fixture(scope="module")
def rows(prompts):
    limits = (30, 7, 18, 25, 1, 12, 22)
    return [(tuple(prompt), limit, 100 + limit) for prompt, limit in zip(prompts, limits, strict=True)]


def alone(models, row, sampling, speculation=K):
    [(_, text)] = finished(decode_steps(models, request_of([row], sampling, speculation), row_seeds=[row[2]]))
    return text.token_ids


@pytest.mark.parametrize("speculation", [K, None], ids=["draft", "plain"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalised"])
def test_sequences_of_joined_batches_are_what_they_are_alone(target, noisy_draft, rows, sampling, speculation):
    """Batches of prompts of one token were never fed: one joins others, others join one. Later a row is dropped."""
    models, texts = [target, noisy_draft] if speculation else [target], {}
    groups = rows[:1], rows[2:4], rows[5:6], rows[6:], rows[1:2]
    running, *others = (new_batch(models, group, sampling, speculation) for group in groups)
    for joining in others:
        with torch.inference_mode():
            running.join(joining)
        assert [text.index for text in running.texts] == list(range(len(running.texts)))
        advance(running, texts, 2)
    with torch.inference_mode():
        dropped = running.texts[1].context
        running.keep([row for row in range(len(running.texts)) if row != 1])
    advance(running, texts)
    for row in [*rows[:4], *rows[5:]]:
        assert (texts[row[0]] == alone(models, row, sampling, speculation)) == (row[0] != dropped)


def test_batches_that_were_never_fed_join(target, noisy_draft, rows):
    models, texts = [target, noisy_draft], {}
    batch = new_batch(models, rows[:1], Sampling())
    batch.join(new_batch(models, rows[5:6], Sampling()))
    advance(batch, texts)
    assert texts == {row[0]: alone(models, row, Sampling()) for row in (rows[0], rows[5])}


@pytest.mark.parametrize("k", [1, 6])
def test_another_draft_goes_on_in_the_middle(target, noisy_draft, random_draft, small_head_folder, rows, k):
    """Its cache is right: the target, as its own second draft, accepts everything but what a stop token ends."""
    for draft in (random_draft, load_model(small_head_folder, dtype="float32", device="cpu"), target):
        texts, batch = {}, new_batch([target, noisy_draft], rows, Sampling())
        advance(batch, texts, 2)
        kept = [(text, len(text.steps)) for text in batch.texts]
        with torch.inference_mode():
            batch.replace_draft(batch.open_drafter(draft, ServedRows, 50), Speculation(k))
        advance(batch, texts)
        assert texts == {row[0]: alone([target], row, Sampling(), None) for row in rows}
        later = [step for text, start in kept for step in text.steps[start:]]
        assert {step.num_speculative_tokens for step in later} == {k}
        rejected = [step for step in later if step.accepted < step.proposed]
        assert len(rejected) <= sum(text.stopped for text, _ in kept) or draft is not target


@pytest.mark.parametrize("speculation", [K, None], ids=["draft", "plain"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalised"])
def test_the_default_dtype_does_not_matter(target, noisy_draft, rows, sampling, speculation):
    """Another thread that loads a model in bfloat16 changes that of the whole process."""
    models = [target, noisy_draft] if speculation else [target]
    expected = alone(models, rows[5], sampling, speculation)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert alone(models, rows[5], sampling, speculation) == expected
    finally:
        torch.set_default_dtype(torch.float32)


# Text


def added(tokenizer, text, stop=()):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    growing, shown = ResponseText(tokenizer, stop), []
    for number, token in enumerate(ids, start=1):
        shown.append(growing.add(token, is_last=number == len(ids)))
        if growing.is_stopped:
            break
    return shown


@pytest.mark.parametrize("text", ["plain", "Zoë, 10 €, 😀!", " two  spaces\n", "😀", "é"])
def test_text_comes_in_whole_characters(target_tokenizer, text):
    shown = added(target_tokenizer, text)
    assert "".join(shown) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(shown)
    assert all(len(piece) <= 1 for piece in shown)  # of a tokenizer of bytes


def test_a_character_without_its_end_comes_last(target_tokenizer):
    growing = ResponseText(target_tokenizer, ())
    *_, first, _ = target_tokenizer("a€", add_special_tokens=False)["input_ids"][:3]
    assert growing.add(first, is_last=False) == ""
    assert growing.add(2, is_last=True) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["STOP"], "a STO b ST"),
        (["zzz"], "a STO b STSTOP STOP c"),
        (["STOP c", "b ST"], "a STO "),
        (["P c", "STOPPED"], "a STO b STSTOP STO"),
        (["c"], "a STO b STSTOP STOP "),
        ([" c!"], "a STO b STSTOP STOP c"),
    ],
)
def test_stop_strings_end_the_text_before_them(target_tokenizer, stop, expected):
    shown = added(target_tokenizer, "a STO b STSTOP STOP c", stop)
    assert "".join(shown) == expected
    growing = ""
    for piece in shown:  # nothing comes early that a stop string might take
        growing += piece
        assert expected.startswith(growing)


# Pairs


def engine_of(target, draft, **how):
    pair = load_pair(str(target), str(draft), dtype="float32")
    return ServingEngine(pair, ServeSettings(target=str(target), draft=str(draft), **how))


def test_k_and_context_are_those_of_the_pair(target_folder, noisy_folder, make_checkpoint, tmp_path):
    assert engine_of(target_folder, noisy_folder).speculation.num_speculative_tokens == 3
    assert engine_of(target_folder, noisy_folder).max_model_len == 2048
    short = make_checkpoint(seed=5, max_position_embeddings=64)
    (short / "generation_config.json").write_text('{"num_assistant_tokens": 5}')
    engine = engine_of(target_folder, short)
    assert (engine.speculation.num_speculative_tokens, engine.max_model_len) == (5, 64)
    assert engine_of(target_folder, short, num_speculative_tokens=2).speculation.num_speculative_tokens == 2
    with pytest.raises(UserError, match="--max-model-len"):
        engine_of(target_folder, short, max_model_len=65)


def test_models_of_one_sequence_at_a_time_are_rejected(translators, noisy_draft, target_folder, noisy_folder):
    """Named by their type."""
    pair = LoadedPair(translators[0], noisy_draft, load_tokenizer(target_folder), (target_folder, noisy_folder))
    with pytest.raises(UserError, match="t5"):
        ServingEngine(pair, ServeSettings(target="t5", draft="d"))


# Prefill


@pytest.fixture
def slow_prefill(pair, monkeypatch):
    """An engine that prefills slowly, its `submit`, and a list that grows with each chunk."""
    monkeypatch.setattr(serving_engine, "MAX_PREFILL_TOKENS", 10)
    engine = ServingEngine(pair, ServeSettings(target="tiny", draft="tiny", dtype="float32"))
    advance, chunks = engine.advance_prefill, []
    monkeypatch.setattr(engine, "advance_prefill", lambda: (chunks.append(time.sleep(0.02)), advance()))

    def submit(prompt=LONG, count=40):
        tokens = []
        text = ResponseText(pair.tokenizer, ())
        request = ServedRequest(prompt, Sampling(), count, 1, text, tokens.append)
        engine.submit(request)
        return request, tokens

    with engine:
        yield engine, submit, chunks


def test_a_request_may_be_cancelled_while_it_is_prefilled(slow_prefill):
    engine, submit, chunks = slow_prefill
    request, tokens = submit()
    until(lambda: len(chunks) > 2)
    request.cancelled.set()
    until(lambda: tokens)
    assert tokens == [None]
    assert engine.metrics.registry.get_sample_value("widedraft:prompt_tokens_total") == 0


def test_a_request_ends_if_the_engine_closes_while_it_is_prefilled(slow_prefill):
    engine, submit, chunks = slow_prefill
    _, tokens = submit()
    until(lambda: len(chunks) > 2)
    engine.close()
    assert tokens == [None]


def test_a_draft_waits_for_a_prompt_that_another_one_reads(pair, slow_prefill, make_checkpoint):
    """The caches of two drafts in one batch would differ; the target as its own draft accepts everything."""
    engine, submit, _ = slow_prefill
    _, first = submit(prompt=(5, 6), count=2000)
    until(lambda: first)
    _, tokens = submit(LONG[:200])
    until(lambda: engine.prefilling)
    engine.swap_draft(str(make_checkpoint(seed=1, pad_token_id=2)))
    until(lambda: tokens and tokens[-1].finish_reason)
    sources = [token.source for token in tokens]
    assert sources[4:].count("target") <= len(sources) // 4 + 1
    [text] = plain_decode(pair.target, [LONG[:200]], limits=Limits(40, pair.stop_ids))
    assert tuple(token.token_id for token in tokens) == text.token_ids
