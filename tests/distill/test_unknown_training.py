"""Trainings that show unknown inputs: what reads them, what is learned, and that nothing else changes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import distill.trainer
from architectures.manifest import write_manifest
from architectures.vocabulary import read_draft_vocabulary
from architectures.vocabulary_head import mean_of_dropped
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.data.batches import STUDENT_IDS
from distill.export import export_checkpoint
from distill.run import Run
from distill.train import train
from distill.trainer import build_model
from eval.models import load_model
from eval.responses import read_traces
from tests.distill.after_training import assert_resumes, changed, mean_gradients, metrics, relative_difference, weights
from tests.distill.small_heads import IDS, VOCAB
from tests.rejections import rejects

INPUTS = torch.tensor([[1, 70, 80, 90, 100, 110]])
UNKNOWN = max(set(range(VOCAB)) - set(IDS))
EMBEDDING = "student.lm.model.embed_tokens.weight"
UPDATE_RTOL = 1e-5  # of the norm: float32 sums in another order


@pytest.fixture
def shown_run(make_run, small_init):
    """shown_run(name, share, **keys of distill) -> Recipe of a draft with a small head."""

    def make(name="run", share=0.5, **distill):
        recipe = make_run(name, init=small_init, **{"max_duration": "2ba", "scheduler": {"t_warmup": "0ba"}, **distill})
        return changed(recipe, unknown_inputs=share)

    return make


@pytest.fixture
def model(make_run):
    recipe = make_run()
    return build_model(Run.of(recipe), eval_tasks=())


def batch(**more):
    return {"input_ids": INPUTS, "attention_mask": INPUTS > 0, "keep": INPUTS > 0, "next_ids": INPUTS, **more}


def hidden(model, batch):
    return model.read(batch, lambda hidden_AH, head: hidden_AH)


def test_the_student_reads_what_it_is_shown_and_the_teacher_what_stands_there(model):
    shown = INPUTS.clone()
    shown[0, 2] = 263
    assert torch.equal(hidden(model, batch(**{STUDENT_IDS: shown})), hidden(model, {**batch(), "input_ids": shown}))
    assert not torch.equal(hidden(model, batch(**{STUDENT_IDS: shown})), hidden(model, batch()))
    said, plain = (model.rows_of(model.teacher, each) for each in (batch(**{STUDENT_IDS: shown}), batch()))
    assert torch.equal(said.hidden_AH, plain.hidden_AH)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_row_begins_as_the_mean_where_it_will_be_shown(shown_run, small_init, share):
    recipe = shown_run(share=share)
    before_VH = load_model(small_init, dtype="float32", device="cpu").get_input_embeddings().weight
    began_VH = build_model(Run.of(recipe), eval_tasks=()).student.lm.get_input_embeddings()
    mean_H = mean_of_dropped(before_VH, IDS) if share else before_VH[UNKNOWN]
    torch.testing.assert_close(began_VH.weight[UNKNOWN], mean_H)


def test_the_one_row_learns_for_all_that_are_not_said(shown_run, small_init):
    recipe = shown_run(share=1.0)
    train(recipe)
    before_VH = load_model(small_init, dtype="float32", device="cpu").get_input_embeddings().weight
    after_VH = weights(recipe)[EMBEDDING]
    dropped = [id_ for id_ in range(VOCAB) if id_ not in IDS and id_ != UNKNOWN]
    assert torch.equal(after_VH[dropped], before_VH[dropped])  # never shown, never moved
    assert not torch.allclose(after_VH[UNKNOWN], mean_of_dropped(before_VH, IDS), atol=1e-4)
    draft = Path(recipe.run_dir) / "draft"
    assert read_draft_vocabulary(draft) == replace(read_draft_vocabulary(small_init), unknown_id=UNKNOWN)
    assert torch.equal(
        load_model(draft, dtype="bfloat16", device="cpu").get_input_embeddings().weight[UNKNOWN],
        after_VH[UNKNOWN].bfloat16(),
    )


def test_a_share_of_it_leaves_the_other_rows_their_own_training(shown_run, small_init):
    recipe = shown_run(share=0.5, max_duration="4ba")
    train(recipe)
    before_VH = load_model(small_init, dtype="float32", device="cpu").get_input_embeddings().weight
    moved_V = (weights(recipe)[EMBEDDING] != before_VH).any(dim=1)
    assert int(moved_V[[id_ for id_ in range(VOCAB) if id_ not in IDS and id_ != UNKNOWN]].sum()) > 10


def test_evaluations_read_what_stands_there(shown_run):
    plain, shown = shown_run("plain", 0.0), shown_run("shown", 1.0)
    held_out = {id_ for trace in read_traces(Path(plain.run_dir) / "data", "eval") for id_ in trace.token_ids}
    assert UNKNOWN not in held_out
    assert held_out - set(IDS)
    train(plain)
    train(shown)
    before = [{name: value for name, value in metrics(each)[0].items() if "eval" in name} for each in (plain, shown)]
    assert before[0] == before[1]
    assert metrics(plain)[0]["loss/train/total"] != metrics(shown)[0]["loss/train/total"]


@pytest.mark.parametrize("cut", [{"device_train_microbatch_size": 1}, {"packing": True}], ids=str)
def test_how_a_batch_is_cut_up_does_not_change_what_is_learned(shown_run, cut):
    settings = {"max_duration": "1ba", "gradient_clipping": None}
    whole, other = shown_run("whole", **settings), shown_run("other", **settings, **cut)
    train(whole)
    train(other)
    assert relative_difference(mean_gradients(whole), mean_gradients(other)) < UPDATE_RTOL


def test_resumed_equals_uninterrupted_bit_for_bit(shown_run, stopped):
    straight, resumed = (shown_run(name, max_duration="4ba") for name in ("straight", "resumed"))
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 3))


def test_an_unknown_row_that_the_target_has_no_room_for_is_refused(shown_run, small_init, make_checkpoint, tmp_path):
    recipe = shown_run(share=1.0)
    train(recipe)
    [*_, checkpoint] = find_checkpoints(Path(recipe.run_dir) / "checkpoints")
    narrow = make_checkpoint(vocab_size=max(*IDS, UNKNOWN), num_hidden_layers=1)
    with rejects("draft_vocabulary.json"):
        export_checkpoint(
            checkpoint,
            small_init,
            tmp_path / "draft",
            target=narrow,
            dtype="float32",
            unknown_inputs=True,
            finish=lambda folder: write_manifest(folder, stage="export", inputs={}),
        )


def test_a_draft_that_says_everything_has_none_to_show(make_run):
    with rejects("architecture.vocabulary"):
        train(changed(make_run(), unknown_inputs=0.5))
