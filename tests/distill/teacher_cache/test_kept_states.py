"""Caches made of the states that a target kept while it answered: those of reading, without a weight of its layers.

Shape suffixes: A = answer tokens, H = width of the last hidden state.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from architectures.checkpoints.manifest import read_manifest
from architectures.errors import UserError
from distill import teacher_cache
from distill.data.batches import AnswerDataset
from distill.recipe.recipe import Recipe
from distill.run.progressive import share_answers, stage_recipe
from distill.run.run import Run
from distill.run.stage_inputs import generate_inputs
from distill.run.training import require_training_inputs
from distill.stages.running import cache_stage, generate_stage, prune_stage, verify_cache_stage
from distill.teacher_cache import KeptStates, Split, TeacherCache
from distill.train import read_answers, train
from eval.answers.shards import hidden_path
from eval.answers.traces import read_traces
from eval.decoding import generate as answering
from tests.distill.after_training import metrics
from tests.distill.teacher_cache.made import read_all
from tests.distill.vocabulary.conftest import wordy

AS_READ = {"rtol": 1e-4, "atol": 1e-4}  # float32: a step of few rows sums in another order than a whole text does
HALF = {"rtol": 2e-3, "atol": 2e-3}  # log-probabilities in float16, one rounding apart
LOSS_RTOL = 1e-4  # of AS_READ, after six steps
READING = {"source": "cache"}
TEACHERS = {
    "hidden": {},
    "top_k": {"contents": "top_k", "k": 5},
    "samples": {"contents": "samples", "num_samples": 7},
}
CONTENTS = pytest.mark.parametrize("teacher", TEACHERS.values(), ids=TEACHERS)
AGAIN = "`widedraft generate RECIPE` answers its shard again; or set distill.teacher.captured_while to reading, and the"


@pytest.fixture(scope="module")
def target(make_checkpoint):
    """Whose answers end at different lengths: many tokens stop it."""
    folder = make_checkpoint(seed=1)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [2, *range(100, 264, 20)]}))
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"prompt": "x" * (3 * i + 1)} for i in range(10)] + [{"turns": ["one", "two"]}, {"turns": ["a", "b"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def recipe_of(target, prompts, tmp_path):
    """recipe_of(name, teacher) -> a recipe whose teacher's states are kept while it answers."""

    def make(name="run", teacher=None, *, data=None, architecture=None, folder=target, **distill) -> Recipe:
        answering = {"source": "cache", "captured_while": "answering"}
        training = {
            "max_duration": "2ep",
            "global_train_batch_size": 4,
            "precision": "fp32",
            "scheduler": {"t_warmup": "1ba"},
        }
        sizes = {"max_seq_len": 160, "max_new_tokens": 12, "batch_size": 4, "shard_size": 5, "num_eval_prompts": 3}
        return Recipe.model_validate(
            {
                "run_name": name,
                "run_dir": str(tmp_path / name),
                "target": {"path": str(folder), "dtype": "float32"},
                "architecture": architecture or {"layers": 2, "method": "first_last"},
                "data": {"prompts": [{"path": str(prompts)}], **sizes, **(data or {})},
                "distill": {**training, "teacher": {**answering, **(teacher or {})}, **distill},
            }
        )

    return make


@pytest.fixture(scope="module")
def written() -> dict[str, Path]:
    """Answers with states that were written already, by what they are made from."""
    return {}


@pytest.fixture
def answered(recipe_of, written, tmp_path_factory):
    """answered(name, teacher, ...) -> the recipe, with its answers written."""

    def make(name="run", teacher=None, **more) -> Recipe:
        recipe = recipe_of(name, teacher, **more)
        folder, key = Path(recipe.run_dir) / "data", repr((recipe.target, recipe.data))
        if key not in written:
            generate_stage(Run.of(recipe_of(name, **more)))
            written[key] = shutil.copytree(folder, tmp_path_factory.mktemp("answers") / "data")
        elif not folder.exists():
            shutil.copytree(written[key], folder)
        return recipe

    return make


def cached(recipe: Recipe) -> Recipe:
    cache_stage(Run.of(recipe))
    return recipe


def run_of(recipe: Recipe) -> Path:
    return Path(recipe.run_dir)


def cache_of(recipe: Recipe, name: str) -> TeacherCache:
    return TeacherCache(run_of(recipe) / "teacher_cache", name)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.*")) if path.suffix != ".json"}


def require_alike(one: Recipe, other: Recipe) -> None:
    """Two caches say the same of every answer."""
    for name in ("train", "eval"):
        ours, theirs = cache_of(one, name), cache_of(other, name)
        assert (ours.contents, ours.examples, len(ours)) == (theirs.contents, theirs.examples, len(theirs))
        for found, expected in zip(read_all(ours), read_all(theirs), strict=True):
            assert found.keys() == expected.keys()
            for key, rows in found.items():
                torch.testing.assert_close(rows, expected[key], **(HALF if key == "log_probs" else AS_READ))


def refuse_to_load(*_, **__):
    raise AssertionError("nothing of the target is needed here")


@CONTENTS
def test_a_cache_of_kept_states_says_what_reading_says(answered, monkeypatch, teacher):
    kept, read = answered("kept", teacher), answered("read", {**teacher, "captured_while": "reading"})
    cache_stage(Run.of(read))
    monkeypatch.setattr(teacher_cache, "load_target", refuse_to_load)
    if not teacher:
        monkeypatch.setattr(teacher_cache, "load_head", refuse_to_load)
    cache_stage(Run.of(kept))
    require_alike(kept, read)
    manifests = [read_manifest(run_of(recipe) / "teacher_cache") or {} for recipe in (kept, read)]
    assert [manifest["captured_while"] for manifest in manifests] == ["answering", "reading"]
    assert manifests[0]["files"].keys() == manifests[1]["files"].keys()
    for key in ("format", "splits", "dtype", "max_seq_len"):
        assert manifests[0][key] == manifests[1][key]
    verify_cache_stage(Run.of(kept))


def test_a_run_of_several_turns_and_shards_was_looked_at(answered):
    data = run_of(answered()) / "data"
    answers = read_traces(data, "train") + read_traces(data, "eval")
    assert sum("#2" in answer.source for answer in answers) == 2
    assert len({len(answer.answer_ids) for answer in answers}) > 3
    assert len(list(data.glob("train-*.jsonl"))) == 2


@CONTENTS
def test_answers_that_the_limit_on_length_cuts_have_the_states_of_what_is_left(answered, teacher):
    data = {"max_seq_len": 60}  # of which a template takes 39
    kept = answered("kept", teacher, data=data)
    read = answered("read", {**teacher, "captured_while": "reading"}, data=data)
    train_set, _ = read_answers(Run.of(kept))
    assert train_set.counts.cut
    require_alike(cached(kept), cached(read))


def test_answers_without_room_have_no_location(answered):
    recipe = answered()
    data, limit = run_of(recipe) / "data", 55
    answers = {name: read_traces(data, name) for name in ("train", "eval")}
    states = KeptStates(data, Path(recipe.target.path), dtype="float32", max_seq_len=limit, names=answers)
    for name, found in answers.items():
        dataset = AnswerDataset(found, max_seq_len=limit)
        split = Split(name, dataset.examples, recipe.distill.teacher, 256, [])
        told = dict(states.states(split, range(len(dataset))))
        fitting = [answer for answer in found if len(answer.prompt_ids) < limit]
        assert len(told) == len(fitting)
        for hidden_AH, answer in zip(told.values(), fitting, strict=True):
            kept = next(each for each in states.locations[name] if each.id == answer.id)
            whole = load_file(hidden_path(kept.shard))[str(kept.id)]
            assert torch.equal(hidden_AH, whole[: limit - len(answer.prompt_ids)])
    assert any(len(answer.prompt_ids) >= limit for answer in answers["train"])


def test_entries_of_a_small_vocabulary_are_of_its_ids(answered, make_checkpoint):
    """Ids are counted in the answers: these are written before the draft is cut, and cached behind it."""
    small = {"layers": 2, "method": "first_last", "vocabulary": {"size": 261, "from": "answers"}}
    folder = wordy(make_checkpoint(seed=1, vocab_size=320))
    recipes = [
        answered(name, {**TEACHERS["top_k"], "captured_while": name}, architecture=small, folder=folder)
        for name in ("answering", "reading")
    ]
    for recipe in recipes:
        prune_stage(Run.of(recipe))
        cache_stage(Run.of(recipe))
    require_alike(*recipes)
    assert (read_manifest(run_of(recipes[0]) / "teacher_cache") or {})["splits"]["train"]["rows"] == 261


@pytest.mark.parametrize("loss", ["negative_log_acceptance", "forward_kl"])
def test_a_draft_learns_from_kept_states_what_it_learns_from_read_ones(answered, loss):
    recipes = [answered(name, {"captured_while": name}, loss=loss) for name in ("answering", "reading")]
    losses = []
    for recipe in recipes:
        prune_stage(Run.of(recipe))
        cache_stage(Run.of(recipe))
        train(recipe)
        losses.append([line["loss/train/total"] for line in metrics(recipe).values() if "loss/train/total" in line])
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], rel=LOSS_RTOL)


def test_a_capture_that_was_interrupted_ends_in_the_same_bytes(answered, monkeypatch):
    class Stopped(Exception):  # noqa: N818  # nobody's mistake
        pass

    def stop(tensors, path):
        if path.name == "eval-00000.safetensors":
            raise Stopped
        return write_tensors(tensors, path)

    write_tensors, (recipe, whole) = teacher_cache.write_tensors, [answered(name, TEACHERS["samples"]) for name in "ab"]
    with monkeypatch.context() as patch:
        patch.setattr(teacher_cache, "write_tensors", stop)
        with pytest.raises(Stopped):
            cache_stage(Run.of(recipe))
    assert read_manifest(run_of(recipe) / "teacher_cache") is None
    assert files(run_of(cached(recipe)) / "teacher_cache") == files(run_of(cached(whole)) / "teacher_cache")


def test_lost_states_are_named_by_the_cache_and_made_again_by_generate(answered, capsys, monkeypatch):
    recipe = answered()
    before = files(run_of(recipe) / "data")
    lost = run_of(recipe) / "data" / "train-00001.hidden.safetensors"
    lost.unlink()
    with pytest.raises(UserError, match=rf"{lost}: not there\. {AGAIN}"):
        cache_stage(Run.of(recipe))
    assert not (run_of(recipe) / "teacher_cache").exists()
    capsys.readouterr()
    generate_stage(Run.of(recipe))
    assert "data: 1 shards without hidden states, the first is train-00001.jsonl" in capsys.readouterr().out
    assert files(run_of(recipe) / "data") == before
    monkeypatch.setattr(answering, "load_target", refuse_to_load)
    generate_stage(Run.of(recipe))
    assert "data: up to date" in capsys.readouterr().out


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def of_another_shard(file: Path) -> None:
    shutil.copy(file.with_name("eval-00000.hidden.safetensors"), file)


def no_numbers(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-4:] = b"\xff" * 4  # a NaN of float32
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut_short, r"damaged \(.*\)\. Delete it"),
        (of_another_shard, r"belongs to other answers than those in train-00001\.jsonl\. Delete both"),
        (no_numbers, r"the states of answer \d+ are not all numbers\. Delete it"),
    ],
)
def test_damaged_states_are_named_with_a_remedy_that_works(answered, damage, problem):
    recipe = answered()
    data, shard = run_of(recipe) / "data", run_of(recipe) / "data" / "train-00001.jsonl"
    before, file = files(data), hidden_path(shard)
    damage(file)
    with pytest.raises(UserError, match=rf"{file}: {problem}: {AGAIN}"):
        cache_stage(Run.of(recipe))
    for lost in [file, shard] if "both" in problem else [file]:
        lost.unlink()
    generate_stage(Run.of(recipe))
    assert files(data) == before
    cache_stage(Run.of(recipe))


def test_states_are_needed_until_the_cache_is_made(answered, capsys, monkeypatch):
    recipe = cached(answered())
    data, cache = run_of(recipe) / "data", run_of(recipe) / "teacher_cache"
    before = files(cache)
    for file in data.glob("*.safetensors"):
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(answering, "load_target", refuse_to_load)
        capsys.readouterr()
        generate_stage(Run.of(recipe))
        cache_stage(Run.of(recipe))
    assert capsys.readouterr().out.count("up to date") == 2
    (cache / "train-00000.safetensors").unlink()
    with pytest.raises(UserError, match=rf"hidden\.safetensors: not there\. {AGAIN}"):
        cache_stage(Run.of(recipe))
    generate_stage(Run.of(recipe))
    cache_stage(Run.of(recipe))
    assert files(cache) == before


def test_answers_that_were_written_without_states_are_refused_by_generate_and_by_the_cache(recipe_of):
    read, kept = recipe_of(teacher={"captured_while": "reading"}), recipe_of()
    generate_stage(Run.of(read))
    before = files(run_of(read) / "data")
    message = r"data: its (eval|train) answers were written without their hidden states, which distill\.teacher\.captur"
    for stage in (generate_stage, cache_stage):
        with pytest.raises(UserError, match=message):
            stage(Run.of(kept))
    assert files(run_of(read) / "data") == before
    cache_stage(Run.of(read))


def test_answers_with_states_serve_a_teacher_that_reads_them_or_runs(answered, capsys, monkeypatch):
    recipe = answered()
    monkeypatch.setattr(answering, "load_target", refuse_to_load)
    for teacher in ({"captured_while": "reading"}, {"source": "live", "captured_while": None}):
        other = answered(teacher=teacher)
        assert generate_inputs(Run.of(other)) == generate_inputs(Run.of(recipe))
        generate_stage(Run.of(other))
        assert "data: up to date" in capsys.readouterr().out


@pytest.mark.parametrize("names", [("reading", "answering"), ("answering", "reading")])
def test_a_cache_of_the_other_kind_is_refused_by_name(answered, names):
    first, second = (answered(teacher={"captured_while": name}) for name in names)
    cache_stage(Run.of(first))
    with pytest.raises(UserError, match=r"teacher_cache was made from another distill\.teacher than"):
        cache_stage(Run.of(second))


def test_cuts_in_stages_share_answers_and_cache(answered):
    architecture = {"stages": [3, 2], "method": "first_last"}
    recipe = answered(architecture=architecture)
    earlier = stage_recipe(Run.of(recipe), 3, None)
    share_answers(Run.of(recipe), Run.of(earlier))
    prune_stage(Run.of(earlier))
    cache_stage(Run.of(recipe))
    cache_stage(Run.of(earlier))
    require_training_inputs(Run.of(earlier))
