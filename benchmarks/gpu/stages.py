"""The queue of a GPU machine: items in order of value. `python -m benchmarks.gpu.stages` prints them.

A call runs the items that its device's file does not have yet, each for at most its limit, as far as the time goes.
"""

from typing import NamedTuple

SLACK = {"full": 1, "laptop": 3, "tiny": 10}  # times an item's limit: only GPUs are borrowed by the minute
MAX_S = 560  # of one call of ten minutes, after what travelled is unpacked


class Listed(NamedTuple):
    """An item of the queue.

    Attributes:
        limit_s: After which it is ended; the rows it has yielded by then are kept.
        least_s: It begins only if this much is left.
        what: In a line.
        module: Where its `rows` is, a benchmarks.gpu.stage.Stage; or `module:function`.
    """

    limit_s: int
    least_s: int
    what: str
    module: str


STAGES = {
    name: Listed(limit_s, least_s, what, f"benchmarks.gpu.{module}")
    for name, limit_s, least_s, what, module in (
        ("machine", 20, 15, "peak FLOP/s and memory bandwidth, and the versions of everything", "machine"),
        ("vllm", 150, 100, "vLLM decodes 64 tokens of a dummy LLaMA-7B, without and with a draft", "vllm_steps:smoke"),
        ("vllm_steps", 540, 150, "time per verification step in vLLM, by draft, k and batch", "vllm_steps"),
        ("tests", 115, 60, "the tests marked gpu", "tests_stage"),
        ("pair", 540, 300, "a carried pair in vLLM: speed of draft and n-gram at concurrency 1, 8, 32", "pair:speed"),
        ("pair_certificate", 540, 300, "the same, certified as served", "pair:certificate"),
        ("steps", 90, 40, "step times of named shapes with their bandwidth floor, in our loop", "steps"),
    )
}


def listing() -> str:
    """Every item with its limit."""
    return "\n".join(f"{item.limit_s:5} s  {name:13} {item.what}" for name, item in STAGES.items())


if __name__ == "__main__":
    print(listing())
