"""What a teacher's cache costs if its states are kept while the answers are written, beside reading them once more.

    python benchmarks/kept_states.py --recipe recipes/quickstart.yaml --work WORK [--num-prompts 96] [key=value ...]

`widedraft generate` and `widedraft cache` are run with captured_while reading and answering, each in a process and a
run folder of its own, which of them first in turns: seconds on the clock, seconds of processor time (which other
programs hardly lengthen where OMP_NUM_THREADS is 1), loading included, and the most memory the process held. Then the
two caches are compared token by token, and with the one that was read what the target says when it reads the same
answers in smaller batches: the rounding that there is anyway. In another number type than float32 both are compared
with what it says in that. Logits are those of the target's own head in the states' number type; KL, in nats a token, is
of what something is compared with. With --repeats 0 the runs that are there are compared and none is made.

Shape suffixes used in this file:
    A = answer tokens of a split, one row each; H = width of the last hidden state; V = vocabulary entries
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from architectures.checkpoints.manifest import provenance
from distill.caching.capture import CaptureSettings, Split
from distill.caching.reading import TargetReading
from distill.losses.chunked import Head
from distill.recipe.recipe import Recipe, load_recipe
from distill.recipe.sections.teacher import teacher_dtype
from distill.run.run import Run
from distill.teacher_cache.contents import load_head
from distill.teacher_cache.reader import TeacherCache
from distill.train import read_answers

KINDS = ("reading", "answering")
ROWS_AT_ONCE = 256  # whose logits are held together
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run both kinds, compare their caches, print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="new run folders go here")
    parser.add_argument("--num-prompts", type=int, default=96, help="of the first source of the recipe")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("words", nargs="*", metavar="key=value")
    options = parser.parse_args()
    runs = [run(options, kind, repeat) for repeat in range(options.repeats) for kind in ordered(repeat)]
    recipes = {kind: recipe_of(options, kind, 0) for kind in KINDS}
    same = len({answers_of(recipe) for recipe in recipes.values()}) == 1
    record = {"runs": runs, "same_answers": same, "differences": differences(recipes), "provenance": provenance()}
    print(json.dumps(record["differences"], indent=1), f"answers the same: {same}", sep="\n")
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def ordered(repeat: int) -> Sequence[str]:
    """Which kind is first."""
    return KINDS if repeat % 2 == 0 else KINDS[::-1]


def words_of(options: argparse.Namespace, kind: str, repeat: int) -> list[str]:
    """What is changed of the recipe."""
    [path, *_] = [source.path for source in load_recipe(options.recipe, options.words).data.prompts]
    return [
        *options.words,
        f"run_dir={options.work / f'{kind}-{repeat}'}",
        f"data.prompts=[{{path: {path}, num_prompts: {options.num_prompts}}}]",
        f"distill.teacher.captured_while={kind}",
    ]


def recipe_of(options: argparse.Namespace, kind: str, repeat: int) -> Recipe:
    return load_recipe(options.recipe, words_of(options, kind, repeat))


def run(options: argparse.Namespace, kind: str, repeat: int) -> dict[str, Any]:
    """Both commands of one run."""
    figures: dict[str, Any] = {"captured_while": kind, "repeat": repeat}
    for command in ("generate", "cache"):
        words = [command, str(options.recipe), *words_of(options, kind, repeat)]
        start_s = time.perf_counter()
        process = subprocess.Popen([sys.executable, str(ROOT / "widedraft.py"), *words], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        assert status == 0, f"widedraft {command} ended with {status}"
        figures[f"{command}_s"] = round(time.perf_counter() - start_s, 1)
        figures[f"{command}_processor_s"] = round(used.ru_utime + used.ru_stime, 1)
        figures[f"{command}_peak_mib"] = round(used.ru_maxrss / 1024)
    print(json.dumps(figures), flush=True)
    return figures


def answers_of(recipe: Recipe) -> bytes:
    """All files of answers, one after the other."""
    return b"".join(path.read_bytes() for path in sorted(Run.of(recipe).data.path.glob("*-*.jsonl")))


@torch.inference_mode()
def differences(recipes: dict[str, Recipe]) -> dict[str, Any]:
    """Of kept states from read ones, of states read in smaller batches from the same, and of all from float32."""
    recipe = recipes["reading"]
    target = Run.of(recipe).target
    dtype, size = teacher_dtype(recipe.target.dtype, recipe.distill.precision), recipe.data.batch_size
    head = load_head(target, dtype=dtype, device="cpu")
    read, kept = (TeacherOutputs(cached_states(recipes[kind]), head) for kind in KINDS)
    smaller = TeacherOutputs(read_states(recipe, target, dtype, batch_size=max(1, size // 4)), head)
    rows = {"kept, from read": compared(read, kept), "read in smaller batches, from read": compared(read, smaller)}
    if dtype != "float32":
        whole = load_head(target, dtype="float32", device="cpu")
        exact = TeacherOutputs(read_states(recipe, target, "float32", batch_size=size), whole)
        rows |= {"kept, from float32": compared(exact, kept), "read, from float32": compared(exact, read)}
    largest = read.hidden_AH.abs().max().item()
    return {"dtype": dtype, "tokens": len(read.hidden_AH), "largest_state": largest, **rows}


@dataclass(frozen=True)
class TeacherOutputs:
    """What a teacher outputs for every answer token: its states, and the head that makes logits of them."""

    hidden_AH: Tensor
    head: Head

    def logits(self) -> Iterator[Tensor]:
        """Logits_AV, some rows at a time."""
        return (self.head.logits(rows).float() for rows in self.hidden_AH.split(ROWS_AT_ONCE))


def cached_states(recipe: Recipe) -> Tensor:
    """hidden_AH of both splits."""
    caches = [TeacherCache(Run.of(recipe).teacher_cache.path, name) for name in ("train", "eval")]
    return torch.cat([cache.rows(answer)["hidden"] for cache in caches for answer in range(len(cache))])


def read_states(recipe: Recipe, target: Path, dtype: str, *, batch_size: int) -> Tensor:
    """The same, read anew."""
    source = TargetReading(target, CaptureSettings(recipe.distill.teacher, dtype=dtype, seed=0, batch_size=batch_size))
    parts = []
    for name, answers in zip(("train", "eval"), read_answers(Run.of(recipe)), strict=True):
        split = Split(name, answers.examples, recipe.distill.teacher, 0, [])
        states = dict(source.states(split, range(len(answers))))
        parts += [states[answer] for answer in range(len(answers))]
    return torch.cat(parts)


def compared(first: TeacherOutputs, second: TeacherOutputs) -> dict[str, float]:
    """How far the other is from the one, in states and in logits."""
    chunks = [compared_logits(*pair) for pair in zip(first.logits(), second.logits(), strict=True)]
    largest, nats, agreeing = zip(*chunks, strict=True)
    return {
        "largest_difference_of_a_state": (first.hidden_AH.float() - second.hidden_AH.float()).abs().max().item(),
        "largest_difference_of_a_logit": max(largest),
        "mean_kl_nats": sum(nats) / len(first.hidden_AH),
        "same_argmax_rate": sum(agreeing) / len(first.hidden_AH),
    }


def compared_logits(first_AV: Tensor, second_AV: Tensor) -> tuple[float, float, int]:
    """Largest difference, sum of KL in nats, and rows with one argmax."""
    log_p_AV, log_q_AV = first_AV.double().log_softmax(-1), second_AV.double().log_softmax(-1)
    nats = (log_p_AV.exp() * (log_p_AV - log_q_AV)).sum().item()
    agreeing = int((first_AV.argmax(-1) == second_AV.argmax(-1)).sum())
    return (first_AV - second_AV).abs().max().item(), nats, agreeing


if __name__ == "__main__":
    main()
