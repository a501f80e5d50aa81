"""What commands print is for people: no values as Python writes them, no "1 layers", one word for one thing."""

import ast
import json
import re
from pathlib import Path

import pytest

import widedraft

ROOT = Path(__file__).parents[1]
AS_PYTHON = (
    re.compile(r"\{'|\['|(?<!from_pretrained)\('|'\}|'\]"),  # dicts, lists, tuples; a line of Python to copy is one
    re.compile(r"\bNone\b|\bnan\b|<[\w.]+ object|\b(?:Posix)?Path\("),
    re.compile(r"(?<![\w.,])(?<!of )1 (?:layer|thread|core|head|prompt|text|answer|plot|repetition|sequence|run)s\b"),
)
OTHER_WORDS = {  # for what a measurement decides: docs/report.md, Words
    "not faster here": "Slower",
    "no difference shown": "Not decided",
    "unclear:": "Not decided",
    "undecided:": "Not decided",
    "x faster at": "Faster: ... the speed of the target alone",
    "not distilled": "undistilled",
    "before distillation": "undistilled",
    "untrained draft with": "undistilled",
}
FAST = ["--num-prompts", "2", "--max-new-tokens", "8", "--num-threads", "1"]


@pytest.fixture(scope="module")
def said(make_checkpoint, tmp_path_factory):
    """What every command on a pair prints of a tiny one; and one recipe's check, cut, answers and figures."""
    folder = tmp_path_factory.mktemp("words")
    rows = "\n".join(json.dumps({"prompt": f"Count to {n}."}) for n in range(10))
    (folder / "prompts.jsonl").write_text(rows, encoding="utf-8")
    (folder / "demo.yaml").write_text(
        f"run_name: demo\nrun_dir: {folder}/run\ntarget: {{path: {make_checkpoint(seed=1)}}}\n"
        "architecture: {layers: 1, method: first_last}\n"
        f"data: {{prompts: [{{path: {folder}/prompts.jsonl}}], num_eval_prompts: 2, max_new_tokens: 4}}\n",
        encoding="utf-8",
    )
    return folder


def commands(folder, target, draft):
    """Words of a command line each."""
    pair = ["--target", str(target), "--draft", str(draft)]
    pairs, asked = ["--target", str(target), "--drafts", str(draft)], ["--prompts", f"{folder}/prompts.jsonl"]
    quick = ["eval.num_prompts=2", "eval.max_new_tokens=8", "eval.lookaheads=[1]", "eval.num_resamples=50"]
    quick += ["eval.live_prompts=2", "eval.latency_repeats=2", "eval.num_threads=1", "eval.policy_prompts=0"]
    recipe = f"{folder}/demo.yaml"
    return [
        ["check", recipe],
        ["check", recipe, "--debug"],
        ["generate", recipe],
        ["prune", recipe],
        ["recipes", "--shapes", "--tasks"],
        ["recipes", "--shapes", str(target)],
        ["recipes"],
        ["preflight", str(draft), "--target", str(target)],
        ["eval", *pair, *asked, *quick, "--out", f"{folder}/card"],
        ["report", f"{folder}/card"],
        ["rounds", f"{folder}/card/rounds.jsonl"],
        ["verify", *pair, *asked, "--num-prompts", "1", "--max-new-tokens", "4"],
        ["compare", *pair, *asked, "--max-new-tokens", "4"],
        ["speed", *pairs, *asked, *FAST, "--lookaheads", "1", "--repeats", "1"],
    ]


def test_no_command_prints_values_as_python_writes_them(said, make_checkpoint, capfd):
    target = make_checkpoint(seed=1)
    for words in commands(said, target, said / "run" / "init"):
        code = widedraft.main([each for each in words if each])
        printed = "".join(capfd.readouterr())
        assert code in (0, 1), (words, printed)
        assert not found(printed), (words[0], found(printed))
    pages = [*(said / "card").glob("*.md"), *(said / "card").glob("*.html")]
    assert len(pages) == 2
    for page in pages:
        text = re.sub(r"<style>.*?</style>|<(?:dl|article).*?</(?:dl|article)>", "", page.read_text(), flags=re.DOTALL)
        assert not found(text), (page.name, found(text))


def found(text):
    """What a person should not have to read."""
    return [text[max(0, hit.start() - 30) : hit.end() + 30] for pattern in AS_PYTHON for hit in pattern.finditer(text)]


@pytest.mark.parametrize(
    "text",
    ["{'prompts': 24}", "layers [None]", "got None", "1 layers, hidden 48", "on cpu with 1 threads", "kept ['a', 'b']"],
)
def test_such_words_are_seen(text):
    assert found(text)


@pytest.mark.parametrize("text", ["11 layers", "0.1 layers' worth", "1 layer", "4.1 threads", "none", "a list [1, 2]"])
def test_and_no_others(text):
    assert not found(text)


def strings():
    """(file, words) of every sentence in the code, but for what only explains it."""
    for package in ("architectures", "eval", "distill"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if is_documented(node)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docs:
                    yield path.relative_to(ROOT), node.value


def is_documented(node):
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def test_one_thing_has_one_word():
    wrong = [
        (str(path), words, f"say {due}")
        for path, told in strings()
        for words, due in OTHER_WORDS.items()
        if words in told.lower()
    ]
    assert not wrong
