"""--profile of a training: one step, its parts named, and nothing of what is learned changes."""

import gzip
import json
import random
from pathlib import Path

import pytest
import torch
from torch.profiler import record_function

import distill.training.trainer
from distill.monitoring import step_profile
from distill.monitoring.phase_clock import PhaseClock
from distill.monitoring.step_profile import PARTS, WARM_STEPS, StepProfile, profiled_steps
from distill.recipe.recipe import Recipe, save_recipe
from distill.run.run import Run
from distill.stages import processes
from distill.stages.running import cache_stage
from distill.train import main, train
from tests.distill.after_training import assert_equal, last_state, metrics
from tests.distill.two_processes import train_by

FILES = {"step.pt.trace.json.gz", "step.txt"}
RECORDED = "ProfilerStep#1"  # the pass after the one that warms the profiler up
ROOT = Path(__file__).parents[3]
NOTHING = "nothing was profiled: this session trained"


def events_of(folder: Path):
    with gzip.open(folder / "step.pt.trace.json.gz", "rt", encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if "cat" in event]


def named(events, names):
    """Annotations of these names, by their beginning; one that holds others stands before them."""
    found = [event for event in events if event["name"] in names and event["cat"] == "user_annotation"]
    return sorted(found, key=lambda event: (event["ts"], -event["dur"]))


def parts_of(folder: Path) -> list[str]:
    return [event["name"] for event in named(events_of(folder), PARTS)]


def write_words(path: Path) -> None:
    generator = random.Random(3)
    texts = ("".join(generator.choices("abcdefgh", k=9)) for _ in range(60))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def make(make_run, tmp_path):
    """make(name, what, **keys of distill) -> Recipe of a training that learns live, cached or from text."""

    def build(name: str, what: str, **settings) -> Recipe:
        if what == "text":
            write_words(tmp_path / "a.jsonl")
            domains = [{"name": "a", "path": str(tmp_path / "a.jsonl")}]
            text = {"domains": domains, "max_seq_len": 12, "num_eval_sequences": 3, "mixture": {"rule": "fixed"}}
            return make_run(
                name, text=text, **{"train_on": "text", "max_duration": "6ba", "eval_interval": "3ba", **settings}
            )
        recipe = make_run(name, **({"teacher": {"source": "cache"}} if what == "cached" else {}), **settings)
        if what == "cached":
            cache_stage(Run.of(recipe))
        return recipe

    return build


@pytest.mark.parametrize("what", ["live", "cached", "text"])
def test_a_profiled_training_learns_the_same_to_the_last_bit(make, what, tmp_path, capsys):
    plain, profiled = make("plain", what), make("profiled", what)
    train(plain)
    train(profiled, tmp_path / "profile")
    for name in ("model", "optimizers"):
        assert_equal(last_state(plain)[name], last_state(profiled)[name])
    assert {path.name for path in (tmp_path / "profile").iterdir()} == FILES
    assert f"the step of batch {WARM_STEPS + 1}, " in capsys.readouterr().err
    assert parts_of(tmp_path / "profile") == [
        "data",
        "student forward",
        "teacher",
        "loss",
        "teacher",  # its head
        "backward",
        "optimiser",
    ]
    assert metrics(profiled).keys() == metrics(plain).keys()


def test_parts_are_of_every_microbatch(make, tmp_path):
    train(make("run", "live", device_train_microbatch_size=1, max_duration="4ba"), tmp_path / "p")
    one = ["student forward", "teacher", "loss", "teacher", "backward"]
    assert parts_of(tmp_path / "p") == ["data", *one * 4, "optimiser"]


def test_the_recorded_step_is_one_step_and_nothing_else(make, tmp_path):
    """It is the first of an epoch: neither the end of the one before nor an evaluation or a checkpoint is in it."""
    recipe = make("run", "live", save_interval="1ba")  # three batches to an epoch, after which is an evaluation
    train(recipe, tmp_path / "p")
    events = events_of(tmp_path / "p")
    [whole], spans = named(events, [RECORDED]), named(events, PARTS)
    assert spans[0]["name"] == "data"
    assert sum((event["name"] == "Optimizer.step#AdamW.step") for event in events) == 1
    assert spans[0]["ts"] - whole["ts"] < 0.2 * whole["dur"]
    inside = [
        event
        for event in events
        if event["name"] == "aten::embedding" and event["ts"] < spans[0]["ts"] + spans[0]["dur"]
    ]
    assert not inside  # no model has been asked before the batch was there
    assert spans[-1]["ts"] + spans[-1]["dur"] <= whole["ts"] + whole["dur"]


def test_packing_is_profiled(make, tmp_path):
    train(make("run", "live", packing=True, max_duration="4ba"), tmp_path / "p")
    assert set(parts_of(tmp_path / "p")) == set(PARTS)


def test_a_resumed_training_profiles_a_step_of_its_own_and_learns_the_same(make_run, stopped, tmp_path, capsys):
    straight, resumed = make_run("straight", max_duration="8ba"), make_run("resumed", max_duration="8ba")
    train(straight)
    with stopped(distill.training.trainer, "build_loggers", 3):
        train(resumed, tmp_path / "first")
    assert NOTHING in capsys.readouterr().err
    assert not (tmp_path / "first").exists()
    train(resumed, tmp_path / "second")
    assert f"the step of batch {2 + WARM_STEPS + 1}, " in capsys.readouterr().err  # two were saved
    for name in ("model", "optimizers"):
        assert_equal(last_state(straight)[name], last_state(resumed)[name])


def test_a_training_goes_on_without_the_profile_it_had_before(make_run, stopped, tmp_path):
    straight, resumed = make_run("straight"), make_run("resumed")
    train(straight)
    with stopped(distill.training.trainer, "build_loggers", 5):
        train(resumed, tmp_path / "p")
    train(resumed)
    assert_equal(last_state(straight)["model"], last_state(resumed)["model"])


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_training_of_too_few_steps_says_that_nothing_was_profiled(make_run, tmp_path, capsys, steps):
    recipe = make_run(max_duration=f"{steps}ba")
    train(recipe, tmp_path)
    told = capsys.readouterr().err
    trained = "1 step" if steps == 1 else f"{steps} steps"
    assert f"{tmp_path}: {NOTHING} {trained}, and step 4 is the one that is recorded." in told
    assert not FILES & {path.name for path in tmp_path.iterdir()}
    assert (Path(recipe.run_dir) / "draft" / "model.safetensors").exists()  # and the training is what it was
    train(recipe, tmp_path)
    assert f"{NOTHING} 0 steps" in capsys.readouterr().err  # it was finished already


def test_it_is_said_once(tmp_path, capsys):
    callback = StepProfile(tmp_path)
    for _ in range(2):  # Composer closes callbacks again when Python ends
        callback.close(None, None)
    assert capsys.readouterr().err.count(NOTHING) == 1


def test_parts_have_no_names_any_more_once_it_stops(tmp_path):
    clock = PhaseClock(on_gpu=False)
    clock.label = record_function
    StepProfile(tmp_path, clock).stop()
    assert clock.label is PhaseClock(on_gpu=False).label


def test_the_first_process_alone_is_profiled(tmp_path, monkeypatch):
    """Composer's launcher keeps what the others print, and two would write the same files."""
    for rank, count in ((0, 1), (1, 0)):
        monkeypatch.setattr(step_profile.dist, "get_global_rank", lambda rank=rank: rank)
        assert len(profiled_steps(tmp_path)) == count
        assert profiled_steps(None) == []


def test_nothing_is_recorded_where_nobody_asked(make_run, monkeypatch):
    monkeypatch.setattr("distill.monitoring.step_profile.Recording", None)
    train(make_run(max_duration="5ba"))


def test_an_error_in_the_recorded_step_leaves_no_profiler_running(make_run, tmp_path, monkeypatch, capsys):
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == WARM_STEPS + 1:
            raise RuntimeError("mine")

    monkeypatch.setattr("distill.training.trainer.GradientNorm.apply", fail)
    with pytest.raises(RuntimeError, match="mine"):
        train(make_run(max_duration="5ba"), tmp_path)
    assert f"{NOTHING} 3 steps" in capsys.readouterr().err
    assert not torch.autograd._profiler_enabled()


def test_the_training_of_masks_is_profiled(tmp_path, tiny_target):
    write_words(tmp_path / "a.jsonl")
    recipe = Recipe(
        run_name="masks",
        run_dir=str(tmp_path / "masks"),
        target={"path": str(tiny_target), "dtype": "float32"},
        architecture={
            "method": "learned_masks",
            "layers": 2,
            "intermediate": 64,
            "heads": 2,
            "kv_heads": 1,
            "hidden": 32,
            "masks": {
                "max_duration": "4ba",
                "global_train_batch_size": 4,
                "device_train_microbatch_size": 4,
                "precision": "fp32",
                "save_interval": "2ba",
            },
        },
        data={"self_written_prompts": 1},
        text={
            "domains": [{"name": "a", "path": str(tmp_path / "a.jsonl")}],
            "max_seq_len": 24,
            "num_eval_sequences": 2,
            "mixture": {"update_interval": "2ba"},
        },
        distill={"progress_bar": False},
    )
    train(recipe, tmp_path / "p")
    assert parts_of(tmp_path / "p") == ["data", "student forward", "backward", "optimiser"]


def test_the_stage_hands_the_option_on_or_says_that_nothing_is_trained(make_run, tmp_path, monkeypatch, capsys):
    recipe, words = make_run(max_duration="4ba"), []
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    monkeypatch.setattr(processes, "run_training", lambda *given: words.append(given[:2]))
    processes.distill_stage(path, ["distill.max_duration=4ba"], "--profile=p")
    assert words == [(path, ["distill.max_duration=4ba", "--profile=p"])]
    train(recipe)
    capsys.readouterr()
    processes.distill_stage(path, [], "--profile=p")
    assert capsys.readouterr().out.endswith("draft: up to date, so there is no step to profile\n")
    processes.distill_stage(path, [])
    assert capsys.readouterr().out.endswith("draft: up to date\n")
    assert len(words) == 1


@pytest.mark.slow  # two processes import torch and Composer
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_of_two_processes_the_first_is_profiled_and_both_learn_the_same(pair, make_run, tmp_path, parallelism):
    settings = {"max_duration": "5ba", "device_train_microbatch_size": 1, "parallelism": parallelism}
    plain, profiled = make_run("plain", **settings), make_run("profiled", **settings)
    train_by(pair, plain)
    said = train_by(pair, profiled, "--profile", str(tmp_path / "p"))
    assert said.count("the step of batch 4, ") == 1
    assert_equal(last_state(plain)["model"], last_state(profiled)["model"])
    one = ["student forward", "teacher", "loss", "teacher", "backward"]
    assert parts_of(tmp_path / "p") == ["data", *one * 2, "optimiser"]  # of its half of the batch


def test_the_program_takes_the_option(make_run, tmp_path, capsys):
    recipe = make_run(max_duration="4ba")
    save_recipe(recipe, Path(recipe.run_dir) / "recipe.yaml")
    (tmp_path / "x").write_text("")
    path = str(Path(recipe.run_dir) / "recipe.yaml")
    assert main([path, f"--profile={tmp_path / 'x'}"]) == 2
    assert "is a file. Name a folder." in capsys.readouterr().err
    assert not (Path(recipe.run_dir) / "checkpoints").exists()
    assert main([path, "distill.max_duration=4ba", "--profile", str(tmp_path / "p")]) == 0
    assert {each.name for each in (tmp_path / "p").iterdir()} == FILES
