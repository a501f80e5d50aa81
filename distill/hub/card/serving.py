"""How each engine takes what is published: its serve line, what it refuses, and what was certified there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.compatibility import (
    DEFAULT_LOOKAHEAD,
    ENGINES,
    LABELS,
    EngineName,
    Pair,
    check,
    read_model,
    serve_command,
)
from architectures.errors import UserError
from distill.hub.files.contents import OWN_TOKENIZER, SMALL_HEAD, Forms
from distill.hub.files.early_checks import repository_name
from eval.engines.certificate import FILE_NAME, Certificate, CertificateFile, read_certificates, write_certificate


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
class PublishedForm:
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
    out: Path,
    target: Path,
    forms: Forms,
    *,
    repo_id: str,
    base_model: str | None,
    lookahead: int | None,
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

    def pair_of(published: PublishedForm) -> Pair:
        draft = replace(read_model(str(published.folder)), name=published.name, path=published.name)
        return Pair(draft=draft, target=model, lookahead=lookahead or DEFAULT_LOOKAHEAD)

    root = PublishedForm(out, repo_id)
    published_forms: dict[EngineName, PublishedForm] = {"llama.cpp": gguf_form(out, forms.gguf, repo_id)}
    told = [serving(engine, pair_of(published := published_forms.get(engine, root)), published) for engine in ENGINES]
    if not forms.small:
        return told
    told.append(widedraft_serving(repo_id, model.name))
    if forms.refused is not None:
        return [*told, Serving(f"vLLM, {OWN_TOKENIZER}", "", f"Not in this repository: {forms.refused}")]
    name = repository_name(repo_id)
    fetch = f"hf download {repo_id} --include '{OWN_TOKENIZER}/*' --local-dir {name}"
    own = PublishedForm(out / OWN_TOKENIZER, f"{name}/{OWN_TOKENIZER}", fetch)
    return [*told, serving("vllm", pair_of(own), own, f", {OWN_TOKENIZER}/")]


def gguf_form(out: Path, files: Sequence[str], repo_id: str) -> PublishedForm:
    """The first of the files for llama.cpp; without one, what its own converter makes of the root."""
    name = repository_name(repo_id)
    if files:
        return PublishedForm(out, f"{name}/{files[0]}", f"hf download {repo_id} {' '.join(files)} --local-dir {name}")
    fetch = f"hf download {repo_id} --local-dir {name}\npython convert_hf_to_gguf.py {name} --outfile {name}.gguf"
    return PublishedForm(out, f"{name}.gguf", fetch)


def serving(engine: EngineName, pair: Pair, published: PublishedForm, form: str = "") -> Serving:
    """What one engine says of a form."""
    label, problems = f"{LABELS[engine]}{form}", check(engine, pair)
    fatal = [f"{each.what}: {each.message}" for each in problems if each.is_fatal]
    if fatal:
        return Serving(label, "", f"Not served: {' '.join(fatal)}")
    line = "\n".join(filter(None, (published.fetched, serve_command(engine, pair))))
    told = [certified_words(published.folder, engine), *(f"{each.what}: {each.message}" for each in problems)]
    return Serving(label, line, " ".join(told))


def certified_words(folder: Path, engine: EngineName) -> str:
    """What a certificate beside a form says of an engine."""
    certificates: dict[str, Certificate] = {}
    if (folder / FILE_NAME).is_file():
        certificates = {**read_certificates(folder).engines}
    if engine not in certificates:
        return "Not run with this draft."
    certificate = certificates[engine]
    if not certificate.holds:
        return f"NOT CERTIFIED in version {certificate.run.version}: {' '.join(certificate.causes)}"
    interval = "" if certificate.speed.interval is None else " [{:.2f}, {:.2f}]".format(*certificate.speed.interval)
    return (
        f"Certified in version {certificate.run.version} ({len(certificate.run.texts)} texts, counts as replay says); "
        f"there {certificate.speed.value:.2f}x{interval} the speed without a draft, "
        f"lookahead {certificate.run.lookahead}, {certificate.hardware}."
    )


def widedraft_serving(repo_id: str, target: str) -> Serving:
    """The form that this project's own decoding takes, whose speed a scorecard tells."""
    name = repository_name(repo_id)
    line = "\n".join(
        (
            f"hf download {repo_id} --include '{SMALL_HEAD}/*' --local-dir {name}",
            f"widedraft benchmark --target {target} --draft {name}/{SMALL_HEAD}",
        )
    )
    return Serving(
        f"widedraft, {SMALL_HEAD}/", line, "The draft as it was trained and scored: the speeds above are its."
    )


def put_certificates(out: Path, forms: Forms, target: Path, given: list[Path]) -> bool:
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
        certificate_file = read_certificates(folder)
        require_ours(certificate_file, folder, prints, of_target)
        for certificate in certificate_file.engines.values():
            write_certificate(
                prints[certificate_file.draft],
                certificate,
                target=certificate_file.target,
                draft=certificate_file.draft,
            )
    return bool(given)


def require_ours(certificate_file: CertificateFile, folder: Path, prints: dict[str, Path], of_target: str) -> None:
    """Raise UserError for a certificate of other models than those that are published."""
    for role, fine in (("target", certificate_file.target == of_target), ("draft", certificate_file.draft in prints)):
        if not fine:
            raise UserError(
                f"{folder / FILE_NAME}: is of another {role} than is published. Certify again (widedraft certify), or "
                "take it away."
            )
