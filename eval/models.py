"""Load checkpoints and tokenizers, rejecting incomplete or damaged ones; one tokenizer for target and draft.

Linear layers on a CPU: PyTorch computes x W^T with MKL. On a CPU with AVX2 but not AVX-512, MKL reads weights from
memory at half the usual speed, and no form of the product is fast at two rows with weights in PyTorch's layout. oneDNN
reads its own layout at full speed: up to four rows take as long as one, eight a sixth longer. So a decoding model gets
a second, packed copy of its linear layers; a verification step, which reads every weight once like a single-token
step, then costs hardly more than one. On an Intel CPU with avx512_bf16 and no amx_bf16 the same holds in bfloat16, but
not in float32 (both in docs/benchmarks.md).

Shape suffixes used in this file:
    R = rows
    I = inputs
    O = outputs
"""

import ctypes
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from architectures.checkpoint import read_entries, require_files_of_folder
from architectures.errors import UserError
from architectures.families import FAMILIES, quantised
from architectures.files import read_json_object, require_regular
from architectures.hub import read_config, require_whole_head
from architectures.manifest import fingerprint_checkpoint, fingerprint_value, read_json_file
from architectures.settings import few_rows_gain_only
from architectures.shapes import ContextLength, context_length
from architectures.target_files import MAX_TOKENIZER_MIB
from architectures.vocabulary_head import columns_below, head_ids, name_rows, read_head, with_rows

FEW_ROWS = 64  # packed weights are used up to this many rows; more, as in training or replay, gain nothing
MOST_PACKED_BYTES = 8 << 30  # of a model's linear layers; a second copy of more might not fit
ROWS_PACKED_FOR = 8  # hint to oneDNN; performs equally for 1 to 16 rows
SLOW_WITH_MKL = "AVX2"  # as torch.backends.cpu.get_cpu_capability() names it; no other was slow in float32


@dataclass(eq=False)
class Packed:
    """A layer's weight in oneDNN's layout, packed on first use and again after it changed."""

    weight: Tensor | None = None
    made_of: tuple[int, int] | None = None

    def of(self, weight_OI: Tensor) -> Tensor:
        now = weight_OI.data_ptr(), 0 if weight_OI.is_inference() else weight_OI._version  # noqa: SLF001
        if self.weight is None or self.made_of != now:
            pack = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001  # no public name
            packed: Tensor = pack(weight_OI.detach(), ROWS_PACKED_FOR)  # pyright: ignore[reportCallIssue]  # torch.ops has no types
            self.weight, self.made_of = packed, now
        return self.weight

    def __deepcopy__(self, memo: dict[int, object]) -> "Packed":
        """Return an empty one: a copied layer packs its own weight."""
        return Packed()

    def __reduce__(self) -> tuple[type["Packed"], tuple[()]]:
        return Packed, ()


def slow_type() -> torch.dtype | None:
    """Return the dtype in which MKL is slower than oneDNN on this CPU; None if there is none."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    if torch.backends.cpu.get_cpu_capability() == SLOW_WITH_MKL:
        return torch.float32
    return torch.bfloat16 if few_rows_gain_only() else None


def quicken_products(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Make linear layers of this dtype on the CPU multiply with oneDNN in inference mode.

    Results differ only by rounding; training computes as before. Not for models that are trained: a fused optimizer
    changes weights without incrementing their version, so packed copies would go stale.
    """
    layers = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and module.weight.dtype == dtype
    ]
    packs = sum(layer.weight.nbytes for layer in layers) <= MOST_PACKED_BYTES
    for layer in layers:
        quick = partial(quick_forward, layer, Packed() if packs else None)
        layer.forward = quick  # pyright: ignore[reportAttributeAccessIssue]


def bytes_to_pack(model: nn.Module) -> int:
    """Return the size of the packed copies that decoding will add."""
    forwards = (vars(module).get("forward") for module in model.modules())
    quick = (forward.args for forward in forwards if isinstance(forward, partial) and forward.func is quick_forward)
    return sum(layer.weight.nbytes for layer, packed in quick if packed is not None and packed.weight is None)


def quick_forward(layer: nn.Linear, packed: Packed | None, inputs: Tensor) -> Tensor:
    """Compute a linear layer with oneDNN in inference mode, otherwise with PyTorch's default.

    The operation is that of TorchInductor for linear layers.
    """
    if not torch.is_inference_mode_enabled() or torch.compiler.is_compiling():
        return linear(inputs, layer.weight, layer.bias)
    rows = inputs.numel() // inputs.shape[-1]
    weight = packed.of(layer.weight) if packed is not None and rows <= FEW_ROWS else layer.weight
    product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  # no public name
    return product(inputs, weight, layer.bias, "none", [], "")  # pyright: ignore[reportCallIssue]  # torch.ops has no types


MAX_NAMES_SHOWN = 5
MAX_CHARS_SHOWN = 300
BOUNDARY_IDS = ("bos_token_id", "eos_token_id")
COPY_TOKENIZER = "Copy tokenizer.json and tokenizer_config.json of the target there, or create the directory again."
PROBE = "The quick brown fox: 12 + 30 = 42."
DAMAGED = (  # raised by transformers for files with entries of the wrong type
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    StrictDataclassError,
    SafetensorError,
)
# Without trust_remote_code=False, transformers prompts on the terminal whether to run a checkpoint's own code.
FROM_THE_FOLDER_ALONE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as glibc's malloc.h numbers them
MAPPED_BYTES = 1 << 20
KEPT = {
    MMAP_THRESHOLD: 1 << 30,  # bytes; smaller blocks come from retained memory
    TRIM_THRESHOLD: (1 << 31) - 1,  # bytes free at the end before any are returned: the maximum of an int
    TOP_PAD: 64 << 20,  # bytes requested in addition
}
HIDDEN, LAYERS = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
NEURONS = ("moe_intermediate_size", "intermediate_size", "ffn_dim", "d_ff", "n_inner")
WHOLE = ("I", "U", "BOOL")  # prefixes of safetensors' dtype codes without fractions
LEAST_BYTES = 0.5  # per parameter: four bits


CHAT_TEMPLATE = "chat_template.json"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint directory.

    Raises:
        UserError: If there is no tokenizer, it is damaged, or it has only special tokens.
    """
    require_checkpoint(folder)
    try:
        for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
            read_json_file(folder / name)
        if (folder / "tokenizer.json").exists():
            require_regular(folder / "tokenizer.json", hint=COPY_TOKENIZER, most_mib=MAX_TOKENIZER_MIB)
        tokenizer = AutoTokenizer.from_pretrained(folder, **FROM_THE_FOLDER_ALONE)
    except Exception as error:  # the library raises a plain Exception for a damaged tokenizer.json
        if isinstance(error, UserError) or not (isinstance(error, DAMAGED) or type(error) is Exception):
            raise
        reject_own_code(folder, error)
        raise UserError(f"{folder}: its tokenizer could not be read ({one_line(error)}). {COPY_TOKENIZER}") from error
    require_words(folder, tokenizer)
    if tokenizer.chat_template is None and (folder / CHAT_TEMPLATE).is_file():  # where multimodal models have it
        tokenizer.chat_template = read_json_file(folder / CHAT_TEMPLATE).get("chat_template")
    return tokenizer


def require_words(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError for a tokenizer with only special tokens, which transformers makes of missing tokenizer files."""
    special = set(tokenizer.all_special_ids)
    if set(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) <= special:
        raise UserError(
            f"{folder}: its tokenizer has {len(tokenizer)} tokens, {len(special)} of them special, and encodes "
            f"{PROBE!r} only to special tokens. {COPY_TOKENIZER}"
        )


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: str | None = None,
    encoder_decoder: bool = False,
    bits: int | None = None,
    placing: Mapping[str, Any] | None = None,
    trained: bool = False,
) -> PreTrainedModel:
    """Load a language model in eval mode from safetensors files, all tensors present.

    Args:
        dtype: "float32", "bfloat16" or "float16".
        device: A torch device; None takes "cuda" if available, else "cpu".
        encoder_decoder: Allow encoder-decoder models of families that cannot be pruned.
        bits: 8 or 4 quantises the linear layers with bitsandbytes.
        placing: Arguments of from_pretrained that spread the model over devices and disk, in place of `device`; the
            caller has checked the weights for NaN.
        trained: Keep PyTorch's own matrix products, as weights will change or move to a GPU: packed copies do not
            follow a fused optimizer, whose steps autograd does not count.

    Raises:
        UserError: If the model is an unsupported encoder-decoder or quantised, weights are missing, damaged, not finite
            or do not fit config.json, or a package is not installed.
    """
    require_checkpoint(folder)
    reject_quantised(folder)
    require_files_of_folder(folder)
    require_enough_bytes(folder)
    give_back_freed_memory()
    chosen_device = device or default_device()
    packing = {} if bits is None else loading_arguments(bits, dtype=dtype, device=chosen_device)
    packing |= placing or {}
    show_progress_only_in_a_terminal()
    opens, head = model_class(folder, encoder_decoder=encoder_decoder), read_head(folder, read_config(folder))
    if head is not None:
        of_family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(load_config(folder))]
        opens = with_rows(of_family, len(head.ids))
    try:
        loaded: Any = opens.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            **FROM_THE_FOLDER_ALONE,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # so that the report names them; none is accepted
            output_loading_info=True,
            **packing,
        )
    except ImportError as error:  # an attention implementation, for example
        told = f"{folder / 'config.json'}: requires a package that is not installed ({one_line(error)})."
        raise UserError(f"{told} Install it, or remove the entry that requires it.") from error
    except DAMAGED as error:
        reject_own_code(folder, error)
        raise UserError(
            f"{folder}: its weights could not be read ({one_line(error)}). "
            "A file is missing or truncated: copy or download it again, or rerun the stage that wrote it."
        ) from error
    model, report = loaded
    reject_incomplete(folder, report)
    if head is not None:
        name_rows(model, head.ids)
    reject_whole_numbers(folder, model)
    model = model if packing else model.to(chosen_device)  # transformers leaves it in eval mode
    if placing is not None:
        return model
    reject_not_finite(folder, model)
    if not trained and (slow := slow_type()) is not None:
        quicken_products(model, slow)
    return model


def model_class(folder: Path, *, encoder_decoder: bool) -> Any:
    """Return the Auto class for a checkpoint; raise UserError for an unsupported encoder-decoder model."""
    config = load_config(folder)
    if not config.is_encoder_decoder:
        return AutoModelForCausalLM
    if not encoder_decoder and config.model_type not in FAMILIES:
        known = ", ".join(name for name, family in FAMILIES.items() if family.encoder is not None)
        raise UserError(
            f"{folder}: encoder-decoder model_type {config.model_type!r} is supported only by `widedraft verify`. "
            f"Pruning, distillation and evaluation support model_type {known}."
        )
    if config.decoder_start_token_id is None:
        raise UserError(
            f"{folder / 'config.json'}: decoder_start_token_id is missing. "
            "Use the config.json that came with the checkpoint."
        )
    return AutoModelForSeq2SeqLM


def require_same_tokenizer(target: Path, draft: Path) -> None:
    """Raise UserError unless token ids mean the same in both models. Padding of the embeddings may differ.

    Raises:
        UserError: If the vocabularies or the BOS or EOS ids differ, a model has no row for a token, or the target has
            a reduced vocabulary.
    """
    require_checkpoint(target)
    require_whole_head(target)
    target_tokenizer, draft_tokenizer = require_same_vocabulary(
        target, draft, hint="Speculative decoding compares token ids: use a draft of this target."
    )
    for name in BOUNDARY_IDS:
        ours, theirs = getattr(draft_tokenizer, name), getattr(target_tokenizer, name)
        if ours != theirs:
            raise UserError(
                f"{draft}: {name} is {ours} but the target {target} has {theirs}. "
                "Copy the target's tokenizer files into the draft's directory."
            )


def require_same_vocabulary(
    target: Path, other: Path, *, hint: str
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Raise UserError unless two tokenizers map the same tokens to the same ids and both models have rows for them.

    Padding rows, which belong to no token, may differ.

    Args:
        other: Another one; begins the message.
        hint: Last sentence of the message.

    Returns:
        Both tokenizers.
    """
    tokenizers = load_tokenizer(target), load_tokenizer(other)
    vocabulary, others = (tokenizer.get_vocab() for tokenizer in tokenizers)
    difference = vocabulary_difference(vocabulary, others)
    if difference:
        raise UserError(f"{other}: its tokenizer differs from that of the target {target}: {difference}. {hint}")
    for folder in (target, other):
        require_rows(folder, last_id=max(vocabulary.values()))
    return tokenizers


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return a hash of the vocabulary and the BOS and EOS ids, which `require_same_tokenizer` compares."""
    return {
        "vocabulary": fingerprint_value(tokenizer.get_vocab()),
        **{name: getattr(tokenizer, name) for name in BOUNDARY_IDS},
    }


def shared_vocab_size(*models: PreTrainedModel) -> int:
    """Return the number of ids that all models have; larger ids count as never generated.

    Ids between the tokenizer's last and this one are included: every model outputs them, so their probability is real.

    Raises:
        UserError: If the reduced vocabulary of a model has none of these ids.
    """
    shared = min(model.config.get_text_config(decoder=True).vocab_size for model in models)
    for model in models:
        columns_below(model, shared)
    return shared


def stop_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """Return the ids at which the model's own `generate` stops; empty if it never does."""
    eos = None if model.generation_config is None else model.generation_config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


def require_finite(values: torch.Tensor, model: PreTrainedModel) -> None:
    """Raise UserError for logits or hidden states that are not finite, as float16 overflows in large models."""
    if not torch.isfinite(values).all():
        dtype, layers = str(model.dtype).removeprefix("torch."), model.config.get_text_config().num_hidden_layers
        raise UserError(
            f"{model.name_or_path}: its outputs in {dtype} are not finite ({layers} layers). "
            "Set target.dtype (or --dtype) to bfloat16 or float32."
        )


def require_positions(folder: Path, num_tokens: int) -> None:
    limit = context_length_of(folder)
    if limit is not None and num_tokens > limit.tokens:
        raise UserError(
            f"{folder}: {limit.origin}, but the longest sequence to score has {num_tokens} tokens. "
            "Lower max_new_tokens, or drop long prompts (eval.max_prompt_len)."
        )


def context_length_of(folder: Path) -> ContextLength | None:
    return context_length(text_config(folder).to_dict(), where=str(folder / "config.json"))


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def show_progress_only_in_a_terminal() -> None:
    """Keep transformers' progress bars out of log files, as architectures.console does with its own."""
    if sys.stderr.isatty():
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()


def require_checkpoint(folder: Path) -> None:
    """Raise UserError unless the directory can be opened without network access."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: contains no config.json. Pass a Hugging Face checkpoint directory.")
    read_config(folder)


def text_config(folder: Path) -> PreTrainedConfig:
    return load_config(folder).get_text_config(decoder=True)


def load_config(folder: Path) -> PreTrainedConfig:
    """Load a checkpoint's config.json with transformers.

    Raises:
        UserError: If it is missing or invalid, or transformers does not know its architecture.
    """
    require_checkpoint(folder)
    try:
        return AutoConfig.from_pretrained(folder, **FROM_THE_FOLDER_ALONE)
    except DAMAGED as error:
        reject_own_code(folder, error)
        raise UserError(
            f"{folder / 'config.json'}: could not be read ({one_line(error)}). Create the directory again."
        ) from error


def reject_own_code(folder: Path, error: Exception) -> None:
    """Raise UserError if a checkpoint that failed to load requires remote code."""
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file() and "auto_map" in read_json_object(path, "Download the checkpoint again."):
            raise UserError(
                f"{path}: needs remote code (auto_map), which widedraft never runs; transformers "
                f"{transformers_version} does not implement it. Use a checkpoint of a supported architecture."
            ) from error


def reject_quantised(folder: Path) -> None:
    """Raise UserError for packed weights, which need other packages and dtypes; transformers unpacks MXFP4 itself."""
    config = read_config(folder)
    method = (config.get("quantization_config") or {}).get("quant_method")
    if config.get("quantization_config") is not None and method != "mxfp4":
        raise quantised(config, str(folder / "config.json"))


def reject_incomplete(folder: Path, report: dict[str, Any]) -> None:
    """Raise UserError if transformers reports missing, unexpected or mismatched tensors."""
    for kind, verb in (
        ("missing_keys", "are missing from its weights"),
        ("unexpected_keys", "are in its weights but not in the model"),
        ("mismatched_keys", "differ in shape from config.json"),
    ):
        names = sorted(key if isinstance(key, str) else key[0] for key in report[kind])
        if names:
            shown = ", ".join(names[:MAX_NAMES_SHOWN]) + (", ..." if len(names) > MAX_NAMES_SHOWN else "")
            raise UserError(
                f"{folder}: {len(names)} tensors {verb}: {shown}. "
                "config.json and the weights are from different models: rerun the stage that wrote the directory."
            )


def require_rows(folder: Path, *, last_id: int) -> None:
    vocab_size = text_config(folder).vocab_size
    if vocab_size <= last_id:
        raise UserError(
            f"{folder}: vocab_size is {vocab_size}, but its tokenizer has ids up to {last_id}. "
            "Use the tokenizer that came with the model."
        )


def vocabulary_difference(target: dict[str, int], draft: dict[str, int]) -> str:
    if target == draft:
        return ""
    differing = sorted({token for token, _ in target.items() ^ draft.items()})
    token = min(differing, key=lambda token: (target.get(token, len(target)), token))
    count = f"{len(target)} and {len(draft)} tokens, of which {len(differing)} differ"
    return f"{count}; {token!r} is {draft.get(token, 'absent')} here and {target.get(token, 'absent')} in the target"


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CHARS_SHOWN]


# Facts of a model, for records


def model_facts(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of eval.scorecard_schema.ScoredModel."""
    config, ids_K = model.config.get_text_config(decoder=True), head_ids(model)
    return {
        "path": str(folder),
        "fingerprint": fingerprint_checkpoint(folder),
        "model_type": config.model_type,
        "layers": getattr(config, "num_decoder_layers", None) or config.num_hidden_layers,
        "hidden": config.hidden_size,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "head_vocab_size": None if ids_K is None else len(ids_K),
    }


# Arguments for transformers


def loading_arguments(bits: int, *, dtype: str, device: str) -> dict[str, Any]:
    """Return arguments of from_pretrained for an 8-bit or 4-bit model; UserError if bitsandbytes is not installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"{bits} bits: bitsandbytes is not installed. Run: pip install 'widedraft[quantised]'")
    # It warns of its casts at every step.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    config = (
        BitsAndBytesConfig(load_in_8bit=True)
        if bits == 8
        else BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
        )
    )
    return {"quantization_config": config, "device_map": {"": device}}


def give_back_freed_memory() -> bool:
    """Return freed memory to the system; False if the C library is not glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(ctypes.c_size_t(0))
    return True


def keep_freed_memory() -> bool:
    """Make glibc retain freed memory; return False for other C libraries. Results do not depend on it.

    Otherwise the system clears the pages of every large tensor again.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(library.mallopt(which, value) for which, value in KEPT.items())  # returns 1 on success


def give_back_from_now_on() -> bool:
    """Make glibc return tensors' memory to the system as soon as they are freed; False if not supported.

    By default it soon keeps blocks of up to 32 MiB for reuse, and fragmentation then makes a target that is read layer
    by layer hold several times the memory it needs.
    """
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and bool(library.mallopt(MMAP_THRESHOLD, MAPPED_BYTES))


# Weights


def require_enough_bytes(folder: Path) -> None:
    """Raise UserError if the weight files are too small for the model that config.json describes.

    Without this check transformers would first allocate such a model, or exhaust the memory.
    """
    promised = least_parameters(read_config(folder))
    num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if num_bytes and promised * LEAST_BYTES > num_bytes:
        raise UserError(
            f"{folder}: config.json implies at least {promised:,} parameters, but the weight files have {num_bytes:,} "
            "bytes. Use config.json and weights from the same checkpoint."
        )


def least_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters of the embedding and one feed-forward matrix per layer, which every family has."""
    hidden, layers = first(config, HIDDEN), first(config, LAYERS)
    return hidden * (config.get("vocab_size", 0) + layers * (first(config, NEURONS) or hidden))


def first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the first value present under one of several names; 0 if none."""
    return next((config[name] for name in names if config.get(name) is not None), 0)


def reject_whole_numbers(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError naming the first weight stored as integers, which transformers would load as weights."""
    weights = {name for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    for file in sorted(folder.glob("*.safetensors")):
        for name, (code, _) in read_entries(file).items():
            if code.startswith(WHOLE) and any(weight == name or weight.endswith(f".{name}") for weight in weights):
                raise UserError(
                    f"{file}: {name} has dtype {code}, which is not supported. Dequantise quantised checkpoints "
                    "first; else copy or download it again."
                )


@torch.inference_mode()
def reject_not_finite(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError naming the first tensor with a NaN or infinite entry.

    Reads the weights once (24 ms of CPU time for SmolLM2-135M in float32) and synchronises with the device once.
    """
    tensors = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.numel()
    }
    if not tensors:
        return
    extremes_N2 = torch.stack([torch.stack(tensor.aminmax()).float() for tensor in tensors.values()])
    finite_N = extremes_N2.isfinite().all(dim=1)
    if not finite_N.all():
        name = list(tensors)[int(finite_N.int().argmin())]
        reject_not_finite_tensor(str(folder), name, tensors[name])


def reject_not_finite_tensor(where: str, name: str, tensor: Tensor) -> None:
    """Raise UserError if a tensor has a NaN or infinite entry in the model's dtype."""
    if not tensor.numel() or torch.stack(tensor.aminmax()).isfinite().all():
        return
    raise UserError(
        f"{where}: {name} contains NaN or infinity in {str(tensor.dtype).removeprefix('torch.')}. "
        "Copy or download it again, or load it in a dtype with a larger range."
    )


@dataclass(frozen=True)
class SavedModel:
    """A saved checkpoint.

    Attributes:
        open: Loads it, on the device and in the dtype of the scorecard.
    """

    name: str
    batches: int
    tokens: int
    open: Callable[[], PreTrainedModel]
