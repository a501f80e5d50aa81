"""Every loss beside every teacher, as one table: it is learned, or refused, and for which reason.

Shape suffixes: A = answer tokens, V = vocabulary entries.
"""

import re
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from distill.formulas.losses import LOSSES, loss_term
from distill.losses.objective import build_objective
from distill.recipe.sections.teacher import HiddenCache, LiveTeacher, NoTeacher, SampleCache, TopKCache
from distill.recipe.sections.training import DistillConfig
from distill.teacher_cache.contents import sampled_rows, top_k_rows, uniform_numbers, widen

TEACHERS = {
    "live": {},
    "hidden": {"source": "cache"},
    "top_k": {"source": "cache", "contents": "top_k"},
    "samples": {"source": "cache", "contents": "samples"},
    "none": {"source": "none"},
}
TEXT = {"train_on": "text", "max_duration": "9ba", "eval_interval": "3ba", "save_interval": "3ba"}
SERVES_ALL = "A live teacher, or a cache with contents hidden, serves all."
ENTRIES = "must be forward_kl or cross_entropy when distill.teacher.contents is {}, got {}. " + SERVES_ALL
TOKENS = "must be cross_entropy when distill.teacher.source is none, got {}. " + SERVES_ALL
OF_ANSWERS = (
    "distill.teacher must have source live or none when distill.train_on is text, got cache: a cache is of answers."
)
TEMPERATURE = "distill.temperature must be 1 when distill.{}, got 2.0{}"
TAKEN_AT = f": that is what it was taken at. {SERVES_ALL}"
# Which teachers serve a loss: all that tell enough of the distribution it compares with.
SERVED = {
    "forward_kl": {"live", "hidden", "top_k", "samples"},
    "reverse_kl": {"live", "hidden"},
    "kl_mixture": {"live", "hidden"},
    "jensen_shannon": {"live", "hidden"},
    "skewed_forward_kl": {"live", "hidden"},
    "skewed_reverse_kl": {"live", "hidden"},
    "total_variation": {"live", "hidden"},
    "negative_log_acceptance": {"live", "hidden"},
    "lk_hybrid": {"live", "hidden"},
    "cross_entropy": {"live", "hidden", "top_k", "samples", "none"},
}
CELLS = [(loss, teacher) for loss in SERVED for teacher in TEACHERS]
every_cell = pytest.mark.parametrize(("loss", "teacher"), CELLS)


def page(name):
    return (Path(__file__).parents[3] / "docs" / name).read_text(encoding="utf-8").splitlines()


def refusal(loss, teacher, **settings):
    """What the section is refused for; None where it is taken."""
    try:
        DistillConfig.model_validate({"loss": loss, "teacher": TEACHERS[teacher], **settings})
    except ValidationError as error:
        return "; ".join(f"distill.{one['loc'][0]} {one['ctx']['error']}" for one in error.errors())
    return None


def why_refused(loss, teacher):
    if teacher in SERVED[loss]:
        return None
    return "distill.loss " + (TOKENS.format(loss) if teacher == "none" else ENTRIES.format(teacher, loss))


def what_it_says(teacher, logits_AV):
    """Of tokens with these logits; None where nobody is asked."""
    if teacher == "top_k":
        return widen(top_k_rows(logits_AV, 3))
    if teacher == "samples":
        return widen(sampled_rows(logits_AV, uniform_numbers(len(logits_AV), 4, seed=1)))
    return None if teacher == "none" else logits_AV


def test_the_table_has_every_loss():
    assert SERVED.keys() == LOSSES.keys()


def test_the_page_of_losses_has_every_option_with_its_default():
    rows = [line.split("|") for line in page("losses.md") if line.startswith("| `")]
    said = {row[1].strip(" `"): row[3] for row in rows[: len(LOSSES)]}
    assert list(said) == list(LOSSES)
    for name, options in said.items():
        found = {option: float(value) for option, value in re.findall(r"`(\w+)`[^=]*= ([\d.]+)", options)}
        assert found == loss_term(name).options, name


def test_the_page_of_teachers_has_every_key():
    keys = [
        set(re.findall("`(\\w+)`", line.split("|")[2])) for line in page("teacher.md") if line.startswith("| `source:")
    ]
    sections = [LiveTeacher, HiddenCache, TopKCache, SampleCache, NoTeacher]
    assert keys[: len(sections)] == [section.model_fields.keys() - {"source", "contents"} for section in sections]


@every_cell
def test_a_loss_is_taken_or_refused(loss, teacher):
    expected = why_refused(loss, teacher)
    assert refusal(loss, teacher) == expected
    assert refusal([{"name": loss}], teacher) == expected
    assert refusal([{"name": "cross_entropy"}, {"name": loss, "weight": 0.5}], teacher) == expected


@every_cell
def test_text_is_learned_from_whoever_is_no_cache(loss, teacher):
    found = refusal(loss, teacher, **TEXT)
    if TEACHERS[teacher].get("source") == "cache":
        assert found is not None
        assert found.startswith(OF_ANSWERS)
    else:
        assert found == why_refused(loss, teacher)


@every_cell
def test_another_temperature_wants_every_logit(loss, teacher):
    found = refusal(loss, teacher, temperature=2.0)
    if teacher in ("live", "hidden") and loss != "cross_entropy":
        assert found is None
    elif loss == "cross_entropy":
        assert found == TEMPERATURE.format("loss is cross_entropy alone", ". Nothing reads it.")
    elif why_refused(loss, teacher) is None:
        assert found == TEMPERATURE.format(f"teacher.contents is {teacher}", TAKEN_AT)
    else:
        assert found is not None
        assert found.startswith(why_refused(loss, teacher))


@every_cell
def test_a_selection_wants_every_logit(loss, teacher):
    found = refusal(loss, teacher, token_selection={"reference": "x"})
    if teacher in ("live", "hidden"):
        assert found is None
        return
    named = "source is none" if teacher == "none" else f"contents is {teacher}"
    assert found is not None
    assert found.startswith(
        "distill.teacher must be live, or a cache with contents hidden, with distill.token_selection, got one whose "
        f"{named}: tokens are chosen by the whole KL from the teacher."
    )


@pytest.mark.parametrize(("loss", "teacher"), [cell for cell in CELLS if cell[1] in SERVED[cell[0]]])
def test_what_is_taken_is_learned(loss, teacher):
    """From what such a teacher says, by gradients that are there and finite."""
    generator = torch.Generator().manual_seed(0)
    student_AV, teacher_AV = (torch.randn(7, 11, generator=generator) for _ in range(2))
    student_AV.requires_grad_()
    objective = build_objective(loss, temperature=1.0)
    assert objective.asks_teacher == (loss != "cross_entropy")
    losses_A = objective(student_AV, what_it_says(teacher, teacher_AV), torch.arange(7))
    losses_A.sum().backward()
    assert losses_A.shape == (7,)
    assert losses_A.isfinite().all()
    assert student_AV.grad is not None
    assert student_AV.grad.isfinite().all()
    assert student_AV.grad.abs().sum() > 0
