"""Runs in an environment of its own that has vLLM, and imports nothing of this project but its neighbour.

    PYTHON_OF_VLLM vllm_worker.py REQUEST.json ANSWER.json

The request names the models, the lookahead and the conversations; the answer is what eval.engines.runs makes
a record of. vLLM renders the conversations by the target's own tokenizer and template.
"""

import os
import time
from typing import Any

from turns import answer_request

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, of each engine
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
PREFIX = "vllm:spec_decode_num_"


class VllmEngine:
    """vLLM with one target, and a draft or none."""

    def __init__(self, request: dict[str, Any], draft: str | None) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]  # of its own environment

        settings: dict[str, Any] = {}
        if draft is not None:
            settings["speculative_config"] = {
                "method": "draft_model",
                "model": draft,
                "num_speculative_tokens": request["lookahead"],
                **(request["draft_settings"] if draft == request["draft"] else {}),
            }
        self.request = request
        self.engine = LLM(
            request["target"],
            dtype=request["dtype"],
            max_model_len=request["max_model_len"],
            max_num_seqs=1,
            enforce_eager=True,
            disable_log_stats=False,
            enable_prefix_caching=False,
            **settings,
        )

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """One greedy text, its seconds, and what the counters gained."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]  # of its own environment

        greedy = SamplingParams(temperature=0.0, max_tokens=self.request["max_new_tokens"])
        before, start_s = self.counters(), time.perf_counter()
        if self.request["is_chat"]:
            [answer] = self.engine.chat([messages], greedy, use_tqdm=False)
        else:
            [answer] = self.engine.generate([messages[0]["content"]], greedy, use_tqdm=False)
        elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": list(answer.prompt_token_ids),
            "ids": list(answer.outputs[0].token_ids),
            "elapsed_s": elapsed_s,
            "counters": {name: minus(value, before.get(name)) for name, value in self.counters().items()},
        }

    def counters(self) -> dict[str, Any]:
        """Counters of speculative decoding, by vLLM's names."""
        counters: dict[str, Any] = {}
        for metric in self.engine.get_metrics():
            if metric.name.startswith(PREFIX):
                value = list(metric.values) if hasattr(metric, "values") else metric.value
                counters[metric.name.removeprefix(PREFIX)] = value
        return counters

    def close(self) -> None:
        self.engine.llm_engine.engine_core.shutdown()


def minus(after: Any, before: Any) -> Any:
    """A counter, or one for each position, less what it was."""
    if isinstance(after, list):
        return [later - earlier for later, earlier in zip(after, before or [0] * len(after), strict=True)]
    return after - (before or 0)


if __name__ == "__main__":
    import vllm  # pyright: ignore[reportMissingImports]  # of its own environment

    answer_request(VllmEngine, version=vllm.__version__)
