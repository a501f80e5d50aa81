"""Runs in an environment of its own that has OpenVINO GenAI, and imports nothing of this project but its neighbour.

    PYTHON_OF_OPENVINO openvino_worker.py REQUEST.json ANSWER.json

The request names folders of OpenVINO's own form, the lookahead and the conversations; the answer is what
eval.engines.runs makes a record of. The conversations are rendered by the tokenizer and the template of
the target's folder. Left to itself OpenVINO computes in bfloat16 and keeps its cache in 8 bits, where it can: here
products and cache of both models have the number type that is asked for.
"""

import time
from importlib.metadata import version
from typing import Any

from turns import answer_request

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Pipeline:
    """OpenVINO GenAI with one target, and a draft or none."""

    def __init__(self, request: dict[str, Any], draft: str | None) -> None:
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
        self.request, self.proposes = request, draft is not None
        self.pipeline = openvino_genai.LLMPipeline(request["target"], "CPU", **settings)

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """One greedy text, its seconds, and the tokens that each run of the target gave, the prompt's run first."""
        import numpy as np
        import openvino  # pyright: ignore[reportMissingImports]  # of its own environment

        prompt = self.prompt_ids(messages)
        asked = openvino.Tensor(np.array([prompt], dtype=np.int64))
        settings = self.greedy()
        start_s = time.perf_counter()
        answer = self.pipeline.generate(asked, settings)
        elapsed_s = time.perf_counter() - start_s
        given = []
        if self.proposes:
            given = [int(size) for size in answer.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes]
        return {"prompt_ids": prompt, "ids": list(answer.tokens[0]), "elapsed_s": elapsed_s, "given": given}

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """A conversation as OpenVINO reads it."""
        tokenizer = self.pipeline.get_tokenizer()
        if not self.request["is_chat"]:
            return tokenizer.encode(messages[0]["content"]).input_ids.data[0].tolist()
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def greedy(self) -> Any:
        """Settings of a text of the asked length, with the asked lookahead if there is a draft."""
        settings = self.pipeline.get_generation_config()
        settings.max_new_tokens, settings.do_sample = self.request["max_new_tokens"], False
        if self.proposes:
            settings.num_assistant_tokens = self.request["lookahead"]
            settings.assistant_confidence_threshold = 0.0
        return settings

    def close(self) -> None:
        del self.pipeline


if __name__ == "__main__":
    answer_request(Pipeline, version=version("openvino-genai"))
