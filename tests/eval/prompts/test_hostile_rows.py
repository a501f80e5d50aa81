"""JSON-lines files and chat templates that would hang, exhaust memory or end in a traceback."""

import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from distill.data.conversations import load_conversations
from eval.chat import Turn, chat_text, render_prompt, user_turn
from eval.models import load_tokenizer
from eval.prompts import load_prompts
from eval.tasks import TASKS, PromptSource
from tests.rejections import rejects

MOST_S = 5.0

ROWS = {
    "nested 100,000 deep": ("[" * 100_000 + "]" * 100_000, "is nested too deeply"),
    "a number of 5,000 digits": ('{"prompt": ' + "9" * 5000 + "}", "4300 digits"),
    "infinite": ('{"prompt": 1e400}', "got Infinity"),
    "white space": ('{"prompt": " \\n\\t"}', "prompt must be "),
    "half a character": ('{"prompt": "\\ud800"}', "prompt must be "),
    "turns of numbers": ('{"turns": [1]}', "turns[0] must be "),
    "messages of lists": ('{"messages": [[]]}', "messages[0] must be "),
    "a role of a list": ('{"messages": [{"role": ["user"], "content": "a"}]}', "messages[0] must be "),
    "a category of an object": ('{"prompt": "a", "category": {"b": 1}}', "category must be "),
    "a NUL byte": ("\0", "is not valid JSON"),
    "no row": ("\n\n", "contains no prompts"),
}


@pytest.mark.parametrize("case", ROWS)
@pytest.mark.parametrize("load", [load_prompts, load_conversations])
def test_a_hostile_row_is_refused_in_seconds(tmp_path, case, load):
    line, expected = ROWS[case]
    (tmp_path / "p.jsonl").write_text(line + "\n", encoding="utf-8")
    start_s = time.process_time()
    with pytest.raises(UserError) as raised:
        load([PromptSource(path=str(tmp_path / "p.jsonl"))])
    assert time.process_time() - start_s < MOST_S
    assert expected in str(raised.value) or load is load_conversations
    assert len(str(raised.value)) < 1000


def test_a_row_is_refused_at_every_depth(tmp_path):
    """What json just reads, the message must show too: both recurse, from places of the stack of their own."""
    for depth in range(300, 1000, 7):
        (tmp_path / "p.jsonl").write_text('{"prompt": ' + "[" * depth + "]" * depth + "}\n", encoding="utf-8")
        with pytest.raises(UserError):
            load_prompts([PromptSource(path=str(tmp_path / "p.jsonl"))])


def test_pipes_and_rows_without_end_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(8 << 30)
    for name, named in (("pipe", "pipe"), ("sparse", "16,777,216")):
        with rejects(named):
            load_prompts([PromptSource(path=str(tmp_path / name))])
    with rejects("x" * 5000):
        load_prompts([PromptSource(path="x" * 5000)])


def test_a_row_of_the_most_characters_is_read(tmp_path, monkeypatch):
    row = json.dumps({"prompt": "a" * 50})
    (tmp_path / "p.jsonl").write_text(f"{row}\n{row}", encoding="utf-8")
    monkeypatch.setattr("eval.prompts.MOST_CHARACTERS", len(row) + 1)
    assert len(load_prompts([PromptSource(path=str(tmp_path / "p.jsonl"))])) == 2
    monkeypatch.setattr("eval.prompts.MOST_CHARACTERS", len(row))
    with rejects("1:"):
        load_prompts([PromptSource(path=str(tmp_path / "p.jsonl"))])


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "prompt", "messages", "turns", "input", "answer", "category"]), inner
        )
    ),
    max_leaves=12,
)
FIELDS = ["messages", "turns", "prompt", "question", "instruction", "input", "answer", "category", "output", "ctx"]


@settings(max_examples=80, deadline=10_000)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values), st.sampled_from([None, *TASKS]))
def test_any_row_is_read_or_refused(tmp_path_factory, row, task):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    for load in (load_prompts, load_conversations):
        try:
            for read in load([PromptSource(path=str(path), task=task)]):
                assert all(isinstance(message["content"], str) for message in read.messages)
        except UserError as error:
            assert str(error)  # noqa: PT017  # nothing but a refusal may come


FAULTY = {
    "a sum of text and number": ("{{ 1 + 'a' }}", "user"),
    "a division by zero": ("{{ 1 / 0 }}", "user"),
    "itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "user"),
    "not a template": ("{% for %}", "user"),
    "Python": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "user"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_template_is_named(tiny_target, case):
    template, named = FAULTY[case]
    tokenizer = load_tokenizer(tiny_target)
    tokenizer.chat_template = template
    with rejects(named):
        render_prompt(tokenizer, Turn((user_turn("a"),)))


def test_a_conversation_has_the_ids_transformers_gives_it(tiny_target):
    tokenizer = load_tokenizer(tiny_target)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    messages = [user_turn("What is 2 + 2?"), {"role": "assistant", "content": "4"}, user_turn(" sure? ")]
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert render_prompt(tokenizer, Turn(tuple(messages))) == theirs
    assert tokenizer.decode(theirs) == chat_text(tokenizer, Turn(tuple(messages)), add_generation_prompt=True)
