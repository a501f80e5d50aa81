"""What llama.cpp demands of -md, and its converter of a folder (as in llama-cpp-python 0.3.36)."""

from functools import partial

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import Rule, Verdict, fine, lossy, not_checked, refused
from architectures.engines.pair.tokenizer_files import differing_ids, text_of
from architectures.engines.rules.common_rules import (
    UNKNOWN_SHAPE,
    equal_templates,
    known_family,
    long_enough,
    no_custom_code,
    own_head,
    own_head_width,
    plain_numbers,
    remedy_of_sizes,
    servable_shape,
    unread_parallelism,
    unread_tokenizer,
    whole_head,
)
from architectures.families import FAMILIES
from architectures.shapes.serving import quantised_formats

NAME = "llama.cpp"
SPECULATIVE, CONVERSION = "common/speculative.cpp", "conversion/base.py"
MOST_APART, FIRST_COMPARED = 128, 5
COPY = "Copy the target's tokenizer files into the draft, if it was trained with them, and convert it again."
NOTES = (
    "Both are converted to GGUF first.",
    "It accepts a token of the draft only where the target's own choice is the same, at any temperature.",
)


def near_sizes(pair: Pair) -> Verdict:
    """The vocabulary sizes are at most MOST_APART apart."""
    ours, theirs = pair.draft.vocab_size, pair.target.vocab_size
    if ours is None or theirs is None:
        return not_checked(f"The config of the {'draft' if ours is None else 'target'} names no vocab_size.")
    apart = abs(ours - theirs)
    if apart <= MOST_APART:
        return fine(f"The vocabularies of {ours} and {theirs} ids are {apart} apart; {MOST_APART} are allowed.")
    return refused(
        f"The vocabularies have {ours} (draft) and {theirs} ids (target), {apart} apart; at most {MOST_APART} are "
        "allowed.",
        remedy_of_sizes(pair),
    )


def same_kind(pair: Pair) -> Verdict:
    """Both vocabularies are of one type."""
    ours, theirs = pair.draft.tokenizer, pair.target.tokenizer
    if ours is None or theirs is None:
        return unread_tokenizer(pair)
    if ours.kind == theirs.kind:
        return fine(f"Both tokenizers are {theirs.kind}.")
    return refused(f"The draft's tokenizer is {ours.kind}, the target's {theirs.kind}.", COPY)


def same_tokens(pair: Pair) -> Verdict:
    """The texts are equal from FIRST_COMPARED on, as far as both vocabularies go."""
    ours, theirs = pair.draft.tokenizer, pair.target.tokenizer
    if ours is None or theirs is None:
        return unread_tokenizer(pair)
    id_ = next(differing_ids(ours.ids, theirs.ids, first=FIRST_COMPARED), None)
    if id_ is None:
        return fine(f"The texts are equal from id {FIRST_COMPARED} on.")
    return refused(
        f"Id {id_} is {text_of(ours.ids, id_)} in the draft and {text_of(theirs.ids, id_)} in the target; texts "
        f"must be equal from id {FIRST_COMPARED} on.",
        COPY,
    )


def same_ends(pair: Pair) -> Verdict:
    """Both add the same ids at the ends of a text."""
    ours, theirs = pair.draft.tokenizer, pair.target.tokenizer
    if ours is None or theirs is None:
        return unread_tokenizer(pair)
    if ours.special != theirs.special:
        return refused(f"Ids of BOS and EOS are {ours.special} in the draft and {theirs.special} in the target.", COPY)
    flags = tuple(zip(ours.adds[:2], theirs.adds[:2], strict=True))
    if any(None not in pair_of and pair_of[0] != pair_of[1] for pair_of in flags):
        return refused(
            f"add_bos_token and add_eos_token are {ours.adds[:2]} in the draft and {theirs.adds[:2]} in the target.",
            COPY,
        )
    if ours.adds != theirs.adds:
        return not_checked(
            "One tokenizer leaves add_bos_token, add_eos_token or its post-processor to llama.cpp's converter, the "
            "other does not: whether both then add the same ids was not read.",
            COPY,
        )
    return fine("Both add the same BOS and EOS.")


def no_eagle_entry(pair: Pair) -> Verdict:
    """The draft is not taken for a head of EAGLE-3."""
    shape, model_type = pair.draft.shape, pair.draft.model_type
    if shape is None or shape.layers != 1 or not (pair.draft.eagle_entry and is_taken_for_eagle(model_type)):
        return fine("The converter does not take the draft for EAGLE-3.")
    return refused(
        f"The draft is a {model_type} of one layer with draft_vocab_size in its config: the converter takes it for "
        "EAGLE-3.",
        "Remove draft_vocab_size from its config.json.",
    )


def is_taken_for_eagle(model_type: str) -> bool:
    """Whether the converter takes models of this known type for EAGLE-3, where they have one layer and the entry."""
    gguf = FAMILIES[model_type].gguf
    return gguf is not None and gguf.taken_for_eagle


def rows_of_blocks(pair: Pair) -> Verdict:
    """Rows are whole blocks of the quantised formats."""
    shape = pair.draft.shape
    if shape is None:
        return not_checked(f"Of the draft, {UNKNOWN_SHAPE.format(repr(pair.draft.model_type))}")
    formats = quantised_formats(shape)
    rows = f"Rows of {shape.hidden}, {shape.intermediate} and {shape.heads * shape.head_dim}"
    if formats == "k-quants":
        return fine(f"{rows} are whole blocks of 256: K-quants hold them.")
    if formats == "none":
        return lossy(
            f"{rows} are not all whole blocks of 32: a quantised file keeps those in F16.",
            "Cut the draft to multiples of 256, or leave it in F16.",
        )
    return lossy(
        f"{rows} are not all whole blocks of 256: of K-quants those become Q5_0 for Q4_K, Q5_1 for Q5_K and Q8_0 for "
        "Q6_K.",
        "Quantise it to Q8_0 or Q4_0, or cut it to multiples of 256.",
    )


def stated_head(pair: Pair) -> Verdict:
    """The config states how wide a head is, where that is not hidden by heads."""
    shape = pair.draft.shape
    if shape is None:
        return not_checked(f"Of the draft, {UNKNOWN_SHAPE.format(repr(pair.draft.model_type))}")
    if NAME in FAMILIES[shape.family].heads_share_hidden:
        return own_head_width(pair, engine=NAME)
    if pair.draft.explicit_head_dim or shape.head_dim * shape.heads == shape.hidden:
        return fine(f"The converter finds heads of {shape.head_dim}.")
    return not_checked(
        f"The draft's config does not state its heads of {shape.head_dim}, and hidden {shape.hidden} by {shape.heads} "
        "heads is another width: whether the converter knows what this model type means was not read.",
        f"Write head_dim {shape.head_dim} into its config.json.",
    )


def rotary_period(pair: Pair) -> Verdict:
    """Layers without rotary positions are those that the engine has without."""
    shape, layers = pair.draft.shape, pair.draft.rotary_layers
    gguf = None if shape is None else FAMILIES[shape.family].gguf
    expected = None if shape is None or gguf is None else gguf.rotary_layers(shape.layers)
    if gguf is None or expected is None:
        return fine("No layer of a model type of its own is without rotary positions.")
    told = f"llama.cpp leaves rotary positions out of every {gguf.rope_period}th layer"
    if layers is None:
        return not_checked(f"{told}; which layers the draft keeps shows when it is cut.", "Ask again then.")
    if list(layers) == expected:
        return fine(f"{told}, as the draft does.")
    return refused(
        f"{told}, and no entry of a file says otherwise; the draft's no_rope_layers are {list(layers)}.",
        "Keep layers in such an order (architecture.plan), or take another engine.",
    )


def convertible(pair: Pair) -> Verdict:
    """The converter knows models of this type."""
    model_type = pair.draft.model_type
    if model_type in FAMILIES and NAME not in FAMILIES[model_type].engines:
        return refused(f"llama.cpp's converter has no {model_type}.", "Take another engine.")
    return known_family(pair, engine=NAME, without="")


UNREAD = ", which the converter reads of some methods alone."
QUANTISE = "Convert the folder it was quantised from, and quantise the GGUF file."
PAST = "Past {length} tokens it sees positions it was not made for."
RULES = (
    Rule("vocabulary size", SPECULATIVE, near_sizes),
    Rule("vocabulary type", SPECULATIVE, same_kind),
    Rule("token texts", SPECULATIVE, same_tokens),
    Rule("BOS and EOS", SPECULATIVE, same_ends),
    Rule("chat template", SPECULATIVE, equal_templates),
    Rule("output head", CONVERSION, partial(whole_head, forms=", llama.cpp among them")),
    Rule("head of its own", "conversion/gemma.py", partial(own_head, engine=NAME)),
    Rule("taken for EAGLE-3", "conversion/llama.py", no_eagle_entry),
    Rule("model type", "conversion/__init__.py", convertible),
    Rule("shape", "conversion/llama.py", servable_shape),
    Rule("head width", CONVERSION, stated_head),
    Rule("rotary layers", "src/models/smollm3.cpp", rotary_period),
    Rule("quantised rows", "src/llama-quant.cpp", rows_of_blocks),
    Rule("quantisation", CONVERSION, partial(plain_numbers, told=UNREAD, judge=partial(not_checked, remedy=QUANTISE))),
    Rule("length", SPECULATIVE, partial(long_enough, past=PAST)),
    Rule("devices", "not read", partial(unread_parallelism, engine=NAME)),
    Rule("custom code", CONVERSION, no_custom_code),
)
