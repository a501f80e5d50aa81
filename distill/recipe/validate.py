"""Every rule between two keys of a recipe, or between a key and the target. No torch.

Types and ranges of single keys stand in the models of the sections. `validate` returns all rules that a recipe breaks,
each as the key to change and what is wrong with it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Feature
from architectures.pruning.selection import LAYER_SCORES
from architectures.settings.holding import Placement
from distill.formulas.losses import Knowledge
from distill.recipe.sections.teacher import TeacherConfig
from distill.recipe.sections.times import split_time

Recipe: TypeAlias = Any  # distill.recipe.recipe.Recipe, which imports this module
Broken: TypeAlias = Iterator[tuple[str, str]]

ALL_SERVED = "A live teacher, or a cache with contents hidden, serves all."
WARMUP_UNITS = {"ep": ("ep", "ba", "dur"), "ba": ("ep", "ba", "dur"), "sp": ("sp", "dur"), "tok": ("tok", "dur")}
NOT_ONLINE = {  # keys of distill that online mode leaves as they are, and why
    "train_on": ("answers", "the responses to requests are learned"),
    "unknown_inputs": (0.0, "the serving draft reads every token id"),
    "samples": ("teacher", "the target generates the responses"),
    "packing": (False, "each request is a row of its own"),
    "parallelism": ("ddp", "each process hands its whole draft to its server"),
}
SEARCHED = {"whole": set(), "spread": {"merge_order"}, "layers": {"merge_order", "removal_order"}}


def validate(recipe: Recipe) -> list[tuple[str, str]]:
    """The rules that a recipe breaks."""
    return [
        *target_rules(recipe),
        *training_rules(recipe),
        *online_rules(recipe),
        *input_rules(recipe),
    ]


def target_rules(recipe: Recipe) -> Broken:
    """What a target that is not whole in memory, in fewer bits, or decoded by another engine rules out."""
    target, architecture, distill = recipe.target, recipe.architecture, recipe.distill
    teacher: TeacherConfig = distill.teacher
    engine = recipe.generate.engine

    if target.bits is not None:
        when = f"when target.bits is {target.bits}"
        if architecture.method == "learned_masks":
            yield ("architecture.method", f"must not be learned_masks {when}: masks train the full weights.")
        if teacher.is_sharded:
            yield ("distill.teacher.parallelism", f"must be replicated {when}: packed weights are not sharded.")
        if engine != "local":
            yield ("generate.engine", f"must be local {when}, got {engine}: it runs the weights unpacked.")
    if target.placement != "whole":
        when = f"when target.placement is {target.placement}"
        if architecture.method == "learned_masks":
            yield ("architecture.method", f"must not be learned_masks {when}: masks train all weights.")
        if distill.online is not None:
            yield ("distill.online", f"must be left out {when}: each token would load all weights.")
        elif teacher.source == "live":
            yield (
                "distill.teacher.source",
                f"must be cache or none {when}, got live: every batch would load all weights.",
            )


def training_rules(recipe: Recipe) -> Broken:
    """Rules inside section distill, and with the draft's shape."""
    distill, architecture = recipe.distill, recipe.architecture
    teacher: TeacherConfig = distill.teacher
    terms, samples = distill.terms, distill.samples
    told = (
        f"distill.teacher.contents is {teacher.contents}"
        if teacher.is_cache
        else f"distill.teacher.source is {teacher.source}"
    )
    on_text = distill.train_on == "text"

    # What is read
    for name in ("max_duration", "eval_interval", "save_interval"):
        if on_text and split_time(getattr(distill, name))[1] == "ep":
            yield (f"distill.{name}", "must not be in ep when distill.train_on is text, which has no epochs.")
    if on_text and teacher.is_cache:
        yield ("distill.teacher.source", "must be live or none when distill.train_on is text: a cache is of responses.")
    if distill.unknown_inputs:
        if distill.freeze_input_embeddings:
            yield (
                "distill.freeze_input_embeddings",
                "must be false with distill.unknown_inputs, which train a row of it.",
            )
        if all(getattr(architecture, name) is None for name in ("vocabulary", "source", "plan")):
            yield (
                "distill.unknown_inputs",
                f"must be left out without architecture.vocabulary, got {distill.unknown_inputs}.",
            )
    vocabulary = architecture.vocabulary
    if vocabulary is not None and vocabulary.origin == "answers" and not distill.learns_answers:
        yield (
            "architecture.vocabulary.from",
            "must be text or a list when no responses are generated to train on, got answers.",
        )

    # Loss and teacher
    for name, used in {
        "parallelism": teacher.source == "live",
        "contents": teacher.is_cache,
        "k": teacher.is_cache and teacher.contents == "top_k",
        "num_samples": teacher.is_cache and teacher.contents == "samples",
    }.items():
        value = getattr(teacher, name)
        if not used and value != TeacherConfig.model_fields[name].default:
            yield (f"distill.teacher.{name}", f"must be left out when {told}, got {value}.")
    for term in terms:
        if term.loss.needs > teacher.tells:
            served = " or ".join(teacher.served_losses)
            yield (
                "distill.loss",
                f"must be {served} when {told}, got {term.name}. {ALL_SERVED}",
            )
    if distill.temperature != 1:
        if all(term.loss.needs is Knowledge.TOKENS for term in terms):
            yield (
                "distill.temperature",
                f"must be 1 when distill.loss is {terms[0].name}, got {distill.temperature}: nothing reads it.",
            )
        if teacher.tells is Knowledge.ENTRIES:
            yield (
                "distill.temperature",
                (f"must be 1 when {told}, got {distill.temperature}. {ALL_SERVED}"),
            )

    # Responses that the student generates while it trains
    if samples != "teacher":
        if on_text:
            yield ("distill.samples", "must be teacher when distill.train_on is text.")
        elif teacher.source != "live":
            yield (
                "distill.samples",
                (
                    f"must be teacher when distill.teacher.source is {teacher.source}, got {samples}: only a "
                    "live teacher scores new responses."
                ),
            )
        elif all(term.loss.needs is Knowledge.TOKENS for term in terms):
            yield (
                "distill.samples",
                (
                    f"must be teacher when distill.loss is {terms[0].name}, got {samples}: it would learn "
                    "its own tokens."
                ),
            )
        if samples == "mix_token" and teacher.is_sharded:
            yield (
                "distill.samples",
                "must be student or mix_request when distill.teacher.parallelism is fsdp2.",
            )
        if distill.parallelism != "ddp":
            yield (
                "distill.parallelism",
                (
                    f"must be ddp when distill.samples is {samples}, got {distill.parallelism}: a token "
                    "would gather the shards."
                ),
            )

    # Batches and shards
    size, batch = distill.device_train_microbatch_size, distill.global_train_batch_size
    if isinstance(size, int) and size > batch:
        yield (
            "distill.device_train_microbatch_size",
            f"must be at most distill.global_train_batch_size, got {size} and {batch}.",
        )
    if size == "auto" and teacher.is_sharded:
        yield (
            "distill.device_train_microbatch_size",
            "must be a number when distill.teacher.parallelism is fsdp2, got auto.",
        )
    if distill.parallelism != "ddp" and size == "auto":
        yield (
            "distill.parallelism",
            f"must be ddp when distill.device_train_microbatch_size is auto, got {distill.parallelism}.",
        )
    if distill.shard_degree != "auto" and distill.parallelism != "hsdp":
        yield (
            "distill.shard_degree",
            f"must be left out when distill.parallelism is {distill.parallelism}, got {distill.shard_degree}.",
        )

    # Schedule
    units = [unit for unit in WARMUP_UNITS[split_time(distill.max_duration)[1]] if not (on_text and unit == "ep")]
    if split_time(distill.scheduler.t_warmup)[1] not in units:
        yield (
            "distill.scheduler.t_warmup",
            (
                f"must be in {' or '.join(units)} when distill.max_duration is {distill.max_duration}, got "
                f"{distill.scheduler.t_warmup}."
            ),
        )


def online_rules(recipe: Recipe) -> Broken:
    """Rules of learning from requests while they are served."""
    distill, online = recipe.distill, recipe.distill.online
    if online is None:
        return
    for name, (wanted, why) in NOT_ONLINE.items():
        if getattr(distill, name) != wanted:
            yield (f"distill.{name}", f"must be left out with distill.online: {why}.")
    if not distill.teacher.is_cache or distill.teacher.contents != "hidden":
        yield (
            "distill.teacher",
            (
                "must have source cache and contents hidden with distill.online: the target's "
                "hidden states are kept while it serves."
            ),
        )
    if recipe.data.answers == "given":
        yield ("data.answers", "must be written with distill.online, got given.")
    if distill.global_train_batch_size < online.update_interval:
        yield (
            "distill.online.update_interval",
            (
                f"must be at most distill.global_train_batch_size, got {online.update_interval} and "
                f"{distill.global_train_batch_size}: a step learns all requests since the last one."
            ),
        )
    if distill.max_duration != "1ep" and not distill.max_duration.endswith("ba"):
        yield (
            "distill.max_duration",
            f"must be in ba, or 1ep for the whole stream, with distill.online, got {distill.max_duration}.",
        )


def input_rules(recipe: Recipe) -> Broken:
    """Whether text is there for what reads it, and only then."""
    text, architecture, distill = recipe.text, recipe.architecture, recipe.distill
    readers = {
        "architecture.method is learned_masks": architecture.method == "learned_masks",
        "distill.train_on is text": distill.train_on == "text",
        "architecture.vocabulary is from text": architecture.vocabulary is not None
        and architecture.vocabulary.origin == "text",
    }
    reading = [reader for reader, reads in readers.items() if reads]
    if text is None and reading:
        yield ("text", f"must be given when {reading[0]}.")
    if text is not None and not reading:
        yield ("text", f"must be left out unless {' or '.join(readers)}.")
    if text is not None and distill.train_on == "text" and distill.teacher.source == "none":
        lacking = [domain.name for domain in text.domains if domain.reference_loss_nats is None]
        if lacking and text.mixture != "fixed":
            yield (
                "text.mixture",
                (
                    f"must be fixed when distill.teacher.source is none and {', '.join(lacking)} has no "
                    f"reference_loss_nats, got {text.mixture}."
                ),
            )


# feature of a family -> the key that requests it, and whether a recipe does
FEATURES: Mapping[Feature, tuple[str, Callable[[Recipe], bool]]] = {
    "merge": ("architecture.method=merge", lambda recipe: recipe.architecture.method == "merge"),
    "learned_masks": (
        "architecture.method=learned_masks",
        lambda recipe: recipe.architecture.method == "learned_masks",
    ),
    "vocabulary": ("architecture.vocabulary", lambda recipe: recipe.architecture.vocabulary is not None),
    "stages": ("architecture.stages", lambda recipe: recipe.architecture.stages is not None),
    "packing": ("distill.packing", lambda recipe: recipe.distill.packing),
    "text": ("distill.train_on=text", lambda recipe: recipe.distill.train_on == "text"),
    "self_written_prompts": ("data.self_written_prompts", lambda recipe: recipe.data.self_written_prompts > 0),
    "answer engine": ("generate.engine", lambda recipe: not recipe.generate.is_local),
    "sharded teacher": ("distill.teacher.parallelism=fsdp2", lambda recipe: recipe.distill.teacher.is_sharded),
    "fsdp2": ("distill.parallelism=fsdp2 or hsdp", lambda recipe: recipe.distill.parallelism != "ddp"),
}


def refuse_unfit(recipe: Recipe, model_type: str) -> None:
    """Raise UserError if a recipe requests what its target's family does not support, if the family is known."""
    family = FAMILIES.get(model_type)
    for feature, (key, requests) in FEATURES.items():
        if family is not None and requests(recipe):
            family.refuse(feature, key)


def refuse_orders(placement: Placement, missing: set[str]) -> None:
    """Raise UserError if an order of layers is to be found that needs all weights in memory."""
    methods = [name for name, score in LAYER_SCORES.items() if score in missing & SEARCHED[placement]]
    if methods:
        raise UserError(
            f"target.placement is {placement}: architecture.method {methods[0]} runs the target without each of its "
            "layers, with all weights in memory. Take block_influence, or the order found on a larger machine "
            "(architecture.plan or architecture.scores)."
        )
