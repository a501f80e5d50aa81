"""The stage `widedraft cache`: made once, continued, skipped when current, refused when stale; and who waits for it."""

import shutil
import signal
from pathlib import Path

import pytest

from architectures import manifest as hashes
from architectures.manifest import fingerprint_tokenizer, read_manifest
from distill import pipeline, teacher_cache
from distill.pipeline import cache_stage, verify_cache_stage
from distill.recipe.recipe import Recipe
from distill.response_batches import read_responses
from distill.run import Artifact, Run, first_init, share_responses, stage_recipe
from distill.stage_inputs import require_training_inputs
from distill.teacher_cache import TeacherCache
from tests.rejections import rejects

TOP_K = {"source": "cache", "contents": "top_k", "k": 4}


@pytest.fixture
def recipe(make_run) -> Recipe:
    return make_run(teacher=TOP_K)


def changed(recipe: Recipe, section: str, **values) -> Recipe:
    """The recipe with other values in one section."""
    return Recipe.model_validate({**recipe.model_dump(), section: {**recipe.model_dump()[section], **values}})


def cache_of(recipe: Recipe) -> Path:
    return Path(recipe.run_dir) / "teacher_cache"


def test_the_cache_holds_the_responses_that_training_reads(recipe):
    cache_stage(Run.of(recipe))
    train_set, eval_set = read_responses(Run.of(recipe))
    for name, dataset in (("train", train_set), ("eval", eval_set)):
        cache = TeacherCache(cache_of(recipe), name)
        cache.require_examples(dataset.examples)
        assert [len(cache.rows(i)["ids" if name == "train" else "hidden"]) for i in range(len(cache))] == [
            example.num_kept for example in dataset.examples
        ]
    manifest = read_manifest(cache_of(recipe))
    assert manifest is not None
    assert (manifest["dtype"], manifest["max_seq_len"], manifest["seed"]) == ("float32", 30, 17)
    assert {"target", "tokenizer", "chat template", "data", "data.max_seq_len"} <= set(manifest["inputs"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # Composer takes Ctrl-C away


def test_a_current_cache_is_skipped_and_a_lost_shard_written_again(recipe, monkeypatch):
    cache_stage(Run.of(recipe))
    with monkeypatch.context() as patch:
        patch.setattr(teacher_cache, "load_target", None)
        cache_stage(Run.of(recipe))
    shard = cache_of(recipe) / "train-00000.safetensors"
    before = shard.read_bytes()
    shard.unlink()
    cache_stage(Run.of(recipe))
    assert shard.read_bytes() == before


def test_a_cache_of_another_teacher_is_refused_by_name(recipe):
    cache_stage(Run.of(recipe))
    other = changed(recipe, "distill", teacher={**TOP_K, "k": 5})
    for step in (cache_stage, require_training_inputs):
        with rejects("teacher_cache", "distill.teacher"):
            step(Run.of(other))
    cache_stage(Run.of(changed(recipe, "distill", precision="amp_bf16")))  # the target is float32 anyway


@pytest.fixture
def own_target(make_run, tiny_target, tmp_path) -> Recipe:
    """A recipe whose target's files may be changed, with its cache."""
    folder = tmp_path / "target"
    shutil.copytree(tiny_target, folder)
    recipe = changed(make_run(teacher=TOP_K), "target", path=str(folder))
    cache_stage(Run.of(recipe))
    return recipe


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("chat_template.jinja", "user", "User", ["chat template", "target"]),
        ("tokenizer.json", '"<|im_end|>": 2', '"<|im_fin|>": 2', ["target", "tokenizer"]),
        ("config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05', ["target"]),
    ],
)
def test_each_part_of_a_target_is_named_when_it_changes(own_target, monkeypatch, file, old, new, named):
    path = Path(own_target.target.path) / file
    text = path.read_text()
    path.write_text(text.replace(old, new) if old in text else f"{text} ")
    monkeypatch.setattr(Artifact, "reject_changed", allow_data(Artifact.reject_changed))
    with rejects("teacher_cache", *named):
        cache_stage(Run.of(own_target))


def allow_data(reject_changed):
    """reject_changed for all artifacts but the responses, which are made from the target too."""
    return lambda artifact, inputs: None if artifact.path.name == "data" else reject_changed(artifact, inputs)


def test_responses_of_another_target_are_refused_first(own_target):
    path = Path(own_target.target.path) / "config.json"
    path.write_text(f"{path.read_text()} ")
    with rejects("data", "target"):
        cache_stage(Run.of(own_target))


def test_a_template_inside_the_tokenizers_settings_counts_as_a_template(tmp_path):
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"bos_token": "a", "chat_template": "one"}')
    one = fingerprint_tokenizer(tmp_path)
    settings.write_text('{"chat_template": "two", "bos_token": "a"}')
    two = fingerprint_tokenizer(tmp_path)
    settings.write_text('{"bos_token": "b", "chat_template": "two"}')
    three = fingerprint_tokenizer(tmp_path)
    assert one["tokenizer"] == two["tokenizer"] != three["tokenizer"]
    assert one["chat template"] != two["chat template"] == three["chat template"]
    (tmp_path / "chat_template.jinja").write_text("one")  # what transformers reads first
    assert fingerprint_tokenizer(tmp_path)["chat template"] == one["chat template"]
    settings.write_text("{")
    with rejects("tokenizer_config.json"):
        fingerprint_tokenizer(tmp_path)


def test_verification_reads_whatever_is_remembered(recipe, monkeypatch):
    """A disk that errs leaves a file's times as they were."""
    cache_stage(Run.of(recipe))
    monkeypatch.setattr(hashes, "REMEMBERED_BYTES", 0)
    monkeypatch.setattr(hashes, "record_file", None)  # nobody may ask
    verify_cache_stage(Run.of(recipe))


@pytest.mark.parametrize(
    ("step", "named"), [(verify_cache_stage, "widedraft cache RECIPE"), (require_training_inputs, "teacher_cache")]
)
def test_verification_and_training_ask_for_a_finished_cache(recipe, step, named):
    with rejects(named):
        step(Run.of(recipe))
    cache_stage(Run.of(recipe))
    step(Run.of(recipe))


@pytest.mark.parametrize("source", ["live", "none"])
def test_without_a_cached_teacher_there_is_nothing_to_cache(make_run, source):
    for command in (cache_stage, verify_cache_stage):
        with rejects("distill.teacher.source", source):
            command(Run.of(make_run(command.__name__, teacher={"source": source})))


@pytest.fixture
def stages_of(monkeypatch):
    """stages_of(recipe) -> each stage that a run of it begins, and the folder of its run."""
    seen = []
    for name in ("prune", "generate", "cache", "distill", "eval", "report"):
        monkeypatch.setattr(pipeline, f"{name}_stage", lambda of, *_, name=name: seen.append((name, of.folder.name)))
    for name in ("check_first", "print_outcome"):
        monkeypatch.setattr(pipeline, name, lambda *_: None)

    def run(recipe):
        seen.clear()
        pipeline.run_all(Run.of(recipe))
        return seen.copy()

    return run


def test_a_run_caches_between_responses_and_training_where_the_recipe_wants_it(recipe, make_run, stages_of):
    whole = ["prune", "generate", "cache", "distill", "eval", "report"]
    assert [name for name, _ in stages_of(recipe)] == whole
    assert [name for name, _ in stages_of(make_run("live"))] == [*whole[:2], *whole[3:]]


def test_a_run_in_stages_caches_behind_its_first_cut(recipe, stages_of):
    """Which says what ids the entries of a cache are of."""
    in_two = changed(recipe, "architecture", layers=None, stages=[3, 2])
    seen, first, own = stages_of(in_two), "stage-3", Path(recipe.run_dir).name
    assert seen[:4] == [("generate", own), ("prune", first), ("cache", own), ("distill", first)]
    assert ("cache", own) in seen[4:]
    assert first_init(Run.of(in_two)).path == Path(recipe.run_dir) / first / "init"
    assert first_init(Run.of(recipe)).path == Path(recipe.run_dir) / "init"


def test_earlier_cuts_of_a_run_share_its_cache(recipe):
    cache_stage(Run.of(recipe))
    earlier = stage_recipe(Run.of(changed(recipe, "architecture", layers=None, stages=[3, 2])), 3, None)
    share_responses(Run.of(recipe), Run.of(earlier))
    cache_stage(Run.of(earlier))  # current: its inputs are the same
    assert cache_of(earlier).is_symlink()
    assert cache_of(earlier).resolve() == cache_of(recipe).resolve()


def test_a_cache_may_be_shared_before_it_is_made(recipe):
    earlier = stage_recipe(Run.of(changed(recipe, "architecture", layers=None, stages=[3, 2])), 3, None)
    share_responses(Run.of(recipe), Run.of(earlier))
    share_responses(Run.of(recipe), Run.of(earlier))  # a run that was interrupted in between
    cache_stage(Run.of(recipe))
    assert read_manifest(cache_of(earlier)) == read_manifest(cache_of(recipe))
