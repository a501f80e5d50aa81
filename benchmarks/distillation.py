"""Which loss makes the better draft, and what a cached teacher costs in acceptance: same answers, tokens and seeds.

    python benchmarks/distillation.py --target models/SmolLM2-135M-Instruct --prompts FILE... --out FILE

The target answers the prompts twice, greedily and at temperature 1, and its last hidden states, top 64 entries and 12
samples per token are cached. Every variant of VARIANTS is then trained by the trainer of `distill.train` from one and
the same cut draft, and scored by exact replay on the held-out answers of both kinds. A seed draws the order of answers.
Every finished cell is a line of --out; a rerun does the missing ones. `--table` prints what is there: the seeds' pooled
counts, with intervals by bootstrap over prompts, and the paired difference to forward KL from a live teacher's states.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from architectures.checkpoints.manifest import git_commit, hardware
from distill.data.batches import AnswerDataset
from distill.monitoring.metrics import tau_terms
from distill.recipe.recipe import Recipe
from distill.run.progressive import share_answers
from distill.run.run import Run
from distill.stages.running import cache_stage, generate_stage, prune_stage
from distill.teacher_cache.answers import CachedAnswers
from distill.teacher_cache.reader import TeacherCache
from distill.train import restore_signals
from distill.training.model import DistillModel, HeldOut
from distill.training.trainer import build_model, build_trainer
from eval.acceptance.estimates import Estimate, Resampling, paired_ratio_difference, pooled_ratio
from eval.answers.traces import read_traces

DTYPES = {"amp_bf16": "bfloat16", "fp32": "float32"}  # of the target, also where it answers
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
HIDDEN, TOP_64, SAMPLES_12 = {}, {"contents": "top_k", "k": 64}, {"contents": "samples", "num_samples": 12}
VARIANTS: dict[str, dict[str, Any]] = {
    "forward_kl": {"loss": "forward_kl"},
    "reverse_kl": {"loss": "reverse_kl"},
    "kl_mixture": {"loss": "kl_mixture"},
    "jensen_shannon": {"loss": "jensen_shannon"},
    "skewed_forward_kl": {"loss": "skewed_forward_kl"},
    "skewed_reverse_kl": {"loss": "skewed_reverse_kl"},
    "total_variation": {"loss": "total_variation"},
    "negative_log_acceptance": {"loss": "negative_log_acceptance"},
    "lk_hybrid": {"loss": "lk_hybrid"},
    "cross_entropy": {"loss": "cross_entropy"},
    "forward_kl, top 64": {"loss": "forward_kl", "teacher": TOP_64},
    "forward_kl, 12 samples": {"loss": "forward_kl", "teacher": SAMPLES_12},
}
BASE = "forward_kl"
LOOKAHEAD = 4
RESAMPLING = Resampling(num_resamples=2000, confidence=0.95, seed=1)

Line = dict[str, Any]
Result = TypeVar("Result")


def main() -> None:
    """Fill the missing cells, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", help="JSON lines, of one task each")
    parser.add_argument("--num-prompts", type=int, default=106, help="of each file, the first so many")
    parser.add_argument("--held-out", type=int, default=64, help="of all prompts together")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/distillation"), help="answers, caches and cut drafts")
    parser.add_argument("--data", nargs="+", choices=TEMPERATURES, default=list(TEMPERATURES))
    parser.add_argument("--layers", type=int, nargs="+", default=[6])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=DTYPES, default="amp_bf16")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(finished(options.out)))
        return
    restore_signals()
    fill(options)


def fill(options: argparse.Namespace) -> None:
    """Do every cell that has no line yet."""
    done = {key_of(line) for line in finished(options.out)}
    for seed in options.seeds:
        for layers in options.layers:
            for data in options.data:
                for variant in options.variants:
                    cell = {"layers": layers, "data": data, "variant": variant, "seed": seed}
                    if key_of(cell) in done:
                        continue
                    line = cell | in_its_own_process(partial(train_and_score, **cell), options)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    taus = {name: round(taus_of([line], name).value, 3) for name in TEMPERATURES}
                    print(cell, taus, f"{line['train_s']:.0f} s", flush=True)


def in_its_own_process(work: Callable[..., Result], options: argparse.Namespace, *arguments: Any) -> Result:
    """What some work gives; a process that trained a dozen times would hold ten times the memory of one training."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(prepared, work, options, *arguments).result()


def prepared(work: Callable[..., Result], options: argparse.Namespace, *arguments: Any) -> Result:
    """The same, in the process made for it."""
    restore_signals()
    torch.set_num_threads(options.threads)
    return work(options, *arguments)


def key_of(line: Line) -> tuple[Any, ...]:
    return (line["layers"], line["data"], line["variant"], line["seed"])


def recipe_of(options: argparse.Namespace, data: str, teacher: dict[str, Any], *, layers: int = 6) -> Recipe:
    """The recipe of answers of one kind, what is kept of the teacher, and a draft's shape."""
    contents = teacher.get("contents", "hidden")
    return Recipe.model_validate(
        {
            "run_name": "distillation",
            "run_dir": str(options.work / f"{data}-{contents}"),
            "target": {"path": str(options.target), "dtype": DTYPES[options.precision]},
            "architecture": {"layers": layers, "scores": str(options.work / "scores")},
            "data": {
                "prompts": [{"path": str(path), "num_prompts": options.num_prompts} for path in options.prompts],
                "num_eval_prompts": options.held_out,
                "max_seq_len": 512,
                "max_new_tokens": 160,
                "temperature": TEMPERATURES[data],
            },
            "distill": {
                "teacher": {"source": "cache", **teacher},
                "global_train_batch_size": 4,
                "precision": options.precision,
                "eval_first": False,
                "eval_interval": "1dur",
                "save_interval": "1dur",
                "progress_bar": False,
            },
        }
    )


def answers_of(options: argparse.Namespace, data: str, teacher: dict[str, Any]) -> dict[str, CachedAnswers]:
    """The target's answers of one kind with what is kept of the teacher, made where they are not there yet."""
    recipe, base = recipe_of(options, data, teacher), recipe_of(options, data, HIDDEN)
    run, answers = Run.of(recipe), Run.of(base).data.path
    generate_stage(Run.of(base))
    share_answers(Run.of(base), run)
    cache_stage(run)
    sets = {name: AnswerDataset(read_traces(answers, name), max_seq_len=512) for name in ("train", "eval")}
    return {
        name: CachedAnswers(answer_set, TeacherCache(run.teacher_cache.path, name)) for name, answer_set in sets.items()
    }


def cut_draft(options: argparse.Namespace, layers: int) -> Path:
    """The draft every cell of so many layers begins from."""
    recipe = recipe_of(options, "greedy", HIDDEN, layers=layers)
    recipe = recipe.model_copy(update={"run_dir": str(options.work / f"{layers}-layers")})
    prune_stage(Run.of(recipe))
    return Run.of(recipe).init.path


def train_and_score(options: argparse.Namespace, *, layers: int, data: str, variant: str, seed: int) -> Line:
    """One epoch on the answers; then tau on held-out answers of both kinds."""
    settings = VARIANTS[variant]
    teacher = settings.get("teacher", HIDDEN)
    sets = answers_of(options, data, teacher)
    held_out = {name: answers_of(options, name, HIDDEN)["eval"] for name in TEMPERATURES}
    recipe = recipe_of(options, data, teacher, layers=layers).model_copy(update={"seed": seed})
    distill = recipe.distill.model_copy(update={"loss": settings["loss"]})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "init").symlink_to(cut_draft(options, layers).resolve())
        recipe = recipe.model_copy(update={"run_dir": folder, "distill": distill})
        model = build_model(Run.of(recipe), eval_tasks=sets["eval"].answers.tasks)
        trainer = build_trainer(Run.of(recipe), model, train_set=sets["train"], eval_set=sets["eval"], checkpoint=None)
        start_s = time.perf_counter()
        trainer.fit()
        train_s = time.perf_counter() - start_s
        trainer.engine.close()
    return {
        "scores": {name: score(model, held_out[name], TEMPERATURES[name]) for name in TEMPERATURES},
        "tokens": sets["train"].answers.counts.answer_tokens,
        "lookahead": LOOKAHEAD,
        "train_s": round(train_s, 1),
        "precision": options.precision,
        "commit": git_commit(),
        "hardware": hardware(),
    }


@torch.inference_mode()
def score(model: DistillModel, held_out: CachedAnswers, temperature: float) -> dict[str, list[float]]:
    """Of each held-out answer: tokens emitted and rounds of replay, and sums of alpha and of greedy matches."""
    model.eval()
    model.held_out = HeldOut(held_out.answers.tasks, temperature)
    loader = DataLoader(held_out, batch_size=8, collate_fn=held_out.collate)
    answers = [answer for batch in loader for answer in model.eval_forward(batch)]
    return {name: [value(answer) for answer in answers] for name, value in SUMS.items()}


SUMS = {
    "emitted": lambda answer: tau_terms(answer, lookahead=LOOKAHEAD)[0],
    "rounds": lambda answer: tau_terms(answer, lookahead=LOOKAHEAD)[1],
    "alpha": lambda answer: round(float(answer.alpha.sum()), 4),
    "match": lambda answer: float(answer.match.sum()),
    "tokens": lambda answer: len(answer.match),
}


def finished(out: Path) -> list[Line]:
    """The lines written so far."""
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.is_file() else []


def pooled(lines: Sequence[Line], scored: str, name: str) -> list[float]:
    """A sum of each prompt, over the seeds."""
    return [sum(values) for values in zip(*(line["scores"][scored][name] for line in lines), strict=True)]


def taus_of(lines: Sequence[Line], scored: str) -> Estimate:
    """Tau of the seeds' pooled counts."""
    return pooled_ratio(pooled(lines, scored, "emitted"), pooled(lines, scored, "rounds"), RESAMPLING)


def table(lines: Sequence[Line]) -> str:
    """Markdown: one table for each number of layers and kind of training answers, the best greedy tau first."""
    groups = sorted({(line["layers"], line["data"]) for line in lines})
    return "\n\n".join("\n".join(rows([line for line in lines if (line["layers"], line["data"]) == group], group))
                       for group in groups)  # fmt: skip


def rows(lines: Sequence[Line], group: tuple[int, str]) -> Iterator[str]:
    """The table of one group."""
    yield f"{group[0]} layers, trained on {group[1]} answers, {lines[0]['tokens']:,} tokens"
    yield ""
    yield "| variant | seeds | τ greedy | − forward_kl | τ at T=1 | − forward_kl | α | seconds |"
    yield "|" + "---|" * 8
    cells = {name: [line for line in lines if line["variant"] == name] for name in VARIANTS}
    measured = {name: cell for name, cell in cells.items() if cell}
    for name, cell in sorted(measured.items(), key=lambda entry: -taus_of(entry[1], "greedy").value):
        columns = [
            part for scored in TEMPERATURES for part in (shown(taus_of(cell, scored)), gap(measured, name, scored))
        ]
        alpha = sum(pooled(cell, "sampled", "alpha")) / sum(pooled(cell, "sampled", "tokens"))
        seconds = sum(line["train_s"] for line in cell) / len(cell)
        yield f"| {name} | {len(cell)} | {' | '.join(columns)} | {alpha:.3f} | {seconds:.0f} |"


def gap(cells: dict[str, list[Line]], name: str, scored: str) -> str:
    """Tau less that of forward KL, on the same prompts and the seeds that both have."""
    seeds = {line["seed"] for line in cells[name]} & {line["seed"] for line in cells.get(BASE, [])}
    if name == BASE or not seeds:
        return "—"
    both = [[line for line in cells[each] if line["seed"] in seeds] for each in (name, BASE)]
    first, second = ((pooled(cell, scored, "emitted"), pooled(cell, scored, "rounds")) for cell in both)
    return shown(paired_ratio_difference(first, second, RESAMPLING), "+.3f")


def shown(estimate: Estimate, form: str = ".3f") -> str:
    """A value and its interval."""
    assert estimate.interval is not None
    low, high = estimate.interval
    return f"{estimate.value:{form}} [{low:{form}}, {high:{form}}]"


if __name__ == "__main__":
    main()
