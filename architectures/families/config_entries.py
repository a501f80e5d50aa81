"""What may stand in a checkpoint's config.json and generation_config.json, so that nobody computes with anything else.

Every reader of these files asks here first, before transformers opens them. An entry without a kind is left to
transformers, which checks the types of its own. No torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.files.entry_kinds import (
    EPSILON,
    FLAG,
    LONGEST,
    NOT_NEGATIVE,
    OBJECT,
    PART,
    POSITIONS,
    POSITIVE,
    ROPE,
    ROPE_BASE,
    SHARE,
    TEXT,
    TOKEN,
    Activation,
    Attention,
    Kind,
    LayerType,
    NumberType,
    Schedule,
    TokenId,
    count,
    number,
    one_of,
    whole,
)

Rotates = Literal[0, 1]
LAYERS, HEADS, WIDTH = count(10_000), count(2**16), count(2**24)
ACTIVATION = one_of(Activation)
TEXT_PARTS = ("text_config", "decoder", "generator")  # where transformers looks for the decoder of a larger model
ROPE_NEEDS = {  # settings that transformers takes to be there
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}


def kinds(*names: str, of: Kind) -> dict[str, Kind]:
    """Several entries of one kind."""
    return dict.fromkeys(names, of)


TOKEN_IDS = {
    "eos_token_id": TOKEN.or_list().or_null(),
    "bos_token_id": TOKEN.or_null(),
    "pad_token_id": whole("a token id or -1", ge=-1, le=LONGEST).or_null(),
}
CONFIG: dict[str, Kind] = {
    "model_type": TEXT,
    "architectures": Kind("a list of class names, or null", list[str] | None),
    **kinds("relative_attention_num_buckets", of=LAYERS),
    **kinds("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", of=LAYERS),
    "num_decoder_layers": LAYERS.or_null(),
    "sliding_window_pattern": LAYERS,
    "max_window_layers": whole("a whole number >= 0", ge=0),
    **kinds("hidden_size", "n_embd", "d_model", "d_ff", "intermediate_size", "ffn_dim", "vocab_size", of=WIDTH),
    "head_vocab_size": WIDTH,  # of ours: rows of a small output head
    **kinds("n_inner", "word_embed_proj_dim", of=WIDTH.or_null()),
    **kinds("num_attention_heads", "n_head", "num_heads", of=HEADS),
    **kinds("num_key_value_heads", "head_dim", "d_kv", of=HEADS.or_null()),
    **kinds("max_position_embeddings", "n_positions", "original_max_position_embeddings", of=POSITIONS),
    **kinds("max_seq_len", "n_ctx", "seq_length", "max_sequence_length", of=POSITIONS),
    "sliding_window": POSITIONS.or_null(),
    **kinds("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", of=EPSILON),
    **kinds("rope_theta", "rope_local_base_freq", of=ROPE_BASE),
    **kinds("rope_parameters", "rope_scaling", of=OBJECT.or_null()),
    **kinds("partial_rotary_factor", "rotary_pct", of=PART),
    **kinds("final_logit_softcapping", "attn_logit_softcapping", of=POSITIVE.or_null()),
    "query_pre_attn_scalar": POSITIVE,
    **kinds("initializer_range", "init_std", of=SHARE),
    **kinds("attention_dropout", "hidden_dropout", "dropout", "layerdrop", of=SHARE.or_null()),
    **kinds("resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout", of=SHARE.or_null()),
    **kinds("hidden_act", "activation_function", of=ACTIVATION),
    "hidden_activation": ACTIVATION.or_null(),
    **kinds("dtype", "torch_dtype", of=one_of(NumberType).or_null()),
    **kinds("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", of=POSITIVE),
    "no_rope_layers": Kind("a list of 1 (with rotary positions) and 0 for each layer, or null", list[Rotates] | None),
    "no_rope_layer_interval": LAYERS,
    "multi_query": FLAG,
    "layer_types": Kind("a list with the kind of each layer, as full_attention, or null", list[LayerType] | None),
    **kinds("quantization_config", "id2label", "label2id", *TEXT_PARTS, of=OBJECT.or_null()),
    "num_labels": WIDTH,
    "return_dict": Kind("true", Literal[True]),
    **kinds("_attn_implementation", "attn_implementation", of=one_of(Attention).or_null()),
    **kinds("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "scale_attn_weights", of=FLAG),
    **kinds("is_encoder_decoder", "is_decoder", "add_cross_attention", "use_parallel_residual", of=FLAG),
    "scale_decoder_outputs": FLAG,
    "feed_forward_proj": TEXT,
    "dropout_rate": SHARE,
    **TOKEN_IDS,
}
GENERATION: dict[str, Kind] = {
    name: kind.or_null()
    for name, kind in {
        **kinds("max_length", "max_new_tokens", "num_beams", "num_return_sequences", of=POSITIONS),
        **kinds("num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size", of=POSITIONS),
        **kinds("min_length", "min_new_tokens", "no_repeat_ngram_size", of=whole("a whole number >= 0", ge=0)),
        "top_k": whole("a whole number >= -1", ge=-1),
        **kinds("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", of=SHARE),
        "assistant_confidence_threshold": SHARE,
        "temperature": NOT_NEGATIVE,
        **kinds("repetition_penalty", "encoder_repetition_penalty", "max_time", of=POSITIVE),
        "length_penalty": number("a number"),
        "num_assistant_tokens_schedule": one_of(Schedule),
        **kinds("do_sample", "use_cache", "renormalize_logits", "output_attentions", "output_hidden_states", of=FLAG),
        **kinds("suppress_tokens", "begin_suppress_tokens", of=Kind("a list of token ids", list[TokenId])),
        **kinds("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id", of=TOKEN.or_list()),
    }.items()
} | TOKEN_IDS


def require_config(config: Mapping[str, Any], where: str) -> None:
    """Raise UserError naming the first entry of a config.json that is of another kind or contradicts another.

    Args:
        config: What the file holds.
        where: The file; begins the message.
    """
    require_part(config, where, "")
    for name in TEXT_PARTS:
        if config.get(name) is not None:
            require_part(config[name], where, f"{name}.")


def require_part(config: Mapping[str, Any], where: str, prefix: str) -> None:
    """The same of the whole config or of one model in it."""
    require_entries(config, GENERATION | CONFIG, where, prefix)
    for mistake in contradictions(config):
        raise UserError(f"{where}: {prefix}{mistake}. {remedy(where)}")


def require_generation_config(config: Mapping[str, Any], where: str) -> None:
    """Raise UserError naming the first entry of a generation_config.json that is of another kind."""
    require_entries(config, GENERATION, where, "")


def require_entries(config: Mapping[str, Any], known: Mapping[str, Kind], where: str, prefix: str) -> None:
    """Raise UserError naming the first entry that is not of its kind."""
    for name, value in config.items():
        if name in known and not known[name].fits(value):
            raise UserError(f"{where}: {prefix}{name} {known[name].mistake(value)}. {remedy(where)}")


def remedy(where: str) -> str:
    """What to do about a damaged file."""
    return f"Take the {where.rpartition('/')[2]} the checkpoint came with."


def contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Entries that do not fit each other, in words."""
    vocab_size, layers = config.get("vocab_size"), config.get("num_hidden_layers")
    for name in ("eos_token_id", "pad_token_id"):
        for token in listed(config.get(name)):
            if vocab_size is not None and token >= vocab_size:
                yield f"{name} is {token}, but vocab_size is {vocab_size}: the model cannot say or read it"
    for name in ("layer_types", "no_rope_layers"):
        if config.get(name) is not None and layers is not None and len(config[name]) != layers:
            yield f"{name} has {len(config[name])} entries for {layers} layers"
    if windowed(config) and not has_window(config):
        yield "layers have sliding_attention, but sliding_window or use_sliding_window says that there is no window"
    for name in ("rope_parameters", "rope_scaling"):
        yield from rope_mistakes(name, config.get(name) or {})


def windowed(config: Mapping[str, Any]) -> bool:
    """Whether some layers look back a part of the way alone."""
    family = FAMILIES.get(config.get("model_type", ""))
    layer_types = config.get("layer_types")
    if layer_types is None:
        return family is not None and family.window_pattern is not None
    return "sliding_attention" in layer_types


def has_window(config: Mapping[str, Any]) -> bool:
    """Whether it is said how far, or left to transformers; Qwen has a switch besides, off where it is absent."""
    family = FAMILIES.get(config.get("model_type", ""))
    switched_on = family is None or family.window_layers is None or config.get("use_sliding_window", False)
    return switched_on and config.get("sliding_window", 1) is not None


def listed(value: Any) -> Iterable[int]:
    """An entry that may be one id, several, or none."""
    return [] if value is None else value if isinstance(value, list) else [value]


def rope_mistakes(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with rotary settings, of which there may be one for each layer type."""
    by_type = {f"{name}.{key}": value for key, value in settings.items() if isinstance(value, dict)}
    for key, entry in {name: settings, **by_type}.items():
        if not ROPE.fits(entry):
            yield f"{key} {ROPE.mistake(entry)}"
    for key, entry in (by_type or {name: settings}).items():
        yield from rope_needs(key, entry)


def rope_needs(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """What a rotary type needs and does not have."""
    rope_type = settings.get("rope_type", settings.get("type", "default"))
    missing = [need for need in ROPE_NEEDS.get(rope_type, ()) if settings.get(need) is None]
    if missing:
        yield f"{name} has rope_type {rope_type} but no {missing[0]}"
    elif rope_type == "llama3" and settings["low_freq_factor"] >= settings["high_freq_factor"]:
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
        yield f"{name} must have low_freq_factor < high_freq_factor, got {low:g} and {high:g}"
