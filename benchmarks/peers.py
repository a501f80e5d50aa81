"""widedraft beside TRL's GKDTrainer: how fast each trains, and what draft each makes in the same wall-clock.

    pip install --target PEERS --no-deps trl
    PYTHONPATH=.:PEERS python benchmarks/peers.py --target models/SmolLM2-135M-Instruct --prompts FILE... --out FILE

All train one and the same cut draft on the target's own greedy answers of benchmarks/distillation.py (--work is
shared), token for token, 4 answers a step, AdamW at 1e-3 with the same schedule, products and teacher in bfloat16 or,
with --precision fp32, in float32.

First --rounds times --steps steps of each in turns: seconds a step, the first left out. Then each trains for as long as
an epoch of `widedraft` takes by these figures, and is scored by exact replay on held-out answers, at lookahead 4.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from composer import Callback, Logger, State
from datasets import Dataset
from distillation import (
    DTYPES,
    HIDDEN,
    RESAMPLING,
    TEMPERATURES,
    Line,
    answers_of,
    cut_draft,
    in_its_own_process,
    recipe_of,
    score,
    shown,
    taus_of,
)
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, TrainerCallback

from architectures.checkpoints.manifest import git_commit, hardware
from distill.data.batches import Example
from distill.recipe.sections.teacher import LiveTeacher, default_loss
from distill.run.run import Run
from distill.teacher_cache.answers import CachedAnswers
from distill.training.trainer import build_model, build_trainer
from eval.acceptance.estimates import paired_ratio_difference
from eval.models.loading import load_model

IGNORED = -100  # a label that makes no loss
LR, WARMUP, END = 1e-3, 0.05, 0.1
DEFAULT_LOSS = default_loss(LiveTeacher())


@dataclass(frozen=True)
class Trained:
    """What a contestant did: when each of its steps ended, in seconds, and its student's folder."""

    ends_s: Sequence[float]
    student: Path

    @property
    def step_s(self) -> float:
        """Seconds a step: the first, which warms everything up, left out, and so is what comes after the last."""
        return (self.ends_s[-1] - self.ends_s[0]) / (len(self.ends_s) - 1)


class StepEnds(Callback, TrainerCallback):
    """Notes when a step ends, for Composer's trainer and for transformers'."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        self.ends_s.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends_s.append(time.perf_counter())


Contestant = Callable[[argparse.Namespace, int, Path], Trained]


def main() -> None:
    """Measure speed, then quality in equal time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", help="as for benchmarks/distillation.py")
    parser.add_argument("--num-prompts", type=int, default=106)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--work", type=Path, default=Path("runs/distillation"))
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each contestant and seed")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=DTYPES, default="amp_bf16")
    parser.add_argument("--table", action="store_true", help="print what --out holds, and measure nothing")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]))
        return
    if options.target is None or options.prompts is None:
        parser.error("--target and --prompts are needed, but for --table")
    seconds = step_seconds(options)
    epoch = -(-len(answers_of(options, "greedy", HIDDEN)["train"]) // 4)
    budget_s = epoch * median(seconds[REFERENCE])
    for name in options.contestants:
        line = in_its_own_process(outcome, options, name, max(1, round(budget_s / median(seconds[name]))))
        line = {"contestant": name, "seed": options.seed, "budget_s": round(budget_s, 1), **line}
        line |= {"step_s": [round(each, 3) for each in seconds[name]], "commit": git_commit(), "hardware": hardware()}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        taus = {scored: round(taus_of([line], scored).value, 3) for scored in TEMPERATURES}
        print(name, {key: line[key] for key in ("steps", "seconds", "step_s")}, taus, flush=True)


def step_seconds(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a step of every contestant, of each round; the one measured against is always among them."""
    seconds: dict[str, list[float]] = {name: [] for name in {REFERENCE: None, **dict.fromkeys(options.contestants)}}
    for _ in range(options.rounds):
        for name, spent in seconds.items():
            spent.append(in_its_own_process(seconds_of, options, name, options.steps))
            print(name, round(spent[-1], 3), "s a step", flush=True)
    return seconds


def seconds_of(options: argparse.Namespace, name: str, steps: int) -> float:
    """Seconds a step of one contestant."""
    with tempfile.TemporaryDirectory() as folder:
        return CONTESTANTS[name](options, steps, Path(folder)).step_s


def outcome(options: argparse.Namespace, name: str, steps: int) -> dict[str, Any]:
    """Train for so many steps and score."""
    with tempfile.TemporaryDirectory() as folder:
        trained = CONTESTANTS[name](options, steps, Path(folder))
        recipe = recipe_of(options, "greedy", HIDDEN, layers=options.layers)
        home = trained.student.parent  # build_model reads <run>/init
        held_out = {kind: answers_of(options, kind, HIDDEN)["eval"] for kind in TEMPERATURES}
        tasks = held_out["greedy"].answers.tasks
        model = build_model(Run.of(recipe.model_copy(update={"run_dir": str(home)})), eval_tasks=tasks)
        scores = {kind: score(model, held_out[kind], temperature) for kind, temperature in TEMPERATURES.items()}
    return {"steps": steps, "seconds": round(trained.step_s * steps, 1), "scores": scores}


def ours(options: argparse.Namespace, steps: int, folder: Path, *, loss: str, cached: bool) -> Trained:
    """The trainer of distill.train."""
    recipe = recipe_of(options, "greedy", HIDDEN, layers=options.layers)
    sets = answers_of(options, "greedy", HIDDEN)
    teacher = recipe.distill.teacher if cached else LiveTeacher()
    distill = recipe.distill.model_copy(update={"loss": loss, "teacher": teacher, "max_duration": f"{steps}ba"})
    (folder / "init").symlink_to(cut_draft(options, options.layers).resolve())
    recipe = recipe.model_copy(update={"run_dir": str(folder), "distill": distill, "seed": options.seed})
    model = build_model(Run.of(recipe), eval_tasks=sets["eval"].answers.tasks)
    train_set = sets["train"] if cached else sets["train"].answers
    first = first_of(sets["eval"])
    eval_set = first if cached else first.answers
    trainer = build_trainer(Run.of(recipe), model, train_set=train_set, eval_set=eval_set, checkpoint=None)
    trainer.state.callbacks.append(ends := StepEnds())
    trainer.fit()
    trainer.engine.close()
    return Trained(ends.ends_s, written(model.student.lm, folder / "trained" / "init"))


def first_of(held_out: CachedAnswers) -> CachedAnswers:
    """One held-out answer, so that the evaluation at the end costs nothing."""
    first = copy(held_out)
    first.answers = copy(held_out.answers)
    first.answers.examples = held_out.answers.examples[:1]
    return first


def trl(options: argparse.Namespace, steps: int, folder: Path, **settings: float) -> Trained:
    """TRL's GKDTrainer, on the same tokens."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer  # pyright: ignore[reportMissingImports]

    student = load_model(cut_draft(options, options.layers), dtype="float32", device="cpu")
    config = GKDConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=LR,
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        warmup_steps=WARMUP,  # a fraction of the steps
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": END},
        max_grad_norm=1.0,
        bf16=options.precision == "amp_bf16",
        use_cpu=True,
        seed=options.seed,
        gradient_checkpointing=False,
        max_new_tokens=160,
        save_strategy="no",
        logging_steps=1000,
        report_to=[],
        disable_tqdm=True,
        **settings,
    )
    trainer = GKDTrainer(
        model=student,
        teacher_model=load_model(options.target, dtype=DTYPES[options.precision], device="cpu"),
        args=config,
        data_collator=collated,
        train_dataset=labelled(answers_of(options, "greedy", HIDDEN)["train"].answers.examples),
        processing_class=AutoTokenizer.from_pretrained(options.target),
    )
    trainer.add_callback(ends := StepEnds())
    trainer.train()
    return Trained(ends.ends_s, written(student, folder / "trained" / "init"))


def labelled(examples: Sequence[Example]) -> Dataset:
    """Whole texts, with labels at the answers' tokens alone."""
    texts = [[*example.input_ids, example.last_id] for example in examples]
    prompt_lens = [len(text) - example.num_kept for text, example in zip(texts, examples, strict=True)]
    labels = [[IGNORED] * length + text[length:] for text, length in zip(texts, prompt_lens, strict=True)]
    return Dataset.from_dict({"input_ids": texts, "labels": labels})


def collated(rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch as GKDTrainer wants it, with the prompts by themselves, to be continued."""
    texts = [torch.tensor(row["input_ids"]) for row in rows]
    labels = [torch.tensor(row["labels"]) for row in rows]
    prompts = [text[label == IGNORED] for text, label in zip(texts, labels, strict=True)]
    return {
        "input_ids": pad_sequence(texts, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(text) for text in texts], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        "prompts": pad_sequence(prompts, batch_first=True, padding_side="left"),
        "prompt_attention_mask": pad_sequence(
            [torch.ones_like(prompt) for prompt in prompts], batch_first=True, padding_side="left"
        ),
    }


def written(student: Any, folder: Path) -> Path:
    """The student's folder, as build_model reads it."""
    student.save_pretrained(folder)
    return folder


def table(lines: Sequence[Line]) -> str:
    """Markdown: speed in turns against the reference's, and tau of what each made, less the reference's."""
    rows = [
        "| trainer | seconds a step | of ours | steps | tau, greedy | less ours | tau at T = 1 | less ours |",
        "|" + "---|" * 8,
    ]
    [base] = [line for line in lines if line["contestant"] == REFERENCE]
    for line in lines:
        ratios = [own / ours for own, ours in zip(line["step_s"], base["step_s"], strict=True)]
        cells = [line["contestant"], f"{median(line['step_s']):.2f}", f"{median(ratios):.2f}", str(line["steps"])]
        for scored in TEMPERATURES:
            cells += [shown(taus_of([line], scored)), "—" if line is base else difference(line, base, scored)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def difference(line: Line, base: Line, scored: str) -> str:
    """Tau less the reference's, on the same prompts."""
    first, second = ((each["scores"][scored]["emitted"], each["scores"][scored]["rounds"]) for each in (line, base))
    return shown(paired_ratio_difference(first, second, RESAMPLING), "+.3f")


REFERENCE = "widedraft"
CONTESTANTS: dict[str, Contestant] = {
    REFERENCE: partial(ours, loss=DEFAULT_LOSS, cached=False),
    "widedraft, cached teacher": partial(ours, loss=DEFAULT_LOSS, cached=True),
    "widedraft, forward KL": partial(ours, loss="forward_kl", cached=False),  # Online Speculative Decoding
    "widedraft, cross-entropy": partial(ours, loss="cross_entropy", cached=False),  # Sheared-LLaMA
    "TRL GKD, forward KL": partial(trl, lmbda=0.0, beta=0.0, temperature=1.0),
    "TRL GKD, its defaults": trl,
}


if __name__ == "__main__":
    main()
