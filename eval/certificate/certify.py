"""A pair and an engine -> a certificate: the engine runs, exact replay runs over its texts, the laws decide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from architectures.checkpoints.manifest import processor_name
from architectures.checkpoints.target_files import TEMPLATES, TOKENIZERS, bytes_below
from architectures.errors import UserError
from architectures.pages.counts import number_of
from architectures.shapes.context_length import context_length
from architectures.small_head.record import CONFIG_KEY
from architectures.targets.target import read_config, resolve_checkpoint
from eval.acceptance.estimates import Resampling
from eval.certificate.causes import likely_causes
from eval.certificate.engine_speed import speed_of
from eval.certificate.laws import LEAST_PROMPTS, Known, find
from eval.certificate.replayed import own_tokens, replay_run
from eval.certificate.ties import differs, find_partings
from eval.checks.loaded_pair import prompts_of
from eval.engine_runs.llama_cpp_engine import run_llama_cpp
from eval.engine_runs.openvino_engine import run_openvino
from eval.engine_runs.record import Certificate, Engine, EngineRun, pooled
from eval.engine_runs.transformers_engine import Pair, run_transformers
from eval.engine_runs.vllm_engine import run_vllm
from eval.engine_runs.worker import Work
from eval.models.loading import load_model, load_tokenizer, stop_token_ids
from eval.prompts import TEXT, Prompt, render_prompt

RESAMPLES, CONFIDENCE = 2000, 0.95


@dataclass(frozen=True)
class Asked:
    """What is certified, and how.

    Attributes:
        draft: A folder, or a hub id.
        target: A folder, or a hub id.
        engine: Which.
        prompts: Files and tasks; None takes those built in.
        num_prompts: Of them.
        max_new_tokens: Of a text.
        lookahead: Tokens proposed a round.
        dtype: Number type of both models; llama.cpp's is that of its files.
        python: Of the engine's own environment; None for transformers, which is in ours.
        files: Of target and draft, in the form of llama.cpp (GGUF) or OpenVINO (a folder each); None for others.
        threads: Of the processor.
        seed: Of the order of turns.
    """

    draft: str
    target: str
    engine: Engine
    prompts: Sequence[str] | None
    num_prompts: int
    max_new_tokens: int
    lookahead: int
    dtype: str
    python: Path | None
    files: tuple[Path, Path] | None
    threads: int
    seed: int


@dataclass(frozen=True)
class Loaded:
    """What every engine's run is made from.

    Attributes:
        target: Folder of the target.
        draft: Of the draft.
        prompts: That are asked.
        ids: Of each, as the target's own tokenizer and template render it.
        is_chat: Whether a template frames them.
    """

    target: Path
    draft: Path
    prompts: Sequence[Prompt]
    ids: Sequence[Sequence[int]]
    is_chat: bool

    @property
    def conversations(self) -> list[list[dict[str, str]]]:
        roles = ({} if self.is_chat else {"role": "user"},)
        return [[{**message, **roles[0]} for message in prompt.messages] for prompt in self.prompts]


def certify_pair(asked: Asked) -> tuple[Certificate, Loaded]:
    """Run the engine, replay its texts, and decide.

    Raises:
        UserError: If the pair cannot be loaded, there are too few prompts, or the engine refuses.
    """
    loaded = load_asked(asked)
    run = ENGINES[asked.engine](asked, loaded)
    draft = load_model(loaded.draft, dtype=replay_dtype(asked))
    known, ties = known_of(asked, loaded), ties_of(run, loaded)
    replayed = replay_run(draft, run, own_tokens(loaded.target, loaded.draft))
    certificate = Certificate(
        run=run,
        replay=pooled(replayed),
        findings=tuple(find(run, loaded.ids, pooled(replayed), known, ties)),
        causes=tuple(likely_causes(run, loaded.ids, replayed, known, ties)),
        speed=speed_of(run, Resampling(CONFIDENCE, RESAMPLES, asked.seed)),
        hardware=f"{processor_name()}, {number_of(asked.threads, 'thread')}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return certificate, loaded


def ties_of(run: EngineRun, loaded: Loaded) -> list[int]:
    """The prompts whose texts part at a near-tie; the target is read for it only where texts part at all."""
    if not any(differs(text) for text in run.texts):
        return []
    target = load_model(loaded.target, dtype="float32")
    stop_id = next(iter(sorted(stop_token_ids(target))), 0)
    return [parting.number for parting in find_partings(target, run, stop_id) if parting.is_tie]


def load_asked(asked: Asked) -> Loaded:
    target, draft = (resolve_checkpoint(each) for each in (asked.target, asked.draft))
    if CONFIG_KEY in read_config(draft):
        raise UserError(
            f"{draft}: its head says some ids alone, which no engine loads. Certify a form of it: widedraft export "
            f"{draft} --to DIR --form whole."
        )
    prompts = prompts_of(asked.prompts, asked.num_prompts)
    if len(prompts) < LEAST_PROMPTS:
        raise UserError(
            f"--num-prompts: a certificate takes {LEAST_PROMPTS} prompts at least, got {len(prompts)}. Ask for more, "
            "or name files that hold more with --prompts."
        )
    tokenizer = load_tokenizer(target)
    raw = {prompt.messages[0]["role"] == TEXT for prompt in prompts}
    if len(raw) > 1:
        raise UserError("--prompts: raw texts and conversations cannot be certified together. Name them one by one.")
    is_chat = bool(tokenizer.chat_template) and raw == {False}
    return Loaded(target, draft, prompts, [render_prompt(tokenizer, prompt.messages) for prompt in prompts], is_chat)


def in_transformers(asked: Asked, loaded: Loaded) -> EngineRun:
    target, draft = (load_model(folder, dtype=asked.dtype) for folder in (loaded.target, loaded.draft))
    command = f"generate(assistant_model=DRAFT, num_assistant_tokens={asked.lookahead}, do_sample=False)"
    pair = Pair(target, draft, command)
    return run_transformers(
        pair, loaded.ids, lookahead=asked.lookahead, max_new_tokens=asked.max_new_tokens, seed=asked.seed
    )


def in_vllm(asked: Asked, loaded: Loaded) -> EngineRun:
    """Run in the environment that has vLLM."""
    own = own_tokens(loaded.target, loaded.draft) is not None
    work = work_of(asked, loaded, (loaded.target, loaded.draft), "vLLM")
    return run_vllm(work, dtype=asked.dtype, draft_settings={"use_heterogeneous_vocab": True} if own else {})


def in_llama_cpp(asked: Asked, loaded: Loaded) -> EngineRun:
    """Run in the environment that has llama.cpp."""
    files = required(asked.files, "--target-gguf and --draft-gguf", "what llama.cpp loads of both models")
    return run_llama_cpp(work_of(asked, loaded, files, "xllamacpp"), threads=asked.threads)


def in_openvino(asked: Asked, loaded: Loaded) -> EngineRun:
    """Run in the environment that has OpenVINO GenAI."""
    folders = required(asked.files, "--target-ir and --draft-ir", "what OpenVINO loads of both models")
    work = work_of(asked, loaded, folders, "openvino-genai")
    return run_openvino(work, dtype=asked.dtype, threads=asked.threads)


def work_of(asked: Asked, loaded: Loaded, models: tuple[Path, Path], package: str) -> Work:
    """What an engine in an environment of its own decodes."""
    return Work(
        python=required(asked.python, "--python", f"the Python of an environment that has {package}"),
        target=models[0],
        draft=models[1],
        conversations=loaded.conversations,
        is_chat=loaded.is_chat,
        longest=max(map(len, loaded.ids)),
        lookahead=asked.lookahead,
        max_new_tokens=asked.max_new_tokens,
        seed=asked.seed,
    )


ENGINES: dict[Engine, Callable[[Asked, Loaded], EngineRun]] = {
    "transformers": in_transformers,
    "vllm": in_vllm,
    "llama.cpp": in_llama_cpp,
    "openvino": in_openvino,
}


def required(value: Any, option: str, what: str) -> Any:
    """A value that this engine needs.

    Raises:
        UserError: If it was not given.
    """
    if value is None:
        raise UserError(f"{option} must be given for this engine: {what}.")
    return value


def replay_dtype(asked: Asked) -> str:
    """Number type in which our replay reads the draft: the engine's, and float32 beside files of llama.cpp's own."""
    return "float32" if asked.engine == "llama.cpp" else asked.dtype


def known_of(asked: Asked, loaded: Loaded) -> Known:
    """What tells why a pair fails."""
    pair = loaded.target, loaded.draft
    context = context_length(read_config(loaded.draft), where=str(loaded.draft / "config.json"))
    known = Known(
        same_tokenizer=same_files(*pair, TOKENIZERS) or own_tokens(*pair) is not None,
        same_template=same_files(*pair, TEMPLATES),
        draft_context=None if context is None else context.tokens,
    )
    if asked.engine != "llama.cpp" or asked.files is None:
        return known
    return replace(known, quantised=tuple(path.name for path in asked.files if not is_half(path)))


def same_files(some: Path, others: Path, names: Sequence[str]) -> bool:
    """Whether two folders hold the same of these files, byte for byte."""
    return all(bytes_below(some / name) == bytes_below(others / name) for name in names)


def is_half(path: Path) -> bool:
    """Whether a GGUF file's name says that it holds 16 bits or more of every weight."""
    return any(kind in path.stem.upper() for kind in ("F16", "BF16", "F32"))
