"""What reads the shown ids in a training step, and what does not."""

from pathlib import Path

import pytest
import torch

from distill.data.unknown_inputs import STUDENT_IDS
from distill.trainer import build_model, unknown_inputs

INPUTS = torch.tensor([[1, 70, 80, 90, 100, 110]])


def batch(**more):
    return {"input_ids": INPUTS, "attention_mask": INPUTS > 0, "keep": INPUTS > 0, "next_ids": INPUTS, **more}


@pytest.fixture
def model(make_run):
    recipe = make_run()
    return build_model(recipe, target=Path(recipe.target.path), eval_tasks=())


def hidden(model, batch):
    return model.read(batch, lambda hidden_AH, head: hidden_AH)


def test_the_student_reads_what_it_is_shown_and_the_teacher_what_stands_there(model):
    shown = INPUTS.clone()
    shown[0, 2] = 263
    assert torch.equal(hidden(model, batch(**{STUDENT_IDS: shown})), hidden(model, {**batch(), "input_ids": shown}))
    assert not torch.equal(hidden(model, batch(**{STUDENT_IDS: shown})), hidden(model, batch()))
    said, plain = (model.rows_of(model.teacher, each) for each in (batch(**{STUDENT_IDS: shown}), batch()))
    assert torch.equal(said.hidden_AH, plain.hidden_AH)


def test_a_training_without_them_has_nothing_that_shows_any(make_run):
    assert unknown_inputs(make_run()) == []
