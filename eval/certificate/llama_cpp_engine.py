"""llama.cpp's own server, run in its own environment by a script of ours, and what it answers as a record.

It tells how many tokens were proposed and kept, and not at which position of a round. A round emits what it keeps and
one token more, so rounds are the tokens of a text less those kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.certificate.laws import pooled
from eval.certificate.record import Counted, EngineRun
from eval.certificate.worker import answer_of, text_run

WORKER = Path(__file__).with_name("llama_cpp_worker.py")


@dataclass(frozen=True)
class LlamaCppAsked:
    """What llama.cpp is asked.

    Attributes:
        python: Of the environment that has xllamacpp.
        target: GGUF file of the target.
        draft: Of the draft.
        conversations: Messages of every prompt.
        is_chat: Whether the template in the target's file frames them.
        longest: Tokens of the longest prompt.
        threads: Of the processor.
    """

    python: Path
    target: Path
    draft: Path
    conversations: Sequence[Sequence[dict[str, str]]]
    is_chat: bool
    longest: int
    threads: int


def run_llama_cpp(asked: LlamaCppAsked, *, lookahead: int, max_new_tokens: int, seed: int) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft.

    Raises:
        UserError: If there is no such Python, it has no xllamacpp, or llama.cpp refuses the pair.
    """
    request = {
        "target": str(asked.target.resolve()),
        "draft": str(asked.draft.resolve()),
        "conversations": [list(messages) for messages in asked.conversations],
        "is_chat": asked.is_chat,
        "lookahead": lookahead,
        "max_new_tokens": max_new_tokens,
        "max_model_len": asked.longest + max_new_tokens + lookahead + 1,
        "threads": asked.threads,
        "seed": seed,
    }
    answer = answer_of(asked.python, WORKER, request, engine="llama.cpp")
    return EngineRun(
        engine="llama.cpp",
        version=answer["version"],
        command=(
            f"llama-server -m {asked.target.name} -md {asked.draft.name} --spec-type draft-simple --spec-draft-n-max "
            f"{lookahead} --spec-draft-n-min 0 --spec-draft-p-min 0 -np 1 -t {asked.threads}"
        ),
        dtype=f"{asked.target.stem} with {asked.draft.stem}",
        lookahead=lookahead,
        max_new_tokens=max_new_tokens,
        own=pooled([counted(text) for text in answer["own"]]),
        texts=tuple(text_run(text, counted(text["drafted"])) for text in answer["texts"]),
    )


def counted(text: dict[str, Any]) -> Counted:
    """llama.cpp's counters of one text by our names."""
    rounds = len(text["ids"]) - text["accepted"]
    return Counted(rounds=rounds, proposed=text["proposed"], accepted=text["accepted"])
