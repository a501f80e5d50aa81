"""Checkpoints as the scorer opens them: whole or refused, never half random; one tokenizer for target and draft.

Linear layers on a CPU: PyTorch computes x W^T by MKL. Where the processor has AVX2 and no AVX-512, MKL reads weights
from memory at half the speed of others, and no form of the product is fast at two rows where the weights lie as PyTorch
has them. oneDNN reads its own layout at full speed: up to four rows take as long as one, and eight a sixth longer
(docs/benchmarks.md). So a model that decodes gets a second copy of its linear layers, packed; a verification,
which reads every weight once as a step of one token does, then costs hardly more than such a step. On an Intel
processor with avx512_bf16 and no amx_bf16 the same holds in bfloat16, and not in float32 (docs/benchmarks.md).

Shape suffixes used in this file:
    R = rows
    I = inputs
    O = outputs
"""

import ctypes
import importlib.util
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
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

from architectures.checkpoint import require_files_of_folder
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.files import read_json_object, require_regular
from architectures.hashes import fingerprint_checkpoint, fingerprint_value, read_json_file
from architectures.hub import read_config, require_whole_head
from architectures.settings import few_rows_gain_alone
from architectures.shapes import ContextLength, context_length
from architectures.vocabulary_head import columns_below, head_ids, name_rows, read_head, with_rows

FEW_ROWS = 64  # packed weights are read for so many; for more, as in training or replay, they gain nothing
MOST_PACKED_BYTES = 8 << 30  # of a model's linear layers; a second copy of more might not fit
ROWS_PACKED_FOR = 8  # what oneDNN is told; one to sixteen rows are alike with it
SLOW_WITH_MKL = "AVX2"  # as torch.backends.cpu.get_cpu_capability() names it; others were not found slow in float32


@dataclass(eq=False)
class Packed:
    """A layer's weights as oneDNN reads them fastest: made when first asked for, and again when they have changed."""

    weight: Tensor | None = None
    made_of: tuple[int, int] | None = None

    def of(self, weight_OI: Tensor) -> Tensor:
        """The packed form of a weight."""
        now = weight_OI.data_ptr(), 0 if weight_OI.is_inference() else weight_OI._version  # noqa: SLF001
        if self.weight is None or self.made_of != now:
            self.weight, self.made_of = packed_weight(weight_OI.detach()), now
        return self.weight

    def __deepcopy__(self, memo: dict[int, object]) -> "Packed":
        """Of another layer, which packs its own."""
        return Packed()

    def __reduce__(self) -> tuple[type["Packed"], tuple[()]]:
        """Nothing of it goes into a file or another process."""
        return Packed, ()


def slow_type() -> torch.dtype | None:
    """The number type in which PyTorch's usual form is the slower one on this processor, if the others are there."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    if torch.backends.cpu.get_cpu_capability() == SLOW_WITH_MKL:
        return torch.float32
    return torch.bfloat16 if few_rows_gain_alone() else None


def quicken_products(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Have the linear layers of a model that has this number type on the processor multiply in the fastest form.

    Results differ from those without by rounding alone. Training computes as before: this is of inference mode. Not for
    a model that is trained: a fused optimiser changes weights without counting it, and packed copies would go stale.
    """
    layers = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and module.weight.dtype == dtype
    ]
    packs = sum(layer.weight.nbytes for layer in layers) <= MOST_PACKED_BYTES
    for layer in layers:
        quick = partial(quick_forward, layer, Packed() if packs else None)
        layer.forward = quick  # pyright: ignore[reportAttributeAccessIssue]  # a layer's


def bytes_to_pack(model: nn.Module) -> int:
    """Bytes of the second copies of weights that decoding with a model will make, and has not made."""
    forwards = (vars(module).get("forward") for module in model.modules())
    quick = (forward.args for forward in forwards if isinstance(forward, partial) and forward.func is quick_forward)
    return sum(layer.weight.nbytes for layer, packed in quick if packed is not None and packed.weight is None)


def quick_forward(layer: nn.Linear, packed: Packed | None, inputs: Tensor) -> Tensor:
    """What the layer gives: in the fastest form for so many rows, if nothing is trained or compiled."""
    if not torch.is_inference_mode_enabled() or torch.compiler.is_compiling():
        return linear(inputs, layer.weight, layer.bias)
    rows = inputs.numel() // inputs.shape[-1]
    weight = packed.of(layer.weight) if packed is not None and rows <= FEW_ROWS else layer.weight
    return onednn_product(inputs, weight, layer.bias)


def packed_weight(weight_OI: Tensor) -> Tensor:
    """The weight in a layout of oneDNN's own."""
    pack = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001  # its name
    return pack(weight_OI, ROWS_PACKED_FOR)  # pyright: ignore[reportCallIssue]  # torch.ops has no types


def onednn_product(inputs: Tensor, weight: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product, and the bias, by oneDNN: the operation that PyTorch's own compiler puts in the place of a layer.

    Args:
        inputs: Of I numbers each.
        weight: weight_OI, or what Packed makes of it.
        bias_O: May be None.
    """
    product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  # its name
    return product(inputs, weight, bias_O, "none", [], "")  # pyright: ignore[reportCallIssue]  # torch.ops has no types


MAX_NAMES_SHOWN = 5
MAX_CHARS_SHOWN = 300
BOUNDARY_IDS = ("bos_token_id", "eos_token_id")
COPY_TOKENIZER = "Copy tokenizer.json and tokenizer_config.json of the target there, or make the folder again."
TOKENIZER_MIB = 512  # the largest published tokenizer.json has some 35
PROBE = "The quick brown fox: 12 + 30 = 42."
DAMAGED = (  # what transformers raises of files whose entries are not of the kind it takes them for
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
# Without the last, transformers asks on the terminal whether to run code that a checkpoint brings.
FROM_THE_FOLDER_ALONE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 20  # the first as glibc's malloc.h numbers it
HIDDEN, LAYERS = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
NEURONS = ("intermediate_size", "ffn_dim", "d_ff", "n_inner")
WHOLE = ("I", "U", "BOOL")  # how safetensors' codes of types without fractions begin
LEAST_BYTES = 0.5  # of a parameter: four bits


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder.

    Raises:
        UserError: If the folder holds no tokenizer, a damaged one, or one that knows no words.
    """
    require_checkpoint(folder)
    try:
        for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
            read_json_file(folder / name)
        if (folder / "tokenizer.json").exists():
            require_regular(folder / "tokenizer.json", remedy=COPY_TOKENIZER, most_mib=TOKENIZER_MIB)
        tokenizer = AutoTokenizer.from_pretrained(folder, **FROM_THE_FOLDER_ALONE)
    except Exception as error:  # the library raises plain Exceptions of a damaged tokenizer.json
        if isinstance(error, UserError) or not (isinstance(error, DAMAGED) or type(error) is Exception):
            raise
        refuse_own_code(folder, error)
        raise UserError(f"{folder}: its tokenizer could not be read ({one_line(error)}). {COPY_TOKENIZER}") from error
    require_words(folder, tokenizer)
    return tokenizer


def require_words(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError for what transformers makes of a folder without tokenizer files: special tokens and no others."""
    special = set(tokenizer.all_special_ids)
    if set(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) <= special:
        raise UserError(
            f"{folder}: its tokenizer has {len(tokenizer)} tokens, {len(special)} of them special, and makes no other "
            f"of {PROBE!r}. {COPY_TOKENIZER}"
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
    """The language model of a checkpoint folder, in eval mode, every tensor read from its safetensors files.

    Args:
        folder: A local Hugging Face folder.
        dtype: A floating torch dtype by name: "float32", "bfloat16" or "float16".
        device: A torch device; None takes "cuda" where there is one, else "cpu".
        encoder_decoder: Whether the caller can do with an encoder-decoder model of any family.
        bits: 8 or 4 packs the linear layers into so many a weight; None leaves them in dtype.
        placing: Arguments of from_pretrained by which it comes to lie on several devices and the disk, in the place of
            one device; the caller has looked at the numbers of its weights.
        trained: Whether its weights will change or move to a GPU: it then keeps PyTorch's own products, as packed
            copies of weights do not follow a fused optimiser, whose steps autograd does not count.

    Raises:
        UserError: If it is an encoder-decoder model of a family that must not be, weights are missing, damaged, no
            numbers, or do not fit config.json, or what packs them is not installed.
    """
    require_checkpoint(folder)
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
    except DAMAGED as error:
        refuse_own_code(folder, error)
        raise UserError(
            f"{folder}: its weights could not be read ({one_line(error)}). "
            "A file is missing or cut short: copy or download the folder again, or run the stage that wrote it again."
        ) from error
    model, report = loaded
    refuse_incomplete(folder, report)
    if head is not None:
        name_rows(model, head.ids)
    refuse_whole_numbers(folder, model)
    model = model if packing else model.to(chosen_device)  # transformers leaves it in eval mode
    if placing is not None:
        return model
    refuse_not_finite(folder, model)
    if not trained and (slow := slow_type()) is not None:
        quicken_products(model, slow)
    return model


def model_class(folder: Path, *, encoder_decoder: bool) -> Any:
    """What opens a checkpoint; refuses an encoder-decoder model of an unknown family unless it is welcome."""
    config = load_config(folder)
    if not config.is_encoder_decoder:
        return AutoModelForCausalLM
    if not encoder_decoder and config.model_type not in FAMILIES:
        known = ", ".join(name for name, family in FAMILIES.items() if family.encoder is not None)
        raise UserError(
            f"{folder}: an encoder-decoder model of model_type {config.model_type!r}. `widedraft verify` "
            f"decodes with it; cut, distilled and scored are those of model_type {known} alone."
        )
    if config.decoder_start_token_id is None:
        raise UserError(
            f"{folder / 'config.json'}: decoder_start_token_id is missing: nobody knows what the decoder reads first. "
            "Take the config.json the checkpoint came with."
        )
    return AutoModelForSeq2SeqLM


def require_same_tokenizer(target: Path, draft: Path) -> None:
    """Refuse a pair in which one token id means two things. Padding of the embeddings may differ.

    Raises:
        UserError: If the vocabularies, or the BOS or EOS ids differ, or a model has no row for one of the tokens; or
            the target is a draft that cannot say them all.
    """
    require_checkpoint(target)
    require_whole_head(target)
    target_tokenizer, draft_tokenizer = require_same_vocabulary(
        target, draft, remedy="Speculative decoding compares token ids: use a draft made from this target."
    )
    for name in BOUNDARY_IDS:
        ours, theirs = getattr(draft_tokenizer, name), getattr(target_tokenizer, name)
        if ours != theirs:
            raise UserError(
                f"{draft}: {name} is {ours} but the target {target} has {theirs}. "
                "Copy the target's tokenizer files into the draft's folder."
            )


def require_same_vocabulary(
    target: Path, other: Path, *, remedy: str
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Refuse two models in which one token id means two things, or one that has no row for a token of theirs.

    Their padding, rows that belong to no token, may differ.

    Args:
        target: A checkpoint folder.
        other: Another; begins the message.
        remedy: The sentence that ends it.

    Returns:
        Both tokenizers.
    """
    tokenizers = load_tokenizer(target), load_tokenizer(other)
    vocabulary, others = (tokenizer.get_vocab() for tokenizer in tokenizers)
    difference = vocabulary_difference(vocabulary, others)
    if difference:
        raise UserError(f"{other}: its tokenizer is not that of the target {target}: {difference}. {remedy}")
    for folder in (target, other):
        require_rows(folder, last_id=max(vocabulary.values()))
    return tokenizers


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What token ids mean: a hash of the vocabulary, and the BOS and EOS ids, as `require_same_tokenizer` asks."""
    return {
        "vocabulary": fingerprint_value(tokenizer.get_vocab()),
        **{name: getattr(tokenizer, name) for name in BOUNDARY_IDS},
    }


def shared_vocab_size(*models: PreTrainedModel) -> int:
    """Ids that all of the models have. Those behind them pad the larger vocabularies and count as never said.

    Ids between the tokenizer's last and this one stay: they are output ids of each model, so what they weigh is real.

    Raises:
        UserError: If the head of one says none of them.
    """
    shared = min(model.config.get_text_config(decoder=True).vocab_size for model in models)
    for model in models:
        columns_below(model, shared)
    return shared


def stop_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """The ids at which the model's own `generate` stops; empty when it never does."""
    eos = None if model.generation_config is None else model.generation_config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


def require_positions(folder: Path, num_tokens: int) -> None:
    """Raise UserError if a checkpoint was not made for texts of num_tokens tokens."""
    limit = context_length_of(folder)
    if limit is not None and num_tokens > limit.tokens:
        raise UserError(
            f"{folder}: {limit.origin}, but the longest text to score has {num_tokens} tokens. "
            "Lower max_new_tokens, or leave out prompts that are so long (eval.max_prompt_len)."
        )


def context_length_of(folder: Path) -> ContextLength | None:
    """How long texts a checkpoint was made for; None where there is no end."""
    return context_length(text_config(folder).to_dict(), where=str(folder / "config.json"))


def default_device() -> str:
    """Where models run unless told otherwise: "cuda" where there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def show_progress_only_in_a_terminal() -> None:
    """Keep transformers' bars out of log files, as architectures.progress keeps ours."""
    if sys.stderr.isatty():
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()


def require_checkpoint(folder: Path) -> None:
    """Raise UserError unless folder is one that transformers can open without asking the hub."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json there. Give the folder of a Hugging Face checkpoint.")
    read_config(folder)


def text_config(folder: Path) -> PreTrainedConfig:
    """The decoder's part of a checkpoint's config.json."""
    return load_config(folder).get_text_config(decoder=True)


def load_config(folder: Path) -> PreTrainedConfig:
    """A checkpoint's config.json as transformers reads it.

    Raises:
        UserError: If there is none, transformers does not know its architecture, or an entry is one that no model has.
    """
    require_checkpoint(folder)
    try:
        return AutoConfig.from_pretrained(folder, **FROM_THE_FOLDER_ALONE)
    except DAMAGED as error:
        refuse_own_code(folder, error)
        raise UserError(
            f"{folder / 'config.json'}: could not be read ({one_line(error)}). Make the folder again."
        ) from error


def refuse_own_code(folder: Path, error: Exception) -> None:
    """Raise UserError if what transformers could not open brings Python code of its own to be opened with."""
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file() and "auto_map" in read_json_object(path, "Fetch the checkpoint again."):
            raise UserError(
                f"{path}: needs Python code of its own (auto_map), which widedraft never runs, and transformers "
                f"{transformers_version} cannot open it without. Use a checkpoint of an architecture it knows."
            ) from error


def refuse_incomplete(folder: Path, report: dict[str, Any]) -> None:
    """Raise UserError if transformers would have run on with random, ignored or ill-fitting tensors."""
    for kind, verb in (
        ("missing_keys", "are missing from its weights"),
        ("unexpected_keys", "are in its weights but not in the model"),
        ("mismatched_keys", "have another shape than config.json says"),
    ):
        names = sorted(key if isinstance(key, str) else key[0] for key in report[kind])
        if names:
            shown = ", ".join(names[:MAX_NAMES_SHOWN]) + (", ..." if len(names) > MAX_NAMES_SHOWN else "")
            raise UserError(
                f"{folder}: {len(names)} tensors {verb}: {shown}. "
                "config.json and the weights are not of one model: run the stage that wrote the folder again."
            )


def require_rows(folder: Path, *, last_id: int) -> None:
    """Raise UserError if a model's vocabulary ends before its tokenizer's."""
    vocab_size = text_config(folder).vocab_size
    if vocab_size <= last_id:
        raise UserError(
            f"{folder}: vocab_size is {vocab_size} but its tokenizer has tokens up to id {last_id}: the model has no "
            "row for them. Use the tokenizer the model was made with."
        )


def vocabulary_difference(target: dict[str, int], draft: dict[str, int]) -> str:
    """In words, the first token on which two vocabularies disagree; empty when they agree."""
    if target == draft:
        return ""
    differing = sorted({token for token, _ in target.items() ^ draft.items()})
    token = min(differing, key=lambda token: (target.get(token, len(target)), token))
    count = f"{len(target)} and {len(draft)} tokens, of which {len(differing)} differ"
    return f"{count}; {token!r} is {draft.get(token, 'absent')} here and {target.get(token, 'absent')} in the target"


def one_line(error: Exception) -> str:
    """What an error of another library says, without its line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CHARS_SHOWN]


# What a model is, for records


def decoding_layers(model: PreTrainedModel) -> int:
    """Layers that a step of decoding goes through; of a model with an encoder those of its decoder."""
    config = model.config.get_text_config(decoder=True)
    return getattr(config, "num_decoder_layers", None) or config.num_hidden_layers


def model_facts(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """The fields of eval.records.origin.ScoredModel."""
    config, ids_K = model.config.get_text_config(decoder=True), head_ids(model)
    return {
        "path": str(folder),
        "fingerprint": fingerprint_checkpoint(folder),
        "model_type": config.model_type,
        "layers": decoding_layers(model),
        "hidden": config.hidden_size,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "head_vocab_size": None if ids_K is None else len(ids_K),
    }


# How transformers is to load it


def loading_arguments(bits: int, *, dtype: str, device: str) -> dict[str, Any]:
    """Arguments of from_pretrained for a model in 8 or 4 bits.

    Raises:
        UserError: If bitsandbytes is not installed.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            f"{bits} bits: bitsandbytes packs the weights and is not installed. Run: pip install 'widedraft[quantised]'"
        )
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
    """Have the C library give back what nobody uses; whether it is one that can, which glibc is."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(ctypes.c_size_t(0))
    return True


def give_back_from_now_on() -> bool:
    """Have the C library give tensors back whenever they are freed; whether it is one that can be told so.

    By itself it soon keeps blocks of up to 32 MiB for later ones, and what stays between them keeps them from the
    system: a target in layers then comes to hold several times what it says it takes.
    """
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and bool(library.mallopt(MMAP_THRESHOLD, MAPPED_BYTES))


# Weights


def require_enough_bytes(folder: Path) -> None:
    """Raise UserError if the weight files are too small for the least that config.json promises.

    Transformers would first make such a model, or fill the memory with it.
    """
    promised = least_parameters(read_config(folder))
    num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if num_bytes and promised * LEAST_BYTES > num_bytes:
        raise UserError(
            f"{folder}: config.json promises at least {promised:,} parameters, but the weight files have {num_bytes:,} "
            "bytes. Take config.json and weights from the same checkpoint."
        )


def least_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of the embedding and of one feed-forward matrix a layer, which every family has."""
    hidden, layers = first(config, HIDDEN), first(config, LAYERS)
    return hidden * (config.get("vocab_size", 0) + layers * (first(config, NEURONS) or hidden))


def first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The size that stands under one of several names; 0 where none does."""
    return next((config[name] for name in names if config.get(name) is not None), 0)


def refuse_whole_numbers(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError naming the first tensor that is stored in whole numbers, which transformers takes for weights."""
    weights = {name for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as reader:
            stored = {name: reader.get_slice(name).get_dtype() for name in reader.keys()}  # noqa: SIM118 - not a dict
        for name, code in stored.items():
            if code.startswith(WHOLE) and any(weight == name or weight.endswith(f".{name}") for weight in weights):
                raise UserError(
                    f"{file}: {name} has dtype {code}, which is no type of weights. A quantised checkpoint must be "
                    "de-quantised first; else copy or download it again."
                )


@torch.inference_mode()
def refuse_not_finite(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError naming the first tensor with an entry that is NaN or infinite.

    One pass over the weights (24 ms of CPU time for SmolLM2-135M in float32); the device is waited for once.
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
        refuse_not_finite_tensor(str(folder), name, tensors[name])


def refuse_not_finite_tensor(where: str, name: str, tensor: Tensor) -> None:
    """Raise UserError if a tensor has an entry that is NaN or infinite, as read into the model's number type."""
    if not tensor.numel() or torch.stack(tensor.aminmax()).isfinite().all():
        return
    raise UserError(
        f"{where}: {name} holds NaN or infinity in {str(tensor.dtype).removeprefix('torch.')}. The model "
        "could not speak: copy or download it again, or load it in a number type that holds its weights."
    )
