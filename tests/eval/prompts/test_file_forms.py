"""Files of prompts as other tools write them: conversations, JSON lists, parquet with the hub's columns."""

import json
from pathlib import Path

import pytest

from distill.data.conversations import load_conversations
from eval.chat import user_turn
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
