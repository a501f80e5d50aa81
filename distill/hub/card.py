"""README.md of a published draft: metadata by huggingface_hub's classes, and a page from card.md.jinja.

The licence is the one that the user names, or that of the target's card. Its requirements for redistribution (a
notice, words to show, a prefix of names) come with it.

Sources: the licences: Llama 2 Community License, 1.b.iii; Llama 3, 3.1, 3.2 and 3.3 Community Licenses, 1.b.i and
1.b.iii; Gemma Terms of Use, 3.1.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from architectures.checkpoint import open_weights
from architectures.compatibility import (
    DEFAULT_NUM_SPECULATIVE_TOKENS,
    ENGINES,
    LABELS,
    EngineName,
    Pair,
    check,
    read_model,
    serve_command,
)
from architectures.console import Table, markdown, plural
from architectures.errors import UserError
from architectures.files import read_text, write_text
from distill.recipe.recipe import Recipe
from distill.run import shape_of
from distill.shipped_recipes import millions
from eval.engines.certificate import FILE_NAME, Certificate, ServedCertificate, read_certificates
from eval.report import ScoredRun, by_batch
from eval.scorecard_schema import Scorecard
from eval.scorecard_tables import NOTE, by_k, decoding, groups, results, scored_drafts, step_times
from eval.tasks import TASKS, PromptSource

LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*")
MOST_MIB = 1  # of a card


@dataclass(frozen=True)
class Terms:
    """The licence a draft is published under.

    Attributes:
        licence: The hub's identifier; None if unknown.
        files: Licence and notice files of the target, which are published with the draft.
        notice: Contents of the file NOTICE; "" if none is required.
        shown: Words to show next to the model; "" if none are required.
        name_begins: Required prefix of the model's name; "" if there is none.
    """

    licence: str | None
    files: tuple[Path, ...] = ()
    notice: str = ""
    shown: str = ""
    name_begins: str = ""


def llama_3(name: str, *, shown: str, name_begins: str) -> dict[str, str]:
    notice = f"{name} is licensed under the {name} Community License, Copyright © Meta Platforms, Inc."
    return {"notice": f"{notice} All Rights Reserved.", "shown": shown, "name_begins": name_begins}


DEMANDS: Mapping[str | None, Mapping[str, str]] = {  # by licence
    "llama2": {
        "notice": "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. "
        "All Rights Reserved."
    },
    "llama3": llama_3("Meta Llama 3", shown="Built with Meta Llama 3", name_begins="Llama 3"),
    **{
        f"llama{version}": llama_3(f"Llama {version}", shown="Built with Llama", name_begins="Llama")
        for version in ("3.1", "3.2", "3.3")
    },
    "gemma": {
        "notice": "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
    },
}


def terms_of(target: Path, given: str | None) -> Terms:
    """Return the terms of a target directory; a licence that the user names overrides that of its card."""
    licence = given or licence_of_card(target)
    files = {path for pattern in LICENCE_FILES for path in target.glob(pattern) if path.is_file()}
    return Terms(licence, tuple(sorted(files)), **DEMANDS.get(licence, {}))


def licence_of_card(target: Path) -> str | None:
    file = target / "README.md"
    if not file.is_file():
        return None
    text = read_text(file, hint="Delete it, and set the licence with --license.", most_mib=MOST_MIB)
    try:
        licence = ModelCard(text, ignore_metadata_errors=True).data.to_dict().get("license")
    except ValueError as error:
        raise UserError(f"{file}: its front matter could not be read. Set the licence with --license.") from error
    return licence if isinstance(licence, str) and licence else None


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
    num_speculative_tokens: int | None,
    chat_template_kwargs: Mapping[str, Any],
    without_own_tokenizer: str | None = None,
) -> list[Serving]:
    """Return every engine with the form at the root, and for a reduced head the forms of single engines.

    Args:
        out: The published directory.
        base_model: The target's hub id; its directory's name replaces it if it has none.
        without_own_tokenizer: Why there is no own-tokenizer/.
    """
    name = repo_id.rpartition("/")[2]
    model = replace(read_model(str(target), "main"), name=base_model or target.name, path=base_model or target.name)

    def serving(engine: EngineName, folder: Path, path: str, download: str = "", form: str = "") -> Serving:
        draft = replace(read_model(str(folder)), name=path, path=path, chat_template_kwargs=chat_template_kwargs)
        pair = Pair(
            draft=draft, target=model, num_speculative_tokens=num_speculative_tokens or DEFAULT_NUM_SPECULATIVE_TOKENS
        )
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
    servings.append(Serving(f"widedraft, {SMALL_HEAD}/", line, "The draft as trained and scored."))
    if without_own_tokenizer is not None:
        note = f"Not in this repository: {without_own_tokenizer}"
        return [*servings, Serving(f"vLLM, {OWN_TOKENIZER}", "", note)]
    path, form = f"{name}/{OWN_TOKENIZER}", f", {OWN_TOKENIZER}/"
    return [*servings, serving("vllm", out / OWN_TOKENIZER, path, download.format(form=OWN_TOKENIZER), form)]


def certified(folder: Path, engine: EngineName) -> str:
    notes: list[str] = []
    if (folder / FILE_NAME).is_file():
        file = read_certificates(folder)
        notes += [single_note(each) for name, each in file.engines.items() if name == engine]
        notes += [served_note(each) for name, each in file.as_served.items() if name == engine]
    return " ".join(notes) or "Not tested with this draft."


def single_note(certificate: Certificate) -> str:
    run, speed = certificate.run, certificate.speed
    if not certificate.holds:
        return f"NOT CERTIFIED in version {run.version}: {', '.join(certificate.failed)}."
    interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
    return (
        f"Certified in version {run.version}, {run.dtype} ({len(run.texts)} texts, counts equal replay); "
        f"speedup {speed.value:.2f}x{interval}, k = {run.num_speculative_tokens}, {certificate.hardware}."
    )


def served_note(served: ServedCertificate) -> str:
    if not served.holds:
        return f"NOT CERTIFIED as served in version {served.version}: {', '.join(served.failed)}."
    missed = f", without {', '.join(served.not_exercised)}" if served.not_exercised else ""
    return f"Certified as served in version {served.version}, {served.dtype} ({', '.join(served.exercised)}{missed})."


TEMPLATE = Path(__file__).parent / "card.md.jinja"
TAGS = ("speculative-decoding", "draft-model", "knowledge-distillation", "pruned", "widedraft")
MARKS = re.compile(r"[\\`*{}|~]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|(?<=:)//|(?<=www)\.")
NOT_PRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
MAX_CHARACTERS = 1000  # of one text


def write_card(
    folder: Path,
    *,
    name: str,
    target: str,
    base_model: str | None,
    recipe: Recipe,
    scored: ScoredRun | None,
    engines: Table,
    counts: Mapping[str, Any],
    terms: Terms,
    servings: Sequence[Serving],
    certified: bool,
) -> None:
    """Write the card of a directory to be published.

    Args:
        folder: The draft at its root.
        name: Of the repository, without the organisation.
        target: The hub id of the target; its directory's name if it has none.
        base_model: The hub id of the target; None if it has none.
        scored: Public scorecard; None if it is published without one.
        engines: Benchmarks in engines; may be empty.
        counts: Of the training responses, from the manifest of <run>/data.
    """
    card = scored.card if scored is not None and isinstance(scored.card, Scorecard) else None
    known: dict[str, Any] = {}
    if base_model is not None:
        known |= {"base_model": base_model, "base_model_relation": "finetune"}
    if card is not None:
        known |= {"model_name": name, "eval_results": eval_results(card)}
    if data_sets := data_sets_of(recipe.data.prompts):
        known["datasets"] = data_sets
    if terms.licence:
        known["license"] = terms.licence
    data = ModelCardData(library_name="transformers", pipeline_tag="text-generation", tags=list(TAGS), **known)

    outcome, measurements = [], []
    if card is not None and scored is not None:
        drafts = scored_drafts({name: card})
        outcome = [decoding(drafts), results(drafts)]
        measurements = [by_k(drafts), groups(drafts), step_times({name: card}), by_batch(drafts, {name: scored})]
    page = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        plain=plain,
        name=name,
        target=target,
        link="#" if base_model is None else f"https://huggingface.co/{base_model}",
        card=card,
        note=NOTE,
        engines=plain_tables([engines]),
        outcome=plain_tables(outcome),
        measurements=plain_tables(measurements),
        facts=plain_tables([Table(("", ""), fact_rows(recipe, folder, counts, card))]),
        terms=terms,
        servings=servings,
        certified=certified,
    )
    write_text(f"{page}\n", folder / "README.md")


def eval_results(card: Scorecard) -> list[EvalResult]:
    """Return acceptance length and rate at every temperature, at the best num_speculative_tokens."""
    tasks = ", ".join(str(task.task or "prompts without a named task") for task in card.prompts.tasks)
    results = []
    for temperature in card.temperatures:
        row, k = card.row(card.primary, temperature), card.speedup_of(card.primary, temperature).best_k
        for name, value, args in (
            ("acceptance_length", row.at(k).tau.value, {"rule": row.rule, "num_speculative_tokens": k}),
            ("acceptance_rate", row.alpha.value, {"rule": row.rule}),
        ):
            results.append(
                EvalResult(
                    task_type="text-generation",
                    dataset_type="prompts",
                    dataset_name=tasks,
                    dataset_config=f"temperature {temperature:g}",
                    metric_type=name,
                    metric_name=f"{name} at temperature {temperature:g}",
                    metric_value=round(value, 4),
                    metric_args=args,
                )
            )
    return results


def data_sets_of(sources: Iterable[PromptSource]) -> list[str]:
    """Return the sorted hub ids of the data sets of some sources, or of their tasks, without local directories."""
    names = {source.name or (TASKS[source.task].hub.name if source.task else "") for source in sources}
    return sorted(
        name
        for name in names
        if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
    )


def fact_rows(recipe: Recipe, folder: Path, counts: Mapping[str, Any], card: Scorecard | None) -> list[tuple[str, str]]:
    shape = shape_of(folder)
    stored = sum(prod(info.size) for info in open_weights(folder).info.values())
    vocabulary, distill, train = recipe.architecture.vocabulary, recipe.distill, counts.get("train", {})
    trained_on = "text" if distill.train_on == "text" else "responses of the target"
    if distill.train_on != "text" and "response_tokens" in train:
        trained_on = f"{train['response_tokens']:,} tokens of {train['responses']:,} responses"
    if distill.samples != "teacher":
        trained_on += f", replaced during training (distill.samples: {distill.samples})"
    of_text = recipe.text.max_seq_len if distill.train_on == "text" and recipe.text is not None else 0
    longest = {
        "trained": of_text or min(train.get("longest", 0), recipe.data.max_seq_len),
        "scored": 0 if card is None else max(row.longest or 0 for row in card.prompts.responses),
    }
    contexts = ", ".join(f"{tokens:,} tokens {what}" for what, tokens in longest.items() if tokens)
    losses = ", ".join(f"{term.weight:g} x {term.name}" for term in distill.terms)
    sizes = (
        f"{plural(shape.layers, 'layer')}, hidden {shape.hidden}, feed-forward {shape.intermediate}, "
        f"{shape.heads} heads of {shape.head_dim}, {shape.kv_heads} key/value heads"
    )
    rows = [
        ("shape", sizes),
        ("parameters", f"{stored:,} ({millions(stored)})"),
        ("without embeddings", f"{stored - shape.parameters() + shape.parameters_without_embeddings():,}"),
        ("made by", f"pruning the target ({recipe.architecture.method}), then distillation"),
        ("trained on", trained_on),
        ("loss", f"{losses}, {distill.max_duration}"),
        ("longest context", contexts or "unknown"),
    ]
    if shape.experts > 1:
        rows.append(("experts", f"{shape.experts} per layer, {shape.active_experts} used by each token"))
    if vocabulary is not None:
        rows.append(("reduced vocabulary", f"{vocabulary.size:,} of {shape.vocab:,} tokens"))
    if recipe.target.bits is not None:
        rows.append(("target", f"quantized to {recipe.target.bits} bits for generation, distillation and verification"))
    return rows


def plain_tables(tables: Iterable[Table | None]) -> str:
    """Format tables as Markdown with escaped cells; leave out tables without rows."""
    return markdown(
        *(
            Table(
                [plain(name) for name in table.columns],
                [[plain(str(cell)) for cell in row] for row in table.rows],
                plain(table.title),
            )
            for table in tables
            if table is not None and table.rows
        )
    )


def plain(text: str) -> str:
    """Escape text for HTML and Markdown, on one line.

    Marks become character references, which tables, links and emphasis ignore. A bracket is escaped only if a link
    could follow, so that intervals stay readable.
    """
    words = html.escape(NOT_PRINTED.sub(" ", text)[:MAX_CHARACTERS], quote=False)
    return MARKS.sub(lambda match: "".join(f"&#{ord(mark)};" for mark in match.group()), words).strip()
