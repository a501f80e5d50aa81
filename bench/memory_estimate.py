"""How far `widedraft check`'s memory estimate is from the peak of a real training, on this machine.

    python bench/memory_estimate.py                      # on a GPU where there is one, else on the processor

Each case trains a random model for two steps, as a recipe would, and reads the most bytes that tensors held at once:
torch's own count on a GPU; on a processor a count of the storages that every operation returns, until they are freed.
Buffers inside a kernel are in neither. Writes bench/results/memory.json.
"""

import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from architectures.atomic import write_json
from architectures.manifest import provenance
from architectures.shapes import Shape
from architectures.target import read_config
from distill.data import AnswerDataset
from distill.debug_files import byte_tokenizer
from distill.mask_train import build_mask_model, build_mask_trainer
from distill.memory import memory_parts, together, trainings
from distill.recipe import Recipe
from distill.trainer import build_model, build_trainer
from eval.traces import Trace

RESULTS = Path(__file__).parent / "results" / "memory.json"
SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
MASKS = {"max_duration": "2ba", "global_train_batch_size": 8, "device_train_microbatch_size": 4}
CASES: dict[str, dict[str, Any]] = {
    "deep draft, bfloat16": {"layers": 5, "precision": "amp_bf16", "micro": 8},
    "shallow draft, bfloat16": {"layers": 2, "precision": "amp_bf16", "micro": 8},
    "shallow draft, micro-batches of 2, bfloat16": {"layers": 2, "precision": "amp_bf16", "micro": 2},
    "deep draft, float32": {"layers": 5, "precision": "fp32", "micro": 8},
    "shallow draft, float32": {"layers": 2, "precision": "fp32", "micro": 8},
    "learned masks, bfloat16": {"layers": 3, "precision": "amp_bf16", "micro": 4, "masks": True},
    "learned masks, float32": {"layers": 3, "precision": "fp32", "micro": 4, "masks": True},
}
SEQUENCES, SEQ_LEN, ANSWER_LEN = 16, 256, 128
MIB = 2**20


def main() -> None:
    """Measure every case and write the results."""
    results = {}
    print("| training | estimated MiB | measured MiB | estimated / measured |\n|---|---|---|---|")
    for name, case in CASES.items():
        results[name] = found = measure(case)
        estimated, measured = found["estimated_bytes"], found["measured_bytes"]
        cells = (f"{estimated / MIB:.0f}", f"{measured / MIB:.0f}", f"{estimated / measured:.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    write_json({"cases": results, "provenance": provenance()}, RESULTS)


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of storages from the operation that returns them until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.held = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.count(leaf)
        return result

    def count(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # what torch itself tells storages apart by
        if key in self.sizes or not storage.nbytes():
            return
        self.sizes[key] = storage.nbytes()
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        """A storage was freed."""
        self.held -= self.sizes.pop(key)


def measure(case: dict[str, Any]) -> dict[str, int]:
    """The estimate for a case, and the peak of its training."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        for name, layers in (("target", SHAPE["num_hidden_layers"]), ("init", case["layers"])):
            write_model(run / name, layers)
        recipe = build_recipe(case, run)
        model, trainer = build_training(recipe, run)
        held = HeldBytes()
        teacher = [] if model.teacher is None else list(model.teacher.model.parameters())
        for parameter in (*model.parameters(), *teacher):
            held.count(parameter.data)
        with held:
            trainer.fit()
        trainer.engine.close()
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else held.peak
        estimated = estimate(recipe, read_config(run / "target"), read_config(run / "init"))
    return {"estimated_bytes": estimated, "measured_bytes": peak}


def estimate(recipe: Recipe, target: dict[str, Any], draft: dict[str, Any]) -> int:
    """What `widedraft check` says about the first training of a recipe, by one process."""
    training = trainings(recipe, Shape.from_config(target), Shape.from_config(draft))[0]
    return together(memory_parts(training, 1))


def write_model(folder: Path, layers: int) -> None:
    """A random model with a tokenizer."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model("llama", **{**SHAPE, "num_hidden_layers": layers, **ids})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def build_recipe(case: dict[str, Any], run: Path) -> Recipe:
    """The recipe of a case."""
    values: dict[str, Any] = {
        "run_name": "memory",
        "run_dir": str(run),
        "target": {"path": str(run / "target")},
        "architecture": {"layers": case["layers"]},
        "data": {"self_written_prompts": 9, "max_seq_len": SEQ_LEN, "max_new_tokens": ANSWER_LEN},
        "distill": {
            "max_duration": "2ba",
            "global_train_batch_size": 8,
            "device_train_microbatch_size": case["micro"],
            "precision": case["precision"],
            "progress_bar": False,
        },
    }
    if case.get("masks"):
        text = run / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog.\n" * 500, encoding="utf-8")
        values["architecture"] |= {"method": "learned_masks", "masks": {**MASKS, "precision": case["precision"]}}
        values["text"] = {
            "domains": [{"name": "text", "path": str(text)}],
            "max_seq_len": SEQ_LEN,
            "num_eval_sequences": 1,
            "mixture": {"rule": "fixed"},
        }
    return Recipe.model_validate(values)


def build_training(recipe: Recipe, run: Path) -> tuple[Any, Any]:
    """The model of a case and its trainer."""
    if recipe.text is not None:
        masked = build_mask_model(recipe, run / "target")
        return masked, build_mask_trainer(recipe, masked, run / "target")
    prompt, answer = tuple(range(3, 3 + SEQ_LEN - ANSWER_LEN)), (7,) * ANSWER_LEN
    traces = [Trace(i, f"bench:{i}", (), prompt, answer, "", "stop") for i in range(SEQUENCES)]
    data = AnswerDataset(traces, max_seq_len=SEQ_LEN)
    model = build_model(recipe, target=run / "target")
    return model, build_trainer(recipe, model, train_set=data, eval_set=data, checkpoint=None)


if __name__ == "__main__":
    main()
