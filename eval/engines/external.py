"""Engines in Python environments of their own: a script of ours runs there, a request goes in and an answer comes out.

vLLM            counts drafts, and accepted tokens by position.
llama.cpp       counts proposed and accepted tokens, not by position. The prompt gives one token, and a verification
                step what it accepts and one more: steps are the tokens after a text's first, less those accepted.
OpenVINO GenAI  reports the tokens of every run of the target: the prompt's one, then one entry per verification step,
                of what was accepted and one more. Its sum of accepted tokens omits the last step (2026.4.1).
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.engines.certificate import Counted, EngineRun, TextRun, pooled

WORKERS = Path(__file__).parent / "workers"
LINES_SHOWN = 12  # of the last output of a failed worker


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an engine decodes, and where it is.

    Attributes:
        python: Of the environment that has the engine.
        target: Folder or file of the target, in the engine's form.
        draft: Of the draft.
        conversations: Messages of every prompt.
        is_chat: Whether the target's chat template is applied.
        longest: Tokens of the longest prompt.
        lookahead: Tokens proposed per verification step.
        max_new_tokens: Of a text.
        dtype: Of both models; llama.cpp's is that of its files.
        threads: Of the CPU.
        seed: Of the order in which plain and speculative decoding alternate.
        draft_settings: Of vLLM's speculative_config, next to method, model and lookahead.
    """

    python: Path
    target: Path
    draft: Path
    conversations: Sequence[Sequence[dict[str, str]]]
    is_chat: bool
    longest: int
    lookahead: int
    max_new_tokens: int
    dtype: str
    threads: int
    seed: int
    draft_settings: dict[str, Any]

    def request(self) -> dict[str, Any]:
        """As workers read it."""
        return {
            "target": str(self.target.resolve()),
            "draft": str(self.draft.resolve()),
            "conversations": [list(messages) for messages in self.conversations],
            "is_chat": self.is_chat,
            "lookahead": self.lookahead,
            "max_new_tokens": self.max_new_tokens,
            "max_model_len": self.longest + self.max_new_tokens + self.lookahead + 1,
            "dtype": self.dtype,
            "threads": self.threads,
            "seed": self.seed,
            "draft_settings": self.draft_settings,
        }


def run_vllm(work: Work) -> EngineRun:
    speculative = {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": work.lookahead}
    command = (
        f"LLM(TARGET, dtype={work.dtype!r}, max_model_len={work.request()['max_model_len']}, max_num_seqs=1, "
        f"enforce_eager=True, speculative_config={json.dumps(speculative | work.draft_settings)})"
    )
    return run_external("vllm", "vLLM", work, vllm_counts, command=command, dtype=work.dtype)


def vllm_counts(text: dict[str, Any], _lookahead: int) -> Counted:
    counters = text["counters"]
    return Counted(
        rounds=counters["drafts"],
        proposed=counters["draft_tokens"],
        accepted=counters["accepted_tokens"],
        by_position=tuple(counters["accepted_tokens_per_pos"]),
    )


def run_llama_cpp(work: Work) -> EngineRun:
    command = (
        f"llama-server -m {work.target.name} -md {work.draft.name} --spec-type draft-simple --spec-draft-n-max "
        f"{work.lookahead} --spec-draft-n-min 0 --spec-draft-p-min 0 -np 1 -t {work.threads}"
    )
    dtype = f"{work.target.stem} with {work.draft.stem}"
    return run_external("llama.cpp", "llama.cpp", work, llama_cpp_counts, command=command, dtype=dtype)


def llama_cpp_counts(text: dict[str, Any], _lookahead: int) -> Counted:
    steps = len(text["ids"]) - 1 - text["accepted"]
    return Counted(rounds=steps, proposed=text["proposed"], accepted=text["accepted"])


def run_openvino(work: Work) -> EngineRun:
    command = (
        "LLMPipeline(TARGET, 'CPU', draft_model=draft_model(DRAFT, 'CPU'), scheduler_config=...), "
        f"num_assistant_tokens={work.lookahead}, assistant_confidence_threshold=0, "
        f"INFERENCE_NUM_THREADS={work.threads}"
    )
    return run_external("openvino", "OpenVINO GenAI", work, openvino_counts, command=command, dtype=work.dtype)


def openvino_counts(text: dict[str, Any], lookahead: int) -> Counted:
    """Each step proposes the lookahead, or the tokens left before the text's last one."""
    given = text["given"]
    accepted = [tokens - 1 for tokens in given[1:]]
    left = [sum(given[position:]) - 1 for position in range(1, len(given))]
    return Counted(
        rounds=len(accepted),
        proposed=sum(min(lookahead, each) for each in left),
        accepted=sum(accepted),
        by_position=tuple(sum(each > position for each in accepted) for position in range(lookahead)),
    )


def run_external(
    engine: Any,
    label: str,
    work: Work,
    counts: Callable[[dict[str, Any], int], Counted],
    *,
    command: str,
    dtype: str,
) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft.

    Raises:
        UserError: If there is no such Python, it lacks the engine, or that rejects the pair; with its last output.
    """
    script = WORKERS / f"{engine.replace('.', '_')}_worker.py"
    answer = answer_of(work.python, script, work.request(), engine=label)
    return EngineRun(
        engine=engine,
        version=answer["version"],
        command=command,
        dtype=dtype,
        lookahead=work.lookahead,
        max_new_tokens=work.max_new_tokens,
        own=pooled([counts(text, work.lookahead) for text in answer["own"]]),
        texts=tuple(
            TextRun(
                prompt_ids=tuple(text["plain"]["prompt_ids"]),
                plain_ids=tuple(text["plain"]["ids"]),
                drafted_ids=tuple(text["drafted"]["ids"]),
                plain_s=text["plain"]["elapsed_s"],
                drafted_s=text["drafted"]["elapsed_s"],
                counted=counts(text["drafted"], work.lookahead),
            )
            for text in answer["texts"]
        ),
    )


def answer_of(python: Path, script: Path, request: dict[str, Any], *, engine: str) -> dict[str, Any]:
    """What a worker answers to a request; errors as for `run_external`."""
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
                f"{engine} did not answer (exit code {done.returncode} of {python}). Its last output:\n{output}"
            )
        return json.loads(answered.read_text(encoding="utf-8"))
