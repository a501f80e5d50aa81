"""Step times at other batches beside a scorecard: which, of which models, and what is said of those that do not fit."""

import pytest

from eval.config import EvalConfig
from eval.intervals import Resampling
from eval.models import load_model
from eval.prompts import Prompt
from eval.scorecard import measure_batches, score_drafts
from eval.scorecard_schema import read_grid_file

RESAMPLING = Resampling(0.95, 50, 17)
PROMPTS = [Prompt(f"p.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(("why", "2+2?"), 1)]


def config(**changes):
    settings = {
        "max_new_tokens": 6,
        "num_speculative_tokens": (1, 2, 3),
        "latency_repeats": 8,
    }
    return EvalConfig(**{**settings, "latency_batch_sizes": (1, 2), **changes})


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("grid") / "eval"
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    return out, score_drafts(target_folder, drafts, PROMPTS, config(temperatures=(0.0,)), out, seed=17)


@pytest.fixture
def models(target_folder, noisy_folder):
    return {"target": load_model(target_folder, dtype="float32"), "draft": load_model(noisy_folder, dtype="float32")}


def test_the_file_has_every_batch_at_the_length_of_the_scored_texts(scored):
    out, scorecard = scored
    grid = read_grid_file(out / "latency.json")
    context = scorecard.latency.context_tokens
    assert [(cell.batch, cell.context_tokens) for cell in grid.cells] == [(1, context), (2, context)]
    assert grid.ks == [1, 2, 3]
    assert {cell.repeats for cell in grid.cells} == {2}  # a quarter of 8
    assert [step.num_speculative_tokens for step in grid.cells[1].verify] == [1, 2, 3]
    assert [steps.draft for steps in grid.cells[1].drafts] == ["draft"]
    named = {"target": scorecard.target, "draft": scorecard.drafts[-1]}
    assert {name: model.fingerprint for name, model in grid.models.items()} == {
        name: model.fingerprint for name, model in named.items()
    }


def test_what_does_not_fit_is_left_out_and_told(models, monkeypatch):
    monkeypatch.setattr("eval.latency.cache_bytes", lambda _model, *, batch, context: batch)
    monkeypatch.setattr("eval.latency.bytes_to_pack", lambda _model: 0)  # of any processor
    monkeypatch.setattr("eval.latency.free_bytes", lambda _device: 3)
    grid, told = measure_batches(models, [1, 70, 80], config(latency_batch_sizes=(1, 4)), RESAMPLING)
    assert grid is not None
    assert [cell.batch for cell in grid] == [1]
    [sentence] = told
    assert "batch 4 " in sentence


def test_models_of_one_text_at_a_time_are_timed_at_batch_1(models, monkeypatch):
    monkeypatch.setattr("eval.scorecard.takes_rows", lambda _model: False)
    grid, told = measure_batches(models, [1, 70, 80], config(latency_batch_sizes=(1, 4)), RESAMPLING)
    assert grid is not None
    assert [cell.batch for cell in grid] == [1]
    [sentence] = told
    assert "batch 4 " in sentence


def test_no_batches_no_file_also_where_an_earlier_scoring_left_one(target_folder, noisy_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("eval.latency.free_bytes", lambda _device: 0)
    (tmp_path / "latency.json").write_text("{}")
    asked = config(temperatures=(0.0,), num_speculative_tokens=(1,), latency_repeats=1, wall_clock_prompts=1)
    scorecard = score_drafts(target_folder, {"draft": noisy_folder}, PROMPTS, asked, tmp_path, seed=17)
    assert not (tmp_path / "latency.json").exists()
    assert [text.split(":")[0] for text in scorecard.warnings[-2:]] == [
        f"Steps at batch {batch} were not timed" for batch in (1, 2)
    ]


def test_lookaheads_are_both_ends_and_the_powers_of_two_between(models):
    settings = config(num_speculative_tokens=(3, 4, 5, 6), latency_batch_sizes=(1,), latency_repeats=1)
    grid, _ = measure_batches(models, [1, 70, 80], settings, RESAMPLING)
    [cell] = grid
    assert [step.num_speculative_tokens for step in cell.verify] == [3, 4, 6]
