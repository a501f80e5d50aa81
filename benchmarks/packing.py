"""Time of a training step's passes, packed against padded, on real answers.

    python benchmarks/packing.py --run runs/smollm2-gsm8k --target models/SmolLM2-135M-Instruct

One micro-batch after the other is taken through the live teacher, the student's forward and backward pass and the loss,
as training does with `precision: amp_bf16`: once padded and once packed, which of them first in turns, in one process
with one thread and the same weights. Answers come as they stand in <run>/data (--order stored) or shuffled with a seed,
as training reads them. Time is what the process worked (seconds of processor time), which other programs on the machine
hardly lengthen. A ratio is packed over padded, of medians over micro-batches; beside it stand, in the mean, what the
teacher's layout computes (slots, and FLOPs of its layers) over what padding does, and the share of padded slots that
hold a token.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from architectures.checkpoints.manifest import provenance
from distill.data.batches import AnswerDataset, collate
from distill.data.packing import cheapest_layout, lengths_read
from distill.losses.answer_logits import AnswerLogits, packed_flops_per_token
from distill.losses.objective import build_objective
from distill.teacher.live import Teacher
from distill.training.model import DistillModel
from eval.answers.traces import read_traces
from eval.models.loading import load_model

PATHS = ("padded", "packed")


def main() -> None:
    """Measure every size of micro-batch and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="holds init (the student) and data")
    parser.add_argument("--target", type=Path, required=True, help="the teacher's folder")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16], help="answers in a micro-batch")
    parser.add_argument("--batches", type=int, default=8, help="micro-batches of each size")
    parser.add_argument("--order", choices=("stored", "shuffled"), default="shuffled")
    parser.add_argument("--max-seq-len", type=int, default=512)
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = build_models(options)
    answers = AnswerDataset(read_traces(options.run / "data", "train"), max_seq_len=options.max_seq_len).examples
    if options.order == "shuffled":
        random.Random(17).shuffle(answers)
    rows = []
    for size in options.sizes:
        batches = [collate(answers[i * size : (i + 1) * size]) for i in range(options.batches)]
        rows.append({"size": size, "order": options.order, **measure(models, batches)})
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=1) + "\n")


def build_models(options: argparse.Namespace) -> dict[str, DistillModel]:
    """The same student and teacher twice, padded and packed."""
    student = load_model(options.run / "init", dtype="float32", device="cpu").train()
    teacher = load_model(options.target, dtype="bfloat16", device="cpu")
    return {
        path: DistillModel(
            AnswerLogits(student, packing=path == "packed"),
            Teacher(AnswerLogits(teacher, packing=path == "packed")),
            objective=build_objective("forward_kl", temperature=1.0),
            cpu_bfloat16=True,
        )
        for path in PATHS
    }


def measure(models: dict[str, DistillModel], batches: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """Both paths over all batches."""
    step(models["padded"], batches[0])  # the first sets up buffers
    seconds: dict[str, list[float]] = {path: [] for path in PATHS}
    losses: dict[str, list[float]] = {path: [] for path in PATHS}
    for number, batch in enumerate(batches):
        for path in PATHS if number % 2 else reversed(PATHS):
            start_s = time.process_time()
            losses[path].append(step(models[path], batch))
            seconds[path].append(time.process_time() - start_s)
    medians = {path: round(statistics.median(times), 3) for path, times in seconds.items()}
    pairs = zip(seconds["packed"], seconds["padded"], strict=True)
    apart = zip(losses["packed"], losses["padded"], strict=True)
    return {
        "ratio": round(medians["packed"] / medians["padded"], 3),
        "ratios": [round(packed / padded, 3) for packed, padded in pairs],
        "median_s": medians,
        "largest_difference_of_a_loss": max(abs(packed - padded) for packed, padded in apart),
        **layouts(batches, packed_flops_per_token(models["packed"].teacher.model.lm)),
    }


def step(model: DistillModel, batch: dict[str, Tensor]) -> float:
    """Gradients of one micro-batch; its loss in nats per token."""
    loss = model.loss(model(batch), batch)
    loss.backward()
    model.zero_grad()
    return loss.item()


def layouts(batches: Sequence[dict[str, Tensor]], flops_per_token: Callable[[int], int]) -> dict[str, float]:
    """What packing saves of slots and FLOPs, in the mean over batches."""
    rows = [layout_of(batch, flops_per_token) for batch in batches]
    return {name: round(statistics.mean(row[name] for row in rows), 3) for name in rows[0]}


def layout_of(batch: dict[str, Tensor], flops_per_token: Callable[[int], int]) -> dict[str, float]:
    """Slots, FLOPs and real tokens of one batch over those of padding, and how many rows it takes."""
    num_rows, width = batch["keep"].shape
    lengths = lengths_read(batch["keep"])
    padded = num_rows * width, num_rows * width * flops_per_token((width + 1) // 2)
    layout = cheapest_layout(lengths, width, flops_per_token=flops_per_token)
    packed = padded
    if layout is not None:
        num_rows, slots = layout.num_rows, layout.num_rows * layout.width
        packed = slots, slots * flops_per_token(layout.width)
    shares = [packed_count / padded_count for packed_count, padded_count in zip(packed, padded, strict=True)]
    return {"tokens": sum(lengths) / padded[0], "slots": shares[0], "flops": shares[1], "rows": num_rows}


if __name__ == "__main__":
    main()
