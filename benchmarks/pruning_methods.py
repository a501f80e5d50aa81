"""Which way of cutting a target makes the better draft, before and after the same short distillation.

    python benchmarks/pruning_methods.py --target models/SmolLM2-135M-Instruct --data RUN/data --prompts FILE --out FILE

For every shape, method and seed: cut, score, distil on the same answers (the seed draws their order, and what is
random), score again. A score is tau at --lookahead and the argmax agreement, by exact replay on held-out answers at
temperature 0. Every finished cell is a line of --out; a rerun does the missing ones. `--table` prints what is there:
means over seeds, intervals by bootstrap over prompts of the seeds' pooled counts.

The teacher is run once: its last hidden states at the answers' positions are kept, and its head makes logits of them.
Learned masks are trained once for every shape, on the same prompts and answers as text, in the folder --masks; these
tokens come on top of what every cell is distilled on.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from architectures.checkpoints.manifest import git_commit, hardware
from architectures.pruning.prune import prune_checkpoint
from distill.data.batches import AnswerDataset, Example, collate
from distill.formulas.dense import forward_kl
from distill.losses.answer_logits import AnswerLogits, logits_of
from distill.recipe.recipe import Recipe, save_recipe
from distill.run.run import Run
from distill.run.training import masks_are_due
from distill.stages.processes import training_command, training_environment
from distill.stages.pruning import weights_and_plan
from eval.acceptance.estimates import Resampling, pooled_ratio
from eval.acceptance.replay import as_array, replay_counts
from eval.answers.traces import Trace, read_traces
from eval.models.loading import load_model, load_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "6 layers": {"layers": 6},
    "4 layers": {"layers": 4},
    "6 layers, half the neurons": {"layers": 6, "intermediate": "0.5x"},
}
METHODS: dict[str, dict[str, Any]] = {
    "first_last": {"method": "first_last"},
    "first_last, rescaled": {"method": "first_last", "rescale": True},
    "evenly_spaced": {"method": "evenly_spaced"},
    "block_influence": {"method": "block_influence"},
    "greedy": {"method": "greedy"},
    "merge": {"method": "merge"},
    "random": {"method": "random"},
    "learned_masks": {"method": "learned_masks"},
}
BATCH_SIZE, LEARNING_RATE, MAX_SEQ_LEN = 4, 1e-3, 512
MASK_BATCH_SIZE, MASK_SEQ_LEN = 2, 128


@dataclass(frozen=True)
class Lesson:
    """One answer and what the teacher's head reads at its positions, hidden_AH."""

    example: Example
    answer_ids: tuple[int, ...]
    hidden: Tensor


def main() -> None:
    """Fill the missing cells, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the data folder of a run: the target's answers")
    parser.add_argument("--prompts", type=Path, help="JSON lines the scores are computed on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scores", type=Path, default=Path("runs/scores"))
    parser.add_argument("--masks", type=Path, default=Path("runs/masks"), help="a run for each shape's learned masks")
    parser.add_argument("--mask-batches", type=int, default=200, help=f"of {MASK_BATCH_SIZE} x {MASK_SEQ_LEN} tokens")
    parser.add_argument("--tokens", type=int, default=20000, help="answer tokens trained on")
    parser.add_argument("--held-out", type=int, default=32, help="held-out answers scored on")
    parser.add_argument("--lookahead", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(finished(options.out)))
        return
    torch.set_num_threads(options.threads)
    fill(options)


def fill(options: argparse.Namespace) -> None:
    """Do every cell that has no line yet."""
    target = load_model(options.target, dtype="bfloat16")
    lessons = ask_teacher(target, enough(read_traces(options.data, "train"), options.tokens))
    held_out = ask_teacher(target, read_traces(options.data, "eval")[: options.held_out])
    done = {(line["shape"], line["method"], line["seed"]) for line in finished(options.out)}
    for seed in options.seeds:
        for shape in options.shapes:
            for method in options.methods:
                if (shape, method, seed) not in done:
                    line = cell(options, target, lessons, held_out, shape=shape, method=method, seed=seed)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(
                        {key: line[key] for key in ("shape", "method", "seed", "before", "after", "elapsed_s")},
                        flush=True,
                    )


def cell(
    options: argparse.Namespace,
    target: PreTrainedModel,
    lessons: Sequence[Lesson],
    held_out: Sequence[Lesson],
    *,
    shape: str,
    method: str,
    seed: int,
) -> dict[str, Any]:
    """Cut, score, distil, score."""
    start_s = time.perf_counter()
    if method == "learned_masks":
        recipe = train_masks(options, shape)
    else:
        recipe = recipe_of(options, {**SHAPES[shape], **METHODS[method]}, seed)
    source, plan, _ = weights_and_plan(Run.of(recipe))
    with tempfile.TemporaryDirectory() as folder:
        prune_checkpoint(source, plan, Path(folder) / "draft", dtype="float32")
        student = load_model(Path(folder) / "draft", dtype="float32")
    before = score(student, target, held_out, options.lookahead)
    loss_nats = train(student, target, lessons, seed)
    after = score(student, target, held_out, options.lookahead)
    return {
        "shape": shape,
        "method": method,
        "seed": seed,
        "layers": plan.source_layers,
        "before": before["tau"],
        "after": after["tau"],
        "counts": {"before": before, "after": after},
        "last_loss_nats": loss_nats,
        "tokens": sum(len(lesson.answer_ids) for lesson in lessons),
        "lookahead": options.lookahead,
        "elapsed_s": round(time.perf_counter() - start_s, 1),
        "commit": git_commit(),
        "hardware": hardware(),
    }


def recipe_of(options: argparse.Namespace, architecture: dict[str, Any], seed: int) -> Recipe:
    """The recipe that would make this draft."""
    calibration = {"tokens": 1024, "sequence_len": 256}
    prompts = [{"path": str(options.prompts)}] if options.prompts else []
    return Recipe.model_validate(
        {
            "run_name": "pruning-methods",
            "seed": seed,
            "target": {"path": str(options.target)},
            "architecture": {**architecture, "calibration": calibration, "scores": str(options.scores)},
            "data": {"prompts": prompts, "self_written_prompts": 0 if prompts else 100},
        }
    )


def train_masks(options: argparse.Namespace, shape: str) -> Recipe:
    """Train a shape's masks unless they are there; the recipe of the run that holds them."""
    run = options.masks / shape.replace(" ", "-").replace(",", "")
    run.mkdir(parents=True, exist_ok=True)
    text = write_text(options, run / "text.jsonl")
    masks = {"max_duration": f"{options.mask_batches}ba", "global_train_batch_size": MASK_BATCH_SIZE}
    settings = recipe_of(options, SHAPES[shape], options.seeds[0]).model_dump(mode="json")
    settings["architecture"] = {**METHODS["learned_masks"], **SHAPES[shape], "masks": masks}
    settings["text"] = {
        "domains": [{"name": "answers", "path": str(text)}],
        "max_seq_len": MASK_SEQ_LEN,
        "num_eval_sequences": 8,
        "mixture": {"rule": "fixed"},
    }
    recipe = Recipe.model_validate({**settings, "run_dir": str(run)})
    if masks_are_due(Run.of(recipe)):
        save_recipe(recipe, run / "recipe.yaml")
        subprocess.run(training_command(run / "recipe.yaml", []), env=training_environment(), check=True)
    return recipe


def write_text(options: argparse.Namespace, path: Path) -> Path:
    """The prompts and answers that are distilled on, as lines of text."""
    tokenizer = load_tokenizer(options.target)
    traces = enough(read_traces(options.data, "train"), options.tokens)
    lines = [json.dumps({"text": tokenizer.decode([*trace.prompt_ids, *trace.answer_ids])}) for trace in traces]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def enough(traces: Sequence[Trace], tokens: int) -> list[Trace]:
    """The first answers that hold so many tokens together."""
    taken: list[Trace] = []
    for trace in traces:
        if sum(len(answer.answer_ids) for answer in taken) >= tokens:
            return taken
        taken.append(trace)
    raise SystemExit(f"the data folder holds fewer than {tokens} answer tokens; lower --tokens")


@torch.no_grad()
def ask_teacher(target: PreTrainedModel, traces: Sequence[Trace]) -> list[Lesson]:
    """What the target's head reads at every answer token."""
    examples = AnswerDataset(traces, max_seq_len=MAX_SEQ_LEN).examples
    assert len(examples) == len(traces), "no prompt of this data is too long"
    return [
        Lesson(example, tuple(trace.answer_ids[: example.num_kept]), hidden_states(target, example))
        for example, trace in zip(examples, traces, strict=True)
    ]


def hidden_states(model: PreTrainedModel, example: Example) -> Tensor:
    """hidden_AH at the positions that predict the answer."""
    ids_BT = torch.tensor([example.input_ids])
    return model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state[0, -example.num_kept :]


def train(student: PreTrainedModel, target: PreTrainedModel, lessons: Sequence[Lesson], seed: int) -> float:
    """One epoch of forward KL: AdamW, cosine from the learning rate to a tenth; returns the last tenth's mean loss."""
    order = torch.randperm(len(lessons), generator=torch.Generator().manual_seed(seed)).tolist()
    batches = [order[i : i + BATCH_SIZE] for i in range(0, len(order), BATCH_SIZE)]
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    progress = torch.pi / len(batches)
    schedule = LambdaLR(optimizer, lambda step: 0.1 + 0.45 * (1 + float(torch.cos(torch.tensor(step * progress)))))
    model, losses = AnswerLogits(student.train()), []
    for batch in batches:
        chosen = [lessons[i] for i in batch]
        losses.append(step(model, target, chosen))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    student.eval()
    last = losses[-max(1, len(losses) // 10) :]
    return round(sum(last) / len(last), 4)


def step(model: AnswerLogits, target: PreTrainedModel, chosen: Sequence[Lesson]) -> float:
    """Gradients of one batch; its mean loss in nats per answer token."""
    batch = collate([lesson.example for lesson in chosen])
    with torch.no_grad():
        teacher_logits_AV = target.lm_head(torch.cat([lesson.hidden for lesson in chosen]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        student_logits_AV = model(batch["input_ids"], batch["keep"], logits_of)
    loss = forward_kl(student_logits_AV, teacher_logits_AV).mean()
    loss.backward()
    return loss.item()


@torch.inference_mode()
def score(
    student: PreTrainedModel, target: PreTrainedModel, held_out: Sequence[Lesson], lookahead: int
) -> dict[str, Any]:
    """Tau and argmax agreement on held-out answers, and the counts of each prompt they are made of."""
    emitted, rounds, matches = [], [], 0.0
    for lesson in held_out:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits_TV = student.lm_head(hidden_states(student, lesson.example))
        answer_T = torch.tensor(lesson.answer_ids)
        accept_T = as_array(logits_TV.argmax(dim=-1) == answer_T)
        counts = replay_counts(accept_T, lookahead=lookahead)
        emitted.append(counts.emitted_tokens)
        rounds.append(counts.rounds)
        matches += float((logits_TV.argmax(dim=-1) == target.lm_head(lesson.hidden).argmax(dim=-1)).sum())
    return {
        "tau": round(sum(emitted) / sum(rounds), 4),
        "match": round(matches / sum(emitted), 4),
        "emitted": emitted,
        "rounds": rounds,
    }


def finished(out: Path) -> list[dict[str, Any]]:
    """The lines written so far."""
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.is_file() else []


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: tau before and after, over the seeds that are there."""
    return "\n".join(
        ["| shape | method | layers | seeds | tau before | tau after | match after |", "|" + "---|" * 7, *rows(lines)]
    )


def rows(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One row for each shape and method, the best first."""
    for shape in SHAPES:
        cells = [
            (method, [line for line in lines if (line["shape"], line["method"]) == (shape, method)])
            for method in METHODS
        ]
        for method, scored in sorted(cells, key=lambda entry: -mean(line["after"] for line in entry[1])):
            if scored:
                layers = " ".join(map(str, scored[0]["layers"])) if method != "random" else "by seed"
                match = mean(line["counts"]["after"]["match"] for line in scored)
                seeds = " ".join(f"{line['after']:.3f}" for line in scored)
                yield (
                    f"| {shape} | {method} | {layers} | {len(scored)} | {interval(scored, 'before')} "
                    f"| **{interval(scored, 'after')}** ({seeds}) | {match:.3f} |"
                )


def interval(lines: Sequence[dict[str, Any]], when: str) -> str:
    """Tau of the pooled counts of all seeds, with its 95 % interval over prompts."""
    sums = {
        name: [sum(values) for values in zip(*(line["counts"][when][name] for line in lines), strict=True)]
        for name in ("emitted", "rounds")
    }
    estimate = pooled_ratio(sums["emitted"], sums["rounds"], Resampling(num_resamples=2000, confidence=0.95, seed=1))
    assert estimate.interval is not None
    return "{:.3f} [{:.3f}, {:.3f}]".format(estimate.value, *estimate.interval)


def mean(values: Iterator[float]) -> float:
    """Of nothing: 0."""
    known = list(values)
    return sum(known) / len(known) if known else 0.0


if __name__ == "__main__":
    main()
