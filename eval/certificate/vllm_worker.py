"""Runs in an environment of its own that has vLLM, and imports nothing of this project.

    PYTHON_OF_VLLM vllm_worker.py REQUEST.json ANSWER.json

The request names the models, the lookahead and the conversations; the answer is what eval.certificate.vllm_engine makes
a record of. vLLM renders the conversations by the target's own tokenizer and template.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, of each engine
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
PREFIX = "vllm:spec_decode_num_"


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import vllm  # pyright: ignore[reportMissingImports]  # of its own environment

    plain, drafted = (open_engine(request, draft) for draft in (None, request["draft"]))
    warm_up(request, plain, drafted)
    order, texts = random.Random(request["seed"]), []  # noqa: S311  # no secret
    for messages in request["conversations"]:
        found = {}
        for name in order.sample(["plain", "drafted"], 2):
            found[name] = decode(request, plain if name == "plain" else drafted, messages)
        texts.append({"prompt_ids": found["plain"]["prompt_ids"], **found})
        print(f"{len(texts)} of {len(request['conversations'])} prompts", file=sys.stderr, flush=True)
    for engine in (plain, drafted):
        engine.llm_engine.engine_core.shutdown()
    own = open_engine(request, request["target"])
    before = counters(own)
    for messages in request["conversations"]:
        decode(request, own, messages)
    answer = {"version": vllm.__version__, "texts": texts, "own": difference(counters(own), before)}
    own.llm_engine.engine_core.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


def open_engine(request: dict[str, Any], draft: str | None) -> Any:
    """An engine of the target, with a draft or without."""
    from vllm import LLM  # pyright: ignore[reportMissingImports]  # of its own environment

    settings: dict[str, Any] = {}
    if draft is not None:
        settings["speculative_config"] = {
            "method": "draft_model",
            "model": draft,
            "num_speculative_tokens": request["lookahead"],
            **(request["draft_settings"] if draft == request["draft"] else {}),
        }
    return LLM(
        request["target"],
        dtype=request["dtype"],
        max_model_len=request["max_model_len"],
        max_num_seqs=1,
        enforce_eager=True,
        disable_log_stats=False,
        enable_prefix_caching=False,
        **settings,
    )


def warm_up(request: dict[str, Any], *engines: Any) -> None:
    """Have each engine answer once before anything is timed."""
    for engine in engines:
        decode(request, engine, request["conversations"][0])


def decode(request: dict[str, Any], engine: Any, messages: list[dict[str, str]]) -> dict[str, Any]:
    """One greedy text, its seconds, and what the counters gained."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]  # of its own environment

    greedy = SamplingParams(temperature=0.0, max_tokens=request["max_new_tokens"])
    before, start_s = counters(engine), time.perf_counter()
    if request["is_chat"]:
        [answer] = engine.chat([messages], greedy, use_tqdm=False)
    else:
        [answer] = engine.generate([messages[0]["content"]], greedy, use_tqdm=False)
    elapsed_s = time.perf_counter() - start_s
    return {
        "prompt_ids": list(answer.prompt_token_ids),
        "ids": list(answer.outputs[0].token_ids),
        "elapsed_s": elapsed_s,
        "counters": difference(counters(engine), before),
    }


def counters(engine: Any) -> dict[str, Any]:
    """Counters of speculative decoding, by vLLM's names."""
    found: dict[str, Any] = {}
    for metric in engine.get_metrics():
        if metric.name.startswith(PREFIX):
            found[metric.name.removeprefix(PREFIX)] = list(metric.values) if hasattr(metric, "values") else metric.value
    return found


def difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What the counters gained."""
    return {name: minus(value, before.get(name)) for name, value in after.items()}


def minus(after: Any, before: Any) -> Any:
    """A counter, or one for each position, less what it was."""
    if isinstance(after, list):
        return [one - other for one, other in zip(after, before or [0] * len(after), strict=True)]
    return after - (before or 0)


if __name__ == "__main__":
    main()
