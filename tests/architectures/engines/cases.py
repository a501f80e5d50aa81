"""Changes of a clean pair's files, each breaking one rule, and what every engine then says.

A change takes the files of draft and target, as `conftest.files` gives them.
"""

from typing import Any, get_args

from architectures.engines.pair.finding import EngineName, Severity
from tests.architectures.engines.conftest import texts

REFUSED, LOSSY, UNKNOWN = Severity.REFUSED, Severity.LOSSY, Severity.NOT_CHECKED
ALL = get_args(EngineName)
GPU_ENGINES, TRT = ("vllm", "sglang"), "tensorrt-llm"
ALWAYS = {TRT: {(UNKNOWN, "model type")}}  # its code was not read


def edit(draft: dict[str, Any], name: str, **values: Any) -> None:
    draft[name] |= values


def config(**values: Any):
    return lambda draft, _: edit(draft, "config.json", **values)


def of_target(**values: Any):
    return lambda _, target: edit(target, "config.json", **values)


def of_both(**values: Any):
    def change(draft, target):
        for model in (draft, target):
            edit(model, "config.json", **values)

    return change


def settings_of_tokenizer(**values: Any):
    return lambda draft, _: edit(draft, "tokenizer_config.json", **values)


def swapped(first: int, second: int):
    def change(draft, _):
        vocab = draft["tokenizer.json"]["model"]["vocab"]
        vocab[f"<{first}>"], vocab[f"<{second}>"] = second, first

    return change


def own_tokenizer(draft, _):
    edit(draft, "config.json", vocab_size=100)
    draft["tokenizer.json"]["model"]["vocab"] = texts(99) | {"<unknown>": 99}
    draft["manifest.json"] = {"inputs": {}, "stage": "convert", "form": "own-tokenizer"}


def own_tokenizer_of(model_type: str):
    def change(draft, target):
        of_both(model_type=model_type, tie_word_embeddings=True)(draft, target)
        own_tokenizer(draft, target)

    return change


def no_settings(draft, _):
    del draft["generation_config.json"]


def everywhere(severity: Severity, rule: str, **others: Severity) -> dict[str, set[tuple[Severity, str]]]:
    return {engine: {(severity, rule)} for engine in ALL}


def at(*engines: str, severity: Severity, rule: str) -> dict[str, set[tuple[Severity, str]]]:
    return {engine: {(severity, rule)} for engine in engines}


def together(*tables: dict[str, set[tuple[Severity, str]]]) -> dict[str, set[tuple[Severity, str]]]:
    return {engine: set().union(*(table.get(engine, set()) for table in tables)) for engine in ALL}


SIZE, TEXTS = "vocabulary size", "token texts"
HEAD = {"model_type": "gemma2", "tie_word_embeddings": True, "sliding_window": 64}
CASES = {
    "nothing": (config(), {}),
    "a padded vocabulary": (
        config(vocab_size=304),
        at("vllm", "sglang", "transformers", TRT, severity=REFUSED, rule=SIZE),
    ),
    "a far vocabulary": (config(vocab_size=429), everywhere(REFUSED, SIZE)),
    "128 ids apart": (config(vocab_size=428), at("vllm", "sglang", "transformers", TRT, severity=REFUSED, rule=SIZE)),
    "two texts swapped": (
        swapped(10, 11),
        together(
            at("sglang", "llama.cpp", TRT, severity=REFUSED, rule=TEXTS),
            at("vllm", "transformers", severity=LOSSY, rule=TEXTS),
        ),
    ),
    "two texts below 5 swapped": (
        swapped(3, 4),
        together(
            at("sglang", TRT, severity=REFUSED, rule=TEXTS),
            at("vllm", "transformers", severity=LOSSY, rule=TEXTS),
        ),
    ),
    "two texts from 5 on swapped": (
        swapped(4, 5),
        together(
            at("sglang", "llama.cpp", TRT, severity=REFUSED, rule=TEXTS),
            at("vllm", "transformers", severity=LOSSY, rule=TEXTS),
        ),
    ),
    "another kind of tokenizer": (
        lambda draft, _: draft["tokenizer.json"]["model"].update(type="WordPiece"),
        at("llama.cpp", severity=REFUSED, rule="vocabulary type"),
    ),
    "another BOS": (
        settings_of_tokenizer(bos_token="<2>"),
        at("llama.cpp", severity=REFUSED, rule="BOS and EOS"),
    ),
    "no BOS before texts": (
        settings_of_tokenizer(add_bos_token=False),
        at("llama.cpp", severity=REFUSED, rule="BOS and EOS"),
    ),
    "EOS behind texts": (
        settings_of_tokenizer(add_eos_token=True),
        at("llama.cpp", severity=REFUSED, rule="BOS and EOS"),
    ),
    "BOS left to the converter": (
        settings_of_tokenizer(add_bos_token=None),
        at("llama.cpp", severity=UNKNOWN, rule="BOS and EOS"),
    ),
    "another post-processor": (
        lambda draft, _: draft["tokenizer.json"].update(post_processor={"type": "ByteLevel"}),
        at("llama.cpp", severity=UNKNOWN, rule="BOS and EOS"),
    ),
    "another template": (settings_of_tokenizer(chat_template="no"), everywhere(LOSSY, "chat template")),
    "a small head": (
        config(head_vocab_size=40),
        together(
            at("vllm", "sglang", "llama.cpp", TRT, severity=REFUSED, rule="output head"),
            at("transformers", severity=LOSSY, rule="output head"),
        ),
    ),
    "a tied Gemma 2": (of_both(**HEAD), {}),
    "a Gemma 2 with a head": (
        lambda draft, target: (of_both(**HEAD)(draft, target), config(tie_word_embeddings=False)(draft, target)),
        at("vllm", "sglang", "llama.cpp", severity=REFUSED, rule="head of its own"),
    ),
    "a Gemma 3 with a head": (
        of_both(**{**HEAD, "model_type": "gemma3_text", "tie_word_embeddings": False}),
        at("sglang", "llama.cpp", severity=REFUSED, rule="head of its own"),
    ),
    "one layer of EAGLE-3": (
        config(num_hidden_layers=1, draft_vocab_size=40),
        at("llama.cpp", severity=REFUSED, rule="taken for EAGLE-3"),
    ),
    "two layers of EAGLE-3": (config(draft_vocab_size=40), {}),
    "one layer": (config(num_hidden_layers=1), {}),
    "more key/value heads": (
        config(num_key_value_heads=8),
        at("sglang", severity=LOSSY, rule="cache"),
    ),
    "a shorter draft": (config(max_position_embeddings=256), everywhere(LOSSY, "length")),
    "a longer draft": (config(max_position_embeddings=1024), {}),
    "a window": (config(sliding_window=64), at(*GPU_ENGINES, severity=UNKNOWN, rule="sliding window")),
    "a window switched off": (config(sliding_window=64, use_sliding_window=False), {}),
    "another number type": (config(dtype="float32"), at("vllm", severity=LOSSY, rule="number type")),
    "no number type": (config(dtype=None), at("vllm", severity=UNKNOWN, rule="number type")),
    "a quantised draft": (
        config(quantization_config={"quant_method": "gptq"}),
        at("sglang", "llama.cpp", "transformers", TRT, severity=UNKNOWN, rule="quantisation"),
    ),
    "a quantised target": (
        of_target(quantization_config={"quant_method": "fp8"}),
        at("sglang", severity=LOSSY, rule="quantisation"),
    ),
    "both quantised": (
        of_both(quantization_config={"quant_method": "gptq"}),
        at("sglang", "llama.cpp", "transformers", TRT, severity=UNKNOWN, rule="quantisation"),
    ),
    "pictures": (config(vision_config={}), at("vllm", severity=REFUSED, rule="text alone")),
    "code of its own": (config(auto_map={}), everywhere(LOSSY, "custom code")),
    "heads that do not divide the width": (
        config(num_attention_heads=6, num_key_value_heads=1, head_dim=128),
        everywhere(REFUSED, "shape"),
    ),
    "rows of no 256": (config(intermediate_size=320), at("llama.cpp", severity=LOSSY, rule="quantised rows")),
    "rows of no 32": (config(intermediate_size=322), at("llama.cpp", severity=LOSSY, rule="quantised rows")),
    "heads of a width left to the model type": (
        of_both(model_type="qwen3", head_dim=None),
        at("llama.cpp", severity=UNKNOWN, rule="head width"),
    ),
    "an OLMo 2 of wider heads": (
        of_both(model_type="olmo2", head_dim=64),
        together(
            at("sglang", "llama.cpp", severity=REFUSED, rule="head width"),
            at("vllm", severity=UNKNOWN, rule="model type"),
        ),
    ),
    "a Granite of wider heads": (
        of_both(model_type="granite", head_dim=64),
        at("llama.cpp", severity=REFUSED, rule="head width"),
    ),
    "a SmolLM3 of the layers llama.cpp expects": (
        of_both(model_type="smollm3", no_rope_layers=[1, 1]),
        at(*GPU_ENGINES, severity=UNKNOWN, rule="model type"),
    ),
    "a SmolLM3 of other layers": (
        of_both(model_type="smollm3", no_rope_layers=[1, 0]),
        together(
            at("llama.cpp", severity=REFUSED, rule="rotary layers"),
            at(*GPU_ENGINES, severity=UNKNOWN, rule="model type"),
        ),
    ),
    "no settings": (no_settings, at("transformers", severity=LOSSY, rule="assistant settings")),
    "one setting missing": (
        lambda draft, _: draft["generation_config.json"].pop("assistant_confidence_threshold"),
        at("transformers", severity=LOSSY, rule="assistant settings"),
    ),
    "an ensemble": (
        lambda _, target: edit(target, "generation_config.json", assistant_ensemble_weight=0.5),
        at("transformers", severity=LOSSY, rule="ensemble"),
    ),
    "an ensemble of the draft": (
        lambda draft, _: edit(draft, "generation_config.json", assistant_ensemble_weight=0.5),
        at("transformers", severity=LOSSY, rule="ensemble"),
    ),
    "a tokenizer of its own": (
        own_tokenizer,
        together(
            at("vllm", "transformers", severity=LOSSY, rule=SIZE),
            at("sglang", "llama.cpp", TRT, severity=REFUSED, rule=SIZE),
            at("sglang", "llama.cpp", TRT, severity=REFUSED, rule=TEXTS),
        ),
    ),
    "GPT-NeoX with a tokenizer of its own": (
        own_tokenizer_of("gpt_neox"),
        together(
            at("vllm", "sglang", "llama.cpp", TRT, severity=REFUSED, rule=SIZE),
            at("sglang", "llama.cpp", TRT, severity=REFUSED, rule=TEXTS),
            at("transformers", severity=LOSSY, rule=SIZE),
            at(*GPU_ENGINES, severity=UNKNOWN, rule="model type"),
        ),
    ),
}
