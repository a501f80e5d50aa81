"""README.md of a published draft: front matter by the hub's own classes, and a page from card.md.jinja."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from architectures.files.atomic import write_text
from architectures.shapes.shape import Shape
from architectures.shapes.shapes_table import millions
from architectures.tables import Table, markdown, plural
from architectures.targets.target import read_config
from distill.hub.licences import Terms
from distill.hub.serving import Serving
from distill.recipe.recipe import Recipe
from eval.report import ScoredRun, by_batch
from eval.scorecard_schema import Scorecard
from eval.scorecard_tables import NOTE, by_k, groups, measured, results, scored_drafts, step_times
from eval.tasks import TASKS, PromptSource

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
    counts: Mapping[str, Any],
    terms: Terms,
    servings: Sequence[Serving],
    certified: bool,
) -> None:
    """Write the card of a folder that is going to be published.

    Args:
        folder: The draft at its root.
        name: Of the repository, without the organisation.
        target: The hub id of the target; its folder's name if it has none.
        base_model: The hub id of the target; None if it has none.
        recipe: Of the run.
        scored: Its public scorecard; None if it is published without one.
        counts: Of the responses it was trained on, from the manifest of <run>/data.
        terms: Its licence.
        servings: How each engine serves it.
        certified: Whether a certificate goes with it.
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
        outcome = [results(drafts), measured(drafts)]
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
        outcome=plain_tables(outcome),
        measurements=plain_tables(measurements),
        facts=plain_tables([Table(("", ""), fact_rows(recipe, folder, counts))]),
        terms=terms,
        servings=servings,
        certified=certified,
    )
    write_text(f"{page}\n", folder / "README.md")


def eval_results(card: Scorecard) -> list[EvalResult]:
    """Acceptance length and rate at every temperature, at the best number of speculative tokens."""
    tasks = ", ".join(str(task.task or "prompts of no named task") for task in card.prompts.tasks)
    results = []
    for temperature in card.temperatures:
        row, k = card.row(card.primary, temperature), card.speedup_of(card.primary, temperature).best_lookahead
        for name, value, args in (
            ("acceptance_length", row.at(k).tau.value, {"rule": row.rule, "lookahead": k}),
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
    """Hub ids of the data sets of some sources, or of their tasks, sorted; a local folder is none."""
    names = {source.name or (TASKS[source.task].hub.name if source.task else "") for source in sources}
    return sorted(
        name
        for name in names
        if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
    )


def fact_rows(recipe: Recipe, folder: Path, counts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Shape, true number of parameters, and training."""
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    vocabulary, distill, train = recipe.architecture.vocabulary, recipe.distill, counts.get("train", {})
    trained_on = "text" if distill.train_on == "text" else "responses of the target"
    if distill.train_on != "text" and "answer_tokens" in train:
        trained_on = f"{train['answer_tokens']:,} tokens of {train['answers']:,} responses"
    if distill.samples != "teacher":
        trained_on += f", replaced while training (distill.samples: {distill.samples})"
    losses = ", ".join(f"{term.weight:g} x {term.name}" for term in distill.terms)
    sizes = (
        f"{plural(shape.layers, 'layer')}, hidden {shape.hidden}, feed-forward {shape.intermediate}, "
        f"{shape.heads} heads of {shape.head_dim}, {shape.kv_heads} key/value heads"
    )
    rows = [
        ("shape", sizes),
        ("parameters", f"{shape.parameters():,} ({millions(shape.parameters())})"),
        ("without embeddings", f"{shape.parameters_without_embeddings():,}"),
        ("made by", f"pruning the target ({recipe.architecture.method}), then distillation"),
        ("trained on", trained_on),
        ("loss", f"{losses}, {distill.max_duration}"),
    ]
    if vocabulary is not None:
        rows.append(("reduced vocabulary", f"{vocabulary.size:,} of {shape.vocab:,} tokens"))
    if recipe.target.bits is not None:
        rows.append(("target", f"quantized to {recipe.target.bits} bits while it generated, taught and verified"))
    return rows


def plain_tables(tables: Iterable[Table | None]) -> str:
    """Tables as Markdown, their cells plain words; those without rows are left out."""
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
    """A text that neither HTML nor Markdown takes for anything but words on one line.

    Marks are written as character references, which mean nothing to tables, links and emphasis. A bracket is one only
    where a link could follow, so that intervals stay readable.
    """
    words = html.escape(NOT_PRINTED.sub(" ", text)[:MAX_CHARACTERS], quote=False)
    return MARKS.sub(lambda match: "".join(f"&#{ord(mark)};" for mark in match.group()), words).strip()
