"""The laws of a certificate on runs made by hand: each holds where it should, and each mistake breaks its own."""

from dataclasses import replace

import pytest

from eval.engines.certificate import (
    Certificate,
    Counted,
    EngineRun,
    TextRun,
    pooled,
    read_certificates,
    write_certificate,
)
from eval.engines.certify import speed_of
from eval.engines.runs import find, find_ties
from eval.replay import response_logits

PROMPTS = [(1, 2, 3, number) for number in range(24)]
COUNTED = Counted(steps=30, proposed=90, accepted=34, by_position=(20, 10, 4))


def text(prompt, **changed):
    values = {
        "prompt_ids": prompt,
        "plain_ids": tuple(range(64)),
        "drafted_ids": tuple(range(64)),
        "plain_s": 2.0,
        "drafted_s": 1.0,
        "counted": COUNTED,
    }
    return TextRun(**(values | changed))


@pytest.fixture
def run():
    return EngineRun(
        engine="vllm",
        version="1",
        command="serve",
        dtype="float32",
        num_speculative_tokens=3,
        max_new_tokens=64,
        own=Counted(steps=400, proposed=1200, accepted=1200, by_position=(400, 400, 400)),
        texts=tuple(text(prompt) for prompt in PROMPTS),
    )


def with_text(run, number, **changed):
    texts = list(run.texts)
    texts[number] = replace(texts[number], **changed)
    return replace(run, texts=tuple(texts))


def failed(run, replayed=None, **more):
    replayed = pooled(replayed or [COUNTED] * len(run.texts))
    return [finding for finding in find(run, PROMPTS[: len(run.texts)], replayed, **more) if not finding.holds]


def broken(run, replayed=None, **more):
    return [finding.law for finding in failed(run, replayed, **more)]


def test_a_run_that_does_as_the_replay_says_breaks_no_law(run):
    assert broken(run) == []


def test_too_few_prompts_or_tokens_certify_nothing(run):
    assert broken(replace(run, texts=run.texts[:23])) == ["enough"]
    assert broken(replace(run, max_new_tokens=63)) == ["enough"]


def test_an_engine_that_loses_the_targets_own_tokens_is_the_cause(run):
    losing = replace(run, own=replace(run.own, accepted=1170))
    assert broken(losing) == ["own draft"]
    far = with_text(losing, 0, counted=replace(COUNTED, accepted=0, by_position=(0, 0, 0)))
    assert broken(far) == ["own draft", "counts"]


@pytest.mark.parametrize(("more", "holds"), [(0, True), (14, True), (15, False)])
def test_counts_may_differ_by_two_in_a_hundred_steps_at_a_position(run, more, holds):
    """24 texts of 30 steps: 14 of 720 is 0.0194, 15 is 0.0208."""
    replayed = [COUNTED] * 23 + [replace(COUNTED, by_position=(20 - more, 10, 4), accepted=34 - more)]
    assert (broken(run, replayed) == []) is holds


def test_an_engine_that_tells_no_positions_is_held_to_its_totals(run):
    silent = Counted(steps=30, proposed=90, accepted=34)
    texts = tuple(replace(one, counted=silent) for one in run.texts)
    llama = replace(run, engine="llama.cpp", texts=texts, own=Counted(steps=400, proposed=1200, accepted=1200))
    assert broken(llama) == []
    fewer = replace(llama, texts=tuple(replace(one, counted=replace(silent, accepted=31)) for one in texts))
    assert broken(fewer) == ["counts"]


def test_speed_is_the_ratio_of_tokens_a_second(run):
    speed = speed_of(run, 17)
    assert (speed.value, speed.plain_tokens_per_s, speed.drafted_tokens_per_s) == (2.0, 32.0, 64.0)
    assert speed.interval == (2.0, 2.0)


@pytest.fixture
def certificate(run):
    replay = pooled([COUNTED] * 24)
    return Certificate(
        run=run,
        replay=replay,
        findings=tuple(find(run, PROMPTS, replay)),
        speed=speed_of(run, 17),
        hardware="a processor",
        created="2026-11-25T00:00:00+00:00",
    )


def test_the_file_holds_one_certificate_for_each_engine_of_the_same_models(certificate, tmp_path):
    other = replace(certificate, run=replace(certificate.run, engine="transformers"))
    write_certificate(tmp_path, certificate, target="t", draft="d")
    write_certificate(tmp_path, other, target="t", draft="d")
    assert read_certificates(tmp_path).engines == {"vllm": certificate, "transformers": other}
    write_certificate(tmp_path, other, target="t", draft="another")
    assert list(read_certificates(tmp_path).engines) == ["transformers"]


def test_an_engine_that_never_proposed_the_targets_own_tokens_is_not_certified(run):
    assert broken(replace(run, own=Counted(steps=0, proposed=0, accepted=0))) == ["own draft"]


def test_what_the_engine_reads_or_writes_otherwise_is_named_with_its_prompt(run):
    [finding] = failed(with_text(run, 4, prompt_ids=(1, 2, 9, 4)))
    assert finding.law == "prompts"
    assert "prompt 5 " in finding.detail
    [finding] = failed(with_text(run, 1, drafted_ids=(*range(63),)))
    assert finding.law == "same text"
    assert finding.detail.endswith("prompt 2")


def test_a_near_tie_is_no_change(run):
    parted = with_text(with_text(replace(run, dtype="float16"), 1, drafted_ids=(1,)), 5, drafted_ids=(2,))
    assert broken(parted, ties=[2, 6]) == []
    assert broken(parted, ties=[2]) == ["same text"]


def test_files_of_another_model_break_a_law_though_the_counts_agree(run):
    """Replay misreads tokens as the engine does, so that counts alone would certify the draft of another target."""
    assert broken(run, differing=("tokenizer",)) == ["files"]


# Near-ties

PROMPT = (1, 70, 80, 90)
NOTHING = Counted(steps=0, proposed=0, accepted=0)


def ties(target, plain, drafted, dtype):
    text = TextRun(prompt_ids=PROMPT, plain_ids=plain, drafted_ids=drafted, plain_s=1.0, drafted_s=1.0, counted=NOTHING)
    lengths = {"num_speculative_tokens": 2, "max_new_tokens": 4}
    run = EngineRun(engine="llama.cpp", version="1", command="", dtype=dtype, **lengths, own=NOTHING, texts=(text,))
    return find_ties(target, run.texts, run.dtype, stop_id=2)


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [("float32", 0.0), ("bfloat16", 2**-7), ("t-F16 with d-F16", 2**-10), ("t-BF16 with d-BF16", 2**-7), ("Q4", 2**-7)],
)
def test_tokens_tie_within_four_roundings_of_the_largest_logit(target, dtype, rounding):
    first = int(response_logits(target, PROMPT, [0])[-1].argmax())
    logits_V = response_logits(target, PROMPT, [first, 0])[-1]
    allowed = 4 * rounding * float(logits_V.abs().max())
    best = int(logits_V.argmax())
    for other in logits_V.argsort(descending=True)[1:60].tolist():
        is_tie = float(logits_V[best] - logits_V[other]) <= allowed
        assert ties(target, (first, other), (first, best), dtype) == [1] * is_tie
    assert ties(target, (first, best), (first, best), dtype) == []
    ends = float(logits_V.max() - logits_V[2]) <= allowed  # a text that is over has its stop token there
    assert ties(target, (first, best), (first,), dtype) == [1] * ends
