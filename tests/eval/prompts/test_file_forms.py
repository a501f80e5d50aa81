"""Files of prompts as other tools write them: conversations, JSON lists, parquet with the hub's columns."""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from distill.data.conversations import load_conversations
from eval.chat import Turn, chat_text, render_prompt, user_turn
from eval.models import load_tokenizer
from eval.prompts import load_prompts
from eval.stream import StreamConfig, open_stream
from eval.tasks import TASKS, PromptSource
from tests.rejections import rejects

SQL = (
    "Could you translate the following question into SQL. Please only generate SQL, don't include explanation in the "
    "answer. "
)


def conversation(number, text, response=None, **fields):
    turns = [user_turn(text), *([{"role": "assistant", "content": response}] if response else [])]
    return {"id": f"identity_{number}", "conversation": turns, **fields}


def written(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")
    return PromptSource(path=str(path))


def parquet(path, records, **settings):
    from datasets import Dataset

    Dataset.from_list(records).to_parquet(str(path))
    return PromptSource(path=str(path), **settings)


def texts(*sources):
    return [prompt.messages[-1]["content"] for prompt in load_prompts(sources)]


def test_a_list_of_conversations_is_read_as_it_is(tmp_path):
    source = written(
        tmp_path / "spider_train.json",
        [conversation(0, SQL + "How many?", question="no", dataset="spider"), conversation(1, "b", "answer")],
    )
    first, second = load_prompts([source])
    assert first.messages == (user_turn(SQL + "How many?"),)
    assert (first.source, first.category) == (f"{source.path}[0]", "spider")
    assert (second.messages, second.category) == ((user_turn("b"),), None)


@pytest.mark.parametrize("name", ["dataset", "topic", "language", "category"])
def test_a_conversation_says_its_category_in_any_of_four_fields(tmp_path, name):
    rows = [conversation(0, "a", **{name: "x"}), {"prompt": "a", "language": "x"}]
    assert [each.category for each in load_prompts([written(tmp_path / "c.json", rows)])] == ["x", None]


def test_the_responses_of_a_list_of_conversations_are_learned(tmp_path):
    [found] = load_conversations([written(tmp_path / "a_with_response.json", [conversation(0, "a", " b ")])])
    assert found.messages == (user_turn("a"), {"role": "assistant", "content": "b"})


def test_a_mistake_in_a_list_is_named_by_its_place(tmp_path):
    source = written(tmp_path / "c.json", [conversation(0, "a"), conversation(1, "")])
    with rejects("c.json[1]:", "conversation[0].content"):
        load_prompts([source])
    (tmp_path / "c.json").write_text('[{"prompt": "a"}, ')
    with rejects("c.json:"):
        load_prompts([source])
    (tmp_path / "c.json").write_text("[]")
    with rejects("c.json:"):
        load_prompts([source])


def test_a_list_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.prompts.LIST_MIB", 1e-6)
    with rejects(1e-06):
        load_prompts([written(tmp_path / "c.json", [conversation(0, "a")])])


def test_lines_may_stand_in_a_file_that_is_called_json(tmp_path):
    path = tmp_path / "lines.json"
    path.write_text('\ufeff{"prompt": "a"}\n{"prompt": "b"}\n', encoding="utf-8")
    assert texts(PromptSource(path=str(path))) == ["a", "b"]
    path.write_text('\ufeff \n[{"prompt": "c"}]\n', encoding="utf-8")
    assert texts(PromptSource(path=str(path))) == ["c"]


HUB_ROWS = {  # of each form one task, with the columns of its data set
    "spider": (
        {"db_id": "d", "query": "SELECT 1", "question": "How many?", "query_toks_no_value": ["select", "value"]},
        SQL + "How many?",
    ),
    "starcoder_osd": (
        {"max_stars_repo_path": "p", "id": "1", "content": "mov a1 ;\n" * 40},
        ("mov a1 ;\n" * 40)[180:270],
    ),
    "arena": (
        {"conversation_a": [user_turn("hi")], "conversation_b": [user_turn("hi")], "language": "English"},
        "hi",
    ),
}


@pytest.mark.parametrize("task", HUB_ROWS)
def test_sets_of_the_paper_are_read_from_local_files_with_the_hubs_columns(tmp_path, task):
    row, asked = HUB_ROWS[task]
    in_parquet = parquet(tmp_path / "rows.parquet", [row], task=task)
    in_json = written(tmp_path / "rows.json", [row]).model_copy(update={"task": task})
    assert texts(in_parquet, in_json) == [asked, asked]
    [prompt, _] = load_prompts([in_parquet, in_json])
    assert (prompt.source, prompt.task) == (f"{in_parquet.path}:1", TASKS[task].label)


def test_short_files_of_code_are_left_out(tmp_path):
    rows = [{"content": "a " * 148}, {"content": "b " * 200}]  # each letter and each last space is a piece
    source = parquet(tmp_path / "rows.parquet", rows, task="starcoder_osd")
    assert texts(source) == [" b" * 50]
    source = parquet(tmp_path / "rows.parquet", rows[:1], task="starcoder_osd")
    with rejects("rows.parquet"):
        load_prompts([source])


def test_parquet_that_is_none_or_is_not_there_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    with rejects("rows.parquet:"):
        load_prompts([PromptSource(path=str(path))])
    Path(path).write_text("x" * 100)
    with rejects("rows.parquet:"):
        load_prompts([PromptSource(path=str(path))])


@pytest.mark.parametrize(
    "load", [load_prompts, lambda sources: list(open_stream(StreamConfig(sources=sources), seed=1))]
)
def test_a_row_that_is_refused_leaves_no_file_open(tmp_path, load):
    """Also while the error is still held, with all frames that it came through."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": 3}\n{"prompt": "b"}\n')
    with rejects("rows.jsonl:2") as refusal:
        load((PromptSource(path=str(path)),))
    assert refusal.tb is not None
    assert str(path) not in {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}


# Rows and chat templates that would hang, exhaust memory or end in a traceback

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
