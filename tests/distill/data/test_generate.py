"""Training data: which prompts are held out, what is counted and refused, and how several jobs share the work."""

import json
from pathlib import Path
from typing import Any

import pytest

from distill.data import training_data
from distill.data.training_data import drop_duplicates, generate_responses, hold_out
from distill.recipe.sections import DataConfig
from distill.run import fcntl, open_lock, take_lock
from eval.prompts import Prompt
from eval.responses import read_traces
from eval.tasks import PromptSource
from tests.distill.recipe_files import write_recipe
from tests.rejections import rejects
from widedraft import main


def config(*paths: str, **changes: Any) -> DataConfig:
    settings: dict[str, Any] = {
        "max_seq_len": 256,
        "max_new_tokens": 8,
        "batch_size": 4,
        "num_eval_prompts": 3,
    }
    return DataConfig(prompts=tuple(PromptSource(path=path) for path in paths), **{**settings, **changes})


def ask(*texts: str) -> list[Prompt]:
    return [Prompt(f"f:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(texts)]


def run(target: Path, data: DataConfig, out: Path, *, seed: int = 7) -> dict[str, Any]:
    return generate_responses(target, data, out, seed=seed, dtype="float32")


def test_responses_of_both_splits_and_their_counts(tiny_target, row_file, tmp_path):
    rows = [{"prompt": f"question {i}"} for i in range(12)]
    path = row_file(*rows, {"prompt": "question 3"}, {"prompt": "x" * 300}, {"turns": ["one", "two"]})
    counts = run(tiny_target, config(path), tmp_path / "data")
    train, held_out = read_traces(tmp_path / "data", "train"), read_traces(tmp_path / "data", "eval")
    by_split = {
        name: {
            "prompts": len({trace.source.split("#")[0] for trace in traces}),
            "responses": len(traces),
            "response_tokens": sum(len(trace.response_ids) for trace in traces),
            "ended_by_length": sum(trace.finish_reason == "length" for trace in traces),
            "longest": max(len(trace.token_ids) for trace in traces),
        }
        for name, traces in (("train", train), ("eval", held_out))
    }
    dropped = {"duplicates": 1, "too_long": 1, "asked_in_eval": 0, "malformed": {}}
    assert counts == {"prompts": 15, "self_written": 0, **dropped, **by_split}
    assert (by_split["train"]["prompts"], by_split["eval"]["prompts"]) == (10, 3)
    assert by_split["train"]["responses"] + by_split["eval"]["responses"] == 14
    sources = {trace.source.split("#")[0] for trace in [*train, *held_out]}
    assert sources == {f"{path}:{i}" for i in range(1, 16)} - {f"{path}:13", f"{path}:14"}


def test_where_text_is_trained_on_held_out_prompts_alone_are_answered(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"question {i}"} for i in range(12)))
    both, alone = tmp_path / "both", tmp_path / "alone"
    counts = run(tiny_target, config(path), both)
    found = generate_responses(tiny_target, config(path), alone, seed=7, dtype="float32", to_train_on=False)
    assert found == {**counts, "train": {"prompts": 0, "responses": 0, "response_tokens": 0}}
    assert sorted(file.name for file in alone.glob("*.jsonl")) == ["eval-00000.jsonl"]
    assert (alone / "eval-00000.jsonl").read_bytes() == (both / "eval-00000.jsonl").read_bytes()
    # and responses to train on join them when they are wanted
    assert run(tiny_target, config(path), alone) == counts
    assert {file.name for file in alone.iterdir()} == {file.name for file in both.iterdir()}


def test_where_text_is_trained_on_all_prompts_may_be_held_out(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"question {i}"} for i in range(3)))
    counts = generate_responses(tiny_target, config(path), tmp_path, seed=7, dtype="float32", to_train_on=False)
    assert (counts["train"]["prompts"], counts["eval"]["prompts"]) == (0, 3)
    prompts = ask("a", "b", "c", "d")
    assert hold_out(prompts, 4, seed=0, least_left=0) == ([], prompts)
    with rejects("data.num_eval_prompts=5"):
        hold_out(prompts, 5, seed=0, least_left=0)


def test_settings_of_the_recipe_reach_the_responses(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"question {i}"} for i in range(6)))
    run(tiny_target, config(path, temperature=0.7, top_p=0.9), tmp_path / "data", seed=11)
    record = json.loads((tmp_path / "data" / "settings.json").read_text())
    expected = {
        "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 8, "batch_size": 4, "shard_size": 8,
        "max_prompt_len": 255, "seed": 11, "dtype": "float32",
    }  # fmt: skip
    for name in ("train", "eval"):
        assert record[name]["settings"].items() >= expected.items()


def test_temperatures_alternate_in_training_and_are_counted(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"question {i}"} for i in range(10)))
    counts = run(tiny_target, config(path, temperature=(0.0, 0.5, 1.0)), tmp_path / "data")
    assert [trace.temperature for trace in read_traces(tmp_path / "data", "train")] == [0.0, 0.5, 1.0] * 2 + [0.0]
    assert {trace.temperature for trace in read_traces(tmp_path / "data", "eval")} == {0.0}
    assert counts["train"]["at_temperature"] == {"0": 3, "0.5": 2, "1": 2}
    assert "at_temperature" not in counts["eval"]
    assert run(tiny_target, config(path, temperature=(0.0, 0.5, 1.0)), tmp_path / "data") == counts
    with rejects("temperature"):
        run(tiny_target, config(path, temperature=(0.0, 1.0)), tmp_path / "data")


def test_turns_without_room_are_counted(tiny_target, row_file, tmp_path):
    rows = [{"prompt": f"question {i}"} for i in range(6)]
    counts = run(tiny_target, config(row_file(*rows, {"turns": ["one", "x" * 300, "three"]})), tmp_path / "data")
    assert counts["too_long"] == 2
    assert counts["train"]["responses"] + counts["eval"]["responses"] == 7


def test_self_written_prompts_join_those_of_files(tiny_target, row_file, tmp_path, monkeypatch):
    asked = []

    def write_own_prompts(target, count, out, settings, share):
        asked.append((target, count, out, settings))
        return ask("question 0", "written by itself")

    monkeypatch.setattr(training_data, "write_own_prompts", write_own_prompts)
    path = row_file(*({"prompt": f"question {i}"} for i in range(6)))
    counts = run(tiny_target, config(path, self_written_prompts=2), tmp_path / "data", seed=9)
    assert (counts["prompts"], counts["self_written"], counts["duplicates"]) == (8, 2, 1)
    [(target, count, out, settings)] = asked
    assert (target, count, out) == (tiny_target, 2, tmp_path / "data")
    assert (settings.seed, settings.dtype, settings.batch_size, settings.shard_size) == (9, "float32", 4, 8)
    assert (settings.temperature, settings.top_p) == (1.0, 0.95)


def test_rerun_finishes_what_is_missing(tiny_target, row_file, tmp_path):
    path, out = row_file(*({"prompt": f"question {i}"} for i in range(14))), tmp_path / "data"
    counts = run(tiny_target, config(path), out)
    before = {file.name: file.read_bytes() for file in out.glob("*.jsonl")}
    (out / "train-00001.jsonl").unlink()
    (out / "eval-00000.jsonl").unlink()
    assert run(tiny_target, config(path), out) == counts
    assert {file.name: file.read_bytes() for file in out.glob("*.jsonl")} == before


def test_held_out_prompts_are_drawn_with_the_seed():
    prompts = ask(*(f"question {i}" for i in range(40)))
    train, held_out = hold_out(prompts, 10, seed=1)
    assert len(held_out) == 10
    assert sorted([*train, *held_out], key=prompts.index) == prompts
    assert (train, held_out) == (sorted(train, key=prompts.index), sorted(held_out, key=prompts.index))
    assert held_out != prompts[:10]
    assert hold_out(prompts, 10, seed=1) == (train, held_out)
    assert hold_out(prompts, 10, seed=2) != (train, held_out)


def test_refusals_leave_nothing_behind(tiny_target, row_file, tmp_path):
    empty = row_file(name="empty.jsonl")
    for rows, named in (
        ([], "rows.jsonl"),
        ([{"prompt": "x" * 300}], 255),
        ([{"prompt": "a"}], "data.num_eval_prompts=3"),
    ):
        with rejects(named):
            run(tiny_target, config(row_file(*rows, name="rows.jsonl")), tmp_path / "data")
    with rejects("empty.jsonl"):  # before the target is looked at
        run(tmp_path / "nowhere", config(empty, self_written_prompts=5), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_duplicates_are_conversations_that_are_equal():
    first, again, other = *ask("a", "a"), Prompt("f:9", ({"role": "user", "content": "a"},), ("and then?",))
    assert drop_duplicates([first, other, again]) == [first, other]
    labelled = Prompt("f:10", first.messages, category="cooking", task="gsm8k/1")
    assert drop_duplicates([first, labelled]) == [first]  # else one could be held out and the other trained on


def test_a_prompt_that_renders_to_a_held_out_one_is_not_trained_on(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"q {i}"} for i in range(6)), *({"turns": [f"q {i}", "and?"]} for i in range(6)))
    counts = run(tiny_target, config(path), tmp_path / "data")
    train, held_out = (read_traces(tmp_path / "data", name) for name in ("train", "eval"))
    assert not {trace.prompt_ids for trace in train} & {trace.prompt_ids for trace in held_out}
    assert counts["asked_in_eval"] == 12 - 3 - counts["train"]["prompts"] > 0


def test_malformed_rows_are_left_out_and_counted(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"question {i}"} for i in range(8)), {"prompt": ""}, {"prompt": 7}, "{")
    with rejects("rows.jsonl:9:", "rows.jsonl:10:", "rows.jsonl:11:"):
        run(tiny_target, config(path), tmp_path / "data")
    counts = run(tiny_target, config(path).model_copy(update={"malformed": "skip"}), tmp_path / "data")
    assert (counts["prompts"], sorted(counts["malformed"].values())) == (8, [1, 2])


def test_arguments_of_the_template_are_recorded_with_responses(tiny_target, row_file, tmp_path):
    path = row_file(*({"prompt": f"question {i}"} for i in range(8)))
    kwargs = ({"enable_thinking": False}, {})
    run(tiny_target, config(path).model_copy(update={"chat_template_kwargs": kwargs}), tmp_path / "data")
    traces = [trace for name in ("train", "eval") for trace in read_traces(tmp_path / "data", name)]
    by_row = {int(trace.source.rpartition(":")[2]): trace.chat_template_kwargs for trace in traces}
    assert [by_row[row] for row in range(1, 9)] == [{"enable_thinking": False}, {}] * 4


SETTINGS = """
data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 3, max_seq_len: 128, max_new_tokens: 6, batch_size: 1}}
"""


@pytest.fixture
def recipe(tiny_target, tmp_path):
    """recipe(name) is the file of a recipe of nine prompts, whose run has this name: five files of responses."""
    cut = "{layers: 2, method: first_last}"
    return lambda name: str(write_recipe(tmp_path, tiny_target, cut, SETTINGS, num_prompts=9, run=name))


def responses(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "data").glob("*.jsonl"))}


def test_the_last_of_several_jobs_joins_what_all_have_written(recipe, tmp_path, capsys):
    assert main(["generate", recipe("whole")]) == 0
    assert main(["generate", recipe("parts"), "--shard", "2/3"]) == 0
    assert "2 of 3" in capsys.readouterr().out
    assert sorted(responses(tmp_path / "parts")) == ["eval-00001.jsonl", "train-00001.jsonl"]
    assert not (tmp_path / "parts" / "data" / "manifest.json").exists()
    assert main(["generate", recipe("parts"), "--shard", "3/3"]) == 0
    assert main(["generate", recipe("parts"), "--shard", "1/3"]) == 0
    assert responses(tmp_path / "parts") == responses(tmp_path / "whole")
    counts = [
        json.loads((tmp_path / name / "data" / "manifest.json").read_text())["counts"] for name in ("parts", "whole")
    ]
    assert counts[0] == counts[1]


def test_jobs_with_parts_share_a_run_and_nobody_else_works_in_it(tmp_path):
    with open_lock(tmp_path) as first, open_lock(tmp_path) as second:
        shared, alone = fcntl.LOCK_SH, fcntl.LOCK_EX
        take_lock(first, tmp_path, shared)
        take_lock(second, tmp_path, shared)
        with open_lock(tmp_path) as third, rejects(tmp_path):
            take_lock(third, tmp_path, alone)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/0", "1/2"])
def test_what_is_no_part_is_refused(recipe, capsys, shard):
    own = ["data.self_written_prompts=3"] if shard == "1/2" else []  # prompts that the target writes are one job's
    assert main(["generate", recipe("none"), *own, "--shard", shard]) == 2
    assert "--shard" in capsys.readouterr().err
