"""What TensorRT-LLM's documentation demands of decoding_type DraftTarget. Its code was not read, nothing was run."""

from functools import partial

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import Rule, Verdict, not_checked
from architectures.engines.rules.common_rules import (
    equal_sizes,
    equal_templates,
    equal_tokens,
    long_enough,
    no_custom_code,
    plain_numbers,
    servable_shape,
    unread_parallelism,
    whole_head,
)

NAME = "TensorRT-LLM"
DOCS = "docs/source/features/speculative-decoding.md"
NOTES = (
    "Not run: its documentation was read, not its code.",
    "It accepts a token where it is the target's greedy choice, unless use_rejection_sampling is set.",
)


def unread_family(pair: Pair) -> Verdict:
    """Nobody looked which models it has."""
    return not_checked(f"Whether TensorRT-LLM has {pair.draft.model_type} was not read.")


SAME = "Draft and target must have the same tokenizer."
PAST = "What happens past {length} tokens was not read."
RULES = (
    Rule("vocabulary size", DOCS, partial(equal_sizes, engine=NAME)),
    Rule("token texts", DOCS, partial(equal_tokens, comparing=True, why=SAME)),
    Rule("chat template", DOCS, equal_templates),
    Rule("output head", "not read", partial(whole_head, forms=", TensorRT-LLM among them (not run)")),
    Rule("shape", "not read", servable_shape),
    Rule("length", "not read", partial(long_enough, past=PAST)),
    Rule("model type", "not read", unread_family),
    Rule("quantisation", "not read", partial(plain_numbers, told=": what is made of that was not read.")),
    Rule("devices", "not read", partial(unread_parallelism, engine=NAME)),
    Rule("custom code", "not read", no_custom_code),
)
