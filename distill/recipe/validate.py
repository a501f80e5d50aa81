"""Rules between two keys of a recipe, or between a key and the target. No torch.

Types and ranges of single keys are in the models of the sections.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Feature
from architectures.pruning.plan import LAYER_SCORES
from architectures.settings import Placement
from distill.losses import Knowledge
from distill.recipe.sections import TeacherConfig, is_plain_text, split_time

Recipe: TypeAlias = Any  # distill.recipe.recipe.Recipe, which imports this module
Broken: TypeAlias = Iterator[tuple[str, str]]

ALL_SERVED = "A live teacher, or a cache with contents hidden, supports all."
WARMUP_UNITS = {"ep": ("ep", "ba", "dur"), "ba": ("ep", "ba", "dur"), "sp": ("sp", "dur"), "tok": ("tok", "dur")}
NOT_ONLINE = {  # keys of distill with the only value that online mode supports, and why
    "train_on": ("responses", "it trains on the responses to requests"),
    "unknown_inputs": (0.0, "the serving draft reads every token id"),
    "samples": ("teacher", "the target generates the responses"),
    "packing": (False, "each request is a separate row"),
    "parallelism": ("ddp", "each process passes its whole draft to its server"),
}
ONE_TEMPERATURE: Mapping[str, Callable[[Recipe], bool]] = {  # when a list of temperatures is not supported
    "data.responses is given": lambda recipe: recipe.data.responses == "given",
    "distill.train_on is text": lambda recipe: recipe.distill.train_on == "text",
    "distill.samples is not teacher": lambda recipe: recipe.distill.samples != "teacher",
    "distill.online is set": lambda recipe: recipe.distill.online is not None,
}
SEARCHED = {"whole": set(), "spread": {"merge_order"}, "layers": {"merge_order", "removal_order"}}


def validate(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the rules that a recipe breaks, each as the key to change and the problem."""
    online = online_rules(recipe) if recipe.distill.online is not None else ()
    return [*data_rules(recipe), *target_rules(recipe), *training_rules(recipe), *online, *text_rules(recipe)]


def data_rules(recipe: Recipe) -> Broken:
    data, given = recipe.data, recipe.data.responses == "given"
    if given and not data.prompts:
        yield (
            "data.responses",
            "must be written when data.prompts is empty, got given. Set data.prompts to rows with responses.",
        )
    if given and data.self_written_prompts:
        yield (
            "data.self_written_prompts",
            "must not be set when data.responses is given: generated prompts have no response.",
        )
    if not given and not data.prompts and not data.self_written_prompts:
        yield "data.self_written_prompts", "must be > 0 when data.prompts is empty, got 0. Set data.prompts."
    if data.max_new_tokens >= data.max_seq_len:
        yield "data.max_new_tokens", f"must be < data.max_seq_len, got {data.max_new_tokens} and {data.max_seq_len}."
    if max(data.temperatures) == 0 and data.top_p < 1:
        yield "data.top_p", f"must be 1 when data.temperature is 0, got {data.top_p}: greedy responses do not sample."
    for key, has_one in ONE_TEMPERATURE.items():
        if len(data.temperatures) > 1 and has_one(recipe):
            yield "data.temperature", f"must be one number when {key}, got {list(data.temperatures)}."


def target_rules(recipe: Recipe) -> Broken:
    """Check the limits of a target that is not whole in memory, quantised, or decoded by another engine."""
    target, distill, engine = recipe.target, recipe.distill, recipe.generate.engine
    masks = recipe.architecture.method == "learned_masks"
    if target.bits is not None:
        when = f"when target.bits is {target.bits}"
        if masks:
            yield "architecture.method", f"must not be learned_masks {when}: masks train the full weights."
        if distill.teacher.is_sharded:
            yield "distill.teacher.parallelism", f"must be replicated {when}: packed weights are not sharded."
        if engine != "local":
            yield "generate.engine", f"must be local {when}, got {engine}: it runs the weights unpacked."
    if target.placement != "whole":
        when = f"when target.placement is {target.placement}"
        if masks:
            yield "architecture.method", f"must not be learned_masks {when}: masks train all weights."
        if distill.online is not None:
            yield "distill.online", f"must not be set {when}: each token would load all weights."
        elif distill.teacher.source == "live":
            yield "distill.teacher.source", f"must be cache or none {when}: every batch would load all weights."


def training_rules(recipe: Recipe) -> Broken:
    """Check section distill, also against the draft's shape."""
    distill, architecture = recipe.distill, recipe.architecture
    teacher: TeacherConfig = distill.teacher
    terms, on_text, is_ddp = distill.terms, distill.train_on == "text", distill.parallelism == "ddp"
    only_tokens = all(term.loss.needs is Knowledge.TOKENS for term in terms)
    key, value = ("contents", teacher.contents) if teacher.is_cache else ("source", teacher.source)
    when = f"when distill.teacher.{key} is {value}"

    # Training data
    for name in ("max_duration", "eval_interval", "save_interval"):
        if on_text and split_time(getattr(distill, name))[1] == "ep":
            yield f"distill.{name}", "must not be in ep when distill.train_on is text, which has no epochs."
    if on_text and teacher.is_cache:
        yield "distill.teacher.source", "must be live or none when distill.train_on is text: caches hold responses."
    if distill.unknown_inputs:
        if distill.freeze_input_embeddings:
            yield (
                "distill.freeze_input_embeddings",
                "must be false with distill.unknown_inputs, which trains an input embedding.",
            )
        if architecture.vocabulary is None and architecture.source is None and architecture.plan is None:
            yield "distill.unknown_inputs", f"must be 0 without architecture.vocabulary, got {distill.unknown_inputs}."
    vocabulary = architecture.vocabulary
    if vocabulary is not None and vocabulary.origin == "responses" and not distill.trains_on_responses:
        yield "architecture.vocabulary.from", "must be text or a list when no responses are generated to train on."

    # Loss and teacher
    used = {
        "parallelism": teacher.source == "live",
        "contents": teacher.is_cache,
        "k": teacher.is_cache and teacher.contents == "top_k",
        "num_samples": teacher.is_cache and teacher.contents == "samples",
    }
    for name, is_used in used.items():
        value = getattr(teacher, name)
        if not is_used and value != TeacherConfig.model_fields[name].default:
            yield f"distill.teacher.{name}", f"must not be set {when}, got {value}."
    for term in terms:
        if term.loss.needs > teacher.tells:
            served = " or ".join(teacher.served_losses)
            yield "distill.loss", f"must be {served} {when}, got {term.name}. {ALL_SERVED}"
    if distill.temperature != 1 and only_tokens:
        yield "distill.temperature", f"must be 1 when distill.loss is {terms[0].name}, got {distill.temperature}."
    if distill.temperature != 1 and teacher.tells is Knowledge.ENTRIES:
        yield "distill.temperature", f"must be 1 {when}, got {distill.temperature}. {ALL_SERVED}"

    # Responses that the student generates during training
    if distill.samples != "teacher":
        if on_text:
            yield "distill.samples", "must be teacher when distill.train_on is text."
        elif teacher.source != "live":
            yield "distill.samples", f"must be teacher {when}: only a live teacher scores new responses."
        elif only_tokens:
            yield (
                "distill.samples",
                f"must be teacher when distill.loss is {terms[0].name}: the student would train on its own tokens.",
            )
        if distill.samples == "mix_token" and teacher.is_sharded:
            yield "distill.samples", "must be student or mix_request when distill.teacher.parallelism is fsdp2."
        if not is_ddp:
            yield "distill.parallelism", f"must be ddp when distill.samples is {distill.samples}."

    # Batches and shards
    size, batch = distill.device_train_microbatch_size, distill.global_train_batch_size
    if size != "auto" and size > batch:
        most = f"at most distill.global_train_batch_size, got {size} and {batch}"
        yield "distill.device_train_microbatch_size", f"must be {most}."
    if size == "auto" and teacher.is_sharded:
        problem = "must be a number when distill.teacher.parallelism is fsdp2, got auto."
        yield "distill.device_train_microbatch_size", problem
    if size == "auto" and not is_ddp:
        yield "distill.parallelism", "must be ddp when distill.device_train_microbatch_size is auto."
    if distill.shard_degree != "auto" and distill.parallelism != "hsdp":
        yield "distill.shard_degree", f"must not be set when distill.parallelism is {distill.parallelism}."

    # Schedule
    scheduler, duration = distill.scheduler, distill.max_duration
    units = [unit for unit in WARMUP_UNITS[split_time(duration)[1]] if not (on_text and unit == "ep")]
    if split_time(scheduler.t_warmup)[1] not in units:
        problem = f"must be in {' or '.join(units)} when distill.max_duration is {duration}, got {scheduler.t_warmup}."
        yield "distill.scheduler.t_warmup", problem
    if (
        scheduler.name == "constant_with_warmup"
        and scheduler.alpha_f != type(scheduler).model_fields["alpha_f"].default
    ):
        yield "distill.scheduler.alpha_f", "must not be set with constant_with_warmup, which ends at lr."


def online_rules(recipe: Recipe) -> Broken:
    distill, online = recipe.distill, recipe.distill.online
    for name, (wanted, why) in NOT_ONLINE.items():
        if getattr(distill, name) != wanted:
            yield f"distill.{name}", f"must not be set with distill.online: {why}."
    if not distill.teacher.is_cache or distill.teacher.contents != "hidden":
        yield "distill.teacher", "must have source cache and contents hidden with distill.online."
    if recipe.data.responses == "given":
        yield "data.responses", "must be written with distill.online, got given."
    if online.responses == "recorded" and online.stream is None:
        yield "distill.online.stream", "must be set when distill.online.responses is recorded."
    if distill.global_train_batch_size < online.update_interval:
        most = f"got {online.update_interval} and {distill.global_train_batch_size}: a step trains on all new requests"
        yield "distill.online.update_interval", f"must be at most distill.global_train_batch_size, {most}."
    if distill.max_duration != "1ep" and not distill.max_duration.endswith("ba"):
        problem = f"must be in ba, or 1ep for the whole stream, with distill.online, got {distill.max_duration}."
        yield "distill.max_duration", problem


def text_rules(recipe: Recipe) -> Broken:
    """Check that text is given if and only if something uses it, and the sources of its domains."""
    text, architecture, distill = recipe.text, recipe.architecture, recipe.distill
    vocabulary = architecture.vocabulary
    readers = {
        "architecture.method is learned_masks": architecture.method == "learned_masks",
        "distill.train_on is text": distill.train_on == "text",
        "architecture.vocabulary is from text": vocabulary is not None and vocabulary.origin == "text",
    }
    reading = [reader for reader, reads in readers.items() if reads]
    if text is None:
        if reading:
            yield "text", f"must be set when {reading[0]}."
        return
    if not reading:
        yield "text", f"must not be set unless {' or '.join(readers)}."
    if not text.domains or len({domain.name for domain in text.domains}) < len(text.domains):
        yield "text.domains", "must contain at least one domain, with unique names."
    for number, domain in enumerate(text.domains):
        key = f"text.domains[{number}]"
        if (domain.path is None) == (domain.dataset is None):
            yield f"{key}.dataset", "must be set, or path: exactly one of the two."
        elif domain.path is not None:
            if domain.config is not None:
                yield f"{key}.config", "must not be set with path: a file has no configurations."
            if domain.split != "train":
                yield f"{key}.split", "must not be set with path: a file has no splits."
            if is_plain_text(domain.path) and domain.field != "text":
                yield f"{key}.field", f"must not be set for plain text, got {domain.field!r} and {domain.path!r}."
    lacking = [domain.name for domain in text.domains if domain.reference_loss_nats is None]
    if distill.train_on == "text" and distill.teacher.source == "none" and lacking and text.mixture != "fixed":
        problem = (
            f"must be fixed without a teacher and reference_loss_nats of {', '.join(lacking)}, got {text.mixture}."
        )
        yield "text.mixture", problem


# feature of a family: the key that requests it, and whether a recipe does
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
    "generation engine": ("generate.engine", lambda recipe: not recipe.generate.is_local),
    "sharded teacher": ("distill.teacher.parallelism=fsdp2", lambda recipe: recipe.distill.teacher.is_sharded),
    "fsdp2": ("distill.parallelism=fsdp2 or hsdp", lambda recipe: recipe.distill.parallelism != "ddp"),
}


NOT_FOR_OTHERS = ("learned_masks", "packing", "text", "sharded teacher")  # what needs an entry in FAMILIES


def reject_unfit(recipe: Recipe, model_type: str) -> None:
    """Raise UserError if a recipe requests a feature that its target's family, if known, does not support."""
    family = FAMILIES.get(model_type)
    for feature, (key, requests) in FEATURES.items():
        if requests(recipe) and family is not None:
            family.reject(feature, key)
        elif requests(recipe) and feature in NOT_FOR_OTHERS:
            raise UserError(f"{key}: not supported for a target of model_type {model_type}. Remove it.")
    if family is None and recipe.target.placement == "layers":
        raise UserError(f"target.placement=layers: not supported for a target of model_type {model_type}. Use spread.")


def reject_orders(placement: Placement, missing: set[str]) -> None:
    """Raise UserError if a missing layer order can only be found with all weights in memory."""
    methods = [name for name, score in LAYER_SCORES.items() if score in missing & SEARCHED[placement]]
    if methods:
        raise UserError(
            f"target.placement is {placement}: architecture.method {methods[0]} runs the target without each of its "
            "layers, with all weights in memory. Use block_influence, or the order found on a larger machine "
            "(architecture.plan or architecture.scores)."
        )
