"""What `widedraft preflight` prints."""

from collections.abc import Sequence

from architectures.engines.pair.facts import Pair
from architectures.engines.pair.finding import EngineName, Finding, Severity
from architectures.engines.table import ENGINES, findings, refusals, serve_line
from architectures.pages.blocks import Block, Code, Section, Sentence


def preflight_page(engines: Sequence[EngineName], pair: Pair) -> tuple[list[Block], bool]:
    """Findings and serve lines of several engines, and whether all of them can serve the pair."""
    findings_by_engine: dict[EngineName, list[Finding]] = {engine: findings(engine, pair) for engine in engines}
    sections = [engine_section(engine, pair, findings_by_engine[engine]) for engine in engines]
    return [*sections, Sentence(closing(findings_by_engine))], not any(map(refusals, findings_by_engine.values()))


def engine_section(engine: EngineName, pair: Pair, engine_findings: Sequence[Finding]) -> Section:
    """One engine: what is wrong, what was not checked, what is fine, and how to serve it."""
    of = ENGINES[engine]
    run = "run here" if of.was_run else "read, not run"
    title = f"{of.label} {of.version} ({run}): {pair.draft.name} for {pair.target.name}"
    good = [finding.rule for finding in engine_findings if finding.severity is Severity.FINE]
    told = [*told_findings(engine_findings), *([f"fine: {', '.join(good)}."] if good else [])]
    mending = refusals(engine_findings) or (pair.draft.planned and pair.draft.small_head)
    served = "serve it so, once that is mended:" if mending else "serve it so:"
    return Section(title, [*map(Sentence, [*told, served]), Code(serve_line(engine, pair)), *map(Sentence, of.notes)])


def told_findings(engine_findings: Sequence[Finding]) -> list[str]:
    """What is not fine, with remedies and where the rules were read; what is said of several rules is said once."""
    rules: dict[str, list[Finding]] = {}
    for finding in engine_findings:
        if finding.severity is not Severity.FINE:
            rules.setdefault(f"{finding.explanation} {finding.remedy}".rstrip(), []).append(finding)
    return [told(text, same) for text, same in rules.items()]


def told(text: str, same: Sequence[Finding]) -> str:
    """One text about one or several rules of one severity."""
    sources = dict.fromkeys(finding.source for finding in same if finding.source != "not read")
    names = ", ".join(finding.rule for finding in same)
    return f"{same[0].severity}: {names}: {text}" + (f" [{', '.join(sources)}]" if sources else "")


def closing(findings_by_engine: dict[EngineName, list[Finding]]) -> str:
    """Which engines can serve the pair, in one line for each answer."""
    able = [ENGINES[engine].label for engine, of in findings_by_engine.items() if not refusals(of)]
    unable = [ENGINES[engine].label for engine, of in findings_by_engine.items() if refusals(of)]
    lines = [
        f"can be served by: {', '.join(able)}" if able else "",
        f"NOT served by: {', '.join(unable)}" if unable else "",
    ]
    return "\n".join(filter(None, lines))


def summary(engine_findings: Sequence[Finding]) -> str:
    """One engine's findings in a few words."""
    counts = {severity: sum(finding.severity is severity for finding in engine_findings) for severity in Severity}
    told = [f"{counts[each]} {each}" for each in Severity if counts[each]]
    return ", ".join(told)
