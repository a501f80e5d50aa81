"""Prompts from files and data sets, and what the target reads of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.chat import Turn, raw_text, render_prompt, template_hash, user_turn
from eval.models import load_tokenizer
from eval.pair import prompts_of
from eval.prompts import Prompt, load_in_turn, load_prompts, tasks_record
from eval.responses import prompt_record
from eval.tasks import TASKS, HubRows, PromptSource, prompt_sources
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


# Sources: data sets that tasks know, several in turn, words of the command line


@pytest.fixture
def asked_of_datasets(monkeypatch):
    """Every call of load_dataset, answered with three rows that any task can read."""
    import datasets

    calls: list[Any] = []
    row = {"question": "q", "turns": ["a"], "content": "x", "prompt": "p", "docstring": "d"}

    def load_dataset(*arguments: Any, **settings: Any) -> list[Any]:
        calls.append((*arguments, {name: value for name, value in settings.items() if value}))
        return [row] * 3

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    return calls


@pytest.mark.parametrize(
    ("source", "call", "place"),
    [
        ({"task": "gsm8k"}, ("openai/gsm8k", "main", {"split": "test"}), "gsm8k[test]:1"),
        (
            {"task": "gsm8k", "config": "socratic"},
            ("openai/gsm8k", "socratic", {"split": "test"}),
            "gsm8k/socratic[test]:1",
        ),
        ({"task": "gsm8k", "name": "my/copy"}, ("my/copy", None, {"split": "train"}), "my/copy[train]:1"),
        ({"name": "my/copy", "config": "c"}, ("my/copy", "c", {"split": "train"}), "my/copy/c[train]:1"),
        (
            {"task": "starcoder", "num_prompts": 2},
            ("bigcode/starcoderdata", None, {"data_dir": "python", "split": "train", "streaming": True}),
            "starcoder[train]:1",
        ),
        (
            {"task": "csn_python"},
            (
                "code-search-net/code_search_net",
                None,
                {"revision": "refs/convert/parquet", "data_dir": "python", "split": "test"},
            ),
            "csn_python[test]:1",
        ),
        (
            {"task": "spec_bench"},
            ("json", None, {"data_files": TASKS["spec_bench"].hub.data_files, "split": "train"}),
            "spec_bench[train]:1",
        ),
    ],
)
def test_a_task_alone_is_read_from_where_it_says(asked_of_datasets, source, call, place):
    prompts = load_prompts([PromptSource(**source)])
    assert asked_of_datasets == [call]
    assert prompts[0].source == place
    assert len(prompts) == source.get("num_prompts", 3)


def test_the_hubs_own_copy_is_read_by_its_folder(tmp_path, monkeypatch):
    """It has a folder for each configuration of the data set, and no page that says so: they are no configurations."""
    from datasets import Dataset

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for language in ("java", "python"):
        for split in ("train", "test"):
            path = tmp_path / "copy" / language / split / "0000.parquet"
            path.parent.mkdir(parents=True)
            Dataset.from_list([{"func_documentation_string": f"{language} {split}"}]).to_parquet(path)
    task = TASKS["csn_python"]
    at_hand = replace(task.hub, name=str(tmp_path / "copy"), revision=None)
    monkeypatch.setitem(TASKS, "csn_python", replace(task, hub=at_hand))
    [prompt] = load_prompts([PromptSource(task="csn_python")])
    assert prompt.messages[0]["content"].endswith("doc:\npython test")


def test_rows_without_an_end_need_a_number(asked_of_datasets):
    with rejects("starcoder", "num_prompts"):
        load_prompts([PromptSource(task="starcoder")])
    assert asked_of_datasets == []


def test_a_task_that_cannot_be_reached_offers_a_file():
    """Tests run offline."""
    with rejects("gsm8k[test]:", "openai/gsm8k"):
        load_prompts([PromptSource(task="gsm8k")])


def test_rows_that_fail_while_they_are_read_are_a_mistake_to_mend(monkeypatch):
    import datasets

    def broken(*_: Any, **__: Any) -> Any:
        yield {"content": "x"}
        raise ConnectionError("line is cut")

    monkeypatch.setattr(datasets, "load_dataset", broken)
    with rejects("line is cut"):
        load_prompts([PromptSource(task="starcoder", num_prompts=2)])


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=6), min_size=1, max_size=4))
def test_sources_take_turns(tmp_path_factory, rows_of_each):
    folder = tmp_path_factory.mktemp("turns")
    sources = []
    for number, rows in enumerate(rows_of_each):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(json.dumps({"prompt": f"say {row}"}) + "\n" for row in rows))
        sources.append(PromptSource(path=str(path)))
    found = load_in_turn(sources, most=1)  # files are read whole
    assert sorted(prompt.source for prompt in found) == sorted(prompt.source for prompt in load_prompts(sources))
    for count in range(len(found) + 1):
        taken = [sum(one.source.startswith(f"{source.path}:") for one in found[:count]) for source in sources]
        left = [num for num, rows in zip(taken, rows_of_each, strict=True) if num < len(rows)]
        assert not left or max(taken) - min(left) <= 1
    for source in sources:
        own = [prompt for prompt in found if prompt.source.startswith(f"{source.path}:")]
        assert own == load_prompts([source])


def test_of_a_data_set_no_more_rows_are_read_than_can_be_taken(asked_of_datasets):
    sources = [PromptSource(task="gsm8k"), PromptSource(task="starcoder"), PromptSource(name="a", num_prompts=3)]
    assert [prompt.source for prompt in load_in_turn(sources, most=2)] == [
        "gsm8k[test]:1",
        "starcoder[train]:1",
        "a[train]:1",
        "gsm8k[test]:2",
        "starcoder[train]:2",
        "a[train]:2",
        "a[train]:3",
    ]


def test_a_count_is_of_all_sources_in_turn_and_without_one_they_follow_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"question": "x"}\n' * 2)
    words = ["a.jsonl", "gsm8k=b.jsonl"]
    assert [prompt.source for prompt in prompts_of(words, 3)] == ["a.jsonl:1", "b.jsonl:1", "a.jsonl:2"]
    assert [prompt.source for prompt in prompts_of(words, None)] == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2"]
    assert prompts_of(words, 2)[1].task == "gsm8k/1"


# On the command line


def test_words_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("")
    words = ["gsm8k", "mt_bench=own/rows.jsonl", "./gsm8k", "plain", "no/such=file", "a.jsonl", "gsm8k=a=b"]
    assert prompt_sources(words) == [
        PromptSource(task="gsm8k"),
        PromptSource(task="mt_bench", path="own/rows.jsonl"),
        PromptSource(path="./gsm8k"),
        PromptSource(path="plain"),
        PromptSource(path="no/such=file"),
        PromptSource(path="a.jsonl"),
        PromptSource(task="gsm8k", path="a=b"),
    ]


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("gms8k=a.jsonl", "gsm8k"),
        ("zzz", "zzz"),
        ("", "--prompts"),
        ("gsm8k=", "gsm8k="),
    ],
)
def test_a_word_that_is_neither_a_task_nor_a_file(word, named):
    with rejects(named):
        prompt_sources([word])


# What a scorecard says


def test_the_record_of_tasks():
    first = Prompt("f:1", (user_turn("a"),), task="gsm8k/1")
    second, plain = replace(first, source="f:2", messages=(user_turn("b"),)), Prompt("p:1", (user_turn("a"),))
    record = tasks_record([first, plain, second])
    assert [(entry["task"], entry["version"], entry["prompts"]) for entry in record] == [
        ("gsm8k", 1, 2),
        (None, None, 1),
    ]

    def hashed(*prompts: Prompt) -> str:
        [entry] = tasks_record(prompts)
        return entry["sha256"]

    assert record[0]["sha256"] == hashed(first, second) == hashed(replace(first, source="elsewhere"), second)
    others = [hashed(first), hashed(second, first), hashed(first, replace(second, later_turns=("c",)))]
    others.append(hashed(replace(first, messages=(raw_text("a"),)), second))
    assert len({record[0]["sha256"], *others}) == 5


def test_hub_rows_are_arguments_of_load_dataset():
    """Names that `datasets` does not know would be passed on to a builder, and fail there or not at all."""
    import inspect
    from dataclasses import fields

    from datasets import load_dataset

    known = set(inspect.signature(load_dataset).parameters)
    assert {field.name for field in fields(HubRows)} - {"config"} <= known
