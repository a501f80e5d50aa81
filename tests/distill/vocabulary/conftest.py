"""A target with more tokens than the 259 that are always kept, and runs of it with made-up responses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from distill.run import Run
from tests.distill.recipe_files import tiny_recipe, write_prompts

VOCAB = 320  # 3 special tokens, 256 bytes, 40 words, 21 rows of padding
COUNTED = {"size": 261, "from": "responses"}
SAID = {
    "train": [("a.jsonl:1", [280, 270, 270]), ("a.jsonl:2#2", [280, 280, 2]), ("b.jsonl:1", [260, 2])],
    "eval": [("a.jsonl:3", [290, 290, 290, 280])],
}
TASKS = {"b.jsonl:1": "gsm8k/1"}  # of the rows that have one


@pytest.fixture(scope="session")
def wordy_target(make_checkpoint: Callable[..., Path]) -> Path:
    """A random LLaMA whose tokens from 259 to 298 are words."""
    return wordy(make_checkpoint(seed=1, vocab_size=VOCAB))


@pytest.fixture(scope="session")
def wordy_source(make_checkpoint: Callable[..., Path]) -> Path:
    """Another with the same tokens and less padding."""
    return wordy(make_checkpoint(seed=2, vocab_size=304, num_hidden_layers=3))


def wordy(folder: Path) -> Path:
    """A checkpoint with 40 words more in its tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"word{number:02}" for number in range(40)])
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make_recipe(tmp_path: Path, wordy_target: Path) -> Callable[..., Any]:
    """make_recipe(vocabulary, architecture={...}, **sections) -> a recipe of a run in tmp_path."""
    data = {"prompts": [{"path": str(write_prompts(tmp_path))}], "num_eval_prompts": 2}

    def make(
        vocabulary: Mapping[str, Any] | None, architecture: Mapping[str, Any] | None = None, **sections: Any
    ) -> Any:
        wanted = {"layers": 2, "method": "first_last"} if architecture is None else architecture
        cut = {**wanted, "vocabulary": vocabulary}
        return tiny_recipe(tmp_path / "run", wordy_target, cut, data, **sections)

    return make


@pytest.fixture
def answered(make_recipe: Callable[..., Any], wordy_target: Path) -> Callable[..., Any]:
    """answered(vocabulary, architecture={...}, **sections) -> the same recipe, its run with responses to two files."""
    from architectures.manifest import write_manifest
    from distill.recipe.recipe import save_recipe
    from distill.run import target_record
    from distill.stage_inputs import generate_inputs

    def make(vocabulary: Mapping[str, Any] | None = COUNTED, *arguments: Any, **sections: Any) -> Any:
        recipe = make_recipe(vocabulary, *arguments, **sections)
        data = Path(recipe.run_dir) / "data"
        save_recipe(recipe, Path(recipe.run_dir) / "recipe.yaml")
        for name, said in SAID.items():
            write_traces(data, name, said)
        sizes = {
            name: {"responses": len(said), "response_tokens": 8, "prompts": len(said)} for name, said in SAID.items()
        }
        write_manifest(
            data,
            stage="generate",
            inputs=generate_inputs(Run.of(recipe)),
            counts={"prompts": 20, **sizes},
            target=target_record(recipe.target),
        )
        return recipe

    return make


def write_traces(data: Path, name: str, said: Sequence[tuple[str, Sequence[int]]]) -> None:
    """One shard of responses, each with the row of its prompt; prompts say 298 alone, which must not count."""
    from eval.responses import Trace, claim_shards, write_shard

    (path,) = claim_shards(data, name, {}, num_shards=1)
    question = ({"role": "user", "content": "a"},)
    traces = [
        Trace(number, source, question, (298,) * 9, tuple(ids), "", "stop", task=TASKS.get(source))
        for number, (source, ids) in enumerate(said)
    ]
    write_shard(path, [asdict(trace) for trace in traces])
