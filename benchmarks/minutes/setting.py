"""Where and with what all cells are made: files, sizes, and the recipe they share. No torch."""

import re
from dataclasses import dataclass
from pathlib import Path

from architectures.checkpoints.manifest import processor_name
from benchmarks.minutes.cells import Configuration, Way
from distill.recipe.recipe import Recipe, load_recipe

SEED = 17  # of answers, scoring and resampling, whatever a cell's own is
LOOKAHEADS = (1, 4)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is the same for all cells.

    Attributes:
        recipe: Whose prompts, batches, rates and method are taken.
        target: Folder of the model.
        unseen: JSON lines of prompts that nothing is trained on.
        work: Folder of answers, cache, scores, and of the cell in work.
        out: Folder of finished cells, with one for each processor in it.
        threads: Of the processor.
        held_out: The recipe's prompts that are scored on, and not trained on.
        num_unseen: Unseen prompts, spread over the file.
        warm_up_steps: Trained and thrown away, to know how long one takes.
        latency_repeats: Of every timed decoding step.
    """

    recipe: Path
    target: Path
    unseen: Path
    work: Path
    out: Path
    threads: int = 2
    held_out: int = 32
    num_unseen: int = 24
    warm_up_steps: int = 12
    latency_repeats: int = 30

    @property
    def cells(self) -> Path:
        """Folder of the cells that this processor made: another one's minutes are other minutes."""
        return self.out / re.sub(r"[^A-Za-z0-9]+", "-", processor_name()).strip("-")

    @property
    def shared_run(self) -> Path:
        """The run whose answers and cache all cells read."""
        return self.work / "answers"

    def shared_recipe(self) -> Recipe:
        return self.load(self.shared_run, ["distill.teacher.source=cache", "architecture.layers=1"])

    def cell_recipe(self, configuration: Configuration, way: Way, run: Path, source: Path | None) -> Recipe:
        """Of one phase of a cell, but for its duration and its seed.

        Args:
            configuration: Of the cell.
            way: How the draft learns in this phase.
            run: Folder of the phase.
            source: The draft of the phase before, whose layers and ids are kept; None for the first phase.
        """
        words = [f"architecture.layers={configuration.layers}", *way.words]
        if configuration.frozen:
            words.append("distill.freeze_input_embeddings=true")
        if source is not None:  # nothing is cut
            words += [f"architecture.source={source}", "architecture.method=first_last"]
        elif configuration.vocabulary is not None:
            words += [
                f"architecture.vocabulary.size={configuration.vocabulary}",
                "architecture.vocabulary.from=answers",
            ]
        return self.load(run, words)

    def load(self, run: Path, words: list[str]) -> Recipe:
        """The recipe with what all cells change of it, and these words."""
        first, last = LOOKAHEADS
        shared = {
            "run_dir": run,
            "seed": SEED,
            "target.path": self.target,
            "architecture.scores": self.work / "scores",
            "data.num_eval_prompts": self.held_out,
            "distill.teacher.captured_while": "null",  # cells have teachers that are live, or none
            "distill.eval_first": "false",
            "distill.eval_interval": "1dur",
            "distill.save_interval": "1dur",
            "distill.save_num_checkpoints_to_keep": 1,
            "distill.progress_bar": "false",
            "distill.console_log_interval": "1000ba",
            "eval.num_prompts": max(self.held_out, self.num_unseen),
            "eval.lookaheads": list(range(first, last + 1)),
            "eval.temperatures": "[0.0, 1.0]",
            "eval.latency_repeats": self.latency_repeats,
            "eval.num_threads": self.threads,
        }
        return load_recipe(self.recipe, [*(f"{key}={value}" for key, value in shared.items()), *words])
