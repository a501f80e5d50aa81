"""vLLM, run in its own environment by a script of ours, and what it answers as a record."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.certificate.record import Counted, EngineRun
from eval.certificate.worker import answer_of, text_run

WORKER = Path(__file__).with_name("vllm_worker.py")


@dataclass(frozen=True)
class VllmAsked:
    """What vLLM is asked.

    Attributes:
        python: Of the environment that has vLLM.
        target: Folder of the target.
        draft: Of the draft.
        conversations: Messages of every prompt.
        is_chat: Whether the target's chat template frames them.
        longest: Tokens of the longest prompt.
        draft_settings: Of speculative_config, besides method, model and lookahead.
    """

    python: Path
    target: Path
    draft: Path
    conversations: Sequence[Sequence[dict[str, str]]]
    is_chat: bool
    longest: int
    draft_settings: dict[str, Any]


def run_vllm(asked: VllmAsked, *, lookahead: int, max_new_tokens: int, dtype: str, seed: int) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft.

    Raises:
        UserError: If there is no such Python, it has no vLLM, or vLLM refuses the pair; what it said last is told.
    """
    request = {
        "target": str(asked.target.resolve()),
        "draft": str(asked.draft.resolve()),
        "conversations": [list(messages) for messages in asked.conversations],
        "is_chat": asked.is_chat,
        "lookahead": lookahead,
        "max_new_tokens": max_new_tokens,
        "max_model_len": asked.longest + max_new_tokens + lookahead + 1,
        "dtype": dtype,
        "seed": seed,
        "draft_settings": asked.draft_settings,
    }
    answer = answer_of(asked.python, WORKER, request, engine="vLLM")
    return EngineRun(
        engine="vllm",
        version=answer["version"],
        command=serve_words(request),
        dtype=dtype,
        lookahead=lookahead,
        max_new_tokens=max_new_tokens,
        own=counted(answer["own"]),
        texts=tuple(text_run(text, counted(text["drafted"]["counters"])) for text in answer["texts"]),
    )


def serve_words(request: dict[str, Any]) -> str:
    """How it was run, as vLLM's own arguments."""
    speculative = {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": request["lookahead"]}
    speculative |= request["draft_settings"]
    return (
        f"LLM(TARGET, dtype={request['dtype']!r}, max_model_len={request['max_model_len']}, max_num_seqs=1, "
        f"enforce_eager=True, speculative_config={json.dumps(speculative)})"
    )


def counted(counters: dict[str, Any]) -> Counted:
    """Counters of speculative decoding, by our names."""
    return Counted(
        rounds=counters["drafts"],
        proposed=counters["draft_tokens"],
        accepted=counters["accepted_tokens"],
        by_position=tuple(counters["accepted_tokens_per_pos"]),
    )
