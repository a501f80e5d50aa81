"""Answers that come with the data: which rows bring them, what is held out, what is written, what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from architectures.checkpoints.manifest import read_manifest
from architectures.errors import UserError
from distill.data.conversations import Conversation, load_conversations
from distill.data.generate import decoding_settings
from distill.data.given import collect_given
from distill.recipe.recipe import Recipe
from distill.recipe.sections.data import DataConfig
from distill.run.run import Run
from distill.stages.running import cache_stage, generate_stage
from distill.train import read_answers, train
from eval.answers.traces import Trace, read_traces
from eval.decoding.generate import write_traces
from eval.models.loading import load_tokenizer
from eval.prompts import Prompt, render_prompt
from eval.tasks import PromptSource
from tests.sharing import by_processes

LOSS_RTOL = 1e-6  # float32, a cached hidden state was computed in another batch


def ask(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
def row_file(tmp_path):
    def write(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def config(*paths: str, **changes: Any) -> DataConfig:
    settings: dict[str, Any] = {"answers": "given", "max_seq_len": 200, "max_new_tokens": 5, "batch_size": 1}
    settings["num_eval_prompts"] = 2
    return DataConfig(prompts=tuple(PromptSource(path=path) for path in paths), **{**settings, **changes})


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "a", "answer": "b"}, (ask("a"), answer("b"))),
        ({"question": "a", "completion": "b"}, (ask("a"), answer("b"))),
        ({"instruction": "a", "input": "x", "output": "b"}, (ask("a\n\nx"), answer("b"))),
        ({"instruction": "a", "input": "", "response": " b\n"}, (ask("a"), answer("b"))),
        ({"prompt": "a", "answer": None, "output": "b", "response": "c"}, (ask("a"), answer("c"))),
        ({"messages": [ask("a"), answer(" b "), ask(" c "), answer("d")], "prompt": "x", "answer": "y"},
         (ask("a"), answer("b"), ask(" c "), answer("d"))),
        ({"messages": [SYSTEM, ask("a"), answer("b"), ask("and?")]}, (SYSTEM, ask("a"), answer("b"))),
    ],
)  # fmt: skip
def test_row_forms(row_file, row, messages):
    path = row_file(row)
    assert load_conversations([PromptSource(path=path)]) == [Conversation(f"{path}:1", messages)]


def test_rows_of_a_task_bring_the_answers_their_task_says(row_file):
    path = row_file({"document": "News.", "summary": " N.", "answer": "no"})
    [conversation] = load_conversations([PromptSource(task="xsum", path=path)])
    assert conversation == Conversation(f"{path}:1", (ask("summarize: News."), answer("N.")))
    path = row_file({"conversation_a": [ask("a"), answer("b"), ask("c"), answer("d "), ask("e")]})
    [conversation] = load_conversations([PromptSource(task="arena", path=path)])
    assert conversation.messages == (ask("a"), answer("b"), ask("c"), answer("d"))


REFUSED = {
    "no answer": (
        {"prompt": "a"},
        (
            "has no answer: none of the fields answer, completion, response, output. Give each row one, e.g. "
            '{"prompt": "How many sides has a cube?", "answer": "Six."}, '
            "or set data.answers to written, and the target answers."
        ),
    ),
    "user turns alone": (
        {"turns": ["a", "b"]},
        "has none of the known fields messages, conversation, prompt, question, instruction;",
    ),
    "no assistant": (
        {"messages": [SYSTEM, ask("a")]},
        (
            "messages holds no assistant turn, and data.answers is given. Give it one, or set data.answers to written, "
            "and the target answers."
        ),
    ),
    "two in a row": (
        {"messages": [ask("a"), answer("b"), answer("c")]},
        (
            "messages[2] is an assistant turn that follows a turn of the assistant; it must answer a user turn. "
            "Mend or delete this row."
        ),
    ),
    "first": (
        {"messages": [answer("b"), ask("a"), answer("c")]},
        "messages[0] is an assistant turn that is the first;",
    ),
    "after the system": (
        {"messages": [SYSTEM, answer("b")]},
        "messages[1] is an assistant turn that follows a turn of the system; it must answer a user turn.",
    ),
    "empty": (
        {"messages": [ask("a"), answer("")]},
        "messages[1].content must be a non-empty text, got an empty text. Mend or delete this row.",
    ),
    "blank": ({"prompt": "a", "answer": " \n"}, "answer must be a non-empty text, got"),
    "no text": ({"prompt": "a", "answer": 7}, "answer must be a non-empty text, got 7."),
    "no object": (["a"], 'is ["a"], not a JSON object. Write one object per row, e.g. {"prompt": "How many sides'),
}


@pytest.mark.parametrize(("row", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_rows(row_file, row, message):
    path = row_file({"prompt": "a", "answer": "b"}, row)
    with pytest.raises(UserError, match=f"^{re.escape(f'{path}:2: {message}')}"):
        load_conversations([PromptSource(path=path)])


def rows(count: int = 10) -> list[dict[str, Any]]:
    """Conversations of one to three answers."""
    return [
        {"messages": [turn for n in range(1 + i % 3) for turn in (ask(f"q{i}.{n}"), answer(f"a{i}.{n}"))]}
        for i in range(count)
    ]


def test_what_is_written_and_counted(tiny_target, row_file, tmp_path, capsys):
    extra = [{"prompt": "q3.0", "answer": "a3.0"}, {"prompt": "x" * 200, "answer": "y"}]  # a duplicate, a long one
    longer = {"messages": [ask("long?"), answer("l"), ask("x" * 200), answer("never"), ask("then"), answer("nor this")]}
    path = row_file(*rows(), *extra, longer)
    counts = collect_given(tiny_target, config(path), tmp_path / "data", seed=3, dtype="float32")
    train_set, held_out = (read_traces(tmp_path / "data", name) for name in ("train", "eval"))
    places, asked = ({trace.source.split("#")[0] for trace in traces} for traces in (train_set, held_out))
    assert len(asked) == 2
    for name, traces in (("train", train_set), ("eval", held_out)):
        assert counts[name]["answers"] == len(traces)
        assert counts[name]["answer_tokens"] == sum(len(trace.answer_ids) for trace in traces)
        assert [trace.id for trace in traces] == sorted({trace.id for trace in traces})
    assert {name: counts["train"][name] for name in ("prompts", "sequences", "split")} == {
        "prompts": len(places), "sequences": len(places), "split": 0,
    }  # fmt: skip
    assert {name: counts[name] for name in ("prompts", "duplicates", "too_long", "asked_in_eval")} == {
        "prompts": 13, "duplicates": 1, "too_long": 1 + 2, "asked_in_eval": 0,
    }  # fmt: skip
    assert len(places | asked) == counts["train"]["prompts"] + 2 == 11
    second = next(trace for trace in train_set if trace.answer == "a1.1")
    assert second == Trace(
        second.id, f"{path}:2#2", (ask("q1.0"), answer("a1.0"), ask("q1.1")), second.prompt_ids, second.answer_ids,
        "a1.1", "stop",
    )  # fmt: skip
    assert (len(second.answer_ids), second.answer_ids[-1]) == (len("a1.1") + 1, 2)
    err = capsys.readouterr().err
    assert "1 of 12 conversations begin with more than 199 tokens and are left out" in err
    assert f"train: {len(train_set)} given answers, {counts['train']['answer_tokens']} tokens, " in err


def test_a_question_is_not_both_held_out_and_trained_on(tiny_target, row_file, tmp_path, capsys):
    path = row_file(*({"prompt": f"q{i % 4}", "answer": f"a{i}"} for i in range(12)))
    counts = collect_given(tiny_target, config(path, num_eval_prompts=1), tmp_path / "data", seed=3, dtype="float32")
    (held_out,) = read_traces(tmp_path / "data", "eval")
    trained = read_traces(tmp_path / "data", "train")
    assert (len(trained), counts["asked_in_eval"], counts["train"]["prompts"]) == (9, 2, 9)
    assert held_out.messages not in [trace.messages for trace in trained]
    assert "2 of 11 conversations begin with the question of a held-out one and are left out" in capsys.readouterr().err
    same = row_file(*({"prompt": "q", "answer": f"a{i}"} for i in range(3)), name="same.jsonl")
    with pytest.raises(UserError, match=r"^All 1 conversations to train on begin with the question of a held-out one"):
        collect_given(tiny_target, config(same), tmp_path / "other", seed=3, dtype="float32")


def test_held_out_questions_are_answered_by_the_target(tiny_target, row_file, tmp_path):
    path, settings = row_file(*rows()), {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 7}
    collect_given(tiny_target, config(path, **settings), tmp_path / "data", seed=3, dtype="float32")
    held_out = read_traces(tmp_path / "data", "eval")
    prompts = [Prompt(trace.source, trace.messages) for trace in held_out]
    decoding = decoding_settings(config(path, **settings), seed=3, dtype="float32")
    write_traces(tiny_target, prompts, tmp_path / "written", decoding, name="eval")
    assert [trace.answer_ids for trace in read_traces(tmp_path / "written", "eval")] == [
        trace.answer_ids for trace in held_out
    ]
    by_source = {trace.source: trace for trace in held_out}
    later = next(trace for trace in held_out if trace.source.endswith("#2"))
    first = by_source[later.source.removesuffix("#2")]
    assert later.messages[: len(first.messages)] == first.messages
    assert later.messages[1]["content"].startswith("a")  # what was given, not what the target now says
    assert all(len(trace.answer_ids) <= 7 for trace in held_out)


def test_where_text_is_trained_on_only_held_out_questions_are_answered(tiny_target, row_file, tmp_path):
    path = row_file(*rows(2))
    counts = collect_given(
        tiny_target, config(path), tmp_path / "data", seed=3, dtype="float32", to_train_on=False
    )  # all may be held out
    assert {name: counts["train"][name] for name in ("prompts", "answers", "sequences")} == dict.fromkeys(
        ("prompts", "answers", "sequences"), 0
    )
    assert counts["eval"]["answers"] == 3
    assert not list((tmp_path / "data").glob("train-*"))


def test_a_template_that_drops_history_is_counted(make_checkpoint, row_file, tmp_path, capsys):
    folder = make_checkpoint(seed=1)
    shouted = "(message['content'] if loop.last or message['role'] == 'user' else message['content'] | upper)"
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("message['content']", shouted))
    path = row_file(*rows(3), {"prompt": "q", "answer": "a"})  # of 1, 2, 3 and 1 answers
    counts = collect_given(folder, config(path, num_eval_prompts=1), tmp_path / "data", seed=3, dtype="float32")
    (held_out,) = {trace.source.split("#")[0] for trace in read_traces(tmp_path / "data", "eval")}
    number = int(held_out.rsplit(":", 1)[1]) - 1
    of_each = [1, 2, 3, 1]
    assert counts["eval"]["answers"] == of_each.pop(number)
    assert (counts["train"]["sequences"], counts["train"]["split"]) == (sum(of_each), sum(n > 1 for n in of_each))
    num_split, of_split = counts["train"]["split"], sum(n for n in of_each if n > 1)
    assert f"train: in {num_split} of 3 conversations the chat template shows earlier turns otherwise" in (
        err := capsys.readouterr().err
    )
    assert f"they are learned in {of_split} sequences" in err


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
    with pytest.raises(UserError, match="max_prompt_len was 199, is 99"):
        collect_given(tiny_target, config(path, max_seq_len=100), out, seed=3, dtype="float32")


def test_a_question_may_leave_room_for_one_token(tiny_target, row_file, tmp_path, capsys):
    around = len(render_prompt(load_tokenizer(tiny_target), [ask("")]))
    long = [{"prompt": "x" * (length - around), "answer": "y"} for length in (199, 200)]
    counts = collect_given(
        tiny_target, config(row_file(*rows(3), *long, name="chat#2.jsonl")), tmp_path / "data", seed=3, dtype="float32"
    )
    assert counts["too_long"] == 1
    assert counts["train"]["prompts"] == 4 - 2
    assert counts["train"]["split"] == 0
    assert "1 of 5 conversations begin with more than 199 tokens" in capsys.readouterr().err


def test_another_template_or_stop_token_is_another_set_of_answers(make_checkpoint, row_file, tmp_path):
    folder, data = make_checkpoint(seed=1), config(row_file(*rows(3)))
    collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")
    GenerationConfig(eos_token_id=[2, 5]).save_pretrained(folder)
    with pytest.raises(UserError, match="eval answers were made with other settings: target was"):
        collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")
    settings = tmp_path / "data" / "settings.json"
    settings.write_text(json.dumps({"train": json.loads(settings.read_text())["train"]}))
    with pytest.raises(UserError, match=r"stop_ids was \[2\], is \[2, 5\]\."):
        collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")
    GenerationConfig(eos_token_id=2).save_pretrained(folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "\n")
    with pytest.raises(UserError, match=r"eval answers were made with other settings: target was .*; template was "):
        collect_given(folder, data, tmp_path / "data", seed=3, dtype="float32")


@pytest.mark.parametrize("row", [{"prompt": "\u00ed", "answer": "y"}, {"prompt": "x", "answer": "\u00ed"}])
def test_a_row_whose_tokens_the_target_has_no_rows_for_is_refused(make_checkpoint, row_file, tmp_path, row):
    target = make_checkpoint(seed=1, vocab_size=258, num_hidden_layers=1)  # its tokenizer has 259 tokens
    path = row_file(*({"prompt": f"{n}?", "answer": "y"} for n in range(3)), row)
    message = rf"rows\.jsonl:4: holds token id 258, which is beyond the vocabulary of {target}, vocab_size 258\. Mend"
    with pytest.raises(UserError, match=message):
        collect_given(target, config(path, num_eval_prompts=1), tmp_path / "data", seed=3, dtype="float32")


def test_refusals_leave_nothing_behind(tiny_target, row_file, tmp_path):
    for path, message in (
        (
            row_file({"prompt": "x" * 300, "answer": "y"}, name="l.jsonl"),
            "All 1 conversations begin with more than 199",
        ),
        (row_file({"prompt": "x", "answer": "y"}, name="f.jsonl"), "leaves none of the 1 prompts"),
        (row_file(name="e.jsonl"), r"e\.jsonl: no prompts in it"),
    ):
        with pytest.raises(UserError, match=message):
            collect_given(tiny_target, config(path), tmp_path / "data", seed=3, dtype="float32")
    assert not (tmp_path / "data").exists()


@pytest.fixture
def given(make_run, row_file):
    """given(name, **keys of distill) -> Recipe of ten conversations, whose answers are laid out."""

    def make(name: str, **distill: Any) -> Recipe:
        recipe = make_run(name, **distill)
        recipe = recipe.model_copy(update={"data": config(row_file(*rows()), num_eval_prompts=3)})
        shutil.rmtree(Path(recipe.run_dir) / "data")
        generate_stage(Run.of(recipe))
        return recipe

    return make


def test_conversations_are_trained_on_whole_and_held_out_answers_are_apart(given, capsys):
    recipe = given("run")
    manifest = read_manifest(Path(recipe.run_dir) / "data")
    assert manifest is not None
    assert manifest["answers"] == "given"
    counts = manifest["counts"]
    train_set, eval_set = read_answers(Run.of(recipe))
    assert [len(train_set), len(eval_set)] == [counts["train"]["sequences"], counts["eval"]["answers"]]
    assert {len(example.spans) for example in train_set.examples} == {1, 2, 3}
    assert {len(example.spans) for example in eval_set.examples} == {1}
    assert sum(len(example.spans) for example in train_set.examples) == counts["train"]["answers"] > len(train_set)
    err = capsys.readouterr().err
    assert f"train: {counts['train']['answers']} answers with {counts['train']['answer_tokens']} tokens in 7 seq" in err


def test_a_cached_teacher_teaches_conversations_as_the_live_one_does(given):
    losses = []
    for name, teacher in (("live", {}), ("cached", {"source": "cache"})):
        recipe = given(name, teacher=teacher, max_duration="3ba")
        if teacher:
            cache_stage(Run.of(recipe))
        train(recipe)
        log = (Path(recipe.run_dir) / "logs" / "metrics.jsonl").read_text().splitlines()
        losses.append([line["loss/train/total"] for line in map(json.loads, log) if "loss/train/total" in line])
    live, cached = losses
    assert len(live) == 3
    assert cached == pytest.approx(live, rel=LOSS_RTOL)


def test_several_processes_lay_out_the_files_of_one(tiny_target, row_file, tmp_path):
    rows = [{"messages": [ask(f"{i}?"), answer(f"{i}."), ask("and?"), answer("no")]} for i in range(9)]
    how = {"seed": 5, "dtype": "float32"}
    given = config(row_file(*rows), batch_size=1)
    counts = collect_given(tiny_target, given, tmp_path / "alone", **how)
    together = by_processes(
        3, lambda share: collect_given(tiny_target, given, tmp_path / "together", share=share, **how)
    )
    assert together == [counts] * 3
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("together", "alone")
    )
    assert ours == theirs
    assert len([name for name in ours if name.endswith(".jsonl")]) == 6  # 4 to train on, 2 held out
