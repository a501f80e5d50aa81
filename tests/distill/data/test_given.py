"""Responses that come with the data: which rows bring them, what is held out, what is written, what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from architectures.manifest import read_manifest
from distill.data.conversations import Conversation, load_conversations
from distill.data.given import collect_given
from distill.data.training_data import decoding_settings
from distill.pipeline import generate_stage
from distill.recipe.sections import DataConfig
from distill.response_batches import read_responses
from distill.run import Run
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from eval.responses import Trace, read_traces
from eval.tasks import PromptSource
from tests.rejections import rejects
from tests.sharing import by_processes


def ask(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def response(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


UNLEARNED = (ask("a"), {**response("b"), "weight": 0})
SYSTEM = {"role": "system", "content": "Be brief."}


def config(*paths: str, **changes: Any) -> DataConfig:
    settings: dict[str, Any] = {"responses": "given", "max_seq_len": 200, "max_new_tokens": 5, "batch_size": 1}
    settings["num_eval_prompts"] = 2
    return DataConfig(prompts=tuple(PromptSource(path=path) for path in paths), **{**settings, **changes})


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "a", "answer": "b"}, (ask("a"), response("b"))),
        ({"question": "a", "completion": "b"}, (ask("a"), response("b"))),
        ({"instruction": "a", "input": "x", "output": "b"}, (ask("a\n\nx"), response("b"))),
        ({"instruction": "a", "input": "", "response": " b\n"}, (ask("a"), response("b"))),
        ({"prompt": "a", "answer": None, "output": "b", "response": "c"}, (ask("a"), response("c"))),
        ({"messages": [ask("a"), response(" b "), ask(" c "), response("d")], "prompt": "x", "answer": "y"},
         (ask("a"), response("b"), ask(" c "), response("d"))),
        ({"messages": [SYSTEM, ask("a"), response("b"), ask("and?")]}, (SYSTEM, ask("a"), response("b"))),
        ({"messages": [*UNLEARNED, ask("c"), response("d") | {"weight": 1}, *UNLEARNED]},
         (*UNLEARNED, ask("c"), response("d"))),
    ],
)  # fmt: skip
def test_row_forms(row_file, row, messages):
    path = row_file(row)
    assert load_conversations([PromptSource(path=path)]) == [Conversation(f"{path}:1", messages)]


def test_turns_of_weight_0_are_read_but_not_trained_on(tiny_target, row_file, tmp_path):
    path = row_file(*rows(), {"messages": [*UNLEARNED, ask("c"), response("d")]})
    collect_given(tiny_target, config(path), tmp_path / "data", seed=3, dtype="float32")
    train_set = read_traces(tmp_path / "data", "train")
    [trace] = [each for each in train_set if each.source.startswith(f"{path}:11")]
    assert (trace.source, trace.messages, trace.response) == (f"{path}:11", (*UNLEARNED, ask("c")), "d")


def test_rows_of_a_task_bring_the_responses_their_task_says(row_file):
    path = row_file({"document": "News.", "summary": " N.", "answer": "no"})
    [conversation] = load_conversations([PromptSource(task="xsum", path=path)])
    assert conversation == Conversation(f"{path}:1", (ask("summarize: News."), response("N.")))
    path = row_file({"conversation_a": [ask("a"), response("b"), ask("c"), response("d "), ask("e")]})
    [conversation] = load_conversations([PromptSource(task="arena", path=path)])
    assert conversation.messages == (ask("a"), response("b"), ask("c"), response("d"))


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"prompt": "a"}, "response"),
        ({"turns": ["a", "b"]}, "turns"),
        ({"messages": [SYSTEM, ask("a")]}, "messages"),
        ({"messages": [ask("a"), response("b"), response("c")]}, "messages"),
        ({"messages": [response("b"), ask("a"), response("c")]}, "messages"),
        ({"messages": [ask("a"), response("")]}, "messages[1].content"),
        ({"messages": UNLEARNED}, "messages"),
        ({"messages": [ask("a"), response("b") | {"weight": 0.5}]}, "messages[1].weight"),
        ({"prompt": "a", "answer": " \n"}, "answer"),
        ({"prompt": "a", "answer": 7}, "answer"),
        (["a"], ""),
    ],
)
def test_refused_rows(row_file, row, named):
    path = row_file({"prompt": "a", "answer": "b"}, row)
    with rejects(f"{path}:2:", named):
        load_conversations([PromptSource(path=path)])


def rows(count: int = 10) -> list[dict[str, Any]]:
    """Conversations of one to three responses."""
    return [
        {"messages": [turn for n in range(1 + i % 3) for turn in (ask(f"q{i}.{n}"), response(f"a{i}.{n}"))]}
        for i in range(count)
    ]


def test_what_is_written_and_counted(tiny_target, row_file, tmp_path, capsys):
    extra = [{"prompt": "q3.0", "answer": "a3.0"}, {"prompt": "x" * 200, "answer": "y"}]  # a duplicate, a long one
    longer = {
        "messages": [ask("long?"), response("l"), ask("x" * 200), response("never"), ask("then"), response("nor this")]
    }
    path = row_file(*rows(), *extra, longer)
    counts = collect_given(tiny_target, config(path), tmp_path / "data", seed=3, dtype="float32")
    train_set, held_out = (read_traces(tmp_path / "data", name) for name in ("train", "eval"))
    places, asked = ({trace.source.split("#")[0] for trace in traces} for traces in (train_set, held_out))
    assert len(asked) == 2
    for name, traces in (("train", train_set), ("eval", held_out)):
        assert counts[name]["responses"] == len(traces)
        assert counts[name]["response_tokens"] == sum(len(trace.response_ids) for trace in traces)
        assert [trace.id for trace in traces] == sorted({trace.id for trace in traces})
    assert counts["train"].items() >= {"prompts": len(places), "sequences": len(places), "split": 0}.items()
    assert counts.items() >= {"prompts": 13, "duplicates": 1, "too_long": 1 + 2, "asked_in_eval": 0}.items()
    assert len(places | asked) == counts["train"]["prompts"] + 2 == 11
    second = next(trace for trace in train_set if trace.response == "a1.1")
    asked_before, ids = (ask("q1.0"), response("a1.0"), ask("q1.1")), (second.prompt_ids, second.response_ids)
    assert second == Trace(second.id, f"{path}:2#2", asked_before, *ids, "a1.1", "stop")
    assert (len(second.response_ids), second.response_ids[-1]) == (len("a1.1") + 1, 2)
    assert "1 of 12 " in capsys.readouterr().err


def test_a_question_is_not_both_held_out_and_trained_on(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"q{i % 4}", "answer": f"a{i}"} for i in range(12)))
    counts = collect_given(tiny_target, config(path, num_eval_prompts=1), tmp_path / "data", seed=3, dtype="float32")
    (held_out,) = read_traces(tmp_path / "data", "eval")
    trained = read_traces(tmp_path / "data", "train")
    assert (len(trained), counts["asked_in_eval"], counts["train"]["prompts"]) == (9, 2, 9)
    assert held_out.messages not in [trace.messages for trace in trained]
    same = row_file(*({"prompt": "q", "answer": f"a{i}"} for i in range(3)), name="same.jsonl")
    with rejects(1, "data.num_eval_prompts"):
        collect_given(tiny_target, config(same), tmp_path / "other", seed=3, dtype="float32")


def test_held_out_questions_are_answered_by_the_target(tiny_target, row_file, tmp_path):
    path, settings = row_file(*rows()), {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 7}
    collect_given(tiny_target, config(path, **settings), tmp_path / "data", seed=3, dtype="float32")
    held_out = read_traces(tmp_path / "data", "eval")
    prompts = [Prompt(trace.source, trace.messages) for trace in held_out]
    decoding = decoding_settings(config(path, **settings), seed=3, dtype="float32")
    write_traces(tiny_target, prompts, tmp_path / "written", decoding, name="eval")
    assert [trace.response_ids for trace in read_traces(tmp_path / "written", "eval")] == [
        trace.response_ids for trace in held_out
    ]
    by_source = {trace.source: trace for trace in held_out}
    later = next(trace for trace in held_out if trace.source.endswith("#2"))
    first = by_source[later.source.removesuffix("#2")]
    assert later.messages[: len(first.messages)] == first.messages
    assert later.messages[1]["content"].startswith("a")  # what was given, not what the target now says
    assert all(len(trace.response_ids) <= 7 for trace in held_out)


def test_where_text_is_trained_on_only_held_out_questions_are_answered(tiny_target, row_file, tmp_path):
    path = row_file(*rows(2))
    how = {"seed": 3, "dtype": "float32", "to_train_on": False}
    counts = collect_given(tiny_target, config(path), tmp_path / "data", **how)  # all may be held out
    assert counts["train"].items() >= {"prompts": 0, "responses": 0, "sequences": 0}.items()
    assert counts["eval"]["responses"] == 3
    assert not list((tmp_path / "data").glob("train-*"))


def test_a_template_that_drops_history_is_counted(make_checkpoint, row_file, tmp_path, capsys):
    folder = make_checkpoint(seed=1)
    shouted = "(message['content'] if loop.last or message['role'] == 'user' else message['content'] | upper)"
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("message['content']", shouted))
    path = row_file(*rows(3), {"prompt": "q", "answer": "a"})  # of 1, 2, 3 and 1 responses
    counts = collect_given(folder, config(path, num_eval_prompts=1), tmp_path / "data", seed=3, dtype="float32")
    (held_out,) = {trace.source.split("#")[0] for trace in read_traces(tmp_path / "data", "eval")}
    number = int(held_out.rsplit(":", 1)[1]) - 1
    of_each = [1, 2, 3, 1]
    assert counts["eval"]["responses"] == of_each.pop(number)
    assert (counts["train"]["sequences"], counts["train"]["split"]) == (sum(of_each), sum(n > 1 for n in of_each))
    assert f"train: in {counts['train']['split']} of 3 conversations" in capsys.readouterr().err


def test_rerun_finishes_what_is_missing(tiny_target, row_file, tmp_path):
    path, out = row_file(*rows(12)), tmp_path / "data"
    counts = collect_given(tiny_target, config(path), out, seed=3, dtype="float32")
    before = {file.name: file.read_bytes() for file in out.glob("*.jsonl")}
    assert len(before) == 1 + 5
    times_ns = {name: (out / name).stat().st_mtime_ns for name in before}
    (out / "train-00001.jsonl").unlink()
    assert collect_given(tiny_target, config(path), out, seed=3, dtype="float32") == counts
    assert {file.name: file.read_bytes() for file in out.glob("*.jsonl")} == before
    kept = {name for name in before if (out / name).stat().st_mtime_ns == times_ns[name]}
    assert kept == before.keys() - {"train-00001.jsonl"}
    with rejects("max_prompt_len", 199, 99):
        collect_given(tiny_target, config(path, max_seq_len=100), out, seed=3, dtype="float32")


def test_another_template_or_stop_token_is_another_set_of_responses(make_checkpoint, row_file, tmp_path):
    folder, data = make_checkpoint(seed=1), config(row_file(*rows(3)))
    collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")
    GenerationConfig(eos_token_id=[2, 5]).save_pretrained(folder)
    with rejects("target"):
        collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")
    settings = tmp_path / "data" / "settings.json"
    settings.write_text(json.dumps({"train": json.loads(settings.read_text())["train"]}))
    with rejects("stop_ids", [2], [2, 5]):
        collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")
    GenerationConfig(eos_token_id=2).save_pretrained(folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "\n")
    with rejects("template"):
        collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")


@pytest.mark.parametrize("row", [{"prompt": "\u00ed", "answer": "y"}, {"prompt": "x", "answer": "\u00ed"}])
def test_a_row_whose_tokens_the_target_has_no_rows_for_is_refused(make_checkpoint, row_file, tmp_path, row):
    target = make_checkpoint(seed=1, vocab_size=258, num_hidden_layers=1)  # its tokenizer has 259 tokens
    path = row_file(*({"prompt": f"{n}?", "answer": "y"} for n in range(3)), row)
    with rejects("rows.jsonl:4:", 258):
        collect_given(target, config(path, num_eval_prompts=1), tmp_path / "data", seed=3, dtype="float32")


def test_conversations_are_trained_on_whole_and_held_out_responses_are_apart(make_run, row_file):
    recipe = make_run().model_copy(update={"data": config(row_file(*rows()), num_eval_prompts=3)})
    shutil.rmtree(Path(recipe.run_dir) / "data")
    generate_stage(Run.of(recipe))
    manifest = read_manifest(Path(recipe.run_dir) / "data") or {}
    assert manifest["responses"] == "given"
    counts = manifest["counts"]
    train_set, eval_set = read_responses(Run.of(recipe))
    assert [len(train_set), len(eval_set)] == [counts["train"]["sequences"], counts["eval"]["responses"]]
    assert {len(example.spans) for example in train_set.examples} == {1, 2, 3}
    assert {len(example.spans) for example in eval_set.examples} == {1}
    assert sum(len(example.spans) for example in train_set.examples) == counts["train"]["responses"] > len(train_set)


def test_several_processes_lay_out_the_files_of_one(tiny_target, row_file, tmp_path):
    rows = [{"messages": [ask(f"{i}?"), response(f"{i}."), ask("and?"), response("no")]} for i in range(9)]
    how = {"seed": 5, "dtype": "float32"}
    given = config(row_file(*rows), batch_size=1)
    counts = collect_given(tiny_target, given, tmp_path / "alone", **how)
    out = tmp_path / "together"
    assert by_processes(3, lambda share: collect_given(tiny_target, given, out, share=share, **how)) == [counts] * 3
    ours, theirs = ({path.name: path.read_bytes() for path in each.iterdir()} for each in (out, tmp_path / "alone"))
    assert ours == theirs
    assert len([name for name in ours if name.endswith(".jsonl")]) == 6  # 4 to train on, 2 held out
