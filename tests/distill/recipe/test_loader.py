"""Mistakes in recipes: all at once, each at its line and key, with the nearest known key."""

import pytest

from distill.recipe.recipe import RecipeError, load_recipe, load_scoring
from tests.distill.recipe_files import BASE
from tests.rejections import holds, rejects


@pytest.mark.parametrize(
    ("line", "key", "named"),
    [
        ("seed: fast", "seed", "valid integer"),
        ("sed: 1", "sed", "mean seed?"),
        ("distill: {lr: 1}", "distill.lr", "distill.optimizer.lr"),
        ("distill: {max_duration: 3 epochs}", "distill.max_duration", "1ep"),
        ("distill: {teacher: {source: cache, k: 3}}", "distill.teacher.k", "got 3"),
        ("distill: {device_train_microbatch_size: car}", "distill.device_train_microbatch_size", "'auto', got 'car'"),
        ("distill: {loggers: {slack: {}}}", "distill.loggers.slack", "'file'"),
        ("distill:", "distill", "got None"),
        ("eval: {num_speculative_tokens: [3, 0]}", "eval.num_speculative_tokens[1]", "got 0"),
        ("eval: {temperatures: [1, 1.0]}", "eval.temperatures", "[1.0, 1.0]"),
        ("variables: {a: '???'}", "variables.a", "must be set"),
        ("variables: {a: '${seeds}'}", "variables.a", "mean ${seed}?"),
        ("variables: {a: '${variables.a}'}", "variables.a", "Recursive interpolation"),
        ("variables: {a: '${oc.env:WIDEDRAFT_UNSET}'}", "variables.a", "WIDEDRAFT_UNSET"),
        ("run_name: again", "run_name", "1 and 5"),
    ],
)
def test_a_mistake_is_reported_at_its_line_and_key(mistakes, line, key, named):
    [found] = mistakes(f"seed: 3\n{BASE}{line}\n" if "${seed" in line else f"{BASE}{line}\n")
    assert found.startswith(f"r.yaml:{6 if '${seed' in line else 5}: {key} ")
    assert named in found


def test_all_mistakes_are_reported_in_the_order_of_lines_and_then_of_words(mistakes):
    text = BASE.replace("demo", "de mo") + "distill:\n  loss: mse\n  optimizer: {lr: -1}\n  evl_interval: 1ep\n"
    found = mistakes(text, "export.dtype=int4", "oops", "data.temperature=-1")
    assert [line.split(" ")[0] for line in found[:4]] == [f"r.yaml:{n}:" for n in (1, 6, 7, 8)]
    assert sorted(line.split(": ")[1] for line in found[4:]) == ["data.temperature=-1", "export.dtype=int4", "oops"]


def test_a_broken_rule_is_reported_where_its_key_stands(mistakes):
    [found] = mistakes(BASE + "distill:\n  packing: true\n  shard_degree: 3\n")
    assert found.startswith("r.yaml:7: distill.shard_degree ")
    [found] = mistakes(BASE, "distill.shard_degree=3")
    assert found.startswith("command line: distill.shard_degree=3: ")


DOMAIN, HERE = "name: a, path: a.txt", "generate.urls=[http://a:8000]"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("text: {max_seq_len: 8}", "text.domains"),
        (f"text: {{domains: [{{{DOMAIN}, dataset: b}}]}}", "text.domains[0].dataset"),
        ("text: {domains: [{name: a}]}", "text.domains[0].dataset"),
        ("text: {domains: [{name: a, path: a.jsonl, split: test}]}", "text.domains[0].split"),
        (f"text: {{domains: [{{{DOMAIN}, field: body}}]}}", "text.domains[0].field"),
        (f"text: {{domains: [{{{DOMAIN}}}, {{name: a, path: b.txt}}]}}", "text.domains"),
        ("text: {domains: [{name: a/b, path: a.txt}]}", "text.domains[0].name"),
        (f"text: {{domains: [{{{DOMAIN}}}], update_interval: 1ep}}", "text.update_interval"),
        ("distill: {loss: jsd}", "distill.loss"),
        ("distill: {loss: [{name: forward_kl, beta: 0.5}]}", "distill.loss[0].beta"),
        ("distill: {loss: [{name: jensen_shannon, beta: 1.0}]}", "distill.loss[0].beta"),
        ("distill: {loss: [{name: jsd}]}", "distill.loss[0].name"),
    ],
)
def test_a_mistake_within_a_section_is_reported_at_its_key(mistakes, line, key):
    [found] = mistakes(f"{BASE}{line}\n")
    assert found.startswith(f"r.yaml:5: {key} ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["generate.engine=endpoint"], "generate.urls"),
        (["generate.engine=vllm"], "generate.python"),
        ([HERE], "generate.urls"),
        (["generate.engine=endpoint", HERE, "generate.tensor_parallel=2"], "generate.tensor_parallel"),
        (["generate.engine=vllm", "generate.python=p", "generate.model=t"], "generate.model"),
        (["generate.engine=endpoint", "generate.urls=[localhost:8000]"], "generate.urls"),
        (["generate.engine=endpoint", "generate.urls=[http://key@a:8000]"], "OPENAI_API_KEY"),
        (["target.placement=spread", "distill.teacher.source=live"], "distill.teacher.source cache none"),
        (["target.bits=3"], "target.bits 8 4 3"),
        (["target.bits=4", "target.placement=layers"], "bits 4 placement layers"),
        (["target.device_memory_gib=4"], "device_memory_gib 4 placement whole"),
    ],
)
def test_values_that_do_not_go_together_are_named(mistakes, words, named):
    [found] = mistakes(BASE, *words)
    assert all(holds(found, each) for each in named.split())


def test_addresses_of_servers_are_read_without_their_paths(tmp_path):
    (tmp_path / "r.yaml").write_text(BASE)
    words = ("generate.engine=endpoint", "generate.urls=[http://a:1/v1/,https://b]")
    assert load_recipe(tmp_path / "r.yaml", words).generate.urls == ("http://a:1", "https://b")
    assert load_scoring(words).generate.urls == ("http://a:1", "https://b")


def test_a_temperature_is_read_if_one_loss_reads_it(tmp_path):
    (tmp_path / "r.yaml").write_text(BASE)
    both = "distill.loss=[{name: cross_entropy}, {name: forward_kl}]"
    assert load_recipe(tmp_path / "r.yaml", [both, "distill.temperature=2.0"]).distill.temperature == 2.0


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b\n",
        "hello\n",
        BASE + "eval:\n\tdtype: float32\n",
        BASE + "seed: !!python/object:os.system 3\n",
        "a: &a [*a]\n",
        f"a: {'[' * 3000}{']' * 3000}\n",
        "a: &a [1, 2, 3, 4, 5, 6, 7, 8]\n" + "".join(f"b{n}: &b{n} [{', '.join(['*a'] * 8)}]\n" for n in range(70)),
    ],
)
def test_what_is_no_recipe_is_one_mistake(mistakes, text):
    [found] = mistakes(text)
    assert found.startswith("r.yaml:")


def test_required_keys_are_named(mistakes):
    assert [line.split(" ")[1] for line in mistakes("")] == ["architecture", "data", "run_name", "target"]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"run_name: caf\xe9\n")
    for name in ("absent.yaml", ".", "latin.yaml"):
        with pytest.raises(RecipeError) as raised:
            load_recipe(tmp_path / name)
        assert str(raised.value).startswith(f"{tmp_path / name}: ")


def test_scoring_without_a_recipe_takes_words_alone():
    scoring = load_scoring(["eval.num_prompts=3", "seed=1"])
    assert (scoring.eval.num_prompts, scoring.eval.batch_size, scoring.seed) == (3, 32, 1)
    with rejects("data.top_p=1", "data", error=RecipeError):
        load_scoring(["data.top_p=1"])


def test_a_key_twice_on_the_command_line_is_a_mistake(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(BASE)
    with rejects("seed=1", "seed=2", error=RecipeError):
        load_recipe(path, ["seed=1", "seed=2"])
