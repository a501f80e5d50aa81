"""Prompts from files and data sets, and what the target reads of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.chat import Turn, render_prompt, template_hash
from eval.models import load_tokenizer
from eval.prompts import Prompt, load_prompts
from eval.responses import prompt_record
from eval.tasks import PromptSource
from tests.rejections import rejects

KNOWN = "messages, conversations, conversation, turns, prompt, question, query, problem, instruction, chosen"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def write_rows(tmp_path: Path):
    def write(*rows: Any, name: str = "prompts.jsonl") -> str:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(path)

    return write


def load(path: str, **settings: Any) -> list[Prompt]:
    return load_prompts([PromptSource(path=path, **settings)])


@pytest.mark.parametrize(
    ("row", "messages", "later_turns"),
    [
        ({"prompt": "a"}, (user("a"),), ()),
        ({"question": "b", "answer": "ignored"}, (user("b"),), ()),
        ({"instruction": "c", "input": ""}, (user("c"),), ()),
        ({"instruction": "c", "input": None}, (user("c"),), ()),
        ({"instruction": "c", "input": "d", "output": "ignored"}, (user("c\n\nd"),), ()),
        ({"turns": ["e", "f", "g"]}, (user("e"),), ("f", "g")),
        ({"messages": [user("h")]}, (user("h"),), ()),
        (
            {"messages": [{"role": "system", "content": "s"}, user("h"), assistant("i"), user("j"), assistant("k")]},
            ({"role": "system", "content": "s"}, user("h"), assistant("i"), user("j")),
            (),
        ),
        ({"messages": [{**user("h"), "name": "ignored"}]}, (user("h"),), ()),
        ({"prompt": None, "question": "b"}, (user("b"),), ()),  # as `datasets` fills columns
        ({"prompt": " spaces\nand lines "}, (user(" spaces\nand lines "),), ()),
    ],
)
def test_row_forms(write_rows, row, messages, later_turns):
    path = write_rows(row)
    assert load(path) == [Prompt(f"{path}:1", messages, later_turns)]


@pytest.mark.parametrize("form", [{"prompt": "a"}, {"turns": ["a", "b"]}, {"messages": [user("a")]}])
@pytest.mark.parametrize(
    ("fields", "category"),
    [({"category": "math"}, "math"), ({"category": 3}, "3"), ({"category": None}, None), ({"category": ""}, None)],
)
def test_rows_of_every_form_may_have_a_category(write_rows, form, fields, category):
    [prompt] = load(write_rows({**form, **fields}))
    assert prompt.category == category


def test_responses_claim_a_category_and_a_task_only_where_there_is_one():
    """Folders written before prompts had them stay valid, and none passes for responses with them."""
    prompt = Prompt("f:1", (user("a"),))
    assert list(prompt_record(prompt)) == ["source", "messages", "later_turns"]
    assert prompt_record(replace(prompt, category="a"))["category"] == "a"
    assert prompt_record(replace(prompt, task="a/1"))["task"] == "a/1"


def test_first_form_of_the_documented_order_counts(write_rows):
    fields = {
        "messages": [user("messages")],
        "conversation": [user("conversation")],
        "turns": ["turns"],
        "prompt": "prompt",
        "question": "question",
        "instruction": "instruction",
    }
    for _ in range(len(fields)):
        expected = next(iter(fields))
        assert load(write_rows(dict(reversed(fields.items()))))[0].messages == (user(expected),)
        del fields[expected]


def test_sources_and_rows_keep_their_order_and_their_line_numbers(write_rows):
    first = write_rows({"prompt": "a"}, "", "   ", {"prompt": "b"}, name="first.jsonl")
    second = write_rows({"prompt": "c"}, name="second.jsonl")
    prompts = load_prompts([PromptSource(path=first), PromptSource(path=second)])
    assert [(prompt.source, prompt.messages[0]["content"]) for prompt in prompts] == [
        (f"{first}:1", "a"),
        (f"{first}:4", "b"),
        (f"{second}:1", "c"),
    ]


def test_num_prompts_reads_the_first_rows_and_nothing_after_them(write_rows):
    path = write_rows({"prompt": "a"}, {"prompt": "b"}, "broken")
    assert [prompt.source for prompt in load(path, num_prompts=2)] == [f"{path}:1", f"{path}:2"]
    with rejects(":3:"):
        load(path, num_prompts=3)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("{", "JSON"),
        ("[1, 2]", ""),
        ({"text": "a", "id": 3}, KNOWN),
        ({"prompt": 7}, "prompt"),
        ({"question": {"text": "a" * 99}}, "question"),
        ({"instruction": "a", "input": 3}, "input"),
        ({"turns": []}, "turns"),
        ({"turns": ["a", None]}, "turns[1]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "messages[0]"),
        ({"messages": [user("a"), {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages"),
        ({"messages": [assistant("a")]}, "messages"),
    ],
)  # fmt: skip
def test_bad_row_is_refused_with_file_and_row(write_rows, row, named):
    path = write_rows({"prompt": "a good one"}, row)
    with rejects(f"{path}:2:", named):
        load(path)


@pytest.fixture
def dataset_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "questions"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"{split} {i}", "answer": "x"} for i in range(3)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_dataset_split(dataset_folder):
    [first, second] = load_prompts([PromptSource(name=str(dataset_folder), split="test", num_prompts=2)])
    assert first == Prompt(f"{dataset_folder}[test]:1", (user("test 0"),))
    assert second == Prompt(f"{dataset_folder}[test]:2", (user("test 1"),))


def test_dataset_that_cannot_be_loaded(dataset_folder):
    with rejects("questions[dev]"):
        load_prompts([PromptSource(name=str(dataset_folder), split="dev")])
    with rejects("no/such-set/main[train]"):
        load_prompts([PromptSource(name="no/such-set", config="main")])


@pytest.fixture
def llama_tokenizer(tiny_target):
    """As LLaMA's: encoding plain text puts a BOS in front, and so does the chat template."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = load_tokenizer(tiny_target)
    bos = str(tokenizer.bos_token)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return tokenizer


def test_template_alone_places_the_bos(llama_tokenizer):
    ids = render_prompt(llama_tokenizer, Turn((user("hi"),)))
    bos = llama_tokenizer.bos_token
    assert llama_tokenizer.decode(ids).startswith(f"{bos}{bos}user")  # its own and the one of the user's turn
    assert not llama_tokenizer.decode(ids).startswith(bos * 3)


def test_without_template_the_text_is_continued_after_its_bos(llama_tokenizer):
    llama_tokenizer.chat_template = None
    ids = render_prompt(llama_tokenizer, Turn((user("Once upon"), assistant("a"), user("time"))))
    assert llama_tokenizer.decode(ids) == f"{llama_tokenizer.bos_token}Once upon\n\na\n\ntime"


def test_conversation_the_template_refuses(tiny_target):
    tokenizer = load_tokenizer(tiny_target)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with rejects("system, user", "no system role"):
        render_prompt(tokenizer, Turn(({"role": "system", "content": "s"}, user("u"))))


def test_template_hash_tells_templates_and_special_tokens_apart(tiny_target):
    def changed(**attributes: Any) -> str:
        tokenizer = load_tokenizer(tiny_target)
        for name, value in attributes.items():
            setattr(tokenizer, name, value)
        return template_hash(tokenizer)

    changes = ({}, {"chat_template": "{{ messages }}"}, {"chat_template": None}, {"bos_token": "<|pad|>"})
    hashes = [changed(**each) for each in changes]
    assert len(set(hashes)) == 4
    assert changed() == hashes[0]


def test_quickstart_prompts_are_many_and_distinct():
    path = Path(__file__).parents[3] / "recipes" / "prompts" / "quickstart.jsonl"
    texts = [prompt.messages[0]["content"] for prompt in load(str(path))]
    assert len(texts) >= 500
    assert len({" ".join(text.casefold().split()) for text in texts}) == len(texts)
