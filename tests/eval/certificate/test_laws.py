"""The laws of a certificate on runs made by hand: each holds where it should, and each mistake breaks its own."""

import re
from dataclasses import replace

import pytest

from architectures.pages.terminal import terminal
from eval.acceptance.estimates import Resampling
from eval.certificate.causes import likely_causes
from eval.certificate.engine_speed import speed_of
from eval.certificate.laws import Known, find
from eval.certificate.page import certificate_page
from eval.engine_runs.record import (
    Certificate,
    Counted,
    EngineRun,
    TextRun,
    pooled,
    read_certificates,
    write_certificate,
)

PROMPTS = [(1, 2, 3, number) for number in range(24)]
COUNTED = Counted(rounds=30, proposed=90, accepted=34, by_position=(20, 10, 4))
FINE = Known(same_tokenizer=True, same_template=True, draft_context=2048)


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
        lookahead=3,
        max_new_tokens=64,
        own=Counted(rounds=400, proposed=1200, accepted=1200, by_position=(400, 400, 400)),
        texts=tuple(text(prompt) for prompt in PROMPTS),
    )


def with_text(run, number, **changed):
    texts = list(run.texts)
    texts[number] = replace(texts[number], **changed)
    return replace(run, texts=tuple(texts))


def broken(run, replayed=None):
    replayed = replayed or [COUNTED] * len(run.texts)
    return [
        finding.law for finding in find(run, PROMPTS[: len(run.texts)], pooled(replayed), FINE) if not finding.holds
    ]


def causes(run, replayed=None, known=FINE):
    return likely_causes(run, PROMPTS[: len(run.texts)], replayed or [COUNTED] * len(run.texts), known)


def test_a_run_that_does_as_the_replay_says_breaks_no_law(run):
    assert broken(run) == []
    assert causes(run) == []


def test_too_few_prompts_or_tokens_certify_nothing(run):
    assert broken(replace(run, texts=run.texts[:23])) == ["enough"]
    assert broken(replace(run, max_new_tokens=63)) == ["enough"]


def test_a_prompt_that_is_read_differently_is_named_with_its_place(run):
    wrong = with_text(run, 4, prompt_ids=(1, 2, 9, 4))
    [finding] = [one for one in find(wrong, PROMPTS, pooled([COUNTED] * 24), FINE) if not one.holds]
    assert finding.detail == "prompt 5 is read differently from its token 3 on: id 9 there, id 3 here"
    assert causes(wrong)[0].startswith("chat template or tokenizer: prompt 5")


def test_a_text_that_differs_is_named_with_its_place(run):
    wrong = with_text(run, 1, drafted_ids=(*range(63),))
    [finding] = [one for one in find(wrong, PROMPTS, pooled([COUNTED] * 24), FINE) if not one.holds]
    assert finding.detail == (
        "1 of 24 texts differ, the first at prompt 2, token 64: id 63 without the draft, the end with it"
    )


def test_a_near_tie_is_told_and_is_no_change(run):
    parted = with_text(with_text(run, 1, drafted_ids=(1,)), 5, drafted_ids=(2,))
    halved = replace(parted, dtype="float16")
    [held] = [one for one in find(halved, PROMPTS, pooled([COUNTED] * 24), FINE, [2, 6]) if one.law == "same text"]
    assert (held.holds, held.detail) == (True, "22 of 24 texts are equal, 2 part at a near-tie that float16 explains")
    [wrong] = [one for one in find(halved, PROMPTS, pooled([COUNTED] * 24), FINE, [2]) if not one.holds]
    assert wrong.detail.startswith("1 of 24 texts differ, the first at prompt 6, token 1")


def test_an_engine_that_loses_the_targets_own_tokens_is_the_cause(run):
    losing = replace(run, own=replace(run.own, accepted=1170))
    assert broken(losing) == ["own draft"]
    far = with_text(losing, 0, counted=replace(COUNTED, accepted=0, by_position=(0, 0, 0)))
    assert broken(far) == ["own draft", "counts"]
    assert any(cause.startswith("the engine") for cause in causes(far))


@pytest.mark.parametrize(("more", "holds"), [(0, True), (14, True), (15, False)])
def test_counts_may_differ_by_two_in_a_hundred_rounds_at_a_position(run, more, holds):
    """24 texts of 30 rounds: 14 of 720 is 0.0194, 15 is 0.0208."""
    replayed = [COUNTED] * 23 + [replace(COUNTED, by_position=(20 - more, 10, 4), accepted=34 - more)]
    assert (broken(run, replayed) == []) is holds


def test_an_engine_that_tells_no_positions_is_held_to_its_totals(run):
    silent = Counted(rounds=30, proposed=90, accepted=34)
    texts = tuple(replace(one, counted=silent) for one in run.texts)
    llama = replace(run, engine="llama.cpp", texts=texts, own=Counted(rounds=400, proposed=1200, accepted=1200))
    assert broken(llama) == []
    fewer = replace(llama, texts=tuple(replace(one, counted=replace(silent, accepted=31)) for one in texts))
    assert broken(fewer) == ["counts"]


def test_nothing_accepted_behind_long_prompts_alone_is_a_length_gate(run):
    long = (*range(100),)
    wrong = with_text(run, 7, prompt_ids=long, counted=replace(COUNTED, accepted=0, by_position=(0, 0, 0)))
    prompts = [long if number == 7 else prompt for number, prompt in enumerate(PROMPTS)]
    [cause] = likely_causes(wrong, prompts, [COUNTED] * 24, replace(FINE, draft_context=64))
    assert cause.startswith("length gate: nothing is accepted behind prompts of 100 tokens or more; the draft says")


def test_nothing_accepted_behind_a_short_prompt_is_no_length_gate_where_longer_ones_are_heard(run):
    long = (*range(100),)
    wrong = with_text(run, 7, counted=replace(COUNTED, accepted=0, by_position=(0, 0, 0)))
    wrong = with_text(wrong, 9, prompt_ids=long)
    prompts = [long if number == 9 else prompt for number, prompt in enumerate(PROMPTS)]
    told = likely_causes(wrong, prompts, [COUNTED] * 24, replace(FINE, draft_context=64))
    assert told == ["unknown: they are furthest apart at prompt 8, 0 accepted there and 34 by replay."]


def test_files_of_another_model_break_a_law_though_the_counts_agree(run):
    """Replay misreads tokens as the engine does, so that counts alone would certify the draft of another target."""
    other = replace(FINE, same_tokenizer=False, same_template=False)
    [finding] = [one for one in find(run, PROMPTS, pooled([COUNTED] * 24), other) if not one.holds]
    assert finding.detail == "the draft's tokenizer and chat template differ from the target's"


@pytest.mark.parametrize(
    ("known", "begins"),
    [
        (replace(FINE, same_tokenizer=False), "tokenizer"),
        (replace(FINE, same_template=False), "chat template"),
        (replace(FINE, quantised=("a-Q4_0.gguf",)), "quantisation: a-Q4_0.gguf"),
    ],
)
def test_what_is_known_of_the_files_is_told_where_counts_differ(run, known, begins):
    less = with_text(run, 0, counted=replace(COUNTED, accepted=10, by_position=(5, 4, 1)))
    assert causes(less, known=known)[0].startswith(begins)


def test_a_difference_that_nothing_explains_is_placed(run):
    less = with_text(run, 3, counted=replace(COUNTED, accepted=10, by_position=(5, 4, 1)))
    assert causes(less) == ["unknown: they are furthest apart at prompt 4, 10 accepted there and 34 by replay."]


def test_half_precision_is_named_beside_other_causes(run):
    wrong = with_text(replace(run, dtype="bfloat16"), 1, drafted_ids=(1,))
    assert causes(wrong)[0].startswith("number type")


def test_speed_is_the_ratio_of_tokens_a_second(run):
    speed = speed_of(run, Resampling(0.95, 200, 17))
    assert (speed.value, speed.plain_tokens_per_s, speed.drafted_tokens_per_s) == (2.0, 32.0, 64.0)
    assert speed.interval == (2.0, 2.0)


@pytest.fixture
def certificate(run):
    replay = pooled([COUNTED] * 24)
    return Certificate(
        run=run,
        replay=replay,
        findings=tuple(find(run, PROMPTS, replay, FINE)),
        causes=(),
        speed=speed_of(run, Resampling(0.95, 200, 17)),
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


def test_the_page_tells_every_law_and_the_speed(certificate):
    page = terminal(*certificate_page(certificate))
    assert page.count("holds") == 6
    assert re.search(
        r"speed in this engine +2\.00x \[2\.00, 2\.00\], 32\.0 tokens/s without and 64\.0 with the draft", page
    )


def test_a_silent_text_behind_a_prompt_as_long_as_a_heard_one_is_no_length_gate(run):
    wrong = with_text(run, 7, counted=replace(COUNTED, accepted=0, by_position=(0, 0, 0)))
    assert causes(wrong) == ["unknown: they are furthest apart at prompt 8, 0 accepted there and 34 by replay."]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_number_type_of_16_bits_is_a_cause(run, dtype):
    wrong = with_text(replace(run, dtype=dtype), 1, drafted_ids=(1,))
    assert causes(wrong)[0].startswith(f"number type: in {dtype}")


def test_what_the_engine_accepts_beyond_the_replay_is_placed_too(run):
    replayed = [COUNTED] * 24
    replayed[4] = replace(COUNTED, accepted=4, by_position=(4, 0, 0))
    assert causes(run, replayed) == ["unknown: they are furthest apart at prompt 5, 34 accepted there and 4 by replay."]


def test_near_ties_alone_have_no_cause(run):
    parted = with_text(replace(run, dtype="float16"), 1, drafted_ids=(1,))
    assert likely_causes(parted, PROMPTS, [COUNTED] * 24, FINE, [2]) == []


def test_an_engine_that_never_proposed_the_targets_own_tokens_is_not_certified(run):
    assert broken(replace(run, own=Counted(rounds=0, proposed=0, accepted=0))) == ["own draft"]
