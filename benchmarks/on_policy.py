"""Who should write the answers that a draft learns from: `distill.samples`, at equal teacher tokens and equal minutes.

    python -m benchmarks.on_policy --target models/SmolLM2-135M-Instruct --work runs/on-policy --tokens 24000
    python -m benchmarks.on_policy --target models/SmolLM2-135M-Instruct --work runs/on-policy --tokens 24000 --minutes

The quickstart (one layer, 4,096 ids) with a live teacher: every arm from the same start, on the same prompts. With
`--tokens` every arm reads as many tokens, prompts included; with `--minutes` every arm takes as many seconds of the
processor as `student` took for these tokens (steps alone: no loading, evaluation or checkpoint). Set OMP_NUM_THREADS=1
on a busy machine: threads that wait for each other count as work. All drafts are scored on the target's own answers to
the same held-out prompts, greedy and at temperature 1, with paired intervals over prompts. One seed; what was trained
is kept in --work, and a second call trains what is missing.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer import Callback, Logger, State

from distill.process.exits import report_user_errors
from distill.recipe.recipe import Recipe, load_recipe
from distill.rollouts.rollouts import STUDENT_TOKENS, TEACHER_TOKENS, Rollouts
from distill.run.run import Run
from distill.stages.running import generate_stage, prune_stage
from distill.stages.table import eval_prompts
from distill.train import export, fit, read_answers
from distill.training.trainer import build_model, build_trainer
from eval.acceptance.draft_scores import DraftScore
from eval.acceptance.estimates import Estimate, Resampling
from eval.decoding.sampling import Sampling
from eval.models.loading import load_model
from eval.scorecard.acceptance_record import difference_row, mean
from eval.scorecard.answers import record_answers
from eval.scorecard.loaded_models import Pair, replay_drafts

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
ARMS = {
    "teacher": "{}",
    "student": "{source: student}",
    "student_T1": "{source: student, temperature: 1.0}",
    "mix_request": "{source: mix_request, probability: 0.5}",
    "ramp": "{source: mix_request, probability: 0.5, temperature: 1.0, ramp: 0.5dur}",
    "mix_token": "{source: mix_token, probability: 0.5}",
}
MEASURE = "student"  # whose minutes the others get
RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
LOOKAHEADS = range(1, 4)


class ProcessorTime(Callback):
    """Adds up the processor's seconds of all steps, from fetching a batch to the end of the optimiser's."""

    def __init__(self) -> None:
        self.began_s = self.seconds = 0.0

    def before_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        self.began_s = time.process_time()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        self.seconds += time.process_time() - self.began_s


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing, score everything and print the table; the exit code of the process."""
    return report_user_errors(lambda: run(parsed(argv)))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_policy", description="Compare sources of answers.")
    parser.add_argument("--target", type=Path, required=True, help="folder of the model")
    parser.add_argument("--work", type=Path, required=True, help="prompts, answers and drafts")
    parser.add_argument("--tokens", type=int, required=True, help="that every arm reads, prompts included")
    parser.add_argument("--minutes", action="store_true", help=f"also as long as {MEASURE} took for these tokens")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    return parser.parse_args(argv)


def run(asked: argparse.Namespace) -> None:
    base = base_recipe(asked)
    generate_stage(Run.of(base))
    prune_stage(Run.of(base))
    drafts = {arm: trained(asked, arm, "tokens", asked.tokens) for arm in asked.arms}
    if asked.minutes:
        budget_s = drafts[MEASURE]["seconds"]
        drafts |= {
            f"{arm}, equal minutes": told
            if arm == MEASURE
            else trained(asked, arm, "minutes", round(asked.tokens * budget_s / told["seconds"]))
            for arm, told in drafts.items()
        }
    print("\n".join(table(asked, base, drafts)))


def base_recipe(asked: argparse.Namespace) -> Recipe:
    """The run whose answers and cut all arms share."""
    return recipe_of(asked, "base", "{}", asked.tokens)


def recipe_of(asked: argparse.Namespace, name: str, samples: str, tokens: int) -> Recipe:
    """The quickstart's, with a live teacher."""
    words = {
        "run_name": name,
        "run_dir": asked.work / name,
        "target.path": asked.target,
        "distill.teacher": "{source: live}",
        "distill.samples": samples,
        "distill.max_duration": f"{tokens}tok",
        "distill.eval_first": "false",
        "distill.eval_interval": "1dur",
        "distill.save_interval": "1dur",
        "distill.progress_bar": "false",
    }
    return load_recipe(QUICKSTART, [f"{key}={value}" for key, value in words.items()])


def trained(asked: argparse.Namespace, arm: str, measure: str, tokens: int) -> dict[str, Any]:
    """The draft of an arm, trained unless it is there, and what that took."""
    name = f"{arm}-{measure}"
    told = asked.work / f"{name}.json"
    if not told.is_file():
        recipe = recipe_of(asked, name, ARMS[arm], tokens)
        share(asked.work / "base", Path(recipe.run_dir))
        told.write_text(json.dumps({"tokens": tokens, **trained_now(recipe)}), encoding="utf-8")
    return {"draft": asked.work / name / "draft", **json.loads(told.read_text(encoding="utf-8"))}


def share(base: Path, folder: Path) -> None:
    """Let an arm have the answers and the cut of all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "init"):
        if not (folder / name).exists():
            (folder / name).symlink_to((base / name).resolve())


def trained_now(recipe: Recipe) -> dict[str, Any]:
    """Train and export; steps, the processor's seconds, and who wrote how many tokens."""
    run_, clock = Run.of(recipe), ProcessorTime()
    train_set, eval_set = read_answers(run_)
    model = build_model(run_, eval_tasks=eval_set.tasks)
    trainer = build_trainer(run_, model, train_set=train_set, eval_set=eval_set, checkpoint=None)
    trainer.state.callbacks.append(clock)
    try:
        fit(run_, trainer)
    finally:
        trainer.engine.close()
    export(run_)
    written = [each.state_dict() for each in trainer.state.callbacks if isinstance(each, Rollouts)]
    counts = written[0] if written else {}
    return {"seconds": clock.seconds, "steps": trainer.state.timestamp.batch.value, **counts}


def table(asked: argparse.Namespace, base: Recipe, drafts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Every draft at both temperatures, and its difference from the one that learned from the teacher's answers."""
    scored = scores(asked, base, drafts)
    head = ("", "steps", "tokens read", "by the student", "s", "T = 0", "over teacher", "T = 1", "over teacher")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, told in drafts.items():
        baseline = "teacher, equal minutes" if name not in ARMS and "teacher, equal minutes" in drafts else "teacher"
        share = share_of(told)
        cells = [name, f"{told['steps']}", f"{told['tokens']:,}", share, f"{told['seconds']:.0f}"]
        for temperature in base.eval.temperatures:
            ours, theirs = scored[temperature][name], scored[temperature][baseline]
            cells.append(words(mean(ours.alpha_columns(), RESAMPLING)))
            same = name == baseline
            cells.append("" if same else words(difference_row([ours], [theirs], RESAMPLING).alpha, signed=True))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def share_of(told: Mapping[str, Any]) -> str:
    """Of the answer tokens, those that the student wrote."""
    names = [name.removeprefix("samples/") for name in (TEACHER_TOKENS, STUDENT_TOKENS)]
    theirs, ours = (told.get(name, 0) for name in names)
    return f"{ours / (ours + theirs):.0%}" if ours else "none"


def words(estimate: Estimate, *, signed: bool = False) -> str:
    assert estimate.value is not None
    assert estimate.interval is not None
    form = "+.3f" if signed else ".3f"
    return f"{estimate.value:{form}} [{estimate.interval[0]:{form}}, {estimate.interval[1]:{form}}]"


def scores(
    asked: argparse.Namespace, base: Recipe, drafts: Mapping[str, Mapping[str, Any]]
) -> dict[float, dict[str, DraftScore]]:
    """Every draft along the same answers of the target, by temperature and name."""
    prompts, dtype = eval_prompts(Run.of(base))[: base.eval.num_prompts], base.eval.dtype
    pair = Pair(
        load_model(asked.target, dtype=dtype),
        {name: load_model(told["draft"], dtype=dtype) for name, told in drafts.items()},
    )
    found = {}
    for temperature in base.eval.temperatures:
        answers = record_answers(asked.target, prompts, base.eval, asked.work, temperature=temperature, seed=base.seed)
        replayed = replay_drafts(pair, answers, sampling=Sampling(temperature))
        found[temperature] = {each.draft: each.scores(LOOKAHEADS)[0] for each in replayed}
    return found


if __name__ == "__main__":
    sys.exit(main())
