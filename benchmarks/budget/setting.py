"""Where trainings of a budget are made, and the recipes they follow. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.budget.law import Budget
from distill.recipe.recipe import Recipe, load_recipe

TEXT_SEQ_LEN, TEXT_BATCH = 256, 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trainings share.

    Attributes:
        recipe: Whose answers, rates and batches are taken.
        words: key=value words of it.
        text: Domains of plain text, as the recipe section `text` has them; none without text.
        work: Folder of the training in work, and of the answers that are scored on.
        out: The file of trainings.
        threads: Of the processor.
        lookahead: The longest that is scored.
    """

    recipe: Path
    words: tuple[str, ...]
    text: tuple[Mapping[str, str], ...]
    work: Path
    out: Path
    threads: int = 2
    lookahead: int = 4

    def shared_recipe(self) -> Recipe:
        """Of the run whose answers and cache all trainings read."""
        return load_recipe(self.recipe, self.words)

    def cut_recipe(self, budget: Budget, run: Path) -> Recipe:
        """Of the first cut: depth and ids as the budget has them."""
        return self.load(run, {"architecture.layers": budget.layers, "architecture.vocabulary.size": budget.ids})

    def text_recipe(self, budget: Budget, run: Path, source: Path, steps: int) -> Recipe:
        """Of training the whole cut draft on text."""
        domains = ", ".join(
            "{" + ", ".join(f"{key}: {value}" for key, value in domain.items()) + "}" for domain in self.text
        )
        words = {
            **continued(budget, source),
            "distill.teacher": "{source: none}",
            "distill.train_on": "text",
            "distill.max_duration": f"{steps}ba",
            "distill.loss": "cross_entropy",
            "distill.global_train_batch_size": TEXT_BATCH,
            "text.max_seq_len": TEXT_SEQ_LEN,
            "text.num_eval_sequences": 1,
            "text.mixture.rule": "fixed",
            "text.domains": f"[{domains}]",
            "export.dtype": "float32",
        }
        return self.load(run, words)

    def answers_recipe(self, budget: Budget, run: Path, source: Path, steps: int) -> Recipe:
        """Of training it on answers."""
        return self.load(run, {**continued(budget, source), "distill.max_duration": f"{steps}ba"})

    def load(self, run: Path, words: Mapping[str, Any]) -> Recipe:
        """The recipe with what all trainings change of it, and these words."""
        shared = {
            "run_dir": run,
            "distill.eval_first": "false",
            "distill.eval_interval": "1dur",
            "distill.save_interval": "1dur",
            "distill.save_num_checkpoints_to_keep": 1,
            "distill.progress_bar": "false",
            "distill.console_log_interval": "1000ba",
            "distill.teacher.captured_while": "null",
            "eval.num_threads": self.threads,
        }
        return load_recipe(
            self.recipe, [*self.words, *(f"{key}={value}" for key, value in {**shared, **words}.items())]
        )


def continued(budget: Budget, source: Path) -> dict[str, Any]:
    """Words of a recipe that cuts nothing: layers and ids are those of the source."""
    words = {"source": source, "layers": budget.layers, "method": "first_last", "vocabulary": "null"}
    return {f"architecture.{name}": value for name, value in words.items()}
