"""`widedraft choose --floors DEVICE`: what shapes could do on a device that is not at hand. Nothing is timed."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from architectures.pages.markdown import markdown
from distill.checking.check import timed_run
from distill.checking.planned_cut import Cut, planned
from distill.choose.foretold.floors_page import Floored, floors_page
from distill.choose.ranked.page import left_out_page
from distill.choose.shapes.candidates import DEPTHS, Asked, Candidate, Wanted, asked_shapes
from distill.choose.shapes.settings import ChooseSettings
from distill.estimates.expected_work import expected_work, finished_counts, read_rows
from distill.estimates.memory import memory_parts, together
from distill.estimates.trainings import trainings
from distill.expected_time.devices import Device, find_device
from distill.expected_time.floors import floor_times, ways_of
from distill.expected_time.stages import stage_times
from distill.recipe.recipe import Recipe


def choose_by_floors(recipe: Recipe, settings: ChooseSettings, device_name: str) -> None:
    """Print what every candidate costs and is worth on the device, by floors.

    Args:
        recipe: Whose depths and heads are weighed.
        settings: With --floors.
        device_name: What that names.

    Raises:
        UserError: If a floor is not known.
    """
    device, cut = find_device(device_name), planned(recipe)
    asked = floor_candidates(recipe, cut, settings.wanted)
    rows = floored(recipe, cut, device, asked.candidates)
    out = left_out_page(asked.left_out, len(rows) + len(asked.left_out), "By sizes alone")
    print(markdown(*floors_page(recipe, cut, device, rows), *out, level=2))


def floor_candidates(recipe: Recipe, cut: Cut, wanted: Wanted) -> Asked:
    """The shapes that were asked for; of no depths the usual ones and the recipe's own."""
    source = replace(cut.source, vocab=cut.target.vocab)
    usual = [depth for depth in {*DEPTHS, cut.draft.layers} if depth < source.layers]
    return asked_shapes(recipe, source, replace(wanted, layers=wanted.layers or usual))


def floored(recipe: Recipe, cut: Cut, device: Device, candidates: Sequence[Candidate]) -> list[Floored]:
    """Every candidate with its steps and costs."""
    prompts = [read_rows(source, recipe.data) for source in recipe.data.prompts]
    work = expected_work(recipe, prompts, finished_counts(recipe))
    trained = partial(trainings, on_gpu=not device.is_processor)

    def floored_candidate(candidate: Candidate) -> Floored:
        own = replace(cut, draft=candidate.shape)
        times = [time.seconds for time in stage_times(timed_run(candidate.recipe, own, work, prompts), device)]
        seconds = [each for each in times if each is not None]
        return Floored(
            candidate,
            {way: floor_times(device, cut.target, candidate.shape, recipe.eval.dtype, way) for way in ways_of(device)},
            sum(seconds) / 3600 if len(seconds) == len(times) else None,
            max(together(memory_parts(each, 1)) for each in trained(candidate.recipe, cut.target, candidate.shape)),
        )

    return [floored_candidate(candidate) for candidate in candidates]
