"""Rules that several engines share. Each takes what differs between them as keywords."""

from collections.abc import Callable

from architectures.engines.pair.facts import Model, Pair
from architectures.engines.pair.finding import Verdict, fine, lossy, not_checked, refused
from architectures.engines.pair.tokenizer_files import differing_ids, text_of
from architectures.families import FAMILIES
from architectures.shapes.serving import serving_problems, tensor_parallel_degrees

CONVERT = "Run `widedraft export`: --form whole is for any engine"
UNKNOWN_SHAPE = "its model type {} is not one that widedraft knows, so its sizes were not read."


def equal_sizes(pair: Pair, *, engine: str) -> Verdict:
    """The vocabulary sizes of both configs are equal."""
    ours, theirs = pair.draft.vocab_size, pair.target.vocab_size
    if ours is None or theirs is None:
        return not_checked(f"The config of the {'draft' if ours is None else 'target'} names no vocab_size.")
    if ours == theirs:
        return fine(f"Both configs have vocab_size {theirs}.")
    return refused(
        f"vocab_size is {ours} in the draft's config and {theirs} in the target's, and {engine} compares them.",
        remedy_of_sizes(pair),
    )


def remedy_of_sizes(pair: Pair) -> str:
    """How to make a draft's vocabulary as large as its target's; both are known."""
    ours, theirs = pair.draft.vocab_size, pair.target.vocab_size
    assert ours is not None  # the caller asked
    assert theirs is not None
    if pair.draft.form == "own-tokenizer":
        return "Run `widedraft export --form whole` on the draft that this was made from."
    if ours < theirs:
        return f"Export the draft with {theirs} rows of embedding and head, the new ones for ids nobody says."
    return f"Take a draft that was made for this target, with {theirs} rows of embedding and head."


def equal_tokens(pair: Pair, *, comparing: bool, why: str) -> Verdict:
    """Every id stands for the same text in both tokenizers.

    Args:
        comparing: Whether the engine compares them and stops; else it proposes wrong tokens.
        why: What the engine does, as a sentence.
    """
    ours, theirs = pair.draft.tokenizer, pair.target.tokenizer
    if ours is None or theirs is None:
        return unread_tokenizer(pair)
    if ours.ids == theirs.ids:
        return fine(f"Both tokenizers have the same {len(theirs.ids)} texts under the same ids.")
    id_ = next(differing_ids(ours.ids, theirs.ids), None)
    told = f"The draft's tokenizer has {len(ours.ids)} texts, the target's {len(theirs.ids)}"
    if id_ is not None:
        told += f"; id {id_} is {text_of(ours.ids, id_)} in the first and {text_of(theirs.ids, id_)} in the other"
    judge = refused if comparing else lossy
    return judge(f"{told}. {why}", "Copy the target's tokenizer files into the draft, if it was trained with them.")


def unread_tokenizer(pair: Pair) -> Verdict:
    """Of rules that compare tokenizers, one of which is not known."""
    remedy = "Give folders that hold tokenizer.json to have them compared."
    if pair.draft.planned:
        remedy = "widedraft copies the target's into every draft: ask again when this one is there."
    return not_checked(f"Not known here is {pair.unread_tokenizer}.", remedy)


def equal_templates(pair: Pair) -> Verdict:
    """The chat templates are equal: engines frame conversations with the target's."""
    ours, theirs = pair.draft.tokenizer, pair.target.tokenizer
    if ours is None or theirs is None:
        return unread_tokenizer(pair)
    if ours.template == theirs.template:
        return fine("Both folders have the same chat template, or both have none.")
    return lossy(
        "The draft's chat template is another than the target's, whose template frames what both read: the draft may "
        "have learned from other texts.",
        "Train the draft on conversations framed by the target's template, and copy that beside it.",
    )


def whole_head(pair: Pair, *, forms: str) -> Verdict:
    """The output head has a row for every id.

    Args:
        forms: What to convert to, after CONVERT.
    """
    rows = pair.draft.small_head
    if not rows:
        return fine("The draft's output head has a row for every id.")
    told = f"The draft's output head says {rows} of {pair.draft.vocab_size} ids (head_vocab_size)"
    if pair.draft.planned:
        return lossy(f"{told}: its folder is served after a conversion alone.", f"{CONVERT}{forms}.")
    return refused(f"{told}, and the engine looks for a row of each.", f"{CONVERT}{forms}.")


def own_head(pair: Pair, *, engine: str) -> Verdict:
    """The engine reads an output head of its own in models of this type, if the draft has one."""
    model_type, shape = pair.draft.model_type, pair.draft.shape
    if shape is None:
        return not_checked(f"Of the draft, {UNKNOWN_SHAPE.format(repr(model_type))}")
    if shape.tied:
        return fine("The draft's output head is its embedding.")
    if engine not in FAMILIES[shape.family].head_is_embedding:
        return fine(f"{engine} reads the output head of {model_type}.")
    return refused(
        f"The draft has an output head that is not its embedding, and {engine} has none but the embedding for "
        f"{model_type}: it would serve another model.",
        "Make a draft whose head is its embedding (no architecture.vocabulary), or take another engine.",
    )


def own_head_width(pair: Pair, *, engine: str) -> Verdict:
    """The engine takes heads of the width they have."""
    shape = pair.draft.shape
    if shape is None:
        return not_checked(f"Of the draft, {UNKNOWN_SHAPE.format(repr(pair.draft.model_type))}")
    if engine not in FAMILIES[shape.family].heads_share_hidden or shape.head_dim * shape.heads == shape.hidden:
        return fine(f"{engine} finds heads of {shape.head_dim}.")
    return refused(
        f"The draft has {shape.heads} heads of {shape.head_dim}, and {engine} takes hidden / heads = {shape.hidden} / "
        f"{shape.heads} for the width of a head of {shape.family}, whatever its config says.",
        "Cut heads and hidden by the same share, or neither.",
    )


def servable_shape(pair: Pair) -> Verdict:
    """The sizes fit each other."""
    if pair.draft.shape is None:
        return not_checked(f"Of the draft, {UNKNOWN_SHAPE.format(repr(pair.draft.model_type))}")
    problems = serving_problems(pair.draft.shape)
    if problems:
        return refused(f"Of the draft, {' '.join(problems)}", "Cut it to other sizes.")
    return fine("The draft's heads, key/value heads and widths fit each other.")


def shared_evenly(pair: Pair, *, why: str) -> Verdict:
    """Both models can be divided over the devices.

    Args:
        why: What the engine demands of a draft's devices, as a sentence.
    """
    degrees: list[int] | None = None
    other_cut = ", or cut the draft to other heads and widths"
    for role, model in (("draft", pair.draft), ("target", pair.target)):
        if model.shape is None:
            return not_checked(f"Of the {role}, {UNKNOWN_SHAPE.format(repr(model.model_type))} {why}")
        own = tensor_parallel_degrees(model.shape)
        degrees = own if degrees is None else [degree for degree in degrees if degree in own]
    for role, model in (("draft", pair.draft), ("target", pair.target)):
        if not divides(model, pair.tensor_parallel):
            return refused(
                f"{pair.tensor_parallel} devices cannot share {parts_of(model)} of the {role} evenly. {why}",
                f"Serve both on {listed(degrees)} devices{other_cut if model is pair.draft else ''}.",
            )
    return fine(f"{pair.tensor_parallel} can share draft and target; {listed(degrees)} could too. {why}")


def divides(model: Model, degree: int) -> bool:
    """Whether so many devices can share a model of a known shape."""
    return model.shape is not None and degree in tensor_parallel_degrees(model.shape)


def parts_of(model: Model) -> str:
    """What devices share, in words."""
    shape = model.shape
    assert shape is not None  # the caller asked
    return f"the {shape.heads} heads, {shape.kv_heads} key/value heads and {shape.intermediate} neurons"


def listed(degrees: list[int] | None) -> str:
    """Numbers of devices in words: "1, 2 or 4"."""
    *others, last = map(str, degrees or [1])
    return f"{', '.join(others)} or {last}" if others else last


def unread_parallelism(pair: Pair, *, engine: str) -> Verdict:
    """One device, as far as anybody read."""
    if pair.tensor_parallel == 1:
        return fine("One device serves both.")
    return not_checked(
        f"How {engine} shares a draft among {pair.tensor_parallel} devices was not read; its serve line says nothing "
        "of it."
    )


def long_enough(pair: Pair, *, past: str) -> Verdict:
    """The draft was made for texts as long as the target's.

    Args:
        past: What the engine does with longer ones, as a sentence with {length}.
    """
    ours, theirs = pair.draft.context, pair.target.context
    if ours is None:
        return fine("The draft's positions have no end.")
    if theirs is None:
        return not_checked(f"The target's config names no length; the draft's {ours.origin}.")
    if ours.tokens >= theirs.tokens:
        return fine(f"The draft was made for texts of {ours.tokens} tokens, the target for {theirs.tokens}.")
    rows = pair.draft.shape is not None and pair.draft.shape.positions
    export = "" if rows else f"Export it with max_position_embeddings {theirs.tokens}, or serve"
    return lossy(
        f"The draft was made for texts of {ours.tokens} tokens ({ours.origin}), the target for {theirs.tokens}. "
        f"{past.format(length=ours.tokens)}",
        f"{export or 'Serve'} texts of at most {ours.tokens} tokens.",
    )


def same_window(pair: Pair) -> Verdict:
    """Both look back equally far in layers with a window."""
    ours, theirs = pair.draft.window, pair.target.window
    if ours == theirs:
        return fine("No layer has a sliding window." if ours is None else f"Both have sliding windows of {ours}.")
    return not_checked(
        f"Sliding windows of {ours or 'no'} tokens in the draft and {theirs or 'no'} in the target: whether they share "
        "a cache was not read."
    )


def known_family(pair: Pair, *, engine: str, without: str) -> Verdict:
    """The engine has a model of this type.

    Args:
        without: What it does with others, as a sentence.
    """
    model_type = pair.draft.model_type
    family = FAMILIES.get(model_type)
    if family is None:
        return not_checked(
            f"{model_type} is not a model type that widedraft knows, or that was looked for in {engine}."
        )
    if family.encoder is not None:
        return not_checked(f"{model_type} is an encoder-decoder model: whether {engine} drafts with one was not read.")
    if engine in family.engines:
        return fine(f"{engine} has a model of its own for {model_type}.")
    return not_checked(f"{engine} has no model of its own for {model_type}. {without}")


def no_custom_code(pair: Pair) -> Verdict:
    """The draft needs no code of its own."""
    if not pair.draft.custom_code:
        return fine("The draft's config names no code of its own.")
    if pair.draft.model_type in FAMILIES:
        return lossy(
            "The draft's config names code of its own (auto_map), which an engine does not run unless told to trust "
            f"it: it serves its own {pair.draft.model_type}, which may be another model.",
            "Remove auto_map from the draft's config.json if it is a plain model of its type.",
        )
    return refused(
        f"The draft's config names code of its own (auto_map) for model_type {pair.draft.model_type!r}. An engine runs "
        "it only where it is told to trust it, and preflight never advises that.",
        "Take a draft of a model type that engines have.",
    )


def plain_numbers(pair: Pair, *, told: str, judge: Callable[[str], Verdict] = not_checked) -> Verdict:
    """The draft's weights are plain numbers.

    Args:
        told: What the engine does with others, behind "The draft is quantised (METHOD)".
        judge: Of those.
    """
    if pair.draft.quantisation is None:
        return fine("The draft's weights are not quantised.")
    return judge(f"The draft is quantised ({pair.draft.quantisation}){told}")
