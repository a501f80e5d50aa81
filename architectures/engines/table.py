"""The engines: rules, serve line, version read. What one package asks another about an engine, it asks here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import EngineName, Finding, Rule, Severity
from architectures.engines.pair.serve import (
    serve_llama_cpp,
    serve_sglang,
    serve_tensorrt_llm,
    serve_transformers,
    serve_vllm,
)
from architectures.engines.rules import (
    llama_cpp_rules,
    sglang_rules,
    tensorrt_llm_rules,
    transformers_rules,
    vllm_rules,
)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine.

    Attributes:
        label: As its authors write it.
        version: In which its rules were read.
        was_run: Whether this project ever decoded with a draft in it.
        notes: What it does with any draft.
        serve: The line that serves a pair.
    """

    label: str
    version: str
    was_run: bool
    rules: tuple[Rule, ...]
    notes: tuple[str, ...]
    serve: Callable[[Pair], str]


ENGINES: dict[EngineName, Engine] = {
    "vllm": Engine(
        label=vllm_rules.NAME,
        version="0.32.0",
        was_run=True,
        rules=vllm_rules.RULES,
        notes=vllm_rules.NOTES,
        serve=serve_vllm,
    ),
    "sglang": Engine(
        label=sglang_rules.NAME,
        version="0.5.23",
        was_run=False,
        rules=sglang_rules.RULES,
        notes=sglang_rules.NOTES,
        serve=serve_sglang,
    ),
    "llama.cpp": Engine(
        label=llama_cpp_rules.NAME,
        version="of llama-cpp-python 0.3.36",
        was_run=True,
        rules=llama_cpp_rules.RULES,
        notes=llama_cpp_rules.NOTES,
        serve=serve_llama_cpp,
    ),
    "transformers": Engine(
        label=transformers_rules.NAME,
        version="5.23.0",
        was_run=True,
        rules=transformers_rules.RULES,
        notes=transformers_rules.NOTES,
        serve=serve_transformers,
    ),
    "tensorrt-llm": Engine(
        label=tensorrt_llm_rules.NAME,
        version="of 2026-11",
        was_run=False,
        rules=tensorrt_llm_rules.RULES,
        notes=tensorrt_llm_rules.NOTES,
        serve=serve_tensorrt_llm,
    ),
}
ORDER = tuple(Severity)


def findings(engine: EngineName, pair: Pair) -> list[Finding]:
    """What every rule of an engine says of a pair, the worst first."""
    return sorted((rule(pair) for rule in ENGINES[engine].rules), key=lambda finding: ORDER.index(finding.severity))


def serve_line(engine: EngineName, pair: Pair) -> str:
    """How a pair is served; without the last line break."""
    return ENGINES[engine].serve(pair)


def refusals(engine_findings: Sequence[Finding]) -> list[Finding]:
    """The findings for which the engine does not serve the pair."""
    return [finding for finding in engine_findings if finding.severity is Severity.REFUSED]
