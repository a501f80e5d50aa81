"""The line that serves a pair in each engine, as it is typed."""

import json
import shlex
from pathlib import Path

from architectures.checkpoints.generation_settings import ASSISTANT_KEYS
from architectures.engines.pair.facts import Model, Pair
from architectures.targets.target import is_gguf


def serve_vllm(pair: Pair) -> str:
    draft: dict[str, str | int] = {
        "method": "draft_model",
        "model": pair.draft.name,
        "num_speculative_tokens": pair.lookahead,
    }
    if pair.tensor_parallel > 1:
        draft["draft_tensor_parallel_size"] = pair.tensor_parallel
    if pair.own_vocabulary:
        draft["use_heterogeneous_vocab"] = True
    devices = ["--tensor-parallel-size", str(pair.tensor_parallel)] if pair.tensor_parallel > 1 else []
    return command(
        ["vllm", "serve", pair.target.name, *revision_of(pair), *devices],
        ["--per-request-spec-decode-metrics", "summary"],
        ["--speculative-config", json.dumps(draft)],
    )


def serve_sglang(pair: Pair) -> str:
    """A shell command; its engine counts the token after the proposed ones among the draft's."""
    devices = ["--tp-size", str(pair.tensor_parallel)] if pair.tensor_parallel > 1 else []
    plain = pair.target.quantisation is not None and pair.draft.quantisation is None
    return command(
        ["python", "-m", "sglang.launch_server", "--model-path", pair.target.name, *revision_of(pair), *devices],
        ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", pair.draft.name],
        ["--speculative-num-steps", str(pair.lookahead), "--speculative-eagle-topk", "1"],
        ["--speculative-num-draft-tokens", str(pair.lookahead + 1)],
        ["--speculative-draft-model-quantization", "unquant"] if plain else [],
    )


def serve_llama_cpp(pair: Pair) -> str:
    """A shell command, of the GGUF files that draft and target become."""
    drafting = pair.drafting_of("llama.cpp")
    return command(
        ["llama-server", "-m", gguf_name(pair.target), "-md", gguf_name(pair.draft)],
        ["--spec-type", "draft-simple", "--spec-draft-n-max", str(drafting.lookahead)],
        ["--spec-draft-p-min", str(drafting.confidence)],
    )


def serve_transformers(pair: Pair) -> str:
    """Lines of Python, for models that are loaded; the settings are the draft's, where transformers looks for them."""
    drafting = pair.drafting_of("transformers")
    values = (drafting.lookahead, "constant", drafting.confidence)
    settings = ", ".join(f"{key}={value!r}" for key, value in zip(ASSISTANT_KEYS, values, strict=True))
    opens = "AutoModelForSeq2SeqLM" if has_encoder(pair.draft) else "AutoModelForCausalLM"
    load_call = f"{opens}.from_pretrained({pair.draft.name!r})"
    if pair.draft.small_head:
        load_call = f"load_draft(Path({pair.draft.name!r}))  # the code of its README.md"
    both = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" if pair.own_vocabulary else ""
    revision = f", revision={pair.revision!r}" if pair.revision != "main" else ""
    return "\n".join(
        (
            f"target = {opens}.from_pretrained({pair.target.name!r}{revision})",
            f"draft = {load_call}",
            f"draft.generation_config.update({settings})",
            f"target.generate(**inputs, assistant_model=draft{both})",
        )
    )


def has_encoder(model: Model) -> bool:
    """Whether an encoder reads the prompt; a pair of such models is one of the same family."""
    return model.shape is not None and model.shape.encoder_layers > 0


def serve_tensorrt_llm(pair: Pair) -> str:
    """A YAML file for its LLM API."""
    return "\n".join(
        (
            "disable_overlap_scheduler: true",
            "speculative_config:",
            "  decoding_type: DraftTarget",
            f"  max_draft_len: {pair.lookahead}",
            f"  speculative_model: {json.dumps(pair.draft.name)}",
        )
    )


def command(*parts: list[str]) -> str:
    """A shell command over several lines."""
    return " \\\n  ".join(shlex.join(part) for part in parts if part)


def revision_of(pair: Pair) -> list[str]:
    """Words that name the target's branch, tag or commit, if it is not the usual one."""
    return [] if pair.revision == "main" else ["--revision", pair.revision]


def gguf_name(model: Model) -> str:
    """The file that a folder or hub id is converted to; a GGUF file itself."""
    return model.name if is_gguf(model.name) else f"{Path(model.name).name}.gguf"
