"""Plan the pruning of a run: find or compute the importance scores that its methods need.

Scores belong to a target and a calibration text. They are computed once, saved in architecture.scores, and serve every
shape; a method that needs more scores later adds them to the same file.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from architectures.hashes import fingerprint_checkpoint
from architectures.manifest import changed_inputs
from architectures.pruning.plan import (
    PLAN_NAME,
    SCORES_NAME,
    PruningPlan,
    Scores,
    load_plan,
    load_scores,
    needed_scores,
    plan_pruning,
    save_scores,
)
from architectures.settings import WHOLE, Placement
from architectures.vocabulary import VocabularyConfig
from distill.draft_vocabulary import OutputIds, choose_output_ids, with_output_ids
from distill.recipe.validate import reject_orders
from distill.run import Run, cut_from, length_of, shape_of
from distill.stage_inputs import scores_inputs

if TYPE_CHECKING:
    from torch import Tensor


def weights_and_plan(run: Run) -> tuple[Path, PruningPlan, dict[str, Any]]:
    """Return the checkpoint to prune, the plan including the output ids, and their origin, for the manifest.

    Raises:
        UserError: If the source has another tokenizer than the target; also as the functions called.
    """
    target, wanted = run.target, run.recipe.architecture
    vocab = shape_of(target).vocab
    choice = None if wanted.vocabulary is None else chosen_ids(run, wanted.vocabulary, vocab)
    if wanted.method == "learned_masks":
        masks = run.masks.path
        plan = load_plan(masks / PLAN_NAME, shape_of(target), target=target)
        return masks, *with_output_ids(plan, choice, masks, None)
    source = cut_from(run)
    if source != target:
        require_shared_tokens(target, source)
    plan = recipe_plan(run, source).with_vocab(vocab)
    return source, *with_output_ids(plan, choice, source, wanted.plan)


def chosen_ids(run: Run, wanted: VocabularyConfig, vocab_size: int) -> OutputIds:
    recipe = run.recipe
    return choose_output_ids(wanted, run.target, vocab_size, answers=run.data.path, text=recipe.text, seed=recipe.seed)


def require_shared_tokens(target: Path, source: Path) -> None:
    """Raise UserError unless source has the vocabulary of the target, whose tokenizer the draft gets."""
    from eval.models import require_same_vocabulary

    require_same_vocabulary(
        target, source, remedy="The draft gets the target's: name a source that was made with it (architecture.source)."
    )


def recipe_plan(run: Run, source: Path) -> PruningPlan:
    """Return the plan of a recipe: read from architecture.plan, or computed from shapes and scores.

    Raises:
        UserError: If the source cannot be pruned to the shape, or the plan is of another model.
    """
    shape, wanted = shape_of(source), run.recipe.architecture
    if wanted.plan is not None:
        return load_plan(Path(wanted.plan), shape, target=source)
    needed = needed_scores(shape, wanted)
    scores = scores_of(run, source, needed) if needed else Scores()
    return plan_pruning(shape, wanted, scores, seed=run.recipe.seed, target=fingerprint_checkpoint(source))


def scores_of(run: Run, source: Path, needed: set[str]) -> Scores:
    """Load the scores that a plan needs; compute and save missing ones."""
    inputs, file, share = scores_inputs(run, source), run.scores.path / SCORES_NAME, run.share

    def scores_there() -> Scores:
        manifest = run.scores.manifest
        is_there = manifest is not None and file.is_file() and not changed_inputs(manifest, inputs)
        return load_scores(file) if is_there else Scores()

    known = share.lead(scores_there)
    missing = needed - known.arrays.keys()
    if missing:
        reject_orders(placement_of(run, source), missing)
        computed = compute_scores(run, source, missing)
        if share.leads:
            save_scores(file, {**known.arrays, **computed})
            run.record(run.scores, inputs)
        known = share.lead(lambda: load_scores(file))
    print(f"   {file}: {'computed' if missing else 'up to date'} ({', '.join(sorted(needed))})", flush=True)
    return known


def placement_of(run: Run, source: Path) -> Placement:
    """Return the placement of the model to prune; a source other than the target is loaded whole."""
    return run.recipe.target.placement if source == run.target else "whole"


def compute_scores(run: Run, source: Path, missing: set[str]) -> dict[str, Any]:
    """Compute the missing scores, and further ones of the same pass over the text, on the first process only."""
    import numpy as np

    from architectures.importance.activation_scores import activation_scores
    from architectures.importance.layer_search import merge_order, removal_order
    from eval.large_targets import access_to, load_target

    ids_ST, share, wanted = calibration_ids(run, source), run.share, run.recipe.target
    orders = {"removal_order": removal_order, "merge_order": merge_order}
    searches = {name: orders[name] for name in orders if name in missing}
    if not searches and not share.leads:  # one pass over the text is the work of one process
        return {}
    holding = replace(wanted.holding, bits=None) if source == run.target else WHOLE
    model = load_target(source, dtype=wanted.dtype, holding=holding)
    ids_ST = ids_ST.to(model.device)
    scores = {name: np.array(search(model, ids_ST, share)) for name, search in searches.items()}
    if missing <= scores.keys() or not share.leads:
        return scores
    return {**scores, **activation_scores(model, ids_ST, access=access_to(model, source))}


def calibration_ids(run: Run, source: Path) -> "Tensor":
    """Return ids_ST of the calibration text, within the context of source; raise UserError if it is too short."""
    from architectures.importance.activation_scores import calibration_sequences
    from eval.models import load_tokenizer

    tokenizer, length = load_tokenizer(run.target), length_of(source)
    return calibration_sequences(
        calibration_texts(run, tokenizer),
        tokenizer,
        tokens=run.recipe.architecture.calibration.tokens,
        context_tokens=None if length is None else length.tokens,
    )


def calibration_texts(run: Run, tokenizer: Any) -> Iterator[str]:
    """Yield a text file's contents, or rendered prompts: of a file, of the data, or generated by the target."""
    from architectures.importance.activation_scores import read_calibration_text
    from distill.data.training_data import write_own_prompts_if_configured
    from eval.prompts import load_prompts, render_prompt
    from eval.tasks import PromptSource

    recipe, text = run.recipe, run.recipe.architecture.calibration.text
    if text is not None and not text.endswith(".jsonl"):
        yield from read_calibration_text(Path(text))
        return
    prompts = load_prompts(recipe.data.prompts if text is None else [PromptSource(path=text)])
    if not prompts:  # the generate stage reuses them
        prompts = write_own_prompts_if_configured(
            run.target,
            recipe.data,
            run.data.path,
            seed=recipe.seed,
            dtype=recipe.target.dtype,
            holding=recipe.target.holding,
            share=run.share,
        )
    for prompt in prompts:
        yield tokenizer.decode(render_prompt(tokenizer, prompt.messages))
