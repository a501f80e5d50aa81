"""OpenVINO GenAI, run in its own environment by a script of ours, and what it answers as a record.

It tells how many tokens every run of the target gave: the prompt's one, then a round each, of what was kept and one
more. Its own sum of accepted tokens leaves out the last round of every text (2026.4.1), and is not used.
"""

from pathlib import Path
from typing import Any

from eval.engine_runs.record import Counted, EngineRun, pooled
from eval.engine_runs.worker import Work, answer_of, text_run

WORKER = Path(__file__).parent / "workers" / "openvino_worker.py"
MODEL_NAME = "openvino_model.xml"


def run_openvino(work: Work, *, dtype: str, threads: int) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft.

    Args:
        work: Folders as `optimum-cli export openvino` writes them, prompts and lookahead.
        dtype: Number type of both models and their caches.
        threads: Of the processor.

    Raises:
        UserError: If there is no such Python, it has no OpenVINO GenAI, or that refuses the pair.
    """
    answer = answer_of(work.python, WORKER, work.request(dtype=dtype, threads=threads), engine="OpenVINO GenAI")
    return EngineRun(
        engine="openvino",
        version=answer["version"],
        command=(
            "LLMPipeline(TARGET, 'CPU', draft_model=draft_model(DRAFT, 'CPU'), scheduler_config=...), "
            f"num_assistant_tokens={work.lookahead}, assistant_confidence_threshold=0, INFERENCE_NUM_THREADS={threads}"
        ),
        dtype=dtype,
        lookahead=work.lookahead,
        max_new_tokens=work.max_new_tokens,
        own=pooled([counted(text, work.lookahead) for text in answer["own"]]),
        texts=tuple(text_run(text, counted(text["drafted"], work.lookahead)) for text in answer["texts"]),
    )


def counted(text: dict[str, Any], lookahead: int) -> Counted:
    """Rounds of one text; each proposes the lookahead, or the tokens left before the text's last one."""
    given = text["given"]
    kept = [tokens - 1 for tokens in given[1:]]
    tokens_left = [sum(given[position:]) - 1 for position in range(1, len(given))]
    return Counted(
        rounds=len(kept),
        proposed=sum(min(lookahead, each) for each in tokens_left),
        accepted=sum(kept),
        by_position=tuple(sum(each > position for each in kept) for position in range(lookahead)),
    )
