"""Accuracy with and without a draft: numbers read from texts, questions, and a check that a sound draft passes."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.accuracy import (
    LARGEST,
    SMALLEST,
    accuracy_with_interval,
    check_accuracy,
    compare_answers,
    favour_p,
    first_line_number,
    gsm8k_question,
    last_number,
    load_benchmark,
    multiplication_questions,
)
from eval.chat import TEXT
from eval.decoding.sampling import Decoded, Limits
from eval.decoding.speculative import plain_decode
from eval.lossless import MIN_P, Parting, find_parting
from eval.replay import response_logits
from tests.rejections import rejects

HOW = {"max_new_tokens": 12, "batch_size": 3}


@pytest.fixture(scope="module")
def products():
    return load_benchmark("multiplication", 5, seed=2)


def right_in(benchmark, texts):
    """The exam whose every answer is the number that a text gives."""
    questions = [
        replace(question, answer=benchmark.read(text))
        for question, text in zip(benchmark.questions, texts, strict=True)
    ]
    return replace(benchmark, questions=questions)


def test_a_sound_draft_changes_no_answer(pair, products):
    finding = check_accuracy(pair, products, **HOW)
    assert finding.holds
    assert "; texts equal 5 of 5, near ties 0, changed 0; " in finding.detail
    prompts = [pair.rendered(question.prompt) for question in products.questions]
    plain = plain_decode(pair.target, prompts, limits=Limits(12, pair.stop_ids))
    assert f"; truncated {sum(not one.stopped for one in plain)}; " in finding.detail


def test_right_answers_are_counted_on_either_side(pair, products):
    """Three are right alone, two with the draft, one of them not alone."""
    benchmark = right_in(products, ["1", "2", "3", "4", "5"])
    prompts = [pair.rendered(question.prompt) for question in benchmark.questions]

    def texts(*words):
        ids = [pair.tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
        return [Decoded(tuple(token_ids), (), 0.0, 0.0) for token_ids in ids]

    plain, drafted = texts("1", "2", "3", "no", "no"), texts("1", "no", "no", "4", "no")
    finding = compare_answers(pair, benchmark, prompts, plain, drafted, width=5)
    assert not finding.holds
    assert "without draft 3/5" in finding.detail
    assert "with draft 2/5" in finding.detail
    assert "right only without 2, only with 1; texts equal 2 of 5, near ties 0, changed 3" in finding.detail


def test_texts_part_at_a_tie_only_where_the_target_nearly_ties(target, prompts):
    prompt = prompts[3]
    [plain] = plain_decode(target, [prompt], limits=Limits(6))
    ids = plain.token_ids
    second = int(response_logits(target, prompt, ids)[2].topk(2).indices[1])
    other = (*ids[:2], second, *ids[3:])
    for one, two, side in ((ids, other, 1), (other, ids, 0)):
        parting = find_parting(target, prompt, one, two, width=3)
        assert not parting.is_tie
        assert parting.leaves(side)
        assert not parting.leaves(1 - side)
    assert find_parting(target, prompt, ids, ids[:3], width=3) is None  # one is the beginning of the other


def test_a_draft_that_always_takes_the_second_of_two_near_ties_is_found():
    """Each text parts at a near tie, as honest ones do; but honest ones leave the argmax alone as often."""
    only_drafted, only_alone = Parting((0.0, 0.1), 1.0, 0.2), Parting((0.1, 0.0), 1.0, 0.2)
    neither = Parting((0.1, 0.1), 1.0, 0.2)
    assert favour_p([]) == favour_p([neither] * 50) == 1.0
    assert favour_p([only_drafted] * 9) > MIN_P > favour_p([only_drafted] * 10)
    assert favour_p([only_drafted] * 10 + [only_alone] * 10) > 0.5


@pytest.mark.parametrize(
    ("count", "total", "told"),
    [(0, 4, "0.000 [0.000, 0.490]"), (284, 1000, "0.284 [0.257, 0.313]"), (1, 1, "1.000 [0.207, 1.000]")],
)
def test_intervals_are_wilsons(count, total, told):
    """(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.96, by hand."""
    right = [True] * count + [False] * (total - count)
    assert accuracy_with_interval(right) == f"{count}/{total} = {told}"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is $18.00.", "18"),
        ("It costs 18.50 dollars", "18.5"),
        ("1,234,567.25 in all", "1234567.25"),
        ("12,34", "34"),  # no thousands: two numbers
        ("1,2345", "2345"),
        ("−5 degrees", "-5"),
        ("loses -$5", "-5"),
        ("10-5", "5"),
        ("covid-19", "19"),
        ("1/2", "2"),
        ("<<9*2=18>>18", "18"),
        ("version 1.2.3", "3"),
        ("-0", "0"),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "no number", "eighteen", "$", "-", ".", ",", "½"])
def test_a_text_without_a_number_has_none(text):
    assert last_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=2))
def test_every_way_to_write_a_number_is_read_as_that_number(value):
    sign, size = "-" if value < 0 else "", abs(value)
    for written in (f"{value:f}", f"{value:,}", f"{sign}${size:,}", f"${sign}{size:,}"):
        assert last_number(f"we get 3 of {written}, then.") == value
        assert last_number(f"({written})") == value
        assert first_line_number(f" {written} \n4") == value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 63\n8 * 3 = 24", "63"),
        ("\n63", None),
        (" 63 eggs\n", None),
        (" = 63\n", None),
    ],
)
def test_the_first_line_is_a_number_or_none(text, number):
    assert first_line_number(text) == (None if number is None else Decimal(number))


def row(answer: Any) -> dict[str, Any]:
    return {"question": "How many?", "answer": answer}


@pytest.mark.parametrize(
    ("answer", "number"),
    [("9 * 2 = <<9*2=18>>18\n#### 18", 18), ("#### 1,234", 1234), ("a #### 3 b\n#### -7 ", -7), ("####$5", 5)],
)
def test_the_reference_stands_behind_the_last_mark(answer, number):
    question = gsm8k_question(row(answer), "f:1")
    assert question.answer == number
    assert (question.prompt.source, question.prompt.task) == ("f:1", "gsm8k/1")
    assert question.prompt.messages[-1]["content"] == "How many?"


@pytest.mark.parametrize(
    ("given_row", "key"),
    [
        (row("18"), "answer"),
        (row("#### 18 eggs"), "answer"),
        ({"prompt": "How many?"}, "question"),
        (row(18), "answer"),
    ],
)
def test_a_row_without_a_reference_is_refused(given_row, key):
    with rejects("f:1:", key):
        gsm8k_question(given_row, "f:1")


def test_products_follow_from_the_seed_and_are_of_numbers_from_1_to_99():
    questions = multiplication_questions(20_000, seed=3)
    assert questions == multiplication_questions(20_000, seed=3)
    assert multiplication_questions(5, seed=4) != questions[:5] == multiplication_questions(5, seed=3)
    factors = []
    for question in questions:
        [message] = question.prompt.messages
        assert message["role"] == TEXT
        *_, asked = message["content"].split("\n")
        a, b = (int(word) for word in asked.removesuffix(" =").split(" * "))
        assert question.answer == a * b
        factors += [a, b]
    assert {min(factors), max(factors)} == {SMALLEST, LARGEST} == {1, 99}
    assert len(set(factors)) == 99


def test_an_benchmark_reads_a_file_and_as_many_rows_as_are_asked(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(f"#### {number}")) + "\n" for number in range(5)))
    benchmark = load_benchmark(f"gsm8k={path}", 3, seed=0)
    assert [int(question.answer) for question in benchmark.questions] == [0, 1, 2]
    assert list(map(benchmark.read, ("2", "1 and 2.", "2 of 3", "two"))) == [2, 2, 3, None]
    product = load_benchmark("multiplication", 3, seed=0)
    assert list(map(product.read, (" 12\nand more 1", " it is 12"))) == [12, None]
    assert product.questions != load_benchmark("multiplication", 3, seed=1).questions
    assert (benchmark.max_new_tokens, product.max_new_tokens) == (256, 8)


@pytest.mark.parametrize("word", ["gsm8", "sums", "multiplication=3", "gsm8k="])
def test_an_unknown_benchmark_is_refused(word):
    with rejects(f"--accuracy {word}:"):
        load_benchmark(word, 1, seed=0)
