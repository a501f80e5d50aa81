"""llama.cpp's own server, run in its own environment by a script of ours, and what it answers as a record.

It tells how many tokens were proposed and kept, and not at which position of a round. The prompt gives one token, and a
round what it keeps and one more: rounds are the tokens of a text behind its first, less those kept.
"""

from pathlib import Path
from typing import Any

from eval.engine_runs.record import Counted, EngineRun, pooled
from eval.engine_runs.worker import Work, answer_of, text_run

WORKER = Path(__file__).parent / "workers" / "llama_cpp_worker.py"


def run_llama_cpp(work: Work, *, threads: int) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft.

    Args:
        work: GGUF files, prompts and lookahead; the template is that in the target's file.
        threads: Of the processor.

    Raises:
        UserError: If there is no such Python, it has no xllamacpp, or llama.cpp refuses the pair.
    """
    answer = answer_of(work.python, WORKER, work.request(threads=threads), engine="llama.cpp")
    return EngineRun(
        engine="llama.cpp",
        version=answer["version"],
        command=(
            f"llama-server -m {work.target.name} -md {work.draft.name} --spec-type draft-simple --spec-draft-n-max "
            f"{work.lookahead} --spec-draft-n-min 0 --spec-draft-p-min 0 -np 1 -t {threads}"
        ),
        dtype=f"{work.target.stem} with {work.draft.stem}",
        lookahead=work.lookahead,
        max_new_tokens=work.max_new_tokens,
        own=pooled([counted(text) for text in answer["own"]]),
        texts=tuple(text_run(text, counted(text["drafted"])) for text in answer["texts"]),
    )


def counted(text: dict[str, Any]) -> Counted:
    """llama.cpp's counters of one text by our names."""
    rounds = len(text["ids"]) - 1 - text["accepted"]
    return Counted(rounds=rounds, proposed=text["proposed"], accepted=text["accepted"])
