"""README.md of a published draft: front matter by the hub's own classes, and a page that leads with the outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from architectures.files.atomic import write_text
from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.shapes.shapes_table import millions
from architectures.tables import Block, Section, Table, code, markdown, plural
from architectures.targets.target import read_config
from distill.formulas.losses import LossTerm
from distill.hub.card.serving import Serving
from distill.hub.files.data_sets import data_sets_of
from distill.hub.files.early_checks import repository_name
from distill.hub.files.escaping import plain
from distill.hub.files.terms import Terms
from distill.recipe.recipe import Recipe
from distill.recipe.sections.samples import SamplesConfig
from eval.engines.config import GenerateConfig
from eval.report import ScoredRun, by_batch
from eval.scorecard_schema import Scorecard
from eval.scorecard_tables import NOTE, by_k, groups, measured, results, scored_drafts, step_times

CARD_NAME = "README.md"
TAGS = ("speculative-decoding", "draft-model", "knowledge-distillation", "pruned", "widedraft")


@dataclass(frozen=True)
class Publication:
    """What a card is about.

    Attributes:
        repo_id: Where it goes.
        target: The hub id of the target; its folder's name where it has none.
        base_model: The hub id of the target; None where it has none.
        recipe: Of the run.
        scored: Its scorecard as everybody may read it; None where it is published without one.
        counts: Of the answers it was trained on, as the manifest of <run>/data has them.
        terms: Its licence.
        serving: How engines take it.
        certified: Whether a certificate goes with it.
    """

    repo_id: str
    target: str
    base_model: str | None
    recipe: Recipe
    scored: ScoredRun | None
    counts: Mapping[str, Any]
    terms: Terms
    serving: Sequence[Serving]
    certified: bool

    @property
    def name(self) -> str:
        """Of the repository, without the organisation."""
        return repository_name(self.repo_id)

    @property
    def card(self) -> Scorecard | None:
        """Of the draft; only scorecards with a target are published."""
        return self.scored.card if self.scored is not None and isinstance(self.scored.card, Scorecard) else None


def write_card(of: Publication, folder: Path) -> None:
    """Write the card of a folder that is going to be published."""
    write_text(f"---\n{card_data(of).to_yaml()}\n---\n\n{markdown(card_page(of, folder))}\n", folder / CARD_NAME)


def card_data(of: Publication) -> ModelCardData:
    """The front matter; `model-index` holds tau and alpha of every task, where there is a scorecard."""
    known: dict[str, Any] = {} if of.base_model is None else {"base_model": of.base_model}
    known |= {"base_model_relation": "finetune"} if known else {}
    known |= {} if of.card is None else {"model_name": of.name, "eval_results": eval_results(of.card)}
    datasets = data_sets_of(of.recipe.data.prompts)
    known |= {"datasets": datasets} if datasets else {}
    known |= {"license": of.terms.licence} if of.terms.licence else {}
    return ModelCardData(library_name="transformers", pipeline_tag="text-generation", tags=list(TAGS), **known)


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


def card_page(of: Publication, folder: Path) -> Section:
    """What stands below the front matter; every text that comes from a file is made plain."""
    link = "#" if of.base_model is None else f"https://huggingface.co/{of.base_model}"
    what = (
        f"A draft model for speculative decoding with [{plain(of.target)}]({link}): it proposes tokens, the target "
        "keeps those that it agrees with, and the text stays the target's own."
    )
    shown = of.terms.demand.shown
    blocks: list[Block] = [
        what,
        *([f"**{shown}**"] if shown else []),
        *outcome(of),
        Section("Serve it", list(map(serving_section, of.serving))),
        *measured_sections(of),
        Section("What it is", [plain_table(Table(("", ""), fact_rows(of, folder)))]),
        Section("Limits", ["\n".join(f"- {plain(limit)}" for limit in limits(of))]),
        Section("Licence", [plain(terms_words(of.terms))]),
        Section("Files", [files_words(of)]),
    ]
    return Section(plain(of.name), blocks)


def plain_table(table: Table) -> Table:
    """A table whose cells are plain words."""
    rows = [[plain(str(cell)) for cell in row] for row in table.rows]
    return Table(list(map(plain, table.columns)), rows, plain(table.title))


def outcome(of: Publication) -> list[Block]:
    """Acceptance and speedups."""
    if of.card is None:
        return ["Not scored: acceptance and speedup were not measured."]
    drafts = scored_drafts({of.name: of.card})
    tables = [table for table in (results(drafts), measured(drafts)) if table is not None]
    where = f"Measured on {plain(of.card.machine)}, dtype {of.card.settings.dtype}."
    return [f"{NOTE} {where}", *(f"WARNING: {plain(text)}" for text in of.card.warnings), *map(plain_table, tables)]


def serving_section(serving: Serving) -> Section:
    return Section(serving.engine, [*([code(serving.line)] if serving.line else []), plain(serving.note)])


def measured_sections(of: Publication) -> list[Section]:
    """Acceptance by k and by group, and step times; nothing without a scorecard."""
    if of.card is None or of.scored is None:
        return []
    named = {of.name: of.card}
    drafts = scored_drafts(named)
    tables = [by_k(drafts), groups(drafts), step_times(named), by_batch(drafts, {of.name: of.scored})]
    return [Section("Measurements", [plain_table(table) for table in tables if table is not None and table.rows])]


def files_words(of: Publication) -> str:
    """What lies beside the card."""
    told = [
        "`recipe.yaml` makes this draft again with widedraft",
        "`provenance.json` says what every stage was made from, where and when",
        *(["`acceptance.json` holds every count behind these figures"] if of.card else []),
        *([f"`certificate.json` says what engines counted{of_plain_target(of)}"] if of.certified else []),
        *(["`report.html` is the page with all plots"] if of.card else []),
    ]
    return f"{'; '.join(told)}."


def of_plain_target(of: Publication) -> str:
    """That engines ran another model than the one that was scored; nothing where it was that one."""
    bits = of.recipe.target.bits
    return "" if bits is None else f", beside the target as it is published and not in {bits} bits a weight"


def fact_rows(of: Publication, folder: Path) -> list[tuple[str, str]]:
    """Shape, size and training; the true number of parameters beside the name that the shape goes by."""
    shape = Shape.from_config(read_config(folder), where=str(folder / "config.json"))
    nominal = of.recipe.architecture.shape
    called = "" if nominal is None else f"; the shape is called {NAMED_SHAPES[nominal].nominal}"
    layers = plural(shape.layers, "layer")
    sizes = (
        f"{layers}, hidden {shape.hidden}, feed-forward {shape.intermediate}, {shape.heads} heads of "
        f"{shape.head_dim}, {shape.kv_heads} key/value heads"
    )
    wanted = of.recipe.architecture.vocabulary
    output_ids = [] if wanted is None else [("ids it was trained to say", f"{wanted.size:,} of {shape.vocab:,}")]
    return [
        ("shape", sizes),
        ("parameters", f"{shape.parameters():,} ({millions(shape.parameters())}){called}"),
        ("without embeddings", f"{shape.parameters_without_embeddings():,}"),
        ("a layer", f"{shape.parameters_per_layer():,}"),
        *output_ids,
        ("made by", f"cutting the target ({of.recipe.architecture.method}), then distilling its own answers"),
        ("trained on", training_words(of)),
        ("loss", f"{loss_words(of.recipe.distill.loss)}, {of.recipe.distill.max_duration}"),
        *packed_rows(of),
    ]


def packed_rows(of: Publication) -> list[tuple[str, str]]:
    """That another model than the published target answered, taught and judged; nothing where it was that one."""
    bits = of.recipe.target.bits
    told = f"with its linear layers in {bits} bits a weight: it answered, taught and judged so, which is another model"
    return [] if bits is None else [("target", told)]


def training_words(of: Publication) -> str:
    if of.recipe.distill.train_on == "text":
        return "text, as the recipe names it"
    train = of.counts.get("train", {})
    tokens, answers = train.get("answer_tokens"), train.get("answers")
    counted = "answers, of which nobody kept count" if tokens is None else f"{tokens:,} tokens of {answers:,} answers"
    return counted + generated_by(of.recipe.generate) + anew_words(of.recipe.distill.samples)


def generated_by(generate: GenerateConfig) -> str:
    """Which engine generated the responses to train on; nothing of our own decoding."""
    return "" if generate.is_local else f", generated by {generate.engine}"


def anew_words(samples: SamplesConfig) -> str:
    """What became of the answers while the draft learned."""
    chance = f"with probability {samples.most_probable:g}"
    match samples.source:
        case "teacher":
            return ""
        case "student":
            return ", each written anew by the draft while it learned"
        case "mix_request":
            return f", each {chance} written anew by the draft while it learned"
        case "mix_token":
            return f", each written anew while it learned: a token {chance} by the draft, else by the target"


def loss_words(loss: str | Sequence[LossTerm]) -> str:
    return loss if isinstance(loss, str) else ", ".join(f"{term.weight:g} x {term.name}" for term in loss)


def limits(of: Publication) -> list[str]:
    told = [
        "It is a draft, not a model to talk to: alone it writes poor text.",
        f"It drafts for {of.target} alone; another target, or another fine-tune of it, accepts less.",
        "Acceptance differs by language and domain: what was not measured above is not known.",
        "Speeds are of one machine at batch 1: with more requests at once a draft pays less, then nothing.",
    ]
    if of.card is not None and of.card.settings.dtype != "float32":
        told.append(
            "In 16-bit numbers near-ties may fall otherwise than without a draft, as they do from batch to batch."
        )
    return told


def terms_words(terms: Terms) -> str:
    if terms.licence is None:
        return "Unknown: the target's licence was not found. Do not pass this draft on before you know it."
    notice = f" {terms.demand.notice}" if terms.demand.notice else ""
    files = ", ".join(path.name for path in terms.files)
    reference = f" See {files} beside this card." if files else ""
    return f"{terms.licence}, the target's ({terms.origin}).{notice}{reference}"
