"""What every engine does: each prompt plain and drafted in turns, then the target as its own draft.

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

    def decode(self, messages: Any, /) -> dict[str, Any]:
        """One greedy text: prompt_ids, ids, elapsed_s, and the counters as this engine has them."""
        ...

    def close(self) -> None: ...


OpenEngine = Callable[[dict[str, Any], str | None], Engine]  # of a request and a draft, or None for the target alone


def answer_request(open_engine: OpenEngine, *, version: str) -> None:
    """Read the request that the first argument names, and write the answer to the second."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = {"version": version, **decode_all(open_engine, request)}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


def decode_all(open_engine: OpenEngine, request: dict[str, Any]) -> dict[str, Any]:
    """Every prompt by both, whichever comes first by chance, after one that is not timed; then the target by itself."""
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
    itself = open_engine(request, request["target"])
    own = [itself.decode(messages) for messages in conversations]
    itself.close()
    return {"texts": texts, "own": own}
