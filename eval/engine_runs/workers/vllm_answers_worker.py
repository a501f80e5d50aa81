"""Runs in an environment of its own that has vLLM, and imports nothing of this project.

    PYTHON_OF_VLLM vllm_answers_worker.py

The first line of its input says what to load; each further one asks for a text by token ids, and a line for each comes
out as soon as it is written, whichever ends first. eval.answer_engines.clients.offline is at the other end. What vLLM
itself prints goes to the error output.
"""

import json
import os
import queue
import sys
import threading
from typing import Any, TextIO

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
LEAVE_OUT = {"use_tqdm_on_load": False, "disable_log_stats": True}


def own_output() -> TextIO:
    """The output that lines go to; from here on nothing else does."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def load(told: dict[str, Any]) -> Any:
    """The engine of what the first line says."""
    from vllm import LLM  # pyright: ignore[reportMissingImports]  # of its own environment

    return LLM(
        told["target"],
        dtype=told["dtype"],
        max_model_len=told["max_model_len"],
        max_num_seqs=told["max_num_seqs"],
        tensor_parallel_size=told["tensor_parallel"],
        gpu_memory_utilization=told["gpu_memory_utilization"],
        generation_config="vllm",  # no sampling settings of the checkpoint: each request says them all
        **LEAVE_OUT,
    ).llm_engine


def read_lines(inbox: "queue.SimpleQueue[str | None]") -> None:
    """Put every line of the input into a box, and None behind the last."""
    for line in sys.stdin:
        inbox.put(line)
    inbox.put(None)


def add(engine: Any, line: str) -> None:
    """Begin a text."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]  # of its own environment
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]  # likewise

    asked = json.loads(line)
    how = SamplingParams(**asked["how"], output_kind=RequestOutputKind.FINAL_ONLY)
    engine.add_request(asked["id"], {"prompt_token_ids": asked["prompt_ids"]}, how)


def serve(engine: Any, inbox: "queue.SimpleQueue[str | None]", lines: TextIO) -> None:
    """Write texts until the input ends: all that are asked for at once, in steps of the engine's own batching."""
    while True:
        while not inbox.empty() or not engine.has_unfinished_requests():
            line = inbox.get()
            if line is None:
                return
            add(engine, line)
        for output in engine.step():
            if output.finished:
                tell(lines, reply_of(output))


def reply_of(output: Any) -> dict[str, Any]:
    """A finished text."""
    [text] = output.outputs
    return {
        "id": output.request_id,
        "token_ids": list(text.token_ids),
        "stopped": text.finish_reason == "stop",
        "text": text.text,
        "num_prompt_tokens": len(output.prompt_token_ids),
    }


def tell(lines: TextIO, value: dict[str, Any]) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


if __name__ == "__main__":
    output = own_output()
    first = json.loads(sys.stdin.readline())
    import vllm  # pyright: ignore[reportMissingImports]  # of its own environment

    loaded = load(first)
    tell(output, {"version": vllm.__version__})
    box: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(box,), daemon=True).start()
    serve(loaded, box, output)
