"""How each engine takes what is published: its serve line, what it refuses, and what was certified there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.engines.pair.facts import DEFAULT_LOOKAHEAD, Pair
from architectures.engines.pair.finding import EngineName, Finding, Severity
from architectures.engines.pair.read_facts import read_draft, read_model
from architectures.engines.table import ENGINES, findings, refusals, serve_line
from architectures.errors import UserError
from distill.hub.files.asked import repository_name
from distill.hub.files.contents import OWN_TOKENIZER, SMALL_HEAD, Forms
from eval.engine_runs.record import FILE_NAME, Certificate, CertificateFile, read_certificates, write_certificate


@dataclass(frozen=True)
class Serving:
    """One engine on a card.

    Attributes:
        engine: Its name, and the form it takes.
        line: How it is served; "" where it is not.
        note: What else is to be said.
    """

    engine: str
    line: str
    note: str


@dataclass(frozen=True)
class Place:
    """A form that is published.

    Attributes:
        folder: Where its files are now.
        name: As a serve line names it.
        fetched: How it gets there; "" of what engines fetch by themselves.
    """

    folder: Path
    name: str
    fetched: str = ""


def servings_of(
    out: Path, target: Path, forms: Forms, *, repo_id: str, base_model: str | None, lookahead: int | None
) -> list[Serving]:
    """Every engine with the form at the root, and the forms that one engine takes.

    Args:
        out: The folder that is published.
        target: The folder of the target.
        forms: Which folders there are.
        repo_id: Where it goes.
        base_model: The target's hub id; its folder's name stands for it where there is none.
        lookahead: That promises most; None where nobody scored it.
    """
    model = replace(read_model(str(target), "main"), name=base_model or target.name, path=base_model or target.name)

    def pair_of(place: Place) -> Pair:
        draft = replace(read_draft(str(place.folder)), name=place.name, path=place.name)
        return Pair(draft=draft, target=model, lookahead=lookahead or DEFAULT_LOOKAHEAD)

    root = Place(out, repo_id)
    places: dict[EngineName, Place] = {"llama.cpp": gguf_place(out, forms.gguf, repo_id)}
    told = [serving(engine, pair_of(place := places.get(engine, root)), place) for engine in ENGINES]
    if not forms.small:
        return told
    told.append(widedraft_serving(repo_id, model.name))
    if forms.refused is not None:
        return [*told, Serving(f"vLLM, {OWN_TOKENIZER}", "", f"Not in this repository: {forms.refused}")]
    name = repository_name(repo_id)
    fetch = f"hf download {repo_id} --include '{OWN_TOKENIZER}/*' --local-dir {name}"
    own = Place(out / OWN_TOKENIZER, f"{name}/{OWN_TOKENIZER}", fetch)
    return [*told, serving("vllm", pair_of(own), own, f", {OWN_TOKENIZER}/")]


def gguf_place(out: Path, files: Sequence[str], repo_id: str) -> Place:
    """The first of the files for llama.cpp; without one, what its own converter makes of the root."""
    name = repository_name(repo_id)
    if files:
        return Place(out, f"{name}/{files[0]}", f"hf download {repo_id} {' '.join(files)} --local-dir {name}")
    fetch = f"hf download {repo_id} --local-dir {name}\npython convert_hf_to_gguf.py {name} --outfile {name}.gguf"
    return Place(out, f"{name}.gguf", fetch)


def serving(engine: EngineName, pair: Pair, place: Place, form: str = "") -> Serving:
    """What one engine says of a form."""
    entry, found = ENGINES[engine], findings(engine, pair)
    label = f"{entry.label}{form}"
    against = refusals(found)
    if against:
        return Serving(label, "", f"Not served: {' '.join(map(sentence, against))}")
    line = "\n".join(filter(None, (place.fetched, serve_line(engine, pair))))
    told = [f"Rules read in version {entry.version}.", certified_words(place.folder, engine)]
    told += [sentence(finding) for finding in found if finding.severity is Severity.LOSSY]
    return Serving(label, line, " ".join(told))


def sentence(finding: Finding) -> str:
    """A finding with its remedy."""
    return f"{finding.explanation} {finding.remedy}".strip()


def certified_words(folder: Path, engine: EngineName) -> str:
    """What a certificate beside a form says of an engine."""
    found: dict[str, Certificate] = {}
    if (folder / FILE_NAME).is_file():
        found = {**read_certificates(folder).engines}
    if engine not in found:
        return "Not run with this draft."
    one = found[engine]
    if not one.holds:
        return f"NOT CERTIFIED in version {one.run.version}: {' '.join(one.causes)}"
    interval = "" if one.speed.interval is None else " [{:.2f}, {:.2f}]".format(*one.speed.interval)
    return (
        f"Certified in version {one.run.version} ({len(one.run.texts)} texts, counts as replay says); there "
        f"{one.speed.value:.2f}x{interval} the speed without a draft, lookahead {one.run.lookahead}, {one.hardware}."
    )


def widedraft_serving(repo_id: str, target: str) -> Serving:
    """The form that this project's own decoding takes, whose speed a scorecard tells."""
    name = repository_name(repo_id)
    line = "\n".join(
        (
            f"hf download {repo_id} --include '{SMALL_HEAD}/*' --local-dir {name}",
            f"widedraft speed --target {target} --drafts {name}/{SMALL_HEAD}",
        )
    )
    return Serving(
        f"widedraft, {SMALL_HEAD}/", line, "The draft as it was trained and scored: the speeds above are its."
    )


def place_certificates(out: Path, forms: Forms, target: Path, given: list[Path]) -> bool:
    """Put certificates beside the forms that they are of; whether there are any.

    Args:
        out: The folder that is published.
        forms: Which folders there are.
        target: The folder of the target.
        given: Folders that hold a certificate.json.

    Raises:
        UserError: If one is of another target, or of none of the forms.
    """
    prints = {fingerprint_checkpoint(out / name): out / name for name in forms.folders}
    of_target = fingerprint_checkpoint(target)
    for folder in given:
        found = read_certificates(folder)
        require_ours(found, folder, prints, of_target)
        for certificate in found.engines.values():
            write_certificate(prints[found.draft], certificate, target=found.target, draft=found.draft)
    return bool(given)


def require_ours(found: CertificateFile, folder: Path, prints: dict[str, Path], of_target: str) -> None:
    """Raise UserError for a certificate of other models than those that are published."""
    for role, fine in (("target", found.target == of_target), ("draft", found.draft in prints)):
        if not fine:
            raise UserError(
                f"{folder / FILE_NAME}: is of another {role} than is published. Certify again (widedraft certify), or "
                "take it away."
            )
