"""vLLM, run in its own environment by a script of ours, and what it answers as a record."""

import json
from pathlib import Path
from typing import Any

from eval.engine_runs.record import Counted, EngineRun, pooled
from eval.engine_runs.worker import Work, answer_of, text_run

WORKER = Path(__file__).parent / "workers" / "vllm_worker.py"


def run_vllm(work: Work, *, dtype: str, draft_settings: dict[str, Any]) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft.

    Args:
        work: Folders, prompts and lookahead.
        dtype: Number type of both models.
        draft_settings: Of speculative_config, besides method, model and lookahead.

    Raises:
        UserError: If there is no such Python, it has no vLLM, or vLLM refuses the pair; what it said last is told.
    """
    request = work.request(dtype=dtype, draft_settings=draft_settings)
    answer = answer_of(work.python, WORKER, request, engine="vLLM")
    return EngineRun(
        engine="vllm",
        version=answer["version"],
        command=serve_words(request),
        dtype=dtype,
        lookahead=work.lookahead,
        max_new_tokens=work.max_new_tokens,
        own=pooled([counted(text["counters"]) for text in answer["own"]]),
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
