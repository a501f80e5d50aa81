"""Scripts of ours that run in an engine's own environment: a request goes in as a file, an answer comes out."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.certificate.record import Counted, TextRun

LINES_SHOWN = 12  # of what a failed worker said last


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
    with tempfile.TemporaryDirectory(prefix="widedraft-engine-") as place:
        asked, answered = Path(place) / "request.json", Path(place) / "answer.json"
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
            said = "\n".join(done.stdout.splitlines()[-LINES_SHOWN:])
            raise UserError(
                f"{engine} did not answer (exit code {done.returncode} of {python}). Mend what it said last:\n{said}"
            )
        return json.loads(answered.read_text(encoding="utf-8"))


def text_run(text: dict[str, Any], counted: Counted) -> TextRun:
    """One prompt of an answer, decoded both ways.

    Args:
        text: As workers answer: prompt_ids, and ids and elapsed_s below plain and drafted.
        counted: The engine's counters of the text with the draft.
    """
    return TextRun(
        prompt_ids=tuple(text["prompt_ids"]),
        plain_ids=tuple(text["plain"]["ids"]),
        drafted_ids=tuple(text["drafted"]["ids"]),
        plain_s=text["plain"]["elapsed_s"],
        drafted_s=text["drafted"]["elapsed_s"],
        counted=counted,
    )
