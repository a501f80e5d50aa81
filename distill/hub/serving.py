"""How each engine serves what is published: its command, why it cannot, and what was certified there."""

from dataclasses import dataclass, replace
from pathlib import Path

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
from eval.engines.certificate import FILE_NAME, read_certificates

SMALL_HEAD, OWN_TOKENIZER = "small-head", "own-tokenizer"


@dataclass(frozen=True)
class Serving:
    """One engine on a card: its name, its command ("" if it cannot serve the draft), and a note."""

    engine: str
    line: str
    note: str


def servings_of(
    out: Path,
    target: Path,
    *,
    repo_id: str,
    base_model: str | None,
    lookahead: int | None,
    without_own_tokenizer: str | None = None,
) -> list[Serving]:
    """Every engine with the form at the root, and of a small head the forms that one engine loads.

    Args:
        out: The folder that is published.
        target: The folder of the target.
        repo_id: The repository.
        base_model: The target's hub id; its folder's name replaces it if it has none.
        lookahead: The best number of speculative tokens; None if it was not scored.
        without_own_tokenizer: Why there is no own-tokenizer/.
    """
    name = repo_id.rpartition("/")[2]
    model = replace(read_model(str(target), "main"), name=base_model or target.name, path=base_model or target.name)

    def serving(engine: EngineName, folder: Path, path: str, download: str = "", form: str = "") -> Serving:
        draft = replace(read_model(str(folder)), name=path, path=path)
        pair = Pair(draft=draft, target=model, lookahead=lookahead or DEFAULT_LOOKAHEAD)
        label, problems = f"{LABELS[engine]}{form}", check(engine, pair)
        fatal = [f"{each.what}: {each.message}" for each in problems if each.is_fatal]
        if fatal:
            return Serving(label, "", f"Not served: {' '.join(fatal)}")
        line = "\n".join(filter(None, (download, serve_command(engine, pair))))
        notes = [certified(folder, engine), *(f"{each.what}: {each.message}" for each in problems)]
        return Serving(label, line, " ".join(notes))

    converted = f"hf download {repo_id} --local-dir {name}\npython convert_hf_to_gguf.py {name} --outfile {name}.gguf"
    servings = [
        serving(engine, out, f"{name}.gguf", converted) if engine == "llama.cpp" else serving(engine, out, repo_id)
        for engine in ENGINES
    ]
    if not (out / SMALL_HEAD).is_dir():
        return servings
    download = f"hf download {repo_id} --include '{{form}}/*' --local-dir {name}"
    benchmark = f"widedraft benchmark --target {model.name} --draft {name}/{SMALL_HEAD}"
    line = f"{download.format(form=SMALL_HEAD)}\n{benchmark}"
    servings.append(Serving(f"widedraft, {SMALL_HEAD}/", line, "The draft as it was trained and scored."))
    if without_own_tokenizer is not None:
        note = f"Not in this repository: {without_own_tokenizer}"
        return [*servings, Serving(f"vLLM, {OWN_TOKENIZER}", "", note)]
    path, form = f"{name}/{OWN_TOKENIZER}", f", {OWN_TOKENIZER}/"
    return [*servings, serving("vllm", out / OWN_TOKENIZER, path, download.format(form=OWN_TOKENIZER), form)]


def certified(folder: Path, engine: EngineName) -> str:
    """What the certificate of a form, if there is one, states of an engine."""
    certificates = read_certificates(folder).engines if (folder / FILE_NAME).is_file() else {}
    certificate = next((each for name, each in certificates.items() if name == engine), None)
    if certificate is None:
        return "Not run with this draft."
    run, speed = certificate.run, certificate.speed
    if not certificate.holds:
        failed = ", ".join(finding.law for finding in certificate.findings if not finding.holds)
        return f"NOT CERTIFIED in version {run.version}: {failed}"
    interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
    return (
        f"Certified in version {run.version} ({len(run.texts)} texts, counts equal to replay); {speed.value:.2f}x"
        f"{interval} the speed without a draft, k = {run.lookahead}, {certificate.hardware}."
    )
