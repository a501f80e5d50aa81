"""What the worker of every engine does: each prompt plain and drafted in turns, then the target as its own draft.

A neighbour of the scripts that run in an engine's own environment; it imports nothing of this project.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Engine(Protocol):
    """The target in an engine, with a draft or without; it answers one request at a time."""

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """One greedy text: prompt_ids, ids, elapsed_s, and the counters as this engine has them."""
        ...

    def close(self) -> None: ...


OpenEngine = Callable[[dict[str, Any], str | None], Engine]


def answer_request(open_engine: OpenEngine, *, version: str) -> None:
    """Read the request that the first argument names, and write the answer to the second.

    Args:
        open_engine: Called with the request and a draft, or None for the target alone.
        version: Of the engine.
    """
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = {
        "version": version,
        "texts": decode_in_turns(open_engine, request),
        "own": decode_with_itself(open_engine, request),
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


def decode_in_turns(open_engine: OpenEngine, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Every prompt by both engines, whichever comes first by chance, after one that is not timed."""
    engines = {"plain": open_engine(request, None), "drafted": open_engine(request, request["draft"])}
    conversations = request["conversations"]
    for engine in engines.values():
        engine.decode(conversations[0])
    order, texts = random.Random(request["seed"]), []  # noqa: S311  # no secret
    for messages in conversations:
        texts.append({name: engines[name].decode(messages) for name in order.sample(list(engines), 2)})
        print(f"{len(texts)} of {len(conversations)} prompts", file=sys.stderr, flush=True)
    for engine in engines.values():
        engine.close()
    return texts


def decode_with_itself(open_engine: OpenEngine, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Every prompt with the target as its own draft."""
    engine = open_engine(request, request["target"])
    texts = [engine.decode(messages) for messages in request["conversations"]]
    engine.close()
    return texts
