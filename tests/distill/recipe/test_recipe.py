"""Recipes: the laws of overrides, interpolation, times, saving, the schema and the page of keys."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from composer.core.time import Time
from omegaconf import OmegaConf

from architectures.requested_shape import ArchitectureConfig, TargetConfig
from architectures.settings import schema_of
from distill.recipe.recipe import Recipe, RecipeError, load_recipe, save_recipe
from distill.recipe.reference import REFERENCE_PATH, SCHEMA_PATH, recipe_schema, schemas, write_reference
from distill.recipe.sections import DataConfig, split_time
from distill.run import Run, recipe_hash, target_record
from distill.stage_inputs import configured_inputs
from tests.distill.recipe_files import BASE
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write r.yaml into the working folder and return its name."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str) -> str:
        Path("r.yaml").write_text(text, encoding="utf-8")
        return "r.yaml"

    return write_text


def test_a_mistake_the_command_line_replaces_is_none(write):
    recipe = load_recipe(write(BASE + "distill: {optimizer: {lr: fast}}\n"), ["distill.optimizer.lr=2e-4"])
    assert recipe.distill.optimizer.lr == 2e-4


def test_command_line_beats_file_beats_default(write):
    name = write(BASE + "distill: {optimizer: {lr: 3e-4, weight_decay: 0.1}}\n")
    optimizer = load_recipe(name, ["distill.optimizer.lr=5e-4"]).distill.optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (5e-4, 0.1)


def test_a_word_replaces_a_whole_section_or_adds_to_it(write):
    name = write(BASE + "distill: {loggers: {file: {filename: log.txt}}}\n")
    assert load_recipe(name, ["distill.loggers={tensorboard: {}}"]).distill.loggers == {"tensorboard": {}}
    added = load_recipe(name, ["distill.loggers.tensorboard={}"]).distill.loggers
    assert added == {"file": {"filename": "log.txt"}, "tensorboard": {}}


def test_words_reach_into_lists(write):
    name = write(BASE.replace("{self_written_prompts: 100}", "{prompts: [{path: a}, {path: b}]}"))
    assert [source.path for source in load_recipe(name, ["data.prompts[1].path=c"]).data.prompts] == ["a", "c"]


def test_interpolation_sees_file_command_line_and_defaults(write):
    text = BASE + (
        "variables: {folder: /scratch, clip: {t_warmup: 7ba}}\nrun_dir: ${variables.folder}/${run_name}\n"
        "seed: ${data.batch_size}\ndistill: {scheduler: '${variables.clip}'}\n"
    )
    recipe = load_recipe(write(text), ["variables.folder=/fast", "eval.num_prompts=${seed}"])
    assert (recipe.run_dir, recipe.seed, recipe.eval.num_prompts) == ("/fast/demo", 48, 48)
    assert recipe.distill.scheduler.t_warmup == "7ba"


GOOD_TIMES = {
    "max_duration": ["1ep", "200ba", "1000sp", "1_000_000tok", "3e4tok"],
    "eval_interval": ["1ep", "200ba", "1000sp", "1_000tok", "0.25dur", ".5dur", "1dur", "1.0dur"],
    "save_interval": ["0.25dur", "7ba"],
    "scheduler.t_warmup": ["0ba", "0dur"],
}


@pytest.mark.parametrize(("key", "time"), [(key, time) for key, times in GOOD_TIMES.items() for time in times])
def test_accepted_times_mean_to_composer_what_they_mean_to_us(write, key, time):
    load_recipe(write(BASE), [f"distill.{key}={time}"])
    theirs = Time.from_timestring(time)
    assert split_time(time) == (theirs.value, theirs.unit.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads_saves_and_loads_back_equal(path, tmp_path):
    recipe = load_recipe(path)
    save_recipe(recipe, tmp_path / "resolved.yaml")
    assert load_recipe(tmp_path / "resolved.yaml") == recipe
    assert recipe.run_name == path.stem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_fits_the_schema_and_names_it(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    jsonschema.validate(OmegaConf.to_container(OmegaConf.create(text)), recipe_schema())


def test_every_default_is_written_out(write, tmp_path):
    save_recipe(load_recipe(write(BASE)), tmp_path / "resolved.yaml")
    written = yaml.safe_load((tmp_path / "resolved.yaml").read_text(encoding="utf-8"))
    assert written["distill"]["optimizer"]["weight_decay"] == 0.0
    assert written["eval"]["num_prompts"] == 64
    jsonschema.validate(written, recipe_schema())


@pytest.mark.parametrize(
    "text",
    ["1e-3", "yes", "null", "${run_name}", "\\${a", "\\\\${seed}\\", "#", " a: b", "é\n", "", "2020-01-01", "1:30"],
)
def test_any_text_saves_and_loads_back_equal(text, tmp_path):
    recipe = Recipe(
        run_name="x",
        variables={"a": text, "b": [text, {"c": text}]},
        target=TargetConfig(path="t"),
        architecture=ArchitectureConfig(layers=1),
        data=DataConfig(self_written_prompts=1),
    )
    save_recipe(recipe, tmp_path / "resolved.yaml")
    assert load_recipe(tmp_path / "resolved.yaml") == recipe


def test_schema_files_are_in_step():
    for name, schema in schemas().items():
        written = json.loads(SCHEMA_PATH.with_name(name).read_text(encoding="utf-8"))
        assert written == schema, f"{name}: run `python -m distill.recipe.reference`"
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_schema_is_one_and_refuses_what_recipes_refuse(write):
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
    good = yaml.safe_load(BASE)
    assert validator.is_valid(good)
    for key, value in [
        ("seed", "x"),
        ("export", {"dtype": "fp16"}),
        ("distill", {"teacher": {"source": "disk"}}),
        ("distill", {"loss": [{"name": "jensen_shannon", "beta": 1.5}]}),
    ]:
        assert not validator.is_valid({**good, key: value}), (key, value)
    for key, value in [
        ("seed", "${variables.x}"),
        ("distill", {"max_duration": "${b}"}),
        ("distill", {"teacher": {"source": "cache", "contents": "top_k", "k": 3}}),
        ("distill", {"loss": [{"name": "jensen_shannon", "beta": 0.5}, {"name": "${a}", "weight": "${b}"}]}),
    ]:
        assert validator.is_valid({**good, key: value}), (key, value)


def test_the_page_of_keys_is_in_step(tmp_path):
    page = tmp_path / "recipes.md"
    page.write_text(REFERENCE_PATH.read_text(encoding="utf-8"), encoding="utf-8")
    write_reference(schema_of(Recipe), page)
    assert page.read_text(encoding="utf-8") == REFERENCE_PATH.read_text(encoding="utf-8"), (
        "run `python -m distill.recipe.reference`"
    )


FROM_ENVIRONMENT = BASE + (
    "variables: {key: '${oc.env:WIDEDRAFT_TEST_KEY}', size: '${oc.env:WIDEDRAFT_TEST_SIZE,48}'}\n"
    "seed: ${oc.decode:${oc.env:WIDEDRAFT_TEST_SIZE,48}}\n"
    "distill:\n  loggers:\n    wandb:\n"
    "      init_kwargs: {api_key: '${variables.key}', entity: 'me-${oc.env:WIDEDRAFT_TEST_KEY}'}\n"
)


def test_what_the_environment_holds_is_named_in_a_saved_recipe_and_not_copied(write, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDEDRAFT_TEST_KEY", "sk-123")
    recipe, saved = load_recipe(write(FROM_ENVIRONMENT)), tmp_path / "saved.yaml"
    assert recipe.distill.loggers["wandb"]["init_kwargs"] == {"api_key": "sk-123", "entity": "me-sk-123"}
    assert recipe.seed == 48
    save_recipe(recipe, saved)
    assert "sk-123" not in saved.read_text()
    again = load_recipe(saved)
    assert again == recipe
    save_recipe(again, tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == saved.read_text()
    assert recipe_hash(again) == recipe_hash(recipe)


def test_another_value_in_the_environment_is_another_recipe(write, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDEDRAFT_TEST_KEY", "one")
    recipe = load_recipe(write(FROM_ENVIRONMENT))
    save_recipe(recipe, tmp_path / "saved.yaml")
    monkeypatch.setenv("WIDEDRAFT_TEST_KEY", "two")
    again = load_recipe(tmp_path / "saved.yaml")
    assert again.variables["key"] == "two"
    assert recipe_hash(again) != recipe_hash(recipe)
    monkeypatch.delenv("WIDEDRAFT_TEST_KEY")
    with rejects("WIDEDRAFT_TEST_KEY", error=RecipeError):
        load_recipe(tmp_path / "saved.yaml")


def test_a_value_that_was_changed_since_is_saved_as_it_is(write, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDEDRAFT_TEST_KEY", "/scratch")
    recipe = load_recipe(write(BASE + "run_dir: '${oc.env:WIDEDRAFT_TEST_KEY}/run'\n"))
    save_recipe(recipe.model_copy(update={"run_dir": "/scratch/run-debug"}), tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml").run_dir == "/scratch/run-debug"
    save_recipe(recipe.model_copy(update={"seed": 3}), tmp_path / "saved.yaml")
    assert "run_dir: ${oc.env:WIDEDRAFT_TEST_KEY}/run" in (tmp_path / "saved.yaml").read_text()


def test_a_word_of_the_command_line_may_name_the_environment(write, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDEDRAFT_TEST_KEY", "sk-123")
    word = "distill.loggers={wandb: {init_kwargs: {api_key: '${oc.env:WIDEDRAFT_TEST_KEY}'}}}"
    recipe = load_recipe(write(BASE), [word])
    assert recipe.distill.loggers == {"wandb": {"init_kwargs": {"api_key": "sk-123"}}}
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert "sk-123" not in (tmp_path / "saved.yaml").read_text()


RECIPE = """
run_name: held
target: {{path: {target}}}
architecture: {{layers: 2, method: evenly_spaced}}
data: {{prompts: [{{path: {target}/config.json}}]}}
distill: {{teacher: {{source: cache}}}}
"""


@pytest.fixture
def recipe_with(tiny_target, tmp_path):
    def load(*words) -> Recipe:
        file = tmp_path / "recipe.yaml"
        file.write_text(RECIPE.format(target=tiny_target))
        return load_recipe(file, [f"run_dir={tmp_path / 'run'}", *words])

    return load


def test_where_the_weights_are_moves_no_fingerprint_and_bits_do(recipe_with):
    plain, layers, packed = recipe_with(), recipe_with("target.placement=layers"), recipe_with("target.bits=4")
    assert recipe_hash(plain) == recipe_hash(layers) != recipe_hash(packed)
    assert configured_inputs(plain) == configured_inputs(layers)
    assert configured_inputs(packed) == {**configured_inputs(plain), "target.bits": 4}
    assert target_record(layers.target) == target_record(plain.target)
    assert target_record(packed.target)["bits"] == 4


def test_a_cap_that_holds_no_layer_is_refused_before_a_stage_begins(recipe_with):
    run = Run.of(recipe_with("target.placement=layers", "target.device_memory_gib=0.00001"))
    with rejects("device_memory_gib", 1e-05):
        run.begin()
