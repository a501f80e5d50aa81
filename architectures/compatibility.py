"""Check whether an engine can serve a draft with its target, and build the command.

Reads configs and tokenizers; no torch. The checks follow the source code of vLLM 0.32.0 (method draft_model), SGLang
0.5.23 (STANDALONE), llama.cpp as of llama-cpp-python 0.3.36 (-md), transformers 5.23 (assistant_model) and OpenVINO
GenAI 2026.4 (draft_model), and the documentation of TensorRT-LLM of 2026-11 (DraftTarget). docs/deploy.md lists those
that were run here.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.config_entries import TEXT_PARTS
from architectures.families.family import ModelEngine
from architectures.files import read_json
from architectures.hub import cached_config, config_at_hand, is_gguf, local_path
from architectures.manifest import TOKENIZER_SETTINGS, chat_template, read_json_file, read_manifest
from architectures.shapes import Shape, context_length
from architectures.target_files import ASSISTANT_KEYS, MAX_TOKENIZER_MIB
from architectures.vocabulary import CONFIG_KEY

MAX_DEGREE = 64
TensorParallel = Annotated[int, Field(ge=1, le=MAX_DEGREE, description="Devices that share both models.")]
Q4_0_BLOCK, K_QUANT_BLOCK = 32, 256  # llama.cpp, ggml-common.h: QK4_0 and QK_K


def serving_problems(shape: Shape) -> list[str]:
    """Return why no engine can serve a shape, one sentence each; empty if one can.

    Source: the checks of the LLaMA models in vLLM and transformers: whole groups of query heads, rotary pairs, and
    hidden_size a multiple of num_attention_heads even if head_dim is given.
    """
    problems = []
    if shape.heads % shape.kv_heads:
        problems.append(f"kv_heads must divide heads, got {shape.kv_heads} and {shape.heads}.")
    if shape.hidden % shape.heads:
        problems.append(
            f"hidden {shape.hidden} is not a multiple of {shape.heads} heads, as transformers requires; "
            f"use {shape.hidden // shape.heads * shape.heads or shape.heads}."
        )
    if shape.head_dim % 2:
        problems.append(f"head_dim {shape.head_dim} is odd; rotary positions rotate pairs of channels.")
    return problems


def tensor_parallel_degrees(shape: Shape) -> list[int]:
    """Return the tensor-parallel degrees that divide the shape.

    Source: vLLM, ModelConfig.verify_with_parallel_config and LlamaAttention: the degree divides the heads, and divides
    the key/value heads or is a multiple of them (they are then copied); the feed-forward width is divided too.
    """
    return [
        degree
        for degree in range(1, MAX_DEGREE + 1)
        if shape.heads % degree == 0
        and shape.intermediate % degree == 0
        and (shape.kv_heads % degree == 0 or degree % shape.kv_heads == 0)
    ]


def quantised_formats(shape: Shape) -> str:
    """Return the llama.cpp formats that fit the rows of every matrix: "k-quants", "q8_0, q4_0" or "none"."""
    rows = (shape.hidden, shape.intermediate, shape.heads * shape.head_dim)
    if all(row % K_QUANT_BLOCK == 0 for row in rows):
        return "k-quants"
    return "q8_0, q4_0" if all(row % Q4_0_BLOCK == 0 for row in rows) else "none"


EngineName = Literal["vllm", "sglang", "llama.cpp", "transformers", "openvino", "tensorrt-llm"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
LABELS: dict[EngineName, str] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "transformers": "transformers",
    "openvino": "OpenVINO",
    "tensorrt-llm": "TensorRT-LLM",
}
DEFAULT_NUM_SPECULATIVE_TOKENS = 3  # the defaults of llama.cpp, SGLang and TensorRT-LLM
COMPARES_TOKENS = ("sglang", "llama.cpp", "tensorrt-llm")  # and stop if they differ; the rest propose wrong tokens
DIVIDES_TENSORS = ("vllm", "sglang")  # draft and target over the same devices
LLAMA_CPP_MAX_DIFFERENCE, LLAMA_CPP_FIRST_COMPARED = 128, 5  # common/speculative.cpp
TEMPLATE_DEFAULTS = ("vllm", "sglang", "llama.cpp")  # have a flag for arguments of the chat template
LAYER_TYPES = ("layer_types", "layers_block_type", "block_types")  # keys of configs
RECURRENT_LAYERS = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid", "hybrid_sliding"}
RECURRENT_KEYS = re.compile(r"mamba_|ssm_|linear_(attn|conv|num)|conv_L_cache|lru_width|state_size")
ROLLBACK: dict[EngineName, str] = {  # what an engine does with a target's recurrent state after rejected tokens
    **dict.fromkeys(("vllm", "sglang"), "the target's state is rolled back; one is kept per proposed token."),
    "llama.cpp": "llama-server restores the target's state and reads accepted tokens again: this costs a second pass.",
    "transformers": "transformers does not roll the target's state back. Use another engine.",
}
OTHER_METHODS = ("eagle-", "eagle3", "dflash", "dspark")  # vllm/config/speculative.py


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Tokenizer facts that engines compare.

    Attributes:
        ids: Id of each token string.
        kind: Model type, as BPE or Unigram.
        special: Ids of BOS and EOS.
    """

    ids: Mapping[str, int]
    kind: str
    special: tuple[Any, Any]
    template: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """Facts about a draft or a target that engines check; None if unknown.

    Attributes:
        path: Absolute path of a directory, otherwise the hub id.
        small_head: Rows of the output head of a reduced vocabulary; 0 if it outputs every id.
        shape: None if widedraft does not know the family.
        is_recurrent: True if layers keep a state instead of keys and values.
        chat_template_kwargs: That a draft was trained with; empty for none, or for several settings.
        form: Of `widedraft export --form`.
        planned: The shape comes from a recipe, and nothing is written yet.
    """

    name: str
    path: str
    model_type: str
    vocab_size: int | None
    small_head: int = 0
    shape: Shape | None = None
    context: int | None = None
    dtype: str | None = None
    is_quantized: bool = False
    is_recurrent: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    num_assistant_tokens: int | None = None
    form: str | None = None
    planned: bool = False


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Draft, target and serving options."""

    draft: Model
    target: Model
    revision: str = "main"
    tensor_parallel: int = 1
    num_speculative_tokens: int = DEFAULT_NUM_SPECULATIVE_TOKENS
    draft_p_min: float = 0.0

    @property
    def has_own_tokenizer(self) -> bool:
        """True if the draft has both another tokenizer and another vocabulary size than its target."""
        ours, theirs = self.draft.tokenizer, self.target.tokenizer
        other = self.draft.form == "own-tokenizer" or (ours and theirs and ours.ids != theirs.ids)
        return bool(other) and self.draft.vocab_size != self.target.vocab_size

    def is_mapped_by(self, engine: EngineName) -> bool:
        """Return True if the engine maps tokens between the two tokenizers by their strings."""
        return self.has_own_tokenizer and engine in ("vllm", "transformers")


@dataclass(frozen=True)
class Problem:
    """Reason against serving a pair: a fatal one stops the engine, any other costs acceptance or speed."""

    what: str
    message: str
    is_fatal: bool = False


def check(engine: EngineName, pair: Pair) -> list[Problem]:
    found = [*check_vocabulary(engine, pair), *check_tokenizer(engine, pair), *check_model(engine, pair)]
    found += [*check_devices(engine, pair), *check_numbers(engine, pair), *check_recurrence(engine, pair)]
    return sorted(found, key=lambda problem: not problem.is_fatal)


def check_vocabulary(engine: EngineName, pair: Pair) -> Iterator[Problem]:
    """Check that the draft's head has a row for every id of the target; llama.cpp allows different padding."""
    draft, target = pair.draft, pair.target
    allowed = LLAMA_CPP_MAX_DIFFERENCE if engine == "llama.cpp" else 0
    sizes = f"vocab_size is {draft.vocab_size} in the draft and {target.vocab_size} in the target"
    if draft.vocab_size is None or target.vocab_size is None:
        yield Problem("vocabulary", f"{sizes}; they were not compared.")
    elif engine == "vllm" and pair.has_own_tokenizer and (reason := without_vllm(draft.model_type)):
        yield Problem("vocabulary", f"{sizes}, and {reason}. Export it with --form whole.", is_fatal=True)
    elif engine == "vllm" and pair.has_own_tokenizer:
        yield Problem("vocabulary", f"{sizes}: use_heterogeneous_vocab maps ids by their strings and drafts greedily.")
    elif abs(draft.vocab_size - target.vocab_size) > allowed and not pair.is_mapped_by(engine):
        fix = "Export it with --form whole." if draft.form else "Use a draft of this target."
        yield Problem("vocabulary", f"{sizes}. {fix}", is_fatal=True)
    if draft.small_head:
        fact = f"the draft's head outputs {draft.small_head} of {draft.vocab_size} ids ({CONFIG_KEY})."
        own_code = "Load it with the code in its README.md, or export" if engine == "transformers" else "Export"
        form = " or --form own-tokenizer" if engine == "vllm" else ""
        is_fatal = engine != "transformers" and not draft.planned
        yield Problem("output head", f"{fact} {own_code} it with --form whole{form}.", is_fatal)


def check_tokenizer(engine: EngineName, pair: Pair) -> Iterator[Problem]:
    """Check that every id has the same string and that the chat templates are equal."""
    draft, target = pair.draft.tokenizer, pair.target.tokenizer
    if draft is None or target is None:
        if not pair.draft.planned:
            name = (pair.draft if draft is None else pair.target).name
            yield Problem("tokenizer", f"{name} has no local tokenizer.json; tokenizers were not compared.")
        return
    difference = None
    if not pair.is_mapped_by(engine):
        difference = difference_of(draft, target, first=LLAMA_CPP_FIRST_COMPARED if engine == "llama.cpp" else 0)
        if engine == "llama.cpp" and (draft.kind, draft.special) != (target.kind, target.special):
            difference = f"type, BOS and EOS are {draft.kind} {draft.special} and {target.kind} {target.special}"
    if difference is not None:
        fix = "Copy the target's tokenizer files into the draft."
        yield Problem("tokenizer", f"draft and target differ: {difference}. {fix}", engine in COMPARES_TOKENS)
    if draft.template != target.template:
        yield Problem("chat template", "the draft's differs from the target's. Train with the target's and copy it.")
    if pair.draft.chat_template_kwargs and engine not in TEMPLATE_DEFAULTS:
        kwargs = json.dumps(pair.draft.chat_template_kwargs)
        yield Problem("chat template", f"the draft was trained with {kwargs}. Pass it with every request.")


def check_model(engine: EngineName, pair: Pair) -> Iterator[Problem]:
    """Check that the engine implements the draft's model type and shape."""
    draft, label, family = pair.draft, LABELS[engine], FAMILIES.get(pair.draft.model_type)
    if draft.is_quantized:
        yield Problem("quantisation", f"the draft's weights are quantised; loading them in {label} is not checked.")
    if family is None or draft.shape is None:
        yield Problem("model type", f"{draft.model_type} has no entry in widedraft; its sizes were not checked.")
        return
    shape = draft.shape
    for problem in serving_problems(shape):
        yield Problem("shape", problem, is_fatal=True)
    if label in family.heads_share_hidden and shape.head_dim * shape.heads != shape.hidden:
        told = (
            f"{label} computes head_dim as hidden / heads, but it is {shape.head_dim}. Prune both by the same factor."
        )
        yield Problem("shape", told, is_fatal=True)
    if label in get_args(ModelEngine) and label not in family.engines:
        told = f"{label} has no native {draft.model_type}. Use another engine."
        yield Problem("model type", told, is_fatal=engine == "llama.cpp")
    if label in family.head_is_embedding and not shape.tied:
        told = f"{label} uses the embedding of {draft.model_type} as its head. Tie the draft's head."
        yield Problem("output head", told, is_fatal=True)


def check_devices(engine: EngineName, pair: Pair) -> Iterator[Problem]:
    devices = pair.tensor_parallel
    if devices > 1 and engine not in DIVIDES_TENSORS:
        yield Problem("tensor parallel", f"sharding a draft over {devices} devices in {LABELS[engine]} is not checked.")
    elif devices > 1:
        for role, shape in (("draft", pair.draft.shape), ("target", pair.target.shape)):
            if shape is not None and devices not in (degrees := tensor_parallel_degrees(shape)):
                sizes = f"{shape.heads} heads, {shape.kv_heads} KV heads and {shape.intermediate} FFN channels"
                message = f"{devices} devices do not divide the {role}'s {sizes}; use {', '.join(map(str, degrees))}."
                yield Problem("tensor parallel", message, is_fatal=True)


def check_numbers(engine: EngineName, pair: Pair) -> Iterator[Problem]:
    """Check context length and dtype, and that vLLM does not mistake the draft's name."""
    draft, target = pair.draft, pair.target
    if draft.context is not None and target.context is not None and draft.context < target.context:
        yield Problem("length", f"context length is {draft.context} in the draft and {target.context} in the target.")
    if engine != "vllm":
        return
    if None not in (draft.dtype, target.dtype) and draft.dtype != target.dtype:
        told = f"{draft.dtype} in the draft and {target.dtype} in the target; vLLM runs both in one dtype."
        yield Problem("dtype", told)
    misleading = [(name, part) for name in (draft.path, draft.name) if (part := misleading_part(name)) is not None]
    if misleading:
        name, part = misleading[0]
        told = f"{name} contains {part!r}, which vLLM takes for another method. Rename it."
        yield Problem("name", told, is_fatal=True)


def check_recurrence(engine: EngineName, pair: Pair) -> Iterator[Problem]:
    """Check that the engine restores the state of a recurrent target after rejected tokens of an independent draft.

    Sources: vLLM 0.32, v1/worker/gpu_model_runner.py, _update_states_after_model_execute, for models with attention and
    recurrent layers. SGLang 0.5.23, srt/speculative: STANDALONE verifies by run_eagle_verify, which calls
    commit_mamba_states_after_verify. llama.cpp, pull request 19493; common/common.h, need_n_rs_seq: only MTP, EAGLE-3,
    DFlash and DSpark reserve the states for a rollback without a second pass. transformers 5.23, generation/utils.py,
    raises for _is_stateful models; LFM2 is not marked so there and diverges (pull request 46937).
    """
    if pair.target.is_recurrent:
        unknown = f"a rollback of the target's state is not checked in {LABELS[engine]}."
        yield Problem("recurrent layers", ROLLBACK.get(engine, unknown), is_fatal=engine == "transformers")
    if pair.draft.is_recurrent:
        yield Problem("recurrent layers", f"a rollback of the draft's state is not checked in {LABELS[engine]}.")


def has_recurrent_layers(config: Mapping[str, Any]) -> bool:
    types = [each for key in LAYER_TYPES for each in config.get(key) or ()]
    return not RECURRENT_LAYERS.isdisjoint(types) if types else any(map(RECURRENT_KEYS.match, config))


def one_setting(chat_template_kwargs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the arguments of the chat template that all rows were trained with; empty if there are several."""
    return chat_template_kwargs[0] if len(chat_template_kwargs) == 1 else {}


def difference_of(draft: Tokenizer, target: Tokenizer, *, first: int) -> str | None:
    """Return the first id >= `first` with different strings, or the sizes if `first` is 0; None if there is none."""
    if draft.ids == target.ids:
        return None
    one, other = ({number: text for text, number in each.ids.items()} for each in (draft, target))
    for number in range(first, min(max(one, default=-1), max(other, default=-1)) + 1):
        if one.get(number) != other.get(number):
            return f"id {number} is {one.get(number)!r:.40} and {other.get(number)!r:.40}"
    return None if first else f"{len(draft.ids)} and {len(target.ids)} tokens"


def without_vllm(model_type: str) -> str | None:
    """Return why vLLM serves no draft of this type with its own vocabulary; None if it does or the type is unknown."""
    family = FAMILIES.get(model_type)
    if family is None:
        return None
    if "vLLM" in family.head_is_embedding:
        return f"vLLM's {family.label} always ties its output head"
    return None if "vLLM" in family.engines else f"vLLM has no native {family.label}"


def misleading_part(name: str) -> str | None:
    """Return the part of a path or hub id that makes vLLM infer another speculative method; None if there is none."""
    return next((part for part in OTHER_METHODS if part in name.lower()), None)


def reject_misleading_name(name: str) -> None:
    """Raise UserError for a hub id or absolute path from which vLLM would infer another speculative method."""
    if (part := misleading_part(name)) is not None:
        raise UserError(f"{name}: contains {part!r}, which vLLM takes for another method. Choose another name.")


def serve_command(engine: EngineName, pair: Pair) -> str:
    return COMMANDS[engine](pair)


def template_defaults(pair: Pair, flag: str) -> list[str]:
    """Return the flag of a server for the template arguments of training, which a request may override."""
    kwargs = pair.draft.chat_template_kwargs
    return [flag, json.dumps(kwargs)] if kwargs else []


def revision_of(pair: Pair) -> list[str]:
    return [] if pair.revision == "main" else ["--revision", pair.revision]


def serve_vllm(pair: Pair) -> str:
    devices = pair.tensor_parallel
    config = {"method": "draft_model", "model": pair.draft.name, "num_speculative_tokens": pair.num_speculative_tokens}
    config |= {"draft_tensor_parallel_size": devices} if devices > 1 else {}
    config |= {"use_heterogeneous_vocab": True} if pair.has_own_tokenizer else {}
    parallel = ["--tensor-parallel-size", str(devices)] if devices > 1 else []
    serve = ["vllm", "serve", pair.target.name, *revision_of(pair), *parallel]
    defaults = template_defaults(pair, "--default-chat-template-kwargs")
    return shell(serve, ["--speculative-config", json.dumps(config)], defaults)


def serve_sglang(pair: Pair) -> str:
    """Return a shell command; SGLang counts the bonus token as one of the draft tokens."""
    parallel = ["--tp-size", str(pair.tensor_parallel)] if pair.tensor_parallel > 1 else []
    return shell(
        ["python", "-m", "sglang.launch_server", "--model-path", pair.target.name, *revision_of(pair), *parallel],
        ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", pair.draft.name],
        ["--speculative-num-steps", str(pair.num_speculative_tokens), "--speculative-eagle-topk", "1"],
        ["--speculative-num-draft-tokens", str(pair.num_speculative_tokens + 1)],
        ["--speculative-draft-model-quantization", "unquant"] * (pair.target.is_quantized > pair.draft.is_quantized),
        template_defaults(pair, "--default-chat-template-kwargs"),
    )


def serve_llama_cpp(pair: Pair) -> str:
    return shell(
        ["llama-server", "-m", gguf_name(pair.target), "-md", gguf_name(pair.draft), "--spec-type", "draft-simple"],
        ["--spec-draft-n-max", str(pair.num_speculative_tokens), "--spec-draft-p-min", str(pair.draft_p_min)],
        template_defaults(pair, "--chat-template-kwargs"),
    )


def serve_transformers(pair: Pair) -> str:
    """Return lines of Python; transformers reads these settings only from the draft's generation config."""
    draft = pair.draft
    values = zip(ASSISTANT_KEYS, (pair.num_speculative_tokens, "constant", 0.0), strict=True)
    has_encoder = draft.shape is not None and draft.shape.encoder_layers > 0
    opens = "AutoModelForSeq2SeqLM" if has_encoder else "AutoModelForCausalLM"
    loads = f"{opens}.from_pretrained({draft.name!r})"
    if draft.small_head:
        loads = f"load_draft(Path({draft.name!r}))  # the code in its README.md"
    both = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" if pair.has_own_tokenizer else ""
    branch = f", revision={pair.revision!r}" if pair.revision != "main" else ""
    return (
        f"target = {opens}.from_pretrained({pair.target.name!r}{branch})\n"
        f"draft = {loads}\n"
        f"draft.generation_config.update({', '.join(f'{key}={value!r}' for key, value in values)})\n"
        f"target.generate(**inputs, assistant_model=draft{both})"
    )


def serve_openvino(pair: Pair) -> str:
    """Return lines of Python, for directories written by `optimum-cli export openvino`."""
    return (
        f'pipe = LLMPipeline({pair.target.name!r}, "CPU", draft_model=draft_model({pair.draft.name!r}, "CPU"))\n'
        f"pipe.generate(prompt, GenerationConfig(num_assistant_tokens={pair.num_speculative_tokens}))"
    )


def serve_tensorrt_llm(pair: Pair) -> str:
    """Return a YAML file for its LLM API."""
    return (
        "disable_overlap_scheduler: true\nspeculative_config:\n  decoding_type: DraftTarget\n"
        f"  max_draft_len: {pair.num_speculative_tokens}\n  speculative_model: {json.dumps(pair.draft.name)}"
    )


COMMANDS: dict[EngineName, Callable[[Pair], str]] = {
    "vllm": serve_vllm,
    "sglang": serve_sglang,
    "llama.cpp": serve_llama_cpp,
    "transformers": serve_transformers,
    "openvino": serve_openvino,
    "tensorrt-llm": serve_tensorrt_llm,
}


def shell(*parts: list[str]) -> str:
    return " \\\n  ".join(shlex.join(part) for part in parts if part)


def gguf_name(model: Model) -> str:
    return model.name if is_gguf(model.name) else f"{Path(model.name).name}.gguf"


def report(engines: tuple[EngineName, ...], pair: Pair) -> tuple[str, bool]:
    """Format problems and command of each engine, and return whether all engines can serve the pair."""
    lines, all_serve = [], True
    for engine in engines:
        problems = check(engine, pair)
        serves = not any(problem.is_fatal for problem in problems)
        all_serve &= serves
        state = "not checked" if pair.draft.is_quantized else "ok"
        lines.append(f"{LABELS[engine]}: {state if serves else 'NOT SERVED'}")
        lines += [f"  {'error' if each.is_fatal else 'warning'}: {each.what}: {each.message}" for each in problems]
        if serves:
            lines += [f"    {line}" for line in serve_command(engine, pair).splitlines()]
    return "\n".join(lines), all_serve


def read_model(path: str, revision: str = "main") -> Model:
    """Read the facts about a directory, hub id or .gguf file, from its config if its files are not on this machine.

    Raises:
        UserError: If there is no such checkpoint, the hub cannot be reached, or a file is damaged.
    """
    local = local_path(path, revision)
    config, own = config_at_hand(path, revision)
    part = next((config[key] for key in TEXT_PARTS if isinstance(config.get(key), dict)), config)
    family = FAMILIES.get(config.get("model_type", "")) if part is config else None
    shape = None
    if family is not None and all(config.get(key, value) == value for key, value in family.fixed_entries.items()):
        shape = Shape.from_config({**config, "quantization_config": None}, where=path)
    context = context_length(part, where=path)
    model = Model(
        name=path,
        path=path if local is None else str(local.absolute()),
        model_type=str(part.get("model_type", config.get("model_type"))),
        vocab_size=shape.vocab if shape is not None else part.get("vocab_size", config.get("vocab_size")),
        small_head=part.get(CONFIG_KEY) or 0,
        shape=shape,
        context=None if context is None else context.tokens,
        dtype=config.get("dtype") or config.get("torch_dtype") or part.get("dtype"),
        is_quantized=config.get("quantization_config") is not None,
        is_recurrent=has_recurrent_layers(part),
    )
    folder = local if local is not None else cached_config(path, revision) if own else None
    if folder is None or is_gguf(folder):
        return model
    manifest = read_manifest(folder) or {}
    return replace(
        model,
        tokenizer=read_tokenizer(folder, config),
        num_assistant_tokens=read_json_file(folder / "generation_config.json").get("num_assistant_tokens"),
        form=manifest.get("form"),
        chat_template_kwargs=one_setting(manifest.get("chat_template_kwargs", [])),
    )


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer | None:
    """Read a tokenizer without loading it; return None if there is no tokenizer.json or its format is unknown."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    content = read_json(file, "Copy the target's tokenizer files there.", most_mib=MAX_TOKENIZER_MIB)
    settings = read_json_file(folder / TOKENIZER_SETTINGS)
    try:
        vocab = content["model"]["vocab"]
        ids = dict(vocab) if isinstance(vocab, dict) else {entry[0]: number for number, entry in enumerate(vocab)}
        ids |= {added["content"]: int(added["id"]) for added in content.get("added_tokens") or []}
        ids |= {added["content"]: int(number) for number, added in settings.get("added_tokens_decoder", {}).items()}
        kind = str(content["model"].get("type", "BPE"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None

    def special_id(name: str) -> Any:
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        configured = config.get(f"{name}_id")
        first = configured[0] if isinstance(configured, list) and configured else configured
        return ids[text] if isinstance(text, str) and text in ids else first

    template = json.dumps(chat_template(folder, settings.get("chat_template")))
    return Tokenizer(ids=ids, kind=kind, special=(special_id("bos_token"), special_id("eos_token")), template=template)
