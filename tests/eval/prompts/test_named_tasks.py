"""Named tasks: what their rows become, what is refused, which responses they bring, and that a change shows."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures.manifest import fingerprint_value
from eval.chat import Turn, raw_text, render_prompt
from eval.models import load_tokenizer
from eval.prompts import (
    FIELD_IN_TEMPLATE,
    Prompt,
    load_prompts,
    task_answer,
    task_conversation,
    task_prompt,
    whole_lines,
)
from eval.tasks import TASKS, PromptSource, named_task
from tests.rejections import rejects

SQL = (
    "Could you translate the following question into SQL. Please only generate SQL, don't include explanation in the "
    "answer. How many boats?"
)
HI, HO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
CODE = "import os\n\n" + "x = 1\n" * 100  # 611 characters
PIECES = "".join(f" p{number % 10}" for number in range(90))  # two of each


def user(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def text(words: str) -> tuple[dict[str, str], ...]:
    return ({"role": "text", "content": words},)


ROWS: list[tuple[str, dict[str, Any], Any]] = [  # task, row, what is asked: messages, later turns, category
    ("gsm8k", {"question": "2+2?", "answer": "#### 4"}, (user("2+2?"), (), None)),
    ("gsm8k", {"prompt": "no", "question": "2+2?", "category": "no"}, (user("2+2?"), (), None)),
    ("hellaswag", {"ctx": "A man", "ctx_a": "no", "endings": ["a"]}, (text("A man"), (), None)),
    ("hellaswag", {"prompt": "A man"}, (text("A man"), (), None)),
    ("spec_bench", {"question_id": 1, "category": "rag", "turns": ["a"]}, (user("a"), (), "rag")),
    ("mt_bench", {"category": "math", "turns": ["a", "b"]}, (user("a"), ("b",), "math")),
    ("mt_bench", {"category": "math", "prompt": ["a", "b"]}, (user("a"), ("b",), "math")),
    ("mt_bench", {"turns": None, "prompt": ["a"]}, (user("a"), (), None)),
    ("humaneval", {"prompt": "def f():\n", "canonical_solution": "    pass"}, (text("def f():\n"), (), None)),
    ("mbpp", {"prompt": "Write f.", "code": "def f(): 0", "test_list": []}, (user("Write f."), (), None)),
    ("mbpp", {"text": "Write f.", "code": "def f(): 0"}, (user("Write f."), (), None)),
    ("math_500", {"problem": "1+1", "solution": "2", "subject": "Algebra"}, (user("1+1"), (), "Algebra")),
    ("speed_bench", {"category": "math", "turns": ["a", "b"]}, (user("a"), ("b",), "math")),
    ("spider", {"db_id": "b", "question": "How many boats?", "query": "SELECT 1"}, (user(SQL), (), None)),
    ("piqa", {"goal": "open a jar", "sol1": "x", "sol2": "y", "label": 0}, (user("open a jar"), (), None)),
    ("piqa", {"query": "Question: open?\n", "choices": ["x"], "gold": 0}, (user("Question: open?\n"), (), None)),
    (
        "csn_python",
        {"func_documentation_string": "Adds.", "func_code_string": "def f(): 0"},
        (user("Please generate code based on the following doc:\nAdds."), (), None),
    ),
    (
        "csn_python",
        {"docstring": "Adds {x}.", "code": "def f(): 0"},
        (user("Please generate code based on the following doc:\nAdds {x}."), (), None),
    ),
    ("alpaca", {"instruction": "Sum up.", "input": "1 2", "output": "3"}, (user("Sum up.\n\n1 2"), (), None)),
    ("alpaca", {"instruction": "Sum up.", "input": ""}, (user("Sum up."), (), None)),
    ("finance_alpaca", {"instruction": "Sum up.", "input": "1 2", "output": "3"}, (user("Sum up.\n\n1 2"), (), None)),
    ("cnn_dailymail", {"article": "News.", "highlights": "N."}, (user("summarize: News."), (), None)),
    ("xsum", {"document": "News.", "summary": "N."}, (user("summarize: News."), (), None)),
    ("c4", {"text": "One.\nTwo.", "url": "u", "timestamp": "t"}, (text("One.\nTwo."), (), None)),
    ("c4", {"text": "One.\n" * 100 + "x" * 99}, (text("One.\n" * 100), (), None)),
    ("c4", {"text": "x" * 600}, (text("x" * 512), (), None)),
    ("starcoder", {"content": "x = 1\n"}, (text("x = 1\n"), (), None)),
    ("starcoder", {"content": CODE}, (text(CODE[:509]), (), None)),
    ("arena", {"conversation_a": [HI, HO], "conversation_b": [], "language": "English"}, ((HI,), (), "English")),
    ("arena", {"conversation": [HI, HO, HI, HO], "topic": "sport", "language": "x"}, ((HI, HO, HI), (), "sport")),
    ("lmsys_chat", {"conversation": [HI, HO], "language": "German", "turn": 1}, ((HI,), (), "German")),
    ("finance_alpaca_osd", {"instruction": "Sum up.", "input": "1 2", "output": "3"}, (user("Sum up."), (), None)),
    ("starcoder_osd", {"content": PIECES}, (text("".join(f" p{n % 10}" for n in range(50, 75))), (), None)),
    ("cnn_dailymail_osd", {"article": "News.", "highlights": "N."}, (user("News."), (), None)),
    ("xsum_osd", {"document": "News.", "summary": "N."}, (user("News."), (), None)),
]


@pytest.mark.parametrize(("name", "row", "asked"), ROWS)
def test_what_a_row_becomes(name, row, asked):
    assert task_prompt(TASKS[name], row, "f:1") == Prompt("f:1", *asked, task=f"{name}/1")


def test_every_field_of_every_task_was_tried():
    for name, task in TASKS.items():
        tried = {field for other, row, _ in ROWS if other == name for field, value in row.items() if value is not None}
        assert tried >= {place for places in (*task.fields.values(), task.category, task.answer) for place in places}


READING = {  # what rows of a version become; whoever changes an entry here must change its version too
    "gsm8k/1": "dfd9da40bd69",
    "hellaswag/1": "a81237c8e38f",
    "spec_bench/1": "d99ec7b803b4",
    "mt_bench/1": "fd0cb379e14c",
    "humaneval/1": "6d75ebd1dc56",
    "mbpp/1": "4e9e191ce453",
    "math_500/1": "bc57f88970db",
    "speed_bench/1": "d99ec7b803b4",
    "spider/1": "aef9a14538d1",
    "piqa/1": "0b35ec8d800a",
    "csn_python/1": "3fe39179c394",
    "alpaca/1": "f8deb18a7e1a",  # one form, two sets of rows
    "finance_alpaca/1": "f8deb18a7e1a",
    "cnn_dailymail/1": "1ac7324f99a4",
    "xsum/1": "f3c9be18d502",
    "c4/1": "3609f1f7d0b8",
    "starcoder/1": "55792b7beb36",
    "arena/1": "09e0f01d762e",
    "lmsys_chat/1": "7cba9e4811ff",
    "finance_alpaca_osd/1": "a551d52e567c",
    "starcoder_osd/1": "b8f23e7d613e",
    "cnn_dailymail_osd/1": "cb01ccc14cd0",
    "xsum_osd/1": "9f90a281bcc0",
}


def reading_of(task) -> str:
    what = [task.form, task.template, dict(task.fields), sorted(task.optional), task.max_characters, task.category]
    return fingerprint_value(what if task.pieces is None else [*what, task.pieces])[:12]


def test_a_changed_reading_has_a_new_version():
    assert {task.label: reading_of(task) for task in TASKS.values()} == READING


def test_templates_name_the_fields_there_are():
    for name, task in TASKS.items():
        assert task.name == name
        assert set(FIELD_IN_TEMPLATE.findall("".join(task.template))) == set(task.fields)
        assert task.optional < set(task.fields)
        if task.form in ("turns", "conversation"):
            assert len(task.fields) == 1
        assert task.licence
        assert task.source


@pytest.mark.parametrize(
    ("name", "row", "named"),
    [
        ("gsm8k", {"id": 3, "text": "a"}, "question id, text"),
        ("gsm8k", {"question": " "}, "question"),
        ("gsm8k", ["question"], ""),
        ("piqa", {"prompt": "a"}, "goal, query"),
        ("finance_alpaca", {"instruction": "a", "input": 3}, "input"),
        ("mt_bench", {"prompt": "a"}, "prompt"),
        ("mt_bench", {"turns": ["a", ""]}, "turns[1]"),
        ("mt_bench", {"turns": ["a"], "category": {"b": 1}}, "category"),
        ("arena", {"conversation": [HO]}, "conversation"),
        ("arena", {"conversation_a": [{"from": "human"}]}, "conversation_a[0]"),
        ("arena", {"conversation_a": "hi"}, "conversation_a"),
    ],
)
def test_a_row_that_is_not_the_tasks_is_refused(tmp_path, name, row, named):
    path = tmp_path / "f"
    good = next(good for other, good, _ in ROWS if other == name)
    path.write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n")
    with rejects(f"{path}:2:", *named.split(" ")):
        load_prompts([PromptSource(task=name, path=str(path))])


def test_rows_of_a_file_are_read_by_its_task_and_by_the_six_forms_without_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "A man", "ctx": "A woman"}\n')
    named, plain = load_prompts([PromptSource(task="hellaswag", path=str(path)), PromptSource(path=str(path))])
    assert named == Prompt(f"{path}:1", (raw_text("A woman"),), task="hellaswag/1")
    assert plain == Prompt(f"{path}:1", user("A man"))


def test_raw_text_passes_by_the_chat_template(tiny_target):
    tokenizer = load_tokenizer(tiny_target)
    assert tokenizer.decode(render_prompt(tokenizer, Turn((raw_text("def f():\n"),)))) == "def f():\n"
    assert tokenizer.decode(render_prompt(tokenizer, Turn(tuple(user("def f():\n"))))) != "def f():\n"


@given(st.text(alphabet="ab\n", max_size=40), st.integers(1, 40))
def test_the_beginning_of_a_text_is_whole_lines(whole, most):
    part = whole_lines(whole, most)
    assert whole.startswith(part)
    if len(whole) <= most:
        assert part == whole
        return
    lines = whole[:most].rpartition("\n")[0]
    if lines.strip():
        assert part == lines + "\n"
    else:
        assert part == whole[:most]


def test_a_task_that_is_none_has_the_nearest_one_named():
    assert named_task("gsm8k") == "gsm8k"
    with rejects("gsm8", "gsm8k", error=ValueError):
        named_task("gsm8")


# Responses


def test_rows_bring_responses_where_their_task_has_some():
    row = {"question": "2+2?", "answer": "#### 4"}
    assert task_answer(TASKS["gsm8k"], row, "f:1") == "#### 4"
    messages = task_conversation(TASKS["gsm8k"], row, "f:1")
    assert messages == [*user("2+2?"), {"role": "assistant", "content": "#### 4"}]
    assert task_conversation(TASKS["arena"], {"conversation_a": [HI, HO, HI]}, "f:1") == [HI, HO, HI]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("mt_bench", {"turns": ["a"]}),
        ("piqa", {"goal": "a"}),
        ("humaneval", {"prompt": "a", "canonical_solution": "b"}),
    ],
)
def test_rows_that_bring_no_response_cannot_be_learned(name, row):
    with rejects("f:1:", name):
        task_conversation(TASKS[name], row, "f:1")


def test_a_row_that_lacks_its_response_is_refused():
    with rejects("f:1:", "question"):
        task_conversation(TASKS["gsm8k"], {"question": "a"}, "f:1")
