"""What all cells read, made once: the target's answers to learn and to score on, and what it said of the first."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.checkpoints.manifest import read_manifest
from architectures.targets.target import resolve_checkpoint
from benchmarks.minutes.setting import SEED, Setting
from distill.run.recorded import recorded_values
from distill.run.run import Run
from distill.stages.running import cache_stage, generate_stage
from distill.stages.table import eval_prompts
from eval.prompts.forms import Prompt
from eval.prompts.loading import load_prompts
from eval.prompts.source import PromptSource
from eval.scorecard.answers import Answers, record_answers

OWN, UNSEEN = "held out", "unseen"
Scored = dict[str, dict[float, Answers]]  # by set and temperature


def make_inputs(setting: Setting) -> dict[str, Any]:
    """Make what is missing; what it is, by which cells of other inputs are told apart, and how long it took here."""
    recipe = setting.shared_recipe()
    seconds = {
        "answers": seconds_of(lambda: generate_stage(Run.of(recipe))),
        "cache": seconds_of(lambda: cache_stage(Run.of(recipe))),
        "scored answers": seconds_of(lambda: scored_answers(setting)),
    }
    return {"inputs": inputs_of(setting), "seconds": seconds}


def seconds_of(stage: Callable[[], object]) -> float:
    """How long a stage took."""
    start_s = time.perf_counter()
    stage()
    return round(time.perf_counter() - start_s, 1)


def inputs_of(setting: Setting) -> dict[str, str]:
    """Fingerprints of what decides a cell's figures beside the cell: cells of others are never ranked with these."""
    data = read_manifest(setting.shared_run / "data") or {}
    words = recorded_values(setting.load(setting.work, ["architecture.layers=1"]))
    words["architecture"].pop("scores")
    words["distill"].pop("freeze_input_embeddings")  # each cell says so itself; cells from before the key hold
    words["distill"]["teacher"].pop("captured_while")  # likewise
    of_files = ("run_name", "run_dir", "target")
    scored = scored_answers(setting)
    return {
        "target": fingerprint_checkpoint(resolve_checkpoint(str(setting.target), revision="main", cache=setting.work)),
        "answers": fingerprint_value(data.get("inputs")),
        "recipe": fingerprint_value({name: value for name, value in words.items() if name not in of_files}),
        "scored": fingerprint_value(
            [
                [list(t.token_ids) for t in answer_set.traces]
                for group in scored.values()
                for answer_set in group.values()
            ]
        ),
        "threads": str(setting.threads),
    }


def scored_answers(setting: Setting) -> Scored:
    """The target's answers, greedy and drawn, to the held-out prompts and to unseen ones; written where missing."""
    recipe = setting.shared_recipe()
    sets = {OWN: eval_prompts(Run.of(recipe)), UNSEEN: unseen_prompts(setting)}
    return {
        name: {
            temperature: record_answers(
                setting.target,
                prompts,
                recipe.eval,
                setting.work / "scored" / name.replace(" ", "-"),
                temperature=temperature,
                seed=SEED,
            )
            for temperature in recipe.eval.temperatures
        }
        for name, prompts in sets.items()
    }


def unseen_prompts(setting: Setting) -> Sequence[Prompt]:
    """So many prompts, spread over the file, without the turns that follow: what comes late in it counts as well."""
    prompts = load_prompts([PromptSource(path=str(setting.unseen))])
    step = max(1, len(prompts) // setting.num_unseen)
    return [replace(prompt, later_turns=()) for prompt in prompts[::step][: setting.num_unseen]]
