"""What vLLM 0.32 demands of method draft_model."""

from functools import partial

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import Rule, Verdict, fine, lossy, not_checked, refused
from architectures.engines.pair.limits import without_vllm
from architectures.engines.pair.misleading import misleading_part
from architectures.engines.rules.common_rules import (
    equal_sizes,
    equal_templates,
    equal_tokens,
    known_family,
    long_enough,
    no_custom_code,
    own_head,
    plain_numbers,
    same_window,
    servable_shape,
    shared_evenly,
    whole_head,
)

NAME = "vLLM"
SPECULATIVE, DRAFT_MODEL = "vllm/config/speculative.py", "vllm/v1/spec_decode/draft_model.py"
NOTES = (
    "It drafts greedily unless draft_sample_method is probabilistic; texts stay the target's in distribution.",
    "The draft is not spread by pipeline parallelism.",
    "The V2 runner, the default, drafts without CUDA graphs; VLLM_USE_V2_MODEL_RUNNER=0 has them in pieces.",
)


def plain_name(pair: Pair) -> Verdict:
    """No part of the draft's path makes vLLM guess another method."""
    part = misleading_part(pair.draft.path)
    if part is None:
        return fine("No part of the draft's path or name stands for another method.")
    return refused(
        f"The draft's path or name holds {part!r} ({pair.draft.path}), by which vLLM takes it for another method's "
        "whatever --speculative-config says.",
        "Move or rename it.",
    )


def vocabulary(pair: Pair) -> Verdict:
    """Sizes are equal, or the draft is served with a vocabulary of its own."""
    if not pair.own_vocabulary:
        return equal_sizes(pair, engine=NAME)
    reason = without_vllm(pair.draft.model_type)
    if reason is not None:
        return refused(
            f"The draft has a tokenizer of its own, and {reason}.", "Run `widedraft export --form whole` in its place."
        )
    return lossy(
        f"The draft has a vocabulary of its own of {pair.draft.vocab_size} tokens, the target one of "
        f"{pair.target.vocab_size}: use_heterogeneous_vocab maps them by their texts, and drafts greedily.",
        "Serve it as the serve line says, or convert it with --form whole, which is no faster.",
    )


def same_tokens(pair: Pair) -> Verdict:
    """Ids stand for the same texts, which vLLM does not look at."""
    if pair.own_vocabulary:
        return fine("Tokens are mapped by their texts.")
    return equal_tokens(pair, comparing=False, why="vLLM does not compare them, and every wrong id is a wasted token.")


def same_dtype(pair: Pair) -> Verdict:
    """The draft's numbers are of the target's type, in which vLLM computes both."""
    ours, theirs = pair.draft.dtype, pair.target.dtype
    if ours is None or theirs is None:
        return not_checked(f"The config of the {'draft' if ours is None else 'target'} names no dtype.")
    if ours == theirs:
        return fine(f"Both have weights in {ours}.")
    return lossy(
        f"The draft's weights are in {ours} and the target's in {theirs}, and vLLM runs both in one type, the target's "
        "or what --dtype says: the draft may be rounded, and was not scored so.",
        f"Serve with --dtype {ours}, or export it with export.dtype={theirs}.",
    )


def text_alone(pair: Pair) -> Verdict:
    """The draft reads text alone."""
    if not pair.draft.multimodal:
        return fine("The draft reads text alone.")
    return refused(
        "The draft reads more than text, and vLLM takes no multimodal draft.", "Take its text part as a model."
    )


TENSORS = "A draft has as many devices as its target (draft_tensor_parallel_size), and as many heads for each."
PAST = "Past {length} tokens the V1 runner stops drafting (issue 58080); that V2 minds the draft's length was not seen."
BACKEND = "Its transformers backend serves it, with which no draft was tried here."
RULES = (
    Rule("name", SPECULATIVE, plain_name),
    Rule("vocabulary size", SPECULATIVE, vocabulary),
    Rule("token texts", DRAFT_MODEL, same_tokens),
    Rule("chat template", DRAFT_MODEL, equal_templates),
    Rule(
        "output head",
        "vllm/model_executor/layers/vocab_parallel_embedding.py",
        partial(whole_head, forms=", --form own-tokenizer for vLLM's use_heterogeneous_vocab"),
    ),
    Rule("head of its own", "vllm/model_executor/models/gemma2.py", partial(own_head, engine=NAME)),
    Rule("shape", "vllm/model_executor/models/llama.py", servable_shape),
    Rule("tensor parallelism", SPECULATIVE, partial(shared_evenly, why=TENSORS)),
    Rule("length", "vllm/v1/spec_decode/draft_model.py", partial(long_enough, past=PAST)),
    Rule("sliding window", "not read", same_window),
    Rule("number type", DRAFT_MODEL, same_dtype),
    Rule("quantisation", SPECULATIVE, partial(plain_numbers, judge=fine, told=", which vLLM reads in its own config.")),
    Rule(
        "model type",
        "vllm/model_executor/models/registry.py",
        partial(known_family, engine=NAME, without=BACKEND),
    ),
    Rule("text alone", SPECULATIVE, text_alone),
    Rule("custom code", "vllm/config/model.py", no_custom_code),
)
