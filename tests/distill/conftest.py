"""A run folder ready to train, with target, smaller init and responses, all tiny; and what a wrong recipe is told."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from distill.run import Run
from tests.distill.recipe_files import text_section, tiny_recipe

NUM_TRAIN, NUM_EVAL = 10, 5
MAX_SEQ_LEN = 30
DISTILL = {  # settings of a tiny training
    "max_duration": "2ep",
    "global_train_batch_size": 4,
    "device_train_microbatch_size": 4,
    "device_eval_batch_size": 2,
    "precision": "fp32",
    "optimizer": {"lr": 1e-3},
    "scheduler": {"t_warmup": "1ba"},
    "eval_interval": "1ep",
    "save_interval": "1ba",
}


def random_responses(count: int, seed: int) -> list[Any]:
    """Prompts and responses of varied lengths over the tiny tokenizer's bytes; some are too long together."""
    from eval.responses import Trace

    generator = random.Random(seed)

    def tokens(longest: int) -> tuple[int, ...]:
        return tuple(generator.randrange(3, 259) for _ in range(generator.randint(1, longest)))

    return [Trace(i, f"test:{i}", (), tokens(20), tokens(25), "", "stop") for i in range(count)]


@pytest.fixture(scope="session", autouse=True)
def _quick(trainings_begin_at_once: None) -> None:
    """Hardly a test here trains nothing."""


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two processes that train; they start when they are first asked to."""
    from tests.distill.two_processes import Pair

    both = Pair(tmp_path_factory.mktemp("pair"))
    yield both
    both.end()


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """evaluations(values): what the metric that chooses the best checkpoint says, one evaluation after another."""
    import torch

    from distill.metrics import PooledOverResponses

    def script(*values: float) -> None:
        left = iter(values)
        compute = PooledOverResponses.compute

        def scripted(metric: PooledOverResponses) -> torch.Tensor:
            value = compute(metric)
            chooses = getattr(metric.terms, "keywords", {}) == {"num_speculative_tokens": 5}
            return torch.tensor(next(left)) if chooses else value

        monkeypatch.setattr(PooledOverResponses, "compute", scripted)

    return script


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """stopped(module, builder, batch): a context that training ends in the middle of a batch, before its checkpoint.

    Args:
        module: That makes the trainer.
        builder: Name of its function from a recipe to loggers.
    """
    from composer.loggers import LoggerDestination

    class Interruption(Exception):  # noqa: N818  # nobody's mistake
        pass

    class InterruptAt(LoggerDestination):
        def __init__(self, batch: int):
            self.batch = batch

        def batch_end(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == self.batch:
                raise Interruption

    @contextmanager
    def stop(module: Any, builder: str, batch: int) -> Iterator[None]:
        build = getattr(module, builder)
        with monkeypatch.context() as patch:
            patch.setattr(module, builder, lambda *given: [*build(*given), InterruptAt(batch)])
            with pytest.raises(Interruption):
                yield

    return stop


@pytest.fixture
def make_run(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> Callable[..., Any]:
    """make_run(name, text=..., **keys of distill) -> Recipe, with <run>/init and <run>/data as stages leave them.

    With train_on="text" there are no responses but held-out ones.
    """
    from architectures.manifest import write_manifest
    from distill.recipe.recipe import save_recipe
    from distill.stage_inputs import generate_inputs, prune_inputs
    from eval.responses import claim_shards, write_shard

    def make(
        name: str = "run",
        *,
        init: Path = tiny_draft,
        target: Path = tiny_target,
        prompts: Path | None = None,
        data_temperature: float = 0.0,
        data_max_new_tokens: int = 25,
        text: dict[str, Any] | None = None,
        num_eval: int = NUM_EVAL,
        **distill: Any,
    ) -> Any:
        sources = {"self_written_prompts": 1} if prompts is None else {"prompts": [{"path": str(prompts)}]}
        lengths = {"max_seq_len": MAX_SEQ_LEN, "max_new_tokens": data_max_new_tokens}
        recipe = tiny_recipe(
            tmp_path / name,
            target,
            {"layers": 2, "method": "first_last"},
            {**sources, **lengths, "temperature": data_temperature},
            distill={**DISTILL, **distill},
            text=text,
            export={"dtype": "bfloat16"},
        )
        run = Path(recipe.run_dir)
        save_recipe(recipe, run / "recipe.yaml")
        shutil.copytree(init, run / "init")
        write_manifest(run / "init", stage="prune", inputs=prune_inputs(Run.of(recipe)))
        splits = {"eval": num_eval} if recipe.distill.train_on == "text" else {"train": NUM_TRAIN, "eval": num_eval}
        for split, count in splits.items():
            (path,) = claim_shards(run / "data", split, {}, num_shards=1)
            write_shard(path, [asdict(trace) for trace in random_responses(count, seed=count)])
        write_manifest(run / "data", stage="generate", inputs=generate_inputs(Run.of(recipe)))
        return recipe

    return make


@pytest.fixture
def make_masks(tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """make_masks(name, architecture={...}, **keys of architecture.masks) -> Recipe of a tiny run."""
    monkeypatch.setattr("distill.learned_masks.SAVE_INTERVAL", "0.01dur")  # every batch
    text = tmp_path / "letters.txt"
    generator = random.Random(3)
    text.write_text("".join(generator.choice("abcdefgh \n") for _ in range(6000)))

    def make(name: str = "run", architecture=None, update_interval: str = "2ba", distill=None, **masks) -> Any:
        settings = {"max_duration": "6ba", "global_train_batch_size": 4, **masks}
        sizes = {"layers": 2, "intermediate": 64, "heads": 2, "kv_heads": 1, "hidden": 32}
        return tiny_recipe(
            tmp_path / name,
            tiny_target,
            {"method": "learned_masks", "masks": settings, **(architecture or sizes)},
            {"self_written_prompts": 1},
            text=text_section(text, max_seq_len=24, num_eval_sequences=2, update_interval=update_interval),
            distill={"device_train_microbatch_size": 4, "precision": "fp32", **(distill or {})},
        )

    return make


@pytest.fixture
def mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """mistakes(text of a recipe, *overrides) -> the lines of the error it raises."""
    from distill.recipe.recipe import RecipeError, load_recipe

    monkeypatch.chdir(tmp_path)

    def lines(text: str, *overrides: str) -> list[str]:
        Path("r.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(RecipeError) as raised:
            load_recipe("r.yaml", overrides)
        return str(raised.value).splitlines()

    return lines


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in of the hub for each test."""
    from tests.hub.clients import served

    with served(monkeypatch, tmp_path / "cache") as hub:
        yield hub


@pytest.fixture(scope="session")
def small_init(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    """A draft of the tiny target whose head says some ids alone."""
    from tests.distill.small_heads import cut_draft

    return cut_draft(tiny_target, tmp_path_factory.mktemp("small") / "init")
