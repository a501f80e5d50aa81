"""Exams: which number a text answers with, what is asked, and which rows are refused."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures.errors import UserError
from eval.checks.exams import (
    LARGEST,
    SMALLEST,
    first_line_number,
    gsm8k_question,
    last_number,
    multiplication_questions,
    open_exam,
)
from eval.models.loading import load_tokenizer
from eval.prompts import TEXT, render_prompt


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She sells 9 * 2 = 18 eggs.", "18"),
        ("The answer is 18", "18"),
        ("#### 18", "18"),
        ("It is $18.", "18"),
        ("It is $18.00.", "18"),
        ("It costs 18.50 dollars", "18.5"),
        ("about .5 of it", "0.5"),
        ("1,234", "1234"),
        ("1,234,567.25 in all", "1234567.25"),
        ("$1,234.", "1234"),
        ("first 1, 2, 3", "3"),
        ("12,34", "34"),  # no thousands: two numbers
        ("1,2345", "2345"),
        ("1234,567", "567"),
        ("so -5", "-5"),
        ("x=-5", "-5"),
        ("(-5)", "-5"),
        ("−5 degrees", "-5"),
        ("loses -$5", "-5"),
        ("loses $-5", "-5"),
        ("-1,234.5", "-1234.5"),
        ("10-5", "5"),
        ("10 - 5", "5"),
        ("(10)-5", "5"),
        ("[10]-5", "5"),
        ("covid-19", "19"),
        ("5-10 people", "10"),
        ("€20 or £30", "30"),
        ("50% of it", "50"),
        ("1/2", "2"),
        ("**18**", "18"),
        ("\\boxed{18}", "18"),
        ("<<9*2=18>>18", "18"),
        ("5kg", "5"),
        ("version 1.2.3", "3"),
        ("18\n\n", "18"),
        ("-0", "0"),
        ("007", "7"),
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
        ("63", "63"),
        ("1,234\n", "1234"),
        ("\n63", None),
        (" 63 eggs\n", None),
        (" 60 + 3\n", None),
        ("", None),
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
    ("given_row", "complaint"),
    [
        (row("18"), "f:1: answer must end in a number behind ####, got '18'. Mend or delete this row."),
        (row("#### many"), "f:1: answer must end in a number behind ####, got '#### many'."),
        (row("#### 18 eggs"), "f:1: answer must end in a number behind ####, got '#### 18 eggs'."),
        ({"question": "How many?"}, "f:1: has no answer, which task gsm8k reads; it has question."),
        ({"prompt": "How many?"}, "f:1: has no question, which task gsm8k reads; it has prompt."),
        (row(18), "f:1: answer must be a non-empty text, got 18."),
    ],
)
def test_a_row_without_a_reference_is_refused(given_row, complaint):
    with pytest.raises(UserError) as refusal:
        gsm8k_question(given_row, "f:1")
    assert str(refusal.value).startswith(complaint)


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


def test_a_product_is_asked_after_three_that_are_right(tiny_target):
    [question] = multiplication_questions(1, seed=0)
    tokenizer = load_tokenizer(tiny_target)
    shown = str(tokenizer.decode(render_prompt(tokenizer, question.prompt.messages)))
    *solved, _ = shown.split("\n")
    assert len(solved) == 3
    for line in solved:
        product, result = line.split(" = ")
        a, b = map(int, product.split(" * "))
        assert a * b == int(result)
    assert shown.endswith(" =")


def test_an_exam_reads_a_file_and_as_many_rows_as_are_asked(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(f"#### {number}")) + "\n" for number in range(5)))
    exam = open_exam(f"gsm8k={path}", 3, seed=0)
    assert [int(question.answer) for question in exam.questions] == [0, 1, 2]
    assert [exam.is_right(2, text) for text in ("2", "1 and 2.", "2 of 3", "two")] == [True, True, False, False]
    product = open_exam("multiplication", 3, seed=0)
    assert product.is_right(0, f" {product.questions[0].answer}\nand more 1")
    assert not product.is_right(0, f" it is {product.questions[0].answer}")
    assert product.questions != open_exam("multiplication", 3, seed=1).questions
    assert (exam.max_new_tokens, product.max_new_tokens) == (256, 8)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gsm8", "--checks gsm8: must be gsm8k, gsm8k=FILE or multiplication. Did you mean gsm8k?"),
        ("sums", "--checks sums: must be gsm8k, gsm8k=FILE or multiplication."),
        (
            "multiplication=3",
            "--checks multiplication=3: must be gsm8k, gsm8k=FILE or multiplication. Did you mean m",
        ),
        ("gsm8k=", "--checks gsm8k=: no file stands after the =. Name one, or leave the = out."),
    ],
)
def test_a_word_that_is_no_exam(word, message):
    with pytest.raises(UserError) as refusal:
        open_exam(word, 1, seed=0)
    assert str(refusal.value).startswith(message)
