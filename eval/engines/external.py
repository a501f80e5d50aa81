"""What engines did with a request, as records; those in environments of their own run a script of ours there.

transformers    runs in this process, and counts by step (assisted_generation.py).
vLLM            counts drafts, and accepted tokens by position.
llama.cpp       counts proposed and accepted tokens, not by position. The prompt gives one token, and a verification
                step what it accepts and one more: steps are the tokens after a text's first, less those accepted.
OpenVINO GenAI  reports the tokens of every run of the target: the prompt's one, then one entry per verification step,
                of what was accepted and one more. Its sum of accepted tokens omits the last step (2026.4.1).
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.engines.certificate import Counted, Engine, EngineRun, TextRun, pooled

WORKERS = Path(__file__).parent / "workers"
LINES_SHOWN = 12  # of the last output of a failed worker


def command_of(engine: Engine, request: dict[str, Any]) -> str:
    """How an engine is run, as one would run it again."""
    lookahead, threads = request["lookahead"], request.get("threads")
    if engine == "transformers":
        return f"generate(assistant_model=DRAFT, num_assistant_tokens={lookahead}, do_sample=False)"
    if engine == "vllm":
        config = {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": lookahead}
        return (
            f"LLM(TARGET, dtype={request['dtype']!r}, max_model_len={request['max_model_len']}, max_num_seqs=1, "
            f"enforce_eager=True, speculative_config={json.dumps(config | request['draft_settings'])})"
        )
    if engine == "llama.cpp":
        target, draft = Path(request["target"]).name, Path(request["draft"]).name
        return (
            f"llama-server -m {target} -md {draft} --spec-type draft-simple --spec-draft-n-max {lookahead} "
            f"--spec-draft-n-min 0 --spec-draft-p-min 0 -np 1 -t {threads}"
        )
    return (
        "LLMPipeline(TARGET, 'CPU', draft_model=draft_model(DRAFT, 'CPU'), scheduler_config=...), "
        f"num_assistant_tokens={lookahead}, assistant_confidence_threshold=0, INFERENCE_NUM_THREADS={threads}"
    )


def counts_of(engine: Engine, text: dict[str, Any], lookahead: int) -> Counted:
    """An engine's counters of one text as ours."""
    if engine == "vllm":
        counters = text["counters"]
        return Counted(
            rounds=counters["drafts"],
            proposed=counters["draft_tokens"],
            accepted=counters["accepted_tokens"],
            by_position=tuple(counters["accepted_tokens_per_pos"]),
        )
    if engine == "llama.cpp":
        steps = len(text["ids"]) - 1 - text["accepted"]
        return Counted(rounds=steps, proposed=text["proposed"], accepted=text["accepted"])
    if engine == "openvino":  # each step proposes the lookahead, or the tokens left before the text's last one
        given = text["given"]
        accepted = [tokens - 1 for tokens in given[1:]]
        proposed = sum(min(lookahead, sum(given[position:]) - 1) for position in range(1, len(given)))
    else:
        accepted, proposed = text["accepted"], sum(text["proposed"])
    return Counted(
        rounds=len(accepted),
        proposed=proposed,
        accepted=sum(accepted),
        by_position=tuple(sum(each > position for each in accepted) for position in range(lookahead)),
    )


def engine_run(engine: Engine, request: dict[str, Any], answer: dict[str, Any]) -> EngineRun:
    """The record of what an engine answered to a request, with its counters as ours."""
    files = f"{Path(request['target']).stem} with {Path(request['draft']).stem}"  # llama.cpp's dtypes are its files'
    lookahead = request["lookahead"]
    return EngineRun(
        engine=engine,
        version=answer["version"],
        command=command_of(engine, request),
        dtype=files if engine == "llama.cpp" else request["dtype"],
        lookahead=lookahead,
        max_new_tokens=request["max_new_tokens"],
        own=pooled([counts_of(engine, text, lookahead) for text in answer["own"]]),
        texts=tuple(
            TextRun(
                prompt_ids=tuple(text["plain"]["prompt_ids"]),
                plain_ids=tuple(text["plain"]["ids"]),
                drafted_ids=tuple(text["drafted"]["ids"]),
                plain_s=text["plain"]["elapsed_s"],
                drafted_s=text["drafted"]["elapsed_s"],
                counted=counts_of(engine, text["drafted"], lookahead),
            )
            for text in answer["texts"]
        ),
    )


def run_external(engine: Engine, python: Path, request: dict[str, Any]) -> EngineRun:
    """Decode every prompt in an environment of its own, as eval.engines.workers.turns has it.

    Raises:
        UserError: If there is no such Python, it lacks the engine, or that rejects the pair; with its last output.
    """
    script = WORKERS / f"{engine.replace('.', '_')}_worker.py"
    return engine_run(engine, request, answer_of(python, script, request, engine=engine))


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
