"""Scripts of ours that run in an engine's own environment: a request goes in as a file, an answer comes out."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.engine_runs.record import Counted, TextRun

LINES_SHOWN = 12  # of what a failed worker said last


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an engine is asked to decode, and where it is.

    Attributes:
        python: Of the environment that has the engine.
        target: Folder or file of the target.
        draft: Of the draft.
        conversations: Messages of every prompt.
        is_chat: Whether the target's chat template frames them.
        longest: Tokens of the longest prompt.
        lookahead: Tokens proposed a round.
        max_new_tokens: Of a text.
        seed: Of the order of turns.
    """

    python: Path
    target: Path
    draft: Path
    conversations: Sequence[Sequence[dict[str, str]]]
    is_chat: bool
    longest: int
    lookahead: int
    max_new_tokens: int
    seed: int

    def request(self, **others: Any) -> dict[str, Any]:
        """As workers read it, with what one engine alone is told."""
        return {
            "target": str(self.target.resolve()),
            "draft": str(self.draft.resolve()),
            "conversations": [list(messages) for messages in self.conversations],
            "is_chat": self.is_chat,
            "lookahead": self.lookahead,
            "max_new_tokens": self.max_new_tokens,
            "max_model_len": self.longest + self.max_new_tokens + self.lookahead + 1,
            "seed": self.seed,
            **others,
        }


def answer_of(python: Path, script: Path, request: dict[str, Any], *, engine: str) -> dict[str, Any]:
    """What a worker answers to a request.

    Args:
        python: Of the environment that has the engine.
        script: The worker.
        request: As the worker documents it.
        engine: Its name, for messages.

    Raises:
        UserError: If the Python cannot be run, or the worker fails; what it said last is told.
    """
    with tempfile.TemporaryDirectory(prefix="widedraft-engine-") as folder:
        asked, answered = Path(folder) / "request.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        try:
            done = subprocess.run(
                [str(python), str(script), str(asked), str(answered)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise UserError(
                f"--python: {python} could not be run ({error.strerror}). Name that of {engine}."
            ) from error
        if done.returncode or not answered.is_file():
            output = "\n".join(done.stdout.splitlines()[-LINES_SHOWN:])
            raise UserError(
                f"{engine} did not answer (exit code {done.returncode} of {python}). Mend what it said last:\n{output}"
            )
        return json.loads(answered.read_text(encoding="utf-8"))


def text_run(text: dict[str, Any], counted: Counted) -> TextRun:
    """One prompt of an answer, decoded both ways.

    Args:
        text: As workers answer: prompt_ids, ids and elapsed_s below plain and drafted.
        counted: The engine's counters of the text with the draft.
    """
    return TextRun(
        prompt_ids=tuple(text["plain"]["prompt_ids"]),
        plain_ids=tuple(text["plain"]["ids"]),
        drafted_ids=tuple(text["drafted"]["ids"]),
        plain_s=text["plain"]["elapsed_s"],
        drafted_s=text["drafted"]["elapsed_s"],
        counted=counted,
    )
