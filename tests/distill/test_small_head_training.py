"""Training a draft whose head says some ids alone, also shown unknown inputs, from <run>/init to <run>/draft."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import distill.trainer
from architectures.hub import read_config
from architectures.manifest import read_manifest, write_manifest
from architectures.shapes import Shape
from architectures.vocabulary import DRAFT_VOCABULARY_NAME, read_draft_vocabulary
from architectures.vocabulary_head import head_ids, mean_of_dropped
from distill.check import check_recipe
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.data.batches import STUDENT_IDS
from distill.export import export_checkpoint
from distill.learned_masks import train_masks
from distill.pipeline import cache_stage, generate_stage, mask_stage, prune_stage
from distill.recipe.recipe import save_recipe
from distill.recipe.sections import TeacherConfig
from distill.run import Run
from distill.stage_inputs import prune_inputs
from distill.train import main, train
from distill.trainer import build_model, freeze_input_embeddings
from eval.config import EvalConfig
from eval.models import load_model
from eval.responses import read_traces
from eval.scorecard import score_drafts
from tests.architectures.conftest import FAMILY_SETTINGS
from tests.distill.after_training import (
    assert_resumes,
    changed,
    mean_gradients,
    metrics,
    relative_difference,
    weights,
)
from tests.distill.recipe_files import text_section
from tests.distill.small_heads import IDS, VOCAB, cut_draft
from tests.distill.test_export import finish
from tests.rejections import rejects

HIDDEN = {"source": "cache"}
TOP_K = {"source": "cache", "contents": "top_k", "k": 5}
SAMPLES = {"source": "cache", "contents": "samples", "num_samples": 7}
SHORT = {"max_duration": "2ba", "scheduler": {"t_warmup": "0ba"}}
UPDATE_RTOL = 1e-5  # of the norm, for the same reason


@pytest.fixture
def small_run(make_run, small_init):
    """small_run(name, teacher=..., **keys of distill) -> Recipe, its cache written where it has one."""

    def make(name="run", *, init=small_init, **distill):
        recipe = make_run(name, init=init, **distill)
        if "source" in distill.get("teacher", {}):
            cache_stage(Run.of(recipe))
        return recipe

    return make


def losses(recipe) -> list[float]:
    return [record["loss/train/total"] for record in metrics(recipe).values() if "loss/train/total" in record]


SETTINGS = {
    "live in bfloat16": {"precision": "amp_bf16"},
    "hidden in packed micro-batches": {"teacher": HIDDEN, "packing": True, "device_train_microbatch_size": 2},
    "top_k": {"teacher": TOP_K},
    "samples": {"teacher": SAMPLES},
    "tokens alone": {"loss": "cross_entropy"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_small_head_is_trained_and_exported_as_it_is(small_run, small_init, settings):
    recipe = small_run(max_duration="6ep", save_interval="1dur", eval_interval="1dur", **settings)
    train(recipe)
    assert sum(losses(recipe)[-3:]) < 0.97 * sum(losses(recipe)[:3])
    draft = Path(recipe.run_dir) / "draft"
    assert (draft / DRAFT_VOCABULARY_NAME).read_bytes() == (small_init / DRAFT_VOCABULARY_NAME).read_bytes()
    lm, trained = load_model(draft, dtype="bfloat16", device="cpu"), weights(recipe)
    assert head_ids(lm).tolist() == list(IDS)
    assert torch.equal(lm.lm_head.weight, trained["student.lm.lm_head.weight"].bfloat16())
    embedding = trained["student.lm.model.embed_tokens.weight"]
    assert torch.equal(lm.model.embed_tokens.weight, embedding.bfloat16())
    assert len(embedding) == 264
    assert not torch.equal(lm.lm_head.weight, embedding[list(IDS)].bfloat16())  # untied, each went its own way


def test_resumed_equals_uninterrupted_bit_for_bit(small_run, stopped):
    straight, resumed = (small_run(name, max_duration="4ba", teacher=SAMPLES) for name in ("straight", "resumed"))
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 3))


def of_text(tmp_path, make_run, small_init, letters):
    """A training on a text of these letters; the tiny tokenizer has a token for each byte."""
    path = tmp_path / "letters.txt"
    path.write_text(letters * (6000 // len(letters)))
    text = text_section(path, max_seq_len=24, num_eval_sequences=2, update_interval="1ba")
    return make_run(init=small_init, train_on="text", text=text, eval_interval="1ba", **SHORT)


def letters_of(folder, ids) -> str:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder).decode(list(ids))
    return "".join(letter for letter in found if letter.isascii() and letter.isalpha())


def test_text_is_learned_as_far_as_it_can_be_said(tmp_path, make_run, small_init):
    said = letters_of(small_init, IDS)
    unsaid = letters_of(small_init, set(range(264)) - set(IDS))
    assert said
    recipe = of_text(tmp_path, make_run, small_init, f"{said[:5]} {unsaid[:4]}")
    train(recipe)
    assert all(0 < loss < 20 for loss in losses(recipe))
    held_out = [value for record in metrics(recipe).values() for name, value in record.items() if "held" in name]
    assert all(0 < value < 20 for value in held_out)


def test_a_domain_of_which_nothing_can_be_said_is_refused_by_name(tmp_path, make_run, small_init):
    unsaid = letters_of(small_init, set(range(264)) - set(IDS))
    with rejects("text.domains", "letters"):
        train(of_text(tmp_path, make_run, small_init, unsaid))


def test_responses_of_which_nothing_can_be_said_are_refused(small_run, tmp_path, tiny_target):
    init = cut_draft(tiny_target, tmp_path / "cut", (0, 1))
    with rejects("draft_vocabulary.json", 2):
        train(small_run(init=init))


def small_target(recipe, folder):
    """The recipe with a draft of a small head as its target."""
    return recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(folder)})})


def test_a_draft_with_a_small_head_is_no_target(make_run, make_masks, small_init, tiny_draft, tmp_path):
    named = small_init / "config.json", "head_vocab_size", 120
    recipe = small_target(make_run(), small_init)
    run = Run.of(recipe)
    for stage in (lambda: train(recipe), lambda: prune_stage(run), lambda: generate_stage(run)):
        with rejects(*named):
            stage()
    masks = small_target(make_masks("masks"), small_init)
    with rejects(*named):
        train_masks(Run.of(masks))
    with rejects(*named):
        mask_stage(Run.of(masks))
    with rejects(*named):
        score_drafts(small_init, {"draft": tiny_draft}, [], EvalConfig(), tmp_path / "eval", seed=1)
    with rejects(small_init, *named[1:]):
        check_recipe(recipe)


def test_the_embedding_is_fitted_to_the_target_and_the_head_is_not(small_run, make_checkpoint, tmp_path, tiny_target):
    init = cut_draft(tiny_target, tmp_path / "cut", tuple(id_ for id_ in IDS if id_ < 260))
    recipe = small_run(init=init, **SHORT)
    train(recipe)
    [*_, checkpoint] = find_checkpoints(Path(recipe.run_dir) / "checkpoints")
    for vocab_size in (260, 264, 300):
        target, out = make_checkpoint(vocab_size=vocab_size, num_hidden_layers=1), tmp_path / str(vocab_size)
        export_checkpoint(checkpoint, init, out, target=target, dtype="float32", finish=finish)
        lm = load_model(out, dtype="float32", device="cpu")
        assert torch.equal(lm.lm_head.weight, weights(recipe)["student.lm.lm_head.weight"])
        assert len(lm.model.embed_tokens.weight) == lm.config.vocab_size == vocab_size
        assert read_draft_vocabulary(out) == replace(read_draft_vocabulary(init), vocab_size=vocab_size)
        assert read_config(out)["tie_word_embeddings"] is False


def test_what_does_not_belong_together_is_not_exported(small_run, small_init, make_checkpoint, tmp_path, tiny_target):
    recipe = small_run(**SHORT)
    train(recipe)
    [*_, checkpoint] = find_checkpoints(Path(recipe.run_dir) / "checkpoints")
    fewer = cut_draft(tiny_target, tmp_path / "fewer", IDS[1:])
    whole = cut_draft(tiny_target, tmp_path / "whole", None)
    narrow = make_checkpoint(vocab_size=max(IDS), num_hidden_layers=1)
    for init, target, named in (
        (fewer, tiny_target, ["lm_head.weight"]),
        (whole, tiny_target, ["lm_head.weight"]),
        (small_init, narrow, [max(IDS), narrow, max(IDS) - 1]),
    ):
        with rejects(*named):
            export_checkpoint(checkpoint, init, tmp_path / "draft", target=target, dtype="float32", finish=finish)
        assert not (tmp_path / "draft").exists()


# -- the cache ---------------------------------------------------------------------------------------------------------


def recut(recipe, tiny_target, ids):
    """Cut another init in place of the one that is there, as `widedraft prune` would."""
    init = Path(recipe.run_dir) / "init"
    shutil.rmtree(init)
    cut_draft(tiny_target, init, ids)
    write_manifest(init, stage="prune", inputs=prune_inputs(Run.of(recipe)))


def cache_inputs_of(recipe) -> dict[str, str]:
    return json.loads((Path(recipe.run_dir) / "teacher_cache" / "manifest.json").read_text())["inputs"]


@pytest.mark.parametrize("teacher", [TOP_K, SAMPLES], ids=["top_k", "samples"])
def test_entries_made_for_other_rows_are_refused(small_run, tiny_target, teacher):
    recipe = small_run(teacher=teacher)
    as_many = tuple(sorted({*IDS[1:], next(id_ for id_ in range(264) if id_ not in IDS)}))
    for ids in (IDS[1:], as_many, None):
        recut(recipe, tiny_target, ids)
        for stage in (lambda: train(recipe), lambda: cache_stage(Run.of(recipe))):
            with rejects("teacher_cache", "architecture.vocabulary"):
                stage()
    recut(recipe, tiny_target, IDS)
    cache_stage(Run.of(recipe))


def test_entries_of_every_id_are_refused_by_a_draft_that_says_some(small_run, tiny_draft, tiny_target):
    recipe = small_run(init=tiny_draft, teacher=TOP_K)
    assert "architecture.vocabulary" not in cache_inputs_of(recipe)  # what was recorded before this counted holds
    recut(recipe, tiny_target, IDS)
    with rejects("teacher_cache", "architecture.vocabulary"):
        train(recipe)


def test_entries_of_what_the_draft_says_do_not_mind_how_vocabularies_are_padded(small_run, make_checkpoint, tmp_path):
    """A draft of 260 ids, as it may come with another number of rows than its target of 264."""
    narrow = make_checkpoint(seed=1, vocab_size=260)
    init = cut_draft(narrow, tmp_path / "cut", tuple(id_ for id_ in IDS if id_ < 260))
    recipe = small_run(init=init, teacher=TOP_K, **SHORT)
    train(recipe)
    lm = load_model(Path(recipe.run_dir) / "draft", dtype="float32", device="cpu")
    assert (len(lm.model.embed_tokens.weight), len(lm.lm_head.weight)) == (264, sum(id_ < 260 for id_ in IDS))


def test_hidden_states_serve_every_head(small_run, tiny_draft, tiny_target):
    recipe = small_run(init=tiny_draft, teacher=HIDDEN, **SHORT)
    before = cache_inputs_of(recipe)
    recut(recipe, tiny_target, IDS)
    cache_stage(Run.of(recipe))
    train(recipe)
    assert cache_inputs_of(recipe) == before
    assert "architecture.vocabulary" not in before


def test_a_cache_says_how_many_rows_its_entries_are_of(small_run):
    recipe = small_run(teacher=TOP_K)
    manifest = read_manifest(Path(recipe.run_dir) / "teacher_cache")
    assert manifest is not None
    assert manifest["splits"]["train"]["rows"] == len(IDS)
    assert "rows" not in manifest["splits"]["eval"]
    assert manifest["splits"]["train"]["bytes_per_token"] == 5 * (1 + 2) + 4  # rows of 120 fit into a byte


def test_more_entries_than_the_draft_says_are_refused(small_run):
    small_run("enough", teacher={**TOP_K, "k": len(IDS)})
    with rejects(121, 120):
        small_run(teacher={**TOP_K, "k": len(IDS) + 1})


def test_entries_wait_for_the_cut_where_the_recipe_wants_a_small_head(make_run, tiny_draft):
    recipe = make_run(teacher=TOP_K)
    wanted = recipe.architecture.model_validate({**recipe.architecture.model_dump(), "vocabulary": {"size": 100}})
    recipe = recipe.model_copy(update={"architecture": wanted})
    shutil.rmtree(Path(recipe.run_dir) / "init")
    with rejects("init:", "widedraft prune"):
        cache_stage(Run.of(recipe))
    hidden = recipe.distill.model_copy(update={"teacher": TeacherConfig(**HIDDEN)})
    cache_stage(Run.of(recipe.model_copy(update={"distill": hidden})))


@pytest.mark.parametrize("k", [120, 121])
def test_a_check_counts_what_the_draft_says(make_run, small_init, k):
    recipe = make_run(teacher={**TOP_K, "k": k})
    shutil.rmtree(Path(recipe.run_dir) / "data")  # nothing is generated yet
    cut_again = {**recipe.architecture.model_dump(), "source": str(small_init), "layers": 1}
    changes = {
        "architecture": recipe.architecture.model_validate(cut_again),
        "data": recipe.data.model_copy(update={"num_eval_prompts": 4, "self_written_prompts": 9}),
    }
    recipe = recipe.model_copy(update=changes)
    if k > len(IDS):
        with rejects(121, 120):
            check_recipe(recipe)
        return
    assert "120 in the" in next(row.value for row in check_recipe(recipe) if row.name == "draft")


INPUTS = torch.tensor([[1, 70, 80, 90, 100, 110]])
UNKNOWN = max(set(range(VOCAB)) - set(IDS))
EMBEDDING = "student.lm.model.embed_tokens.weight"


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
def test_how_a_batch_is_cut_up_does_not_change_what_unknown_inputs_teach(shown_run, cut):
    settings = {"max_duration": "1ba", "gradient_clipping": None}
    whole, other = shown_run("whole", **settings), shown_run("other", **settings, **cut)
    train(whole)
    train(other)
    assert relative_difference(mean_gradients(whole), mean_gradients(other)) < UPDATE_RTOL


def test_unknown_inputs_resumed_are_those_uninterrupted(shown_run, stopped):
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
            finish=finish,
        )


def test_a_draft_that_says_everything_has_none_to_show(make_run):
    with rejects("architecture.vocabulary"):
        train(changed(make_run(), unknown_inputs=0.5))


# -- frozen input embeddings: they stay, all else learns as before, and what cannot be is refused ----------------------

ONE_STEP = {"max_duration": "1ba", "scheduler": {"t_warmup": "0ba"}, "gradient_clipping": None}


@pytest.fixture
def frozen_run(make_run, small_init):
    """frozen_run(name, **keys of distill) -> Recipe of a draft with a small head, its embeddings frozen."""
    return lambda name="frozen", **distill: make_run(
        name, init=small_init, **{"freeze_input_embeddings": True, **distill}
    )


def test_they_stay_and_all_else_moves(frozen_run, small_init):
    recipe = frozen_run(precision="amp_bf16", optimizer={"weight_decay": 0.1}, max_duration="3ba")
    train(recipe)
    began = load_model(small_init, dtype="float32", device="cpu").state_dict()
    ended = weights(recipe)
    moved = {name for name, weight in ended.items() if not torch.equal(weight, began[name.removeprefix("student.lm.")])}
    assert moved == ended.keys() - {EMBEDDING}
    assert mean_gradients(recipe).keys() == moved  # and no moments are kept for what is not trained
    shape = Shape.from_config(read_config(small_init))
    [kept] = find_checkpoints(Path(recipe.run_dir) / "checkpoints")[-1:]
    numbers = 3 * shape.parameters() - 2 * shape.vocab * shape.hidden  # as `check` computes disk
    assert kept.stat().st_size == pytest.approx(4 * numbers, abs=60_000)  # and the state of the training
    draft = load_model(Path(recipe.run_dir) / "draft", dtype="float32", device="cpu")
    assert torch.equal(draft.get_input_embeddings().weight, began["model.embed_tokens.weight"].bfloat16().float())


def test_the_gradients_of_all_else_are_those_beside_trained_ones(frozen_run):
    runs = [frozen_run(str(frozen), freeze_input_embeddings=frozen, **ONE_STEP) for frozen in (True, False)]
    for recipe in runs:
        train(recipe)
    frozen, trained = map(mean_gradients, runs)
    assert trained.pop(EMBEDDING).any()
    assert relative_difference(frozen, trained) < UPDATE_RTOL


def test_resumed_equals_uninterrupted(frozen_run, stopped):
    straight, resumed = (frozen_run(name, max_duration="4ba") for name in ("straight", "resumed"))
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 3))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_every_family_freezes_its_token_rows_alone_or_says_why_not(make_checkpoint, family, tied):
    settings = {**FAMILY_SETTINGS[family], "tie_word_embeddings": tied}
    folder = make_checkpoint(seed=1, model_type=family, **settings)
    model = load_model(folder, dtype="float32", device="cpu")
    if Shape.from_config(read_config(folder)).tied:
        with rejects("distill.freeze_input_embeddings"):
            freeze_input_embeddings(model)
        return
    freeze_input_embeddings(model)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert len(frozen) == 1
    assert model.get_parameter(frozen[0]) is model.get_input_embeddings().weight


def test_a_tied_draft_is_refused_by_check_and_by_training(make_run, make_checkpoint, capsys):
    tied = make_checkpoint(seed=3, num_hidden_layers=2, tie_word_embeddings=True)
    recipe = make_run(init=tied, freeze_input_embeddings=True)
    with rejects("distill.freeze_input_embeddings"):
        train(recipe)
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    assert main([str(path)]) == 2
    assert "architecture.vocabulary" in capsys.readouterr().err
    of_tied = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(tied)})})
    with rejects("distill.freeze_input_embeddings"):
        check_recipe(of_tied)
