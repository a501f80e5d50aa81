"""`--debug`: any recipe as a run of minutes on two cores, through the same stages. Pure; no torch.

Sizes, steps, batches and lengths are divided or bounded; what a run reads from elsewhere (target, prompts, text,
scores, plans) is replaced by files that distill/debug/files.py writes into the run folder, and what it reports to
elsewhere is left out. Everything else stays what the recipe says: method, loss, precision, parallelism, number types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.files.masked_words import masked
from architectures.shapes.section import SIZES
from architectures.shapes.shape import Shape
from architectures.shapes.tiny import HEAD_VOCAB, tiny_shapes
from architectures.vocabulary import COUNTED
from distill.check import draft_and_origin
from distill.recipe.recipe import Recipe
from distill.recipe.sections.times import split_time
from eval.tasks import TASKS

SUFFIX = "-debug"
TARGET, SOURCE, PROMPTS, TEXT = "tiny-target", "tiny-source", "prompts.jsonl", "text.txt"  # in the run folder
IDS = "ids.json"
Values = dict[str, Any]


@dataclass(frozen=True)
class TinyRun:
    """The shapes of a debug run.

    Attributes:
        target: That answers and teaches.
        source: What the draft is cut out of; the target, unless architecture.source names another.
        draft: That is trained.
        stages: Layers after each of several cuts, where the recipe has them.
    """

    target: Shape
    source: Shape
    draft: Shape
    stages: list[int] | None


def tiny_run(recipe: Recipe, target: Shape, source: Shape) -> TinyRun:
    """The shapes of a recipe's debug run.

    Args:
        recipe: As the user wrote it.
        target: The real target's shape.
        source: Of architecture.source; the target's where the recipe names none.

    Raises:
        UserError: If the draft cannot be cut out of its source.
    """
    draft, _ = draft_and_origin(recipe.architecture, source, recipe.seed)
    stages = recipe.architecture.stages
    earlier = [Shape(**{**vars(source), "layers": layers}) for layers in (stages or [])[:-1]]
    tiny_source, tiny_draft, *tiny_stages = tiny_shapes(source, [draft, *earlier])
    tiny_target = tiny_source if recipe.architecture.source is None else tiny_shapes(target)[0]
    layers = None if stages is None else [*(shape.layers for shape in tiny_stages), tiny_draft.layers]
    return TinyRun(tiny_target, tiny_source, tiny_draft, layers)


def debug_recipe(recipe: Recipe, tiny: TinyRun) -> Recipe:
    """The recipe of a debug run: the same keys, small values, in a run folder of its own."""
    run = Path(f"{recipe.run_dir}{SUFFIX}")
    values = recipe.model_dump(mode="json")
    values["run_name"], values["run_dir"] = f"{recipe.run_name}{SUFFIX}", str(run)
    values["target"] |= {"path": str(run / TARGET), "revision": "main"}
    values["architecture"] |= debug_architecture(values["architecture"], tiny, run)
    values["data"] |= debug_data(values["data"], run)
    values["text"] = None if recipe.text is None else {**values["text"], **debug_text(values["text"], run)}
    values["distill"] |= debug_distill(values["distill"], run)
    values["eval"] |= debug_eval(values["eval"], run)
    values["export"] |= {"engines": [], "tensor_parallel": 1}  # nobody serves it, and few heads divide by 8
    small = Recipe.model_validate(values)
    small.refer_as(recipe)
    return small


def debug_architecture(values: Values, tiny: TinyRun, run: Path) -> Values:
    """The tiny draft's sizes in place of a shape, shares or a plan, and short calibration and mask training."""
    sizes: Values = {size: getattr(tiny.draft, size) for size in SIZES}
    if tiny.stages is not None:
        sizes |= {"layers": None, "stages": tiny.stages}
    if values["method"] == "learned_masks":
        looked_at: Values = {"masks": {**values["masks"], "max_duration": "6ba", "global_train_batch_size": 8}}
    else:
        looked_at = {"calibration": debug_calibration(values["calibration"], run)}
    made = {
        "source": None if values["source"] is None else str(run / SOURCE),
        "vocabulary": debug_vocabulary(values["vocabulary"], tiny, run),
    }
    return {**sizes, "shape": None, "plan": None, "scores": None, **made, **looked_at}


def debug_vocabulary(wanted: Values | None, tiny: TinyRun, run: Path) -> Values | None:
    """Every token of the tiny tokenizer, of which all are special or single bytes: fewer ids than the tiny target has.

    Also where the recipe's plan makes the head small; one that its source has small stays as it is there.
    """
    if wanted is None:
        return {"from": str(run / IDS)} if tiny.draft.head_vocab and not tiny.source.head_vocab else None
    size = None if wanted["size"] is None else HEAD_VOCAB
    return {"size": size, "from": wanted["from"] if wanted["from"] in COUNTED else str(run / IDS)}


def debug_calibration(calibration: Values, run: Path) -> Values:
    """One short sequence of the built-in prompts."""
    text = None if calibration["text"] is None else str(run / PROMPTS)
    return {"text": text, "tokens": 128}


def debug_data(values: Values, run: Path) -> Values:
    """Built-in prompts in place of files and data sets, and short answers; given ones are built in with the prompts."""
    return {
        "prompts": built_in(values["prompts"], run),
        "answers_from": [],  # another target's
        "self_written_prompts": at_most(values["self_written_prompts"], 12),
        "num_eval_prompts": 4,
        "max_seq_len": 128,
        "max_new_tokens": 16,
        "batch_size": at_most(values["batch_size"], 8),
        "shard_size": at_most(values["shard_size"], 16),
    }


def built_in(sources: list[Values], run: Path) -> list[Values]:
    """The file of built-in prompts once for every way that sources are read: as users' words, or as a task's texts."""
    texts = (source["task"] if source["task"] and TASKS[source["task"]].form == "text" else None for source in sources)
    return [{"path": str(run / PROMPTS), "task": task} for task in dict.fromkeys(texts)]


def text_fields(recipe: Recipe) -> list[str]:
    """The fields that a debug run's tasks read a text from."""
    tasks = [TASKS[source.task] for source in (*recipe.data.prompts, *recipe.eval.tasks) if source.task is not None]
    return [names[0] for task in tasks for names in task.fields.values()]


def debug_text(values: Values, run: Path) -> Values:
    """Built-in text in place of every domain's, in short sequences."""
    source = {"path": str(run / TEXT), "dataset": None, "config": None, "split": "train", "field": "text"}
    return {
        "domains": [{**domain, **source} for domain in values["domains"]],
        "max_seq_len": 32,
        "num_eval_sequences": 2,
        "mixture": {**values["mixture"], "update_interval": "2ba"},
    }


def debug_distill(values: Values, run: Path) -> Values:
    """Six steps of eight answers, two evaluations and checkpoints; eight, so that as many processes can share them.

    A reference draft is replaced by the tiny target: any model with its tokenizer will do.
    """
    selection = values["token_selection"]
    return {
        "token_selection": None if selection is None else {**selection, "reference": str(run / TARGET)},
        "samples": {**values["samples"], **debug_samples(values["samples"])},
        "max_duration": "6ba" if values["online"] is None else "1ep",
        "online": None if values["online"] is None else {**values["online"], **debug_online(values["online"], run)},
        "push_to_hub": None,
        "global_train_batch_size": 8,
        "device_train_microbatch_size": at_most(values["device_train_microbatch_size"], 2),
        "device_eval_batch_size": at_most(values["device_eval_batch_size"], 4),
        "scheduler": {**values["scheduler"], "t_warmup": "0.2dur"},
        "eval_interval": "0.5dur",
        "save_interval": "0.5dur",
        "loggers": {"file": {}},
    }


def debug_samples(values: Values) -> Values:
    """New answers as short as the others, and a ramp over half of the steps, where the recipe has one."""
    rises = split_time(values["ramp"])[0] > 0
    return {"max_new_tokens": at_most(values["max_new_tokens"], 16), "ramp": "0.5dur" if rises else values["ramp"]}


def debug_online(values: Values, run: Path) -> Values:
    """The built-in prompts as requests, two updates or so, each judged."""
    guard = values["guard"]
    return {
        "stream": {"sources": built_in(values["stream"]["sources"], run)},
        "update_interval": 8,
        "buffer_size": 16,
        "guard": None if guard is None else {**guard, "every": 1},
    }


def debug_eval(values: Values, run: Path) -> Values:
    """A scorecard of few prompts, short answers and few repetitions."""
    return {
        "tasks": built_in(values["tasks"], run),
        "num_prompts": 4,
        "max_new_tokens": 8,
        "max_prompt_len": 112,
        "lookaheads": sorted({at_most(each, 3) for each in values["lookaheads"]}),
        "batch_size": at_most(values["batch_size"], 4),
        "num_resamples": 50,
        "num_threads": 1,  # two would wait for each other longer than they compute
        "latency_repeats": 2,
        "latency_batch_sizes": values["latency_batch_sizes"][:2],
        "latency_contexts": [at_most(context, 64) for context in values["latency_contexts"][:1]],
        "live_prompts": 2,
    }


def at_most(value: Any, bound: int) -> Any:
    """A number within a bound; anything else, such as auto, as it is."""
    return min(value, bound) if isinstance(value, int) else value


def replaced(before: Recipe, after: Recipe) -> list[str]:
    """Every value that differs between two recipes, one line each: "data.max_seq_len: 2048 -> 128"."""
    old, new = (dict(leaves(recipe.to_save())) for recipe in (before, after))
    keys = [*old, *(key for key in new if key not in old)]
    return [
        masked(f"{key}: {shown(old.get(key))} -> {shown(new.get(key))}") for key in keys if old.get(key) != new.get(key)
    ]


def shown(value: Any) -> str:
    """A value of a recipe as a person writes it; of rows of a list what is set in them."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return " ".join(f"{key}={shown(each)}" for key, each in value.items() if each is not None)
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return str(value)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with what they hold; lists whole."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
