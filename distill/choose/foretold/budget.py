"""`widedraft choose --budget FILE`: what tokens, readings and minutes make a draft pay here, by a law of trainings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from architectures.pages.markdown import markdown
from distill.budget.costs import costs_of
from distill.budget.law import Budget, fit
from distill.budget.mixes import Laws, Mix, cheapest, doubled, fastest_within, valued
from distill.budget.record import Trainings, read_trainings, shapes_of
from distill.choose.foretold.weighed import Basis, Weighed
from distill.choose.ranked.page import left_out_page
from distill.choose.shapes.asked import shapes_in
from distill.choose.shapes.candidates import Candidate, Wanted
from distill.choose.shapes.settings import ChooseSettings
from distill.choose.steps.timed import measured_steps, places_of
from distill.estimates.expected_work import expected_reading, expected_work, finished_counts, read_rows
from distill.recipe.recipe import Recipe
from distill.run.run import Run
from eval.predictions.ranking import prospect, step_times

PAYS = 1.0  # the speed-up at which a draft breaks even


def choose_by_budget(recipe: Recipe, settings: ChooseSettings, path: Path) -> None:
    """Print what every candidate needs to pay, what the recipe's own budget buys, and what twice of it would.

    Args:
        recipe: Whose target, widths and answers are meant.
        settings: With --budget.
        path: That file.

    Raises:
        UserError: If the file is of another target, a candidate lies beyond its trainings, or no mix pays within
            --within.
    """
    from distill.choose.foretold.budget_page import budget_page, within_sentence

    record = read_trainings(path)
    run = Run.of(recipe)
    run.begin()
    target = run.target
    if fingerprint_checkpoint(target) != record.target:
        raise UserError(
            f"{path}: its trainings are of another target than {recipe.target.path}. "
            "Make them of this one: `python -m benchmarks.budget RECIPE` in a checkout."
        )
    asked = shapes_in(target, recipe, with_trained_shapes(settings.wanted, record))
    candidates = within_reach(asked.candidates, record, path)
    [latency] = measured_steps(recipe, target, candidates, places_of([], []))
    steps = step_times(latency)
    basis = Basis(path, record, laws_of(record), costs_of(record), steps)
    own = own_budget(recipe, record)
    weighed = [weigh(candidate, basis, own) for candidate in candidates]
    out = left_out_page(asked.left_out, len(candidates) + len(asked.left_out), "By sizes alone")
    print(markdown(*budget_page(basis, weighed, doubled_mixes(recipe, basis, weighed)), *out, level=2))
    if settings.within is not None:
        print("\n" + within_sentence(*best_within(settings.within, basis, weighed)))


def laws_of(record: Trainings) -> Laws:
    """A law for every lookahead that was scored."""
    return Laws(
        {each: fit(record.budgets, record.taus(each), each) for each in record.lookaheads},
        most_tokens=max(budget.answer_tokens for budget in record.budgets),
        most_epochs=max(budget.epochs for budget in record.budgets),
        most_text=max(budget.text_tokens for budget in record.budgets),
    )


def with_trained_shapes(wanted: Wanted, record: Trainings) -> Wanted:
    """What is asked for, with the depths and heads that were trained where none are."""
    shapes = shapes_of(record.trainings)
    return replace(
        wanted,
        layers=wanted.layers or sorted({layers for layers, _ in shapes}),
        vocabularies=wanted.vocabularies or sorted({ids for _, ids in shapes}),
    )


def within_reach(candidates: Sequence[Candidate], record: Trainings, path: Path) -> list[Candidate]:
    """The candidates.

    Raises:
        UserError: If one is deeper or shallower than every training, or outputs more or fewer ids.
    """
    for name, value_of in (
        ("layers", lambda shape: shape.layers),
        ("ids", lambda shape: shape.head_vocab or shape.vocab),
    ):
        trained = [getattr(budget, name) for budget in record.budgets]
        for candidate in candidates:
            if not min(trained) <= value_of(candidate.shape) <= max(trained):
                raise UserError(
                    f"{candidate.name}: has {value_of(candidate.shape)} {name}, and the trainings in {path} have "
                    f"{min(trained)} to {max(trained)}; their law says nothing of others. Leave it out, or train some "
                    "of it."
                )
    return list(candidates)


def shape_budget(candidate: Candidate, answer_tokens: float = 0, epochs: float = 1) -> Budget:
    """A candidate as the law names it."""
    return Budget(answer_tokens, epochs, 0, candidate.shape.layers, candidate.shape.head_vocab or candidate.shape.vocab)


def own_budget(recipe: Recipe, record: Trainings) -> tuple[float, float] | None:
    """Distinct answer tokens of the recipe and how often it reads them; None where no file tells how many.

    Answers that are not written yet are taken to be as long as those of the trainings.
    """
    if recipe.distill.train_on == "text":
        return None
    work = expected_work(
        recipe, [read_rows(source, recipe.data) for source in recipe.data.prompts], finished_counts(recipe)
    )
    reading = expected_reading(recipe.distill, work.answers)
    if work.answers is None or reading is None or reading.epochs is None:
        return None
    return work.answer_tokens or work.answers * record.tokens_per_answer, max(1.0, reading.epochs)


def weigh(candidate: Candidate, basis: Basis, own: tuple[float, float] | None) -> Weighed:
    """What makes one candidate pay, and what the recipe makes of it."""
    steps, laws, costs = basis.steps[candidate.name], basis.laws, basis.costs
    return Weighed(
        candidate,
        prospect(steps),
        cheapest(shape_budget(candidate), PAYS, laws, steps, costs),
        None if own is None else valued(shape_budget(candidate, *own), laws, steps, costs),
    )


def doubled_mixes(recipe: Recipe, basis: Basis, weighed: Sequence[Weighed]) -> list[tuple[str, Mix]]:
    """The recipe's own shape with twice of one thing; nothing where it is no candidate, or its answers are unknown."""
    wanted = recipe.architecture.vocabulary
    for weighed_candidate in weighed:
        shape = weighed_candidate.candidate.shape
        is_own = shape.layers == recipe.architecture.layers and shape.head_vocab == (wanted.size if wanted else 0)
        if is_own and weighed_candidate.own is not None:
            steps = basis.steps[weighed_candidate.candidate.name]
            return [("as the recipe has it", weighed_candidate.own)] + [
                (name, valued(budget, basis.laws, steps, basis.costs))
                for name, budget in doubled(weighed_candidate.own.budget)
            ]
    return []


def best_within(minutes: float, basis: Basis, weighed: Sequence[Weighed]) -> tuple[str, Mix, float]:
    """The fastest candidate and mix of so many minutes, and these.

    Raises:
        UserError: If none pays within them.
    """
    shapes = {each.candidate.name: shape_budget(each.candidate) for each in weighed}
    best = fastest_within(shapes, 60 * minutes, basis.laws, basis.steps, basis.costs)
    if best is not None and best[1].speedup > PAYS:
        return *best, minutes
    reached = "no answer is written" if best is None else f"the fastest is {best[0]}, {best[1].speedup:.2f}x"
    paying = {each.candidate.name: each.break_even for each in weighed if each.break_even is not None}
    if not paying:
        raise UserError(f"--within {minutes:g}: in so many minutes {reached}, and none of these shapes ever pays here.")
    first = min(paying, key=lambda name: paying[name].seconds)
    raise UserError(
        f"--within {minutes:g}: in so many minutes {reached}. The first to break even is {first}, after "
        f"{paying[first].seconds / 60:.0f} minutes of {basis.record.processor}. Give more minutes."
    )
