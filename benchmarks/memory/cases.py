"""What is measured: two targets, and the stages of a run on each, with texts as long as the recipe allows."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from architectures.targets.target import read_config

SMALL = Path("models/SmolLM2-135M-Instruct")
RECIPE = Path("recipes/quickstart.yaml")
LARGE_LAYERS, LARGE_HIDDEN, LARGE_INTERMEDIATE, LARGE_HEADS, LARGE_KV_HEADS = 22, 2048, 5632, 32, 4
NUM_PROMPTS, PROMPT_TOKENS = 8, 440  # the chat template takes some forty more; a prompt has fewer than 512
PROGRAMS = {
    "answers": ("widedraft", "generate"),
    "calibration": ("widedraft", "prune"),
    "teacher's cache": ("widedraft", "cache"),
    "mask training": ("widedraft", "masks"),
    "distillation": ("distill.train",),
    "scorecard": ("widedraft", "eval"),
}
TEXTS = (
    "data.num_eval_prompts=4", "data.max_seq_len=512", "data.max_new_tokens=8", "data.batch_size=4",
    "architecture.vocabulary=null", "architecture.method=block_influence", "architecture.calibration.sequence_len=512",
    "distill.freeze_input_embeddings=false", "distill.max_duration=1ba", "distill.global_train_batch_size=4",
    "distill.device_train_microbatch_size=2", "distill.eval_first=false", "distill.eval_interval=1dur",
    "distill.save_interval=1dur", "eval.num_prompts=4", "eval.batch_size=4", "eval.max_new_tokens=8",
    "eval.latency_repeats=1", "eval.live_prompts=1", "eval.latency_batch_sizes=[]", "eval.lookaheads=[1]",
    "eval.policy_prompts=0", "eval.temperatures=[0.0]",
)  # fmt: skip
FLOAT32 = ("target.dtype=float32", "distill.precision=fp32", "eval.dtype=float32")
BFLOAT16 = ("target.dtype=bfloat16", "distill.precision=amp_bf16", "eval.dtype=bfloat16")
CACHED = "distill.teacher={source: cache}"
LIVE = "distill.teacher={source: live}"
SHARDS = ("distill.parallelism=fsdp2", "distill.teacher={source: live, parallelism: fsdp2}")
AGAIN = "distill.activation_checkpointing=true"
MASKS = (
    "architecture.method=learned_masks", "architecture.masks.device_train_microbatch_size=1",
    "architecture.masks.global_train_batch_size=2", "architecture.masks.max_duration=1ba",
    "architecture.masks.target_warmup=1ba", "text.max_seq_len=512", "text.num_eval_sequences=2",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One stage as it is measured.

    Attributes:
        model: Of the target, in words.
        stage: As `check` calls it.
        how: What sets it apart, in words.
        run: Folder of the run, within that of all.
        words: Of the recipe.
        processes: That share it.
    """

    model: str
    stage: str
    how: str
    run: str
    words: tuple[str, ...]
    processes: int = 1


def cases(folder: Path) -> Iterator[Case]:
    """In the order in which they are run; later ones read what earlier ones wrote."""
    text = f"text={{domains: [{{name: long, path: {folder / 'long.jsonl'}, field: prompt}}]}}"
    prompts = f"data.prompts=[{{path: {folder / 'long.jsonl'}}}]"
    small = (*TEXTS, *FLOAT32, prompts, "architecture.layers=6")
    for stage in ("answers", "calibration", "teacher's cache"):
        yield Case("SmolLM2-135M, float32", stage, "", "small", (*small, CACHED))
    yield Case("SmolLM2-135M, float32", "distillation", "cached teacher", "small", (*small, CACHED))
    yield Case("SmolLM2-135M, float32", "scorecard", "", "small", (*small, CACHED))
    for how, words in (("DDP", (LIVE,)), ("shards", SHARDS), ("shards, checkpointing", (*SHARDS, AGAIN))):
        yield Case("SmolLM2-135M, float32", "distillation", how, "small", (*small, *words), processes=2)
    masks = (*small, *MASKS, text, "architecture.calibration.sequence_len=256")
    for how, words in (("shards", SHARDS), ("shards, checkpointing", (*SHARDS, AGAIN))):
        yield Case("SmolLM2-135M, float32", "mask training", how, "masks", (*masks, *words), processes=2)
    yield Case("SmolLM2-135M, float32", "calibration", "greedy", "greedy", (*small, "architecture.method=greedy"))
    large = (*TEXTS, *BFLOAT16, prompts, "architecture.layers=2", f"target.path={folder / 'large'}")
    for stage in ("answers", "calibration", "teacher's cache", "distillation", "scorecard"):
        yield Case("1.1B, random, bfloat16", stage, "", "large", (*large, CACHED))
    layers = (*large, "target.placement=layers", "architecture.method=first_last", CACHED)
    for stage in ("answers", "teacher's cache"):
        yield Case("1.1B, random, bfloat16", stage, "in layers", "layers", layers)


def write_inputs(folder: Path) -> None:
    """Prompts nearly as long as may be, and a target of random weights with the small one's tokenizer."""
    from tokenizers import Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(SMALL / "tokenizer.json"))
    with (folder / "long.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(NUM_PROMPTS):
            words = " ".join(f"{(number * 7919 + place * 31) % 1000} and" for place in range(PROMPT_TOKENS))
            prompt = tokenizer.decode(tokenizer.encode(words).ids[:PROMPT_TOKENS])
            stream.write(json.dumps({"prompt": prompt}) + "\n")
    if not (folder / "large" / "model.safetensors").is_file():
        write_large(folder / "large")


def write_large(folder: Path) -> None:
    """A LLaMA of 1.1 billion random weights in bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(SMALL, folder, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    config = LlamaConfig(
        **{key: read_config(SMALL)[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")},
        hidden_size=LARGE_HIDDEN,
        intermediate_size=LARGE_INTERMEDIATE,
        num_hidden_layers=LARGE_LAYERS,
        num_attention_heads=LARGE_HEADS,
        num_key_value_heads=LARGE_KV_HEADS,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="8GB")
    torch.set_default_dtype(torch.float32)
