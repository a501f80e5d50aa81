"""What SGLang 0.5.23 demands of --speculative-algorithm STANDALONE. Read, not run."""

from functools import partial

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import Rule, Verdict, fine, lossy, not_checked
from architectures.engines.rules.common_rules import (
    UNKNOWN_SHAPE,
    equal_sizes,
    equal_templates,
    equal_tokens,
    known_family,
    long_enough,
    no_custom_code,
    own_head,
    own_head_width,
    same_window,
    servable_shape,
    shared_evenly,
    whole_head,
)

NAME = "SGLang"
WORKER, MODELS = "srt/speculative/standalone_worker_v2.py", "srt/models"
NOTES = (
    "At a temperature above 0 it verifies a greedy draft, and accepts less than a scorecard's rejection rule.",
    "It takes 48 requests at a time at most, and no data-parallel attention.",
    "Leave --speculative-token-map alone: STANDALONE does not cut its head by it.",
)


def cache_budget(pair: Pair) -> Verdict:
    """The draft's cache of a layer is no larger than the target's, by which SGLang reckons."""
    ours, theirs = pair.draft.shape, pair.target.shape
    if ours is None or theirs is None:
        role, model = ("draft", pair.draft) if ours is None else ("target", pair.target)
        return not_checked(f"Of the {role}, {UNKNOWN_SHAPE.format(repr(model.model_type))}")
    draft, target = (shape.kv_heads * shape.head_dim for shape in (ours, theirs))
    told = f"{ours.kv_heads} key/value heads of {ours.head_dim} in the draft, {theirs.kv_heads} of {theirs.head_dim}"
    if draft <= target:
        return fine(f"{told} in the target: the memory set aside for the cache is enough.")
    return lossy(
        f"{told} in the target, by which SGLang reckons the cache of both: the draft's layers take "
        f"{draft / target:.2g} times what is set aside.",
        "Give a lower --mem-fraction-static, or cut the draft to fewer kv_heads.",
    )


def quantised(pair: Pair) -> Verdict:
    """The draft is not quantised because its target is."""
    ours, theirs = pair.draft.quantisation, pair.target.quantisation
    if ours is not None:
        return not_checked(f"The draft is quantised ({ours}); whether STANDALONE looks at its config was not read.")
    if theirs is None:
        return fine(
            "Neither is quantised. Beside --quantization give --speculative-draft-model-quantization unquant, or the "
            "draft inherits it."
        )
    return lossy(
        f"The target is quantised ({theirs}) and the draft is not; where --quantization is given, the draft inherits "
        "it.",
        "Say --speculative-draft-model-quantization unquant, as the serve line does.",
    )


COMPARES = "SGLang compares get_vocab() of both, and stops where they differ."
TENSORS = "The draft is laid out over the target's devices."
PAST = "SGLang lets it read texts as long as the target's; past {length} it sees positions it was not made for."
BACKEND = "Its transformers backend may serve it; that was not read."
RULES = (
    Rule("vocabulary size", WORKER, partial(equal_sizes, engine=NAME)),
    Rule("token texts", WORKER, partial(equal_tokens, comparing=True, why=COMPARES)),
    Rule("chat template", WORKER, equal_templates),
    Rule("output head", f"{MODELS}/llama.py", partial(whole_head, forms=", SGLang among them")),
    Rule("head of its own", f"{MODELS}/gemma2.py", partial(own_head, engine=NAME)),
    Rule("shape", f"{MODELS}/llama.py", servable_shape),
    Rule("head width", f"{MODELS}/olmo2.py", partial(own_head_width, engine=NAME)),
    Rule("tensor parallelism", WORKER, partial(shared_evenly, why=TENSORS)),
    Rule("cache", "srt/model_executor/pool_configurator.py", cache_budget),
    Rule("length", WORKER, partial(long_enough, past=PAST)),
    Rule("sliding window", "not read", same_window),
    Rule("quantisation", "srt/arg_groups/serving_hook.py", quantised),
    Rule("model type", MODELS, partial(known_family, engine=NAME, without=BACKEND)),
    Rule("custom code", "srt/configs/model_config.py", no_custom_code),
)
