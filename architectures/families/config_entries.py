"""Validation of config.json and generation_config.json entries, before transformers opens the files. No torch.

Every reader of these files validates here first. Entries without a type here are left to transformers' own checks.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.files import first_mistake, shown

LONGEST = 2**31 - 1  # positions and ids
TEXT_PARTS = ("text_config", "decoder", "generator")  # keys of transformers for the decoder of a larger model
# Names in transformers' ACT2FN and ROPE_INIT_FUNCTIONS, and aliases of the latter.
ACTIVATIONS = (
    "gelu gelu_10 gelu_fast gelu_new gelu_python gelu_pytorch_tanh gelu_python_tanh gelu_accurate hardswish laplace "
    "leaky_relu linear mish quick_gelu relu relu2 relu6 sigmoid silu sqrtsoftplus swish tanh prelu xielu"
)
ROPE_TYPES = "default linear dynamic yarn longrope llama3 proportional su mrope"
ROPE_NEEDS = {  # settings that transformers requires
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}

Layers, Heads, Width, Positions = (Annotated[int, Field(ge=1, le=most)] for most in (10_000, 2**16, 2**24, LONGEST))
TokenId = Annotated[int, Field(ge=0, le=LONGEST)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
RopeBase = Annotated[float, Field(gt=1, allow_inf_nan=False)]
NotNegative = Annotated[int, Field(ge=0)]
Object = dict[str, Any]
Activation = Literal[tuple(ACTIVATIONS.split())]  # pyright: ignore[reportInvalidTypeForm]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
LayerType = Literal[  # transformers' names; only the first four occur in families with entries
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "window_attention",
    "attention",
    "mamba",
    "conv",
    "moe",
    "hybrid",
    "hybrid_sliding",
    "sparse",
    "dense",
]


def typed(kinds: Mapping[str, Any], *, or_null: bool = False) -> dict[str, Any]:
    """Return the type of every entry, from space-separated names of one type."""
    return {name: kind | None if or_null else kind for names, kind in kinds.items() for name in names.split()}


TOKEN_IDS = {
    "eos_token_id": TokenId | list[TokenId] | None,  # pyright: ignore[reportOperatorIssue]
    "bos_token_id": TokenId | None,  # pyright: ignore[reportOperatorIssue]
    "pad_token_id": Annotated[int, Field(ge=-1, le=LONGEST)] | None,  # pyright: ignore[reportOperatorIssue]
}
CONFIG = {
    **typed(
        {
            "model_type feed_forward_proj": str,
            "num_hidden_layers n_layer num_layers encoder_layers decoder_layers": Layers,
            "relative_attention_num_buckets no_rope_layer_interval": Layers,
            "num_experts num_local_experts num_experts_per_tok": Layers,
            "max_window_layers": NotNegative,
            "hidden_size n_embd d_model d_ff intermediate_size moe_intermediate_size ffn_dim vocab_size": Width,
            "head_vocab_size num_labels": Width,  # the first is widedraft's own: rows of a reduced output head
            "num_attention_heads n_head num_heads": Heads,
            "max_position_embeddings n_positions original_max_position_embeddings": Positions,
            "max_seq_len n_ctx seq_length max_sequence_length": Positions,
            "rms_norm_eps layer_norm_eps layer_norm_epsilon": Annotated[float, Field(gt=0, lt=1)],
            "rope_theta rope_local_base_freq": RopeBase,
            "partial_rotary_factor rotary_pct": Part,
            "initializer_range init_std dropout_rate": Share,
            "hidden_act activation_function": Activation,
            "embedding_multiplier attention_multiplier residual_multiplier logits_scaling": Positive,
            "query_pre_attn_scalar": Positive,
            "tie_word_embeddings attention_bias mlp_bias use_sliding_window scale_attn_weights multi_query": bool,
            "is_encoder_decoder is_decoder add_cross_attention use_parallel_residual scale_decoder_outputs": bool,
            "attention_out_bias": bool,
            "return_dict": Literal[True],
        }
    ),
    **typed(
        {
            "architectures": list[str],
            "num_decoder_layers": Layers,
            "sliding_window_pattern": Layers | Annotated[str, Field(pattern="^[LG]+$")],  # EXAONE writes LLLG
            "n_inner word_embed_proj_dim": Width,
            "num_key_value_heads head_dim d_kv": Heads,
            "sliding_window": Positions,
            "final_logit_softcapping attn_logit_softcapping": Positive,
            "attention_dropout hidden_dropout dropout layerdrop": Share,
            "resid_pdrop embd_pdrop attn_pdrop classifier_dropout": Share,
            "hidden_activation": Activation,
            "dtype torch_dtype": Dtype,
            "no_rope_layers": list[Literal[0, 1]],
            "layer_types": list[LayerType],
            "rope_parameters rope_scaling quantization_config id2label label2id text_config decoder generator": Object,
            "_attn_implementation attn_implementation": Literal[
                "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"
            ],
        },
        or_null=True,
    ),
    **TOKEN_IDS,
}
GENERATION = {
    **typed(
        {
            "max_length max_new_tokens num_beams num_return_sequences num_assistant_tokens": Positions,
            "prompt_lookup_num_tokens max_matching_ngram_size": Positions,
            "min_length min_new_tokens no_repeat_ngram_size": NotNegative,
            "top_k": Annotated[int, Field(ge=-1)],
            "top_p min_p typical_p epsilon_cutoff eta_cutoff assistant_confidence_threshold": Share,
            "temperature": Annotated[float, Field(ge=0, allow_inf_nan=False)],
            "repetition_penalty encoder_repetition_penalty max_time": Positive,
            "length_penalty": Annotated[float, Field(allow_inf_nan=False)],
            "num_assistant_tokens_schedule": Literal["heuristic", "heuristic_transient", "constant"],
            "do_sample use_cache renormalize_logits output_attentions output_hidden_states": bool,
            "suppress_tokens begin_suppress_tokens": list[TokenId],
            "forced_bos_token_id forced_eos_token_id decoder_start_token_id": TokenId | list[TokenId],
        },
        or_null=True,
    ),
    **TOKEN_IDS,
}
ROPE = typed(
    {
        "rope_type type": Literal[tuple(ROPE_TYPES.split())],  # pyright: ignore[reportInvalidTypeForm]
        "rope_theta": RopeBase,
        "factor": Annotated[float, Field(ge=1, allow_inf_nan=False)] | None,  # pyright: ignore[reportOperatorIssue]
        "low_freq_factor high_freq_factor": Positive,
        "original_max_position_embeddings": Positions,
        "attention_factor beta_fast beta_slow": Positive | None,  # pyright: ignore[reportOperatorIssue]
        "partial_rotary_factor": Part,
        "short_factor long_factor": list[Positive],
    }
)
# Of families without an entry transformers checks what only it reads.
UNTYPED = ("layer_types", "hidden_act", "intermediate_size", "moe_intermediate_size")  # the last two may be lists
UNTYPED += ("num_experts", "num_local_experts", "num_experts_per_tok")
OTHERS = {key: kind | None for key, kind in (GENERATION | CONFIG).items() if key not in UNTYPED}
OTHERS["sliding_window"] = NotNegative | None  # pyright: ignore[reportOperatorIssue]  # 0: none
OF_CONFIG, OF_GENERATION, OF_ROPE, OF_OTHERS = (
    TypeAdapter(TypedDict("Entries", kinds, total=False))  # pyright: ignore[reportArgumentType]
    for kinds in (GENERATION | CONFIG, GENERATION, ROPE, OTHERS)
)


def mistake_in(entries: Mapping[str, Any], form: TypeAdapter[Any] = OF_CONFIG) -> str | None:
    """Return the first entry of a wrong type, with reason and value; None if there is none. Nothing is converted."""
    try:
        form.validate_python(dict(entries), strict=True)
    except ValidationError as error:
        return first_mistake(error)
    return None


def require_config(config: Mapping[str, Any], where: str) -> None:
    """Raise UserError naming the first entry of a config.json that has a wrong type or contradicts another.

    Args:
        config: The whole config; multimodal models have the decoder's in a nested part.
    """
    for part in ("", *(name for name in TEXT_PARTS if config.get(name) is not None)):
        entries = config[part] if part else config
        model_type = entries.get("model_type")
        form = OF_OTHERS if isinstance(model_type, str) and model_type not in FAMILIES else OF_CONFIG
        mistake = mistake_in(entries, form) or contradiction(entries)
        if mistake is not None:
            raise UserError(f"{where}: {part + '.' if part else ''}{mistake}. {hint(where)}")


def require_generation_config(config: Mapping[str, Any], where: str) -> None:
    if (mistake := mistake_in(config, OF_GENERATION)) is not None:
        raise UserError(f"{where}: {mistake}. {hint(where)}")


def hint(where: str) -> str:
    return f"Use the {where.rpartition('/')[2]} that came with the checkpoint."


def contradiction(config: Mapping[str, Any]) -> str | None:
    """Return the first entry that contradicts another; None if there is none."""
    vocab_size, layers = config.get("vocab_size"), config.get("num_hidden_layers")
    for name in ("eos_token_id", "pad_token_id"):
        value = config.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if vocab_size is not None and any(token >= vocab_size for token in ids):
            return f"{name} is {value}, outside the vocabulary (vocab_size {vocab_size})"
    for name in ("layer_types", "no_rope_layers"):
        if config.get(name) is not None and layers is not None and len(config[name]) != layers:
            return f"{name} has {len(config[name])} entries for {layers} layers"
    # Sliding-window layers need a window; Qwen also has a switch, off by default.
    family, layer_types = FAMILIES.get(config.get("model_type", "")), config.get("layer_types")
    if layer_types is None and not isinstance(config.get("sliding_window_pattern", 1), int):
        return f"sliding_window_pattern is {config['sliding_window_pattern']!r}, which needs layer_types"
    by_pattern = family is not None and family.window_pattern is not None
    switched_on = family is None or family.window_layers is None or config.get("use_sliding_window", False)
    is_windowed = by_pattern if layer_types is None else "sliding_attention" in layer_types
    if is_windowed and not (switched_on and config.get("sliding_window", 1) is not None):
        return "layers have sliding_attention, but sliding_window or use_sliding_window disables it"
    mistakes = (rope_mistakes(name, config.get(name) or {}) for name in ("rope_parameters", "rope_scaling"))
    return next((mistake for each in mistakes for mistake in each), None)


def rope_mistakes(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors in rotary settings, which may be nested per layer type."""
    by_type = {f"{name}.{key}": value for key, value in settings.items() if isinstance(value, dict)}
    for key, entry in {name: settings, **by_type}.items():
        if (mistake := mistake_in(entry, OF_ROPE)) is not None:
            yield f"{key}.{mistake}"
    for key, entry in (by_type or {name: settings}).items():
        rope_type = entry.get("rope_type", entry.get("type", "default"))
        missing = [need for need in ROPE_NEEDS.get(rope_type, ()) if entry.get(need) is None]
        if missing:
            yield f"{key} has rope_type {rope_type} but no {missing[0]}"
        elif rope_type == "llama3" and entry["low_freq_factor"] >= entry["high_freq_factor"]:
            yield f"{key} must have low_freq_factor < high_freq_factor, got {shown(entry)}"
