"""What transformers 5.23 demands of assistant_model."""

from functools import partial

from architectures.checkpoints.generation_settings import ASSISTANT_KEYS
from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import Rule, Verdict, fine, lossy, not_checked
from architectures.engines.rules.common_rules import (
    CONVERT,
    equal_sizes,
    equal_templates,
    equal_tokens,
    long_enough,
    no_custom_code,
    plain_numbers,
    servable_shape,
    unread_parallelism,
)
from architectures.families import FAMILIES

NAME = "transformers"
CANDIDATES, GENERATION = "generation/candidate_generator.py", "generation/utils.py"
NOTES = (
    "It decodes one text at a time (batch 1).",
    "It looks at the draft's generation settings alone: the same words given to generate change nothing.",
)


def vocabulary(pair: Pair) -> Verdict:
    """Sizes are equal, or texts are cut again by the draft's own tokenizer."""
    ours, theirs = pair.draft.vocab_size, pair.target.vocab_size
    if ours == theirs or not pair.own_tokenizer:
        return equal_sizes(pair, engine=NAME)
    return lossy(
        f"vocab_size is {ours} in the draft's config and {theirs} in the target's: given both tokenizers, "
        "transformers cuts each text again when greedy, and maps tokens by their texts when sampling. Not tried here.",
        "Serve it as the serve line says, or convert it with --form whole.",
    )


def same_tokens(pair: Pair) -> Verdict:
    """Ids stand for the same texts, which transformers does not look at."""
    if pair.own_vocabulary:
        return fine("Both tokenizers are given.")
    why = "transformers does not compare them, and every wrong id is a wasted token."
    return equal_tokens(pair, comparing=False, why=why)


def loaded_head(pair: Pair) -> Verdict:
    """The output head has a row for every id, or is opened by the code on the draft's card."""
    rows = pair.draft.small_head
    if not rows:
        return fine("The draft's output head has a row for every id.")
    return lossy(
        f"The draft's output head says {rows} of {pair.draft.vocab_size} ids: from_pretrained alone refuses it, the "
        "code in the draft's README.md opens it.",
        f"Use that code, as the serve line does. Or: {CONVERT}.",
    )


def assistant_settings(pair: Pair) -> Verdict:
    """The draft says how many tokens it proposes, which transformers asks it alone."""
    if pair.draft.settings is None:
        when = "widedraft writes them when the draft is scored" if pair.draft.planned else "its files are not here"
        return not_checked(f"The draft's generation_config.json was not read: {when}.")
    given = {key: pair.draft.settings[key] for key in ASSISTANT_KEYS if pair.draft.settings.get(key) is not None}
    missing = [key for key in ASSISTANT_KEYS if key not in given]
    if not missing:
        return fine(f"The draft's generation_config.json says {', '.join(f'{k} {v}' for k, v in given.items())}.")
    return lossy(
        f"The draft's generation_config.json has no {', '.join(missing)}: transformers' own are 20 tokens a round, "
        "constant, and an end where the draft is less than 0.4 sure.",
        "`widedraft eval` of its recipe writes them; or set them as the serve line does.",
    )


def no_ensemble(pair: Pair) -> Verdict:
    """Nothing mixes the draft's distribution into the target's."""
    present = [each.settings for each in (pair.draft, pair.target) if each.settings is not None]
    if any(settings.get("assistant_ensemble_weight") is not None for settings in present):
        return lossy(
            "A generation_config.json has assistant_ensemble_weight: texts are then no longer the target's.",
            "Remove assistant_ensemble_weight.",
        )
    if len(present) < 2:
        return not_checked(
            "Not every generation_config.json was read; one with assistant_ensemble_weight changes texts."
        )
    return fine("No generation_config.json has assistant_ensemble_weight.")


def known_type(pair: Pair) -> Verdict:
    """Transformers has a model of this type."""
    if pair.draft.model_type in FAMILIES:
        return fine(f"transformers has {pair.draft.model_type}.")
    return not_checked(f"{pair.draft.model_type} is not a model type that widedraft knows.")


PAST = "Past {length} tokens it sees positions it was not made for."
RULES = (
    Rule("vocabulary size", GENERATION, vocabulary),
    Rule("token texts", CANDIDATES, same_tokens),
    Rule("chat template", CANDIDATES, equal_templates),
    Rule("output head", "modeling_utils.py", loaded_head),
    Rule("shape", "models/llama/modeling_llama.py", servable_shape),
    Rule("assistant settings", CANDIDATES, assistant_settings),
    Rule("ensemble", GENERATION, no_ensemble),
    Rule("length", CANDIDATES, partial(long_enough, past=PAST)),
    Rule("model type", "models/auto/modeling_auto.py", known_type),
    Rule("quantisation", "modeling_utils.py", partial(plain_numbers, told=", which needs that method's package.")),
    Rule("devices", "not read", partial(unread_parallelism, engine=NAME)),
    Rule("custom code", "dynamic_module_utils.py", no_custom_code),
)
