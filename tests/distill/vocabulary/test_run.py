"""A small vocabulary in a recipe and through the stages of a run: which ids, of what, made again when, or refused."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from architectures.hub import read_config
from architectures.manifest import changed_inputs, read_manifest, write_manifest
from architectures.pruning.plan import PLAN_NAME, PruningPlan, plan_pruning
from architectures.shapes import Shape
from architectures.vocabulary import DRAFT_VOCABULARY_NAME, TOKENIZER, DraftVocabulary, read_draft_vocabulary
from architectures.vocabulary_head import head_ids
from distill import pipeline as stages
from distill.check import planned_shapes, tokenizer_folder
from distill.debug import begin_debug
from distill.draft_vocabulary import id_counts_in_text, tokens_in
from distill.pipeline import prune_stage, run_all
from distill.recipe.recipe import Recipe, load_recipe
from distill.run import Run, earlier_stages, share_responses
from distill.stage_inputs import mask_inputs, prune_inputs
from eval.models import load_model, load_tokenizer
from tests.distill.debug.test_recipe import make, shrink
from tests.rejections import rejects

ALWAYS = set(range(259))
COUNTED = {"size": 261, "from": "responses"}
FIRST_LAST = {"method": "first_last", "layers": 2}
MASKS = {"method": "learned_masks", "layers": 2}
TEXT = {"domains": [{"name": "a", "path": "a.txt"}]}
CALIBRATION = {"tokens": 64}


def init_of(recipe) -> Path:
    return Path(recipe.run_dir) / "init"


def ids_of(recipe) -> set[int]:
    """The ids of <run>/init beyond those that are always kept."""
    return set(read_draft_vocabulary(init_of(recipe)).ids) - ALWAYS


@pytest.fixture
def list_of(tmp_path):
    """list_of(ids) -> `from` of a file that lists them."""

    def write(ids, name="ids.json") -> dict:
        (tmp_path / name).write_text(json.dumps(list(ids)))
        return {"from": str(tmp_path / name)}

    return write


@pytest.mark.parametrize(
    ("size", "words"), [(259, set()), (260, {280}), (261, {280, 270}), (263, {280, 270, 260, 259})]
)
def test_ids_are_counted_in_training_responses_alone(answered, size, words):
    """Not in prompts, which say 298, nor in held-out responses, which say 290; unsaid ids are taken from 259 on."""
    recipe = answered({"size": size, "from": "responses"})
    prune_stage(Run.of(recipe))
    assert ids_of(recipe) == words
    assert len(read_draft_vocabulary(init_of(recipe)).ids) == size
    assert Shape.from_config(read_config(init_of(recipe))) == planned_shapes(recipe).draft


def test_the_draft_says_where_its_ids_come_from(answered):
    recipe = answered()
    prune_stage(Run.of(recipe))
    found = read_draft_vocabulary(init_of(recipe))
    assert set(found.unused_ids) == set(found.ids) - {2, 280, 270}
    assert {**found.origin, "never_said": []} == {
        "from": "responses",
        "tokens": 8,
        "coverage": {"counted": {"a.jsonl": 1.0, "gsm8k/1": 0.5}, "held out": {"a.jsonl": 0.25}},
        "never_said": [],
    }


def test_a_cut_that_counts_responses_waits_for_them(make_recipe, answered):
    recipe = make_recipe(COUNTED)
    with rejects("data"):
        prune_stage(Run.of(recipe))
    answered(data={**recipe.data.model_dump(mode="json"), "temperature": 0.5})
    with rejects("data"):
        prune_stage(Run.of(recipe))


@pytest.mark.parametrize(
    ("vocabulary", "order"),
    [(COUNTED, ["generate", "prune"]), (None, ["prune", "generate"]), ("list", ["prune", "generate"])],
)
def test_a_run_writes_responses_before_it_cuts_by_them(make_recipe, list_of, monkeypatch, tmp_path, vocabulary, order):
    recipe = make_recipe(list_of(range(260)) if vocabulary == "list" else vocabulary)
    done = []
    for name in ("prune", "generate", "eval", "report"):
        monkeypatch.setattr(stages, f"{name}_stage", lambda _, name=name: done.append(name))
    monkeypatch.setattr(stages, "distill_stage", lambda *_, **__: done.append("distill"))
    monkeypatch.setattr(stages, "print_outcome", lambda _: None)
    run_all(Run.of(recipe))
    assert done == [*order, "distill", "eval", "report"]


def test_a_cut_is_current_until_what_its_ids_come_from_changes(answered, list_of, tmp_path, wordy_target):
    recipe = answered()
    prune_stage(Run.of(recipe))
    manifest = read_manifest(init_of(recipe)) or {}
    assert changed_inputs(manifest, prune_inputs(Run.of(recipe))) == []

    def named(vocabulary, **sections) -> list[str]:
        return changed_inputs(manifest, prune_inputs(Run.of(answered(vocabulary, **sections))))

    assert named({"size": 262}) == ["architecture.vocabulary"]
    assert named(None) == ["architecture.vocabulary"]
    assert named(list_of(range(261))) == ["architecture.vocabulary"]
    listed = prune_inputs(Run.of(answered(list_of(range(260)))))
    assert prune_inputs(Run.of(answered(list_of(range(260), "other.json")))) == listed
    assert prune_inputs(Run.of(answered(list_of(range(261))))) != listed
    text = {"domains": [{"name": "a", "path": str(tmp_path / "prompts.jsonl"), "field": "prompt"}]}
    assert named({"size": 261, "from": "text"}, text=text) == ["architecture.vocabulary"]
    shutil.rmtree(tmp_path / "run" / "data")
    assert named(COUNTED, seed=18) == ["architecture.vocabulary"]  # other responses


def test_a_list_is_what_the_draft_says(make_recipe, list_of):
    recipe = make_recipe({**list_of([298, 2, 7, 260, 1]), "size": 4})
    prune_stage(Run.of(recipe))
    found = read_draft_vocabulary(init_of(recipe))
    assert (found.ids, found.origin) == ((2, 7, 260, 298), {"from": str(recipe.architecture.vocabulary.origin)})
    model = load_model(init_of(recipe), dtype="float32", device="cpu")
    assert model(torch.tensor([[3, 299]])).logits.shape == (1, 2, 4)


def test_masks_do_not_see_the_vocabulary_and_are_cut_by_it(answered, wordy_target):
    recipe, plain = answered(architecture=MASKS, text=TEXT), answered(None, architecture=MASKS, text=TEXT)
    inputs = mask_inputs(Run.of(recipe))
    assert inputs == mask_inputs(Run.of(plain))
    masks = Path(shutil.copytree(wordy_target, Path(recipe.run_dir) / "masks"))
    shape = Shape.from_config(read_config(wordy_target))
    fingerprint = prune_inputs(Run.of(answered(None)))["target"]
    plan = PruningPlan(
        source_layers=(1, 2), source=shape, draft=replace(shape, layers=2), method="learned_masks", target=fingerprint
    )
    (masks / PLAN_NAME).write_text(plan.to_json())
    write_manifest(masks, stage="masks", inputs=inputs)

    prune_stage(Run.of(recipe))
    assert ids_of(recipe) == {280, 270}
    manifest = read_manifest(init_of(recipe)) or {}
    assert manifest["inputs"].keys() == {"masks", "target.dtype", "architecture.vocabulary"}
    assert changed_inputs(manifest, prune_inputs(Run.of(plain))) == ["architecture.vocabulary"]


def as_draft(recipe) -> Path:
    """<run>/init as if it had been trained."""
    draft = Path(shutil.copytree(init_of(recipe), Path(recipe.run_dir) / "draft"))
    write_manifest(draft, stage="export", inputs={}, finished=True)
    return draft


def test_the_first_stage_cuts_the_head_and_later_ones_keep_it(answered):
    recipe = answered(architecture={"method": "block_influence", "stages": [3, 2], "calibration": CALIBRATION})
    (first,) = earlier_stages(Run.of(recipe))
    share_responses(Run.of(recipe), first)
    prune_stage(first)
    as_draft(first.recipe)
    prune_stage(Run.of(recipe))
    assert ids_of(first.recipe) == ids_of(recipe) == {280, 270}
    plans = [json.loads((init_of(one) / PLAN_NAME).read_text()) for one in (first.recipe, recipe)]
    assert [plan["vocabulary"] is None for plan in plans] == [False, True]
    assert Shape.from_config(read_config(init_of(recipe))) == planned_shapes(recipe).draft


@pytest.fixture
def small_source(make_recipe, list_of, tmp_path):
    """A draft whose head says 0 to 269."""
    recipe = make_recipe(list_of(range(270)), {**FIRST_LAST, "layers": 3}).model_copy(
        update={"run_dir": str(tmp_path / "source")}
    )
    prune_stage(Run.of(recipe))
    return init_of(recipe)


def test_a_source_with_a_small_head_keeps_its_ids(make_recipe, list_of, small_source):
    for wanted in (None, list_of(reversed(range(270))), {"from": str(small_source)}):
        recipe = make_recipe(wanted, {**FIRST_LAST, "source": str(small_source)})
        prune_stage(Run.of(recipe))
        assert read_draft_vocabulary(init_of(recipe)).ids == tuple(range(270))
        assert Shape.from_config(read_config(init_of(recipe))) == planned_shapes(recipe).draft
        shutil.rmtree(recipe.run_dir)


def test_a_source_with_a_small_head_says_no_other_ids(make_recipe, list_of, small_source):
    recipe = make_recipe(list_of([*range(269), 280]), {**FIRST_LAST, "source": str(small_source)})
    with rejects("architecture.vocabulary", 270, 1):
        prune_stage(Run.of(recipe))
    fewer = make_recipe(list_of(range(260)), {**FIRST_LAST, "source": str(small_source)})
    with rejects(260, 0):
        prune_stage(Run.of(fewer))
    with rejects(260):
        planned_shapes(fewer)


def test_a_source_with_a_whole_head_and_other_padding(answered, wordy_source):
    recipe = answered(architecture={**FIRST_LAST, "source": str(wordy_source)})
    prune_stage(Run.of(recipe))
    assert ids_of(recipe) == {280, 270}
    assert read_draft_vocabulary(init_of(recipe)).vocab_size == 320


@pytest.fixture
def plan_file(make_recipe, list_of, tmp_path) -> str:
    """The plan.json of a draft that says 0 to 269."""
    recipe = make_recipe(list_of(range(270))).model_copy(update={"run_dir": str(tmp_path / "planned")})
    prune_stage(Run.of(recipe))
    return str(init_of(recipe) / PLAN_NAME)


def test_a_plan_with_a_vocabulary_is_taken_as_it_is(make_recipe, list_of, plan_file):
    for wanted, origin in ((None, plan_file), (list_of(range(270)), list_of(range(270))["from"])):
        recipe = make_recipe(wanted, {"plan": plan_file})
        prune_stage(Run.of(recipe))
        found = read_draft_vocabulary(init_of(recipe))
        assert found == DraftVocabulary(ids=tuple(range(270)), vocab_size=320, origin={"from": origin})
        assert Shape.from_config(read_config(init_of(recipe))) == planned_shapes(recipe).draft
        shutil.rmtree(recipe.run_dir)
    with rejects("plan.json", 270, 1):
        prune_stage(Run.of(make_recipe(list_of([*range(269), 280]), {"plan": plan_file})))


def test_a_plan_without_a_vocabulary_takes_the_recipes(answered, make_recipe, tmp_path):
    whole = make_recipe(None).model_copy(update={"run_dir": str(tmp_path / "whole")})
    prune_stage(Run.of(whole))
    assert not (init_of(whole) / DRAFT_VOCABULARY_NAME).exists()
    recipe = answered(architecture={"plan": str(init_of(whole) / PLAN_NAME)})
    prune_stage(Run.of(recipe))
    assert ids_of(recipe) == {280, 270}


def test_sizes_count_the_small_head(make_recipe):
    whole, small = (planned_shapes(make_recipe(vocabulary)).draft for vocabulary in (None, COUNTED))
    assert small.parameters() == whole.parameters() + 261 * whole.hidden  # the target's head is its embedding


def test_the_tokenizer_of_a_gguf_file_is_where_it_was_imported(make_recipe, wordy_target, tmp_path):
    recipe = make_recipe(COUNTED)
    gguf = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(tmp_path / "m.gguf")})})
    assert tokenizer_folder(Run.of(gguf)) is None
    shutil.copytree(wordy_target, tmp_path / "run" / "target")
    assert tokenizer_folder(Run.of(gguf)) == tmp_path / "run" / "target"
    assert tokenizer_folder(Run.of(recipe)) == wordy_target


RECIPE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, vocabulary: VOCABULARY}
data: {self_written_prompts: 100}
"""


@pytest.mark.parametrize(
    ("vocabulary", "key"),
    [("{}", ""), ("{from: text}", ""), ("{from: ''}", ".from"), ("{size: 9, origin: text}", ".origin")],
)
def test_what_makes_no_sense_is_reported_at_its_key(mistakes, vocabulary, key):
    [line] = mistakes(RECIPE.replace("VOCABULARY", vocabulary))
    assert line.startswith(f"r.yaml:3: architecture.vocabulary{key} ")


def shrunk(architecture: dict) -> Recipe:
    return shrink(make({"layers": 5, **architecture}))


@pytest.mark.parametrize(("size", "tiny"), [(None, None), (2, 259)])
def test_a_debug_run_has_a_list_of_its_own(tmp_path, size, tiny):
    (tmp_path / "private.json").write_text("[2, 5, 9]")
    small = shrunk({"vocabulary": {"size": size, "from": str(tmp_path / "private.json")}})
    wanted = small.architecture.vocabulary
    assert (wanted.size, wanted.origin) == (tiny, "runs/real-debug/ids.json")
    assert "private" not in json.dumps(small.model_dump(mode="json"))


def test_what_a_plan_makes_small_stays_small(tmp_path):
    whole = make({"layers": 16, "method": "first_last"})
    plan = plan_pruning(planned_shapes(whole).source, whole.architecture, seed=0)
    for name, each in (("small", plan.with_vocabulary(tuple(range(99)))), ("whole", plan)):
        (tmp_path / f"{name}.json").write_text(each.to_json())
    small = shrunk({"layers": None, "plan": str(tmp_path / "small.json")}).architecture.vocabulary
    assert small is not None
    assert small.origin == "runs/real-debug/ids.json"
    assert shrunk({"layers": None, "plan": str(tmp_path / "whole.json")}).architecture.vocabulary is None


@pytest.fixture
def debug(tmp_path, monkeypatch, tiny_target):
    """debug(architecture, ...) -> the recipe of its debug run, with all it reads."""
    monkeypatch.chdir(tmp_path)

    def make(architecture: dict, **sections) -> Recipe:
        recipe = {
            "run_name": "demo",
            "target": {"path": str(tiny_target)},
            "architecture": {"method": "first_last", "layers": 2, **architecture},
            "data": {"self_written_prompts": 9},
            **sections,
        }
        Path("demo.yaml").write_text(json.dumps(recipe))
        return load_recipe(begin_debug(Path("demo.yaml"), []))

    return make


@pytest.mark.parametrize("named", ["list", "text"])
def test_a_debug_run_cuts_a_small_head(debug, tmp_path, named):
    (tmp_path / "ids.json").write_text("[2, 5, 9]")
    text = {"domains": [{"name": "wiki", "dataset": "owner/wiki"}]} if named == "text" else None
    wanted = {"size": 260, "from": "text"} if named == "text" else {"from": "ids.json"}
    recipe = debug({"vocabulary": wanted}, text=text)
    prune_stage(Run.of(recipe))
    init = Path(recipe.run_dir) / "init"
    assert read_draft_vocabulary(init).ids == tuple(range(259))
    assert Shape.from_config(read_config(init)) == planned_shapes(recipe).draft
    assert planned_shapes(recipe).draft.head_vocab < planned_shapes(recipe).target.vocab


def test_a_source_with_a_small_head_becomes_a_tiny_one_with_a_small_head(debug, tmp_path):
    (tmp_path / "ids.json").write_text("[2, 5, 9]")
    first = debug({"layers": 3, "vocabulary": {"from": "ids.json"}})
    prune_stage(Run.of(first))
    source = {"source": str(Path(first.run_dir) / "init")}
    for wanted in (None, {"from": str(Path(first.run_dir) / "init")}):
        again = debug({**source, "vocabulary": wanted}, run_name="again")
        tiny = Path(again.run_dir) / "tiny-source"
        assert len(head_ids(load_model(tiny, dtype="float32", device="cpu"))) == 259
        prune_stage(Run.of(again))
        assert read_draft_vocabulary(Path(again.run_dir) / "init").ids == tuple(range(259))


LENGTH, HELD_OUT = 8, 2


@pytest.fixture
def on_text(make_recipe, tmp_path):
    """on_text({domain: (text, weight)}, size) -> a recipe that counts them."""

    def make(domains, size=262):
        for name, (text, _) in domains.items():
            (tmp_path / f"{name}.txt").write_text(text)
        named = [
            {"name": name, "path": str(tmp_path / f"{name}.txt"), "weight": weight}
            for name, (_, weight) in domains.items()
        ]
        text = {"domains": named, "max_seq_len": LENGTH, "num_eval_sequences": HELD_OUT}
        return make_recipe({"size": size, "from": "text"}, text=text)

    return make


def words(number: int, count: int) -> str:
    return f"word{number:02}" * count


def counted(recipe, target):
    return id_counts_in_text(recipe.text, target, seed=recipe.seed)


def test_a_text_is_counted_once_without_what_is_held_out(on_text, wordy_target):
    whole = words(3, 16) + words(5, 40) + words(7, 20) + words(9, 3)
    counts = counted(on_text({"a": (whole, 1.0)}), wordy_target)
    ids = load_tokenizer(wordy_target)(f"{whole}\n", add_special_tokens=False)["input_ids"]
    assert len(ids) == 80
    read = Counter(ids[HELD_OUT * LENGTH :])
    # the sequence that begins the text again is counted before it is seen that all was read once
    more = counts["a"] - read
    assert not read - counts["a"]
    assert more.total() == LENGTH
    assert 262 not in counts["a"]  # word03 is held out


def test_the_ids_of_a_draft_are_those_the_text_says(on_text):
    recipe = on_text({"a": (words(3, 16) + words(30, 40) + words(20, 24), 1.0)}, size=262)
    prune_stage(Run.of(recipe))
    found = read_draft_vocabulary(Path(recipe.run_dir) / "init")
    assert set(found.ids) - set(range(259)) == {289, 279, 259}  # words 30 and 20, and the lowest of those unsaid
    assert found.origin["from"] == "text"
    assert found.origin["tokens"] > 60
    assert found.origin["coverage"] == {"counted": {"a": 1.0}}


@pytest.fixture
def older_files(wordy_target, tmp_path):
    """A folder with vocab.json and merges.txt, as GPT-2 came, and the same with the tokenizer.json made of them."""
    from transformers import AutoTokenizer

    older = tmp_path / "older"
    older.mkdir()
    vocabulary = json.loads((wordy_target / TOKENIZER).read_text())["model"]["vocab"]
    (older / "vocab.json").write_text(json.dumps(vocabulary))
    (older / "merges.txt").write_text("#version: 0.2\n")
    named = {"unk_token": "<|im_end|>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (older / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **named}))
    shutil.copyfile(wordy_target / "config.json", older / "config.json")
    today = tmp_path / "today"
    AutoTokenizer.from_pretrained(older).save_pretrained(today)
    shutil.copyfile(wordy_target / "config.json", today / "config.json")
    return older, today


def test_tokens_are_the_same_in_whatever_files_they_are(older_files):
    older, today = older_files
    assert not (older / TOKENIZER).exists()
    assert (today / TOKENIZER).is_file()
    found = tokens_in(older, 320)
    assert found == tokens_in(today, 320)
    assert (len(found.ids), len(found.single_bytes)) == (259, 256)


def test_a_tokenizer_that_no_such_file_can_hold_is_refused(older_files, monkeypatch):
    monkeypatch.setattr("eval.models.load_tokenizer", lambda _: object())
    with rejects("older"):
        tokens_in(older_files[0], 320)
    assert tokens_in(older_files[1], 320).ends == {2}
