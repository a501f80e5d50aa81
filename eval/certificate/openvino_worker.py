"""Runs in an environment of its own that has OpenVINO GenAI, and imports nothing of this project.

    PYTHON_OF_OPENVINO openvino_worker.py REQUEST.json ANSWER.json

The request names folders of OpenVINO's own form, the lookahead and the conversations; the answer is what
eval.certificate.openvino_engine makes a record of. The conversations are rendered by the tokenizer and the template of
the target's folder. Left to itself OpenVINO computes in bfloat16 and keeps its cache in 8 bits, where it can: here
products and cache of both models have the number type that is asked for.
"""

import json
import random
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plain, drafted = (open_pipeline(request, draft) for draft in (None, request["draft"]))
    prompts = [prompt_ids(plain, request, messages) for messages in request["conversations"]]
    for pipeline, proposes in ((plain, False), (drafted, True)):
        decode(pipeline, request, prompts[0], proposes=proposes)  # before anything is timed
    order, texts = random.Random(request["seed"]), []  # noqa: S311  # no secret
    for prompt in prompts:
        found = {}
        for name in order.sample(["plain", "drafted"], 2):
            proposes = name == "drafted"
            found[name] = decode(drafted if proposes else plain, request, prompt, proposes=proposes)
        texts.append({"prompt_ids": prompt, **found})
        print(f"{len(texts)} of {len(prompts)} prompts", file=sys.stderr, flush=True)
    own = open_pipeline(request, request["target"])
    answer = {
        "version": version("openvino-genai"),
        "texts": texts,
        "own": [decode(own, request, prompt, proposes=True) for prompt in prompts],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


def open_pipeline(request: dict[str, Any], draft: str | None) -> Any:
    """The target on the processor, with a draft or without; it answers one request at a time."""
    import openvino_genai  # pyright: ignore[reportMissingImports]  # of its own environment

    precision = PRECISIONS[request["dtype"]]
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "INFERENCE_NUM_THREADS": request["threads"],
    }
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching, scheduler.dynamic_split_fuse = 1, False, False
    settings = {**properties, "scheduler_config": scheduler}
    if draft is not None:
        settings["draft_model"] = openvino_genai.draft_model(draft, "CPU", **properties)
    return openvino_genai.LLMPipeline(request["target"], "CPU", **settings)


def prompt_ids(pipeline: Any, request: dict[str, Any], messages: list[dict[str, str]]) -> list[int]:
    """A conversation as OpenVINO reads it."""
    tokenizer = pipeline.get_tokenizer()
    if not request["is_chat"]:
        return tokenizer.encode(messages[0]["content"]).input_ids.data[0].tolist()
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()


def decode(pipeline: Any, request: dict[str, Any], prompt: list[int], *, proposes: bool) -> dict[str, Any]:
    """One greedy text, its seconds, and the tokens that every run of the target gave; the first reads the prompt."""
    import numpy as np
    import openvino  # pyright: ignore[reportMissingImports]  # of its own environment

    settings = pipeline.get_generation_config()
    settings.max_new_tokens, settings.do_sample = request["max_new_tokens"], False
    if proposes:
        settings.num_assistant_tokens, settings.assistant_confidence_threshold = request["lookahead"], 0.0
    asked = openvino.Tensor(np.array([prompt], dtype=np.int64))
    start_s = time.perf_counter()
    answer = pipeline.generate(asked, settings)
    elapsed_s = time.perf_counter() - start_s
    given = []
    if proposes:
        given = [int(size) for size in answer.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes]
    return {"ids": list(answer.tokens[0]), "elapsed_s": elapsed_s, "given": given}


if __name__ == "__main__":
    main()
