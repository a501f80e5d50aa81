"""Recipes that would hang, exhaust memory or end in a traceback: each is refused with one message, in seconds."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from distill.recipe.recipe import RecipeError, load_recipe

ROOT = Path(__file__).parents[3]
MOST_S = 5.0  # processor time of one recipe; the slowest below takes 1.3
MOST_BYTES = 2 << 30
BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 100}
"""


def doubling(first: str, count: int = 40) -> str:
    lines = [f"  a{i}: ${{variables.a{i - 1}}}${{variables.a{i - 1}}}\n" for i in range(1, count)]
    return f"variables:\n  a0: {first}\n" + "".join(lines)


def laughs(count: int = 10) -> str:
    lines = [f"  a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, count)]
    return "variables:\n  a0: &a0 [x]\n" + "".join(lines)


HOSTILE = {
    "aliases of aliases": (laughs(), "more than 4,000 values"),
    "texts doubled 40 times": (doubling("x"), "would make too much of them"),
    "nothing doubled 40 times": (doubling("''"), "would make too much of them"),
    "sections doubled": (
        "variables:\n  a0: {x: 1}\n"
        + "".join(f"  a{i}: {{x: '${{variables.a{i - 1}}}', y: '${{variables.a{i - 1}}}'}}\n" for i in range(1, 30)),
        "would make too much of them",
    ),
    "doubled behind relative keys": (
        "variables:\n  a0: x\n" + "".join(f"  a{i}: ${{.a{i - 1}}}${{.a{i - 1}}}\n" for i in range(1, 40)),
        "would make too much of them",
    ),
    "doubled by a function": (
        "variables:\n  a0: x\n"
        + "".join(
            f'  a{i}: "${{oc.select:variables.a{i - 1}}}${{oc.select:variables.a{i - 1}}}"\n' for i in range(1, 40)
        ),
        "must fill in ${key}",
    ),
    "doubled behind a computed key": (
        "variables:\n  k: variables\n  a0: x\n"
        + "".join(f"  a{i}: ${{${{variables.k}}.a{i - 1}}}${{${{variables.k}}.a{i - 1}}}\n" for i in range(1, 40)),
        "must fill in ${key}",
    ),
    "doubled by decoding": (
        "variables: {d: $, a0: x, t: '${variables.d}{variables.a0}', b: '${oc.decode:${variables.t}}'}\n",
        "must fill in ${key}",
    ),
    "a chain of 3,000 keys": (
        "variables:\n  a0: x\n" + "".join(f"  a{i}: ${{variables.a{i - 1}}}\n" for i in range(1, 3000)),
        "would make too much of them",
    ),
    "300 keys that are not there": (
        "variables:\n" + "".join(f"  k{i}: ${{variables.z{i}}}\n" for i in range(300)),
        "There are more mistakes than these.",
    ),
    "3,900 unknown keys": (
        "".join(f"distil{i}: 1\n" for i in range(3900)),
        "There are more mistakes than these.",
    ),
    "lists nested 100,000 deep": (f"variables: {{a: {'[' * 100_000}{']' * 100_000}}}\n", "nested more than 32 deep"),
    "sections nested 50,000 deep": (f"variables: {'{a: ' * 50_000}1{'}' * 50_000}\n", "nested more than 32 deep"),
    "lists nested 200 deep": (f"variables: {{a: {'[' * 200}{']' * 200}}}\n", "must be nested at most 32 deep"),
    "5,000 digits": (f"seed: {'9' * 5000}\n", "seed must be a number of at most 18 characters"),
    "50,000 hexadecimal digits": (f"seed: 0x{'f' * 50_000}\n", "seed must be a number of at most 18 characters"),
    "an hour of 1,000 parts": (f"seed: 1{':59' * 1000}.5\n", "seed must be a number of at most 40 characters"),
    "a tag that does not fit, bool": ("seed: !!bool maybe\n", "seed must be a plain value, got the YAML tag"),
    "a tag that does not fit, int": ('seed: !!int ""\n', "seed must be a plain value, got the YAML tag"),
    "a tag that does not fit, timestamp": ("seed: !!timestamp x\n", "seed must be a plain value, got the YAML tag"),
    "NUL in a path": ('run_dir: "a\\0b"\n', "run_dir must be text of whole characters without NUL, got 'a\\x00b'"),
    "half a character": ('run_dir: "a\\ud800b"\n', "run_dir must be text of whole characters without NUL"),
    "NUL in a key": ('variables: {"a\\0b": 1}\n', "variables must have keys that are text"),
    "a NUL byte": ("seed: \0\n", "the recipe must be YAML"),
    "a key of 500,000 characters": ("k" * 500_000 + ": 1\n", "the recipe must be YAML"),
    "a key of 1,000 characters": ("k" * 1000 + ": 1\n", "kkk... is not a key of a recipe"),
    "a text with 300,000 signs of keys": ("variables: {a: '" + "${a}" * 75_000 + "'}\n", "at most 2000 characters"),
    "a name of 5,000 characters": ("run_name: " + "x" * 5000 + "\n", "at most 100 characters"),
    "infinite time": ("distill: {max_duration: 1e400tok}\n", "distill.max_duration must be a Composer time"),
    "time of 5,000 digits": (f"distill: {{max_duration: {'9' * 5000}ba}}\n", "distill.max_duration must be a Compo"),
    "time that is nearly nothing": (f"distill: {{save_interval: .{'0' * 400}1dur}}\n", "must be a Composer time"),
    "not a number": ("distill: {optimizer: {betas: [.nan, 0.9]}}\n", "must be a number >= 0 and < 1, got NaN"),
    "infinite": ("text: {mixture: {max_weight: .inf}}\n", "must be a number > 0 and <= 1, got Infinity"),
}


def refusal(text: str, path: Path) -> str:
    """The message a recipe is refused with; it took less than MOST_S."""
    path.write_text(text, encoding="utf-8")
    start_s = time.process_time()
    with pytest.raises(RecipeError) as raised:
        load_recipe(path)
    assert time.process_time() - start_s < MOST_S
    return str(raised.value)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_recipe_is_refused_in_seconds(tmp_path, case):
    text, expected = HOSTILE[case]
    base = "\n".join(line for line in BASE.splitlines() if line.split(":")[0] != text.split(":")[0]) + "\n"
    message = refusal(base + text, tmp_path / "r.yaml")
    assert expected in message
    assert len(message) < 60_000


HOSTILE_WORDS = {
    "5,000 digits": f"seed={'9' * 5000}",
    "an index of 5,000 digits": f"data.prompts[{'9' * 5000}].path=a",
    "an index beyond the list": "data.prompts[999999999].path=a",
    "a key of 5,000 parts": f"variables.{'.'.join('a' * 5000)}=1",
    "nested 5,000 deep": f"variables.a={'[' * 5000}{']' * 5000}",
    "aliases of aliases": "variables.a=[&a [x,x,x,x,x,x,x,x,x,x]"
    + "".join(f", &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    + "]",
    "half a character": "variables.a=\udcff",
    "NUL": "run_dir=a\0b",
    "NUL written out": 'run_dir="a\\0b"',
    "a tag": "variables.a=!!python/object:os.system x",
    "doubled": "variables.a='${oc.create:{a:1}}'",
    "a word of 100,000 characters": "x" * 100_000,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("case", HOSTILE_WORDS)
def test_a_hostile_word_is_refused_in_seconds(tmp_path, case):
    path = tmp_path / "r.yaml"
    path.write_text(BASE.replace("{self_written_prompts: 100}", "{prompts: [{path: a}]}"), encoding="utf-8")
    start_s = time.process_time()
    with pytest.raises(RecipeError) as raised:
        load_recipe(path, [HOSTILE_WORDS[case]])
    assert time.process_time() - start_s < MOST_S
    assert str(raised.value).startswith("command line: ")
    assert len(str(raised.value)) < 1000


def test_a_pipe_and_a_large_file_are_no_recipes(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(2 << 30)
    for name, message in (
        ("pipe.yaml", "is a pipe, not a file"),
        ("large.yaml", "2,048.0 MiB, and at most 1 are read"),
    ):
        with pytest.raises(RecipeError, match=message):
            load_recipe(tmp_path / name)


def test_what_recipes_use_of_yaml_still_stands(tmp_path, monkeypatch):
    """Aliases, the environment and keys of keys, within bounds."""
    monkeypatch.setenv("WIDEDRAFT_TEST", "5")
    path = tmp_path / "r.yaml"
    path.write_text(
        BASE + "variables: {clip: &clip {clipping_threshold: 0.5}, same: *clip, a: b, c: '${.a}${variables.a}'}\n"
        "distill: {gradient_clipping: '${variables.same}'}\nseed: ${oc.decode:${oc.env:WIDEDRAFT_TEST}}\n"
        "run_dir: ${oc.env:NOT_THERE,${run_name}}-${variables.c}\n",
        encoding="utf-8",
    )
    recipe = load_recipe(path)
    assert (recipe.run_dir, recipe.seed) == ("demo-bb", 5)
    assert recipe.distill.gradient_clipping is not None


PIECES = (
    "a: |- |\n|\n  |{|}|[|]|, |&x |*x|!!int |!!bool |<<: |? |> |'|\"|${a}|${.a}|${oc.env:HOME}|${oc.decode:|\\|#|%|---"
    "|1e400|0x|run_name|seed: |eval: |data: |distill: |???|\0|\x85|é|.nan|1:59:59|~|\t|99999999999999999999"
)
yaml_pieces = st.lists(
    st.sampled_from([*PIECES.split("|"), "| "]),
    max_size=40,
).map("".join)


@pytest.mark.timeout(120)
@settings(max_examples=150, deadline=5000)
@given(yaml_pieces)
def test_any_text_is_a_recipe_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(BASE + text, encoding="utf-8")
    try:
        load_recipe(path)
    except UserError as error:
        assert str(error)  # noqa: PT017  # nothing but a refusal may come


@settings(max_examples=30, deadline=5000)
@given(st.text(max_size=60))
def test_any_word_is_an_override_or_refused(tmp_path_factory, word):
    path = tmp_path_factory.getbasetemp() / "words.yaml"
    path.write_text(BASE, encoding="utf-8")
    for written in (word, f"variables.a={word}", f"{word}=1"):
        try:
            load_recipe(path, [written])
        except UserError as error:
            assert str(error)  # noqa: PT017  # nothing but a refusal may come


def test_hostile_recipes_stay_within_memory(tmp_path):
    """Those that would fill it, in one process whose address space is bounded."""
    for number, text in enumerate(text for case, (text, _) in HOSTILE.items() if "doubled" in case or "alias" in case):
        (tmp_path / f"{number}.yaml").write_text(BASE + text, encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from distill.recipe.recipe import load_recipe, RecipeError\n"
        "for path in sorted(Path(sys.argv[1]).glob('*.yaml')):\n"
        "    try:\n        load_recipe(path)\n    except RecipeError:\n        pass\n"
        "    else:\n        sys.exit(f'{path}: accepted')\n"
    )

    def bound_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=True,
        preexec_fn=bound_memory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
