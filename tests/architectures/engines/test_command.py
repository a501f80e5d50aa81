"""`widedraft preflight`: what it prints, its exit codes, and that it loads nothing heavy."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import widedraft
from architectures.engines.pair.facts import Pair
from architectures.engines.pair.read_facts import read_draft, read_model
from architectures.engines.table import serve_line
from tests.architectures.engines.conftest import files, texts

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folders(write):
    return write("draft"), write("target")


def preflight(*words: str) -> int:
    """The exit code; as a shell sees it."""
    try:
        return widedraft.main(["preflight", *words])
    except SystemExit as ended:
        return int(ended.code or 0)


def test_a_pair_that_can_be_served_ends_with_0_and_its_lines(folders, capsys):
    draft, target = folders
    assert preflight(draft, "--target", target) == 0
    page = capsys.readouterr().out
    assert "refused" not in page
    assert page.endswith("can be served by: vLLM, SGLang, llama.cpp, transformers, TensorRT-LLM\n")
    for version in ("vLLM 0.32.0 (run here)", "SGLang 0.5.23 (read, not run)", "TensorRT-LLM of 2026-11 (read, not"):
        assert version in page
    assert '"num_speculative_tokens": 4' in page  # as the draft's generation_config.json says


def test_engines_are_those_asked_each_once(folders, capsys):
    draft, target = folders
    words = ("--engines", "sglang", "--engines", "vllm", "--engines", "sglang")
    assert preflight(draft, "--target", target, *words) == 0
    assert capsys.readouterr().out.endswith("\ncan be served by: SGLang, vLLM\n")


def test_a_pair_that_an_engine_refuses_ends_with_1_and_the_reason(write, capsys):
    of = files()
    of["config.json"]["vocab_size"] = 304
    words = (write("draft", of), "--target", write("target"), "--engines", "vllm", "--engines", "llama.cpp")
    assert preflight(*words) == 1
    page = " ".join(capsys.readouterr().out.split())
    assert (
        "refused: vocabulary size: vocab_size is 304 in the draft's config and 300 in the target's, and vLLM compares "
        "them. Take a draft that was made for this target, with 300 rows of embedding and head. "
        "[vllm/config/speculative.py]"
    ) in page
    assert "serve it so, once that is mended:" in page
    assert page.endswith("can be served by: llama.cpp NOT served by: vLLM")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["DRAFT"], "widedraft preflight needs --target beside a draft's folder."),
        (
            ["DRAFT", "--target", "TARGET", "--tensor-parallel", "0"],
            "--tensor-parallel must be a whole number >= 1 and <= 64, got 0.",
        ),
        (
            ["DRAFT", "--target", "TARGET", "--tensor-parallel", "65"],
            "--tensor-parallel must be a whole number >= 1 and <= 64, got 65.",
        ),
        (
            ["DRAFT", "--target", "TARGET", "--lookahead", "0"],
            "--lookahead must be a whole number >= 1 and <= 1000000, got 0.",
        ),
        (["DRAFT", "--target", "./none"], "./none: no such folder."),
        (["draft.gguf", "--target", "TARGET"], "draft.gguf: is a GGUF file"),
        (["DRAFT", "seed=1", "--target", "TARGET"], "seed=1: only a recipe has values to change, and "),
        (["none.yaml"], "none.yaml: cannot be read"),
        (["none.yaml", "--target", "TARGET"], "none.yaml: a recipe names its target."),
    ],
)
def test_mistakes_end_with_2_and_one_message(folders, capsys, words, message):
    named = {"DRAFT": folders[0], "TARGET": folders[1]}
    assert preflight(*(named.get(word, word) for word in words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)


def test_a_damaged_tokenizer_is_a_mistake_and_a_strange_one_is_not_checked(write, capsys):
    draft, target = write("draft"), write("target")
    Path(draft, "tokenizer.json").write_text("{", encoding="utf-8")
    assert preflight(draft, "--target", target) == 2
    assert "tokenizer.json: is not valid JSON" in capsys.readouterr().err
    Path(draft, "tokenizer.json").write_text('{"model": {"vocab": 3}}', encoding="utf-8")
    assert preflight(draft, "--target", target) == 0
    assert "tokenizer.json is of a form that is not known here" in " ".join(capsys.readouterr().out.split())


def test_it_loads_neither_torch_nor_tokenizers(folders):
    draft, target = folders
    code = (
        "import sys, widedraft; code = widedraft.main(sys.argv[1:]); "
        "print(code, [name for name in ('torch', 'transformers', 'tokenizers', 'numpy') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, "preflight", draft, "--target", target]
    completed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert completed.stdout.splitlines()[-1] == "0 []"


def pair_with(write, draft=None, **keys) -> Pair:
    return Pair(draft=read_draft(write("a draft", draft)), target=read_model(write("target")), **keys)


def words_of(engine, pair) -> list[str]:
    """As a shell reads them, which takes a line break away with the backslash before it."""
    return shlex.split(serve_line(engine, pair).replace("\\\n", ""))


def test_lines_are_words_of_a_shell_and_name_every_number(write):
    pair = pair_with(write, tensor_parallel=2, lookahead=5, revision="v1")
    vllm = words_of("vllm", pair)
    assert vllm[:7] == ["vllm", "serve", pair.target.name, "--revision", "v1", "--tensor-parallel-size", "2"]
    assert json.loads(vllm[-1]) == {
        "method": "draft_model",
        "model": pair.draft.name,
        "num_speculative_tokens": 5,
        "draft_tensor_parallel_size": 2,
    }
    sglang = words_of("sglang", pair)
    options = dict(zip(sglang[3::2], sglang[4::2], strict=True))
    assert options == {
        "--model-path": pair.target.name,
        "--revision": "v1",
        "--tp-size": "2",
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": pair.draft.name,
        "--speculative-num-steps": "5",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "6",
    }
    assert words_of("llama.cpp", pair)[:5] == [
        "llama-server",
        "-m",
        "target.gguf",
        "-md",
        "a draft.gguf",
    ]
    assert yaml.safe_load(serve_line("tensorrt-llm", pair)) == {
        "disable_overlap_scheduler": True,
        "speculative_config": {
            "decoding_type": "DraftTarget",
            "max_draft_len": 5,
            "speculative_model": pair.draft.name,
        },
    }
    lines = serve_line("transformers", pair)
    compile(lines, "serve", "exec")
    settings = "num_assistant_tokens=5, num_assistant_tokens_schedule='constant', assistant_confidence_threshold=0.0"
    assert f"draft.generation_config.update({settings})" in lines


def test_a_draft_of_its_own_tokens_is_served_with_them(write):
    of = files()
    of["config.json"]["vocab_size"] = 100
    of["tokenizer.json"]["model"]["vocab"] = texts(100)
    pair = pair_with(write, of)
    assert '"use_heterogeneous_vocab": true' in serve_line("vllm", pair)
    assert "assistant_tokenizer=draft_tokenizer" in serve_line("transformers", pair)


def test_a_small_head_is_opened_by_its_card(write):
    of = files()
    of["config.json"]["head_vocab_size"] = 40
    assert "load_draft(Path(" in serve_line("transformers", pair_with(write, of))


def test_a_plain_draft_of_a_quantised_target_inherits_nothing(write):
    of = files()
    of["config.json"]["quantization_config"] = {"quant_method": "fp8"}
    pair = Pair(draft=read_draft(write("draft")), target=read_model(write("target", of)))
    assert serve_line("sglang", pair).endswith("--speculative-draft-model-quantization unquant")


def test_a_quantised_draft_of_a_quantised_target_stays_as_it_is(write):
    of = files()
    of["config.json"]["quantization_config"] = {"quant_method": "fp8"}
    pair = Pair(draft=read_draft(write("draft", of)), target=read_model(write("target", of)))
    assert "unquant" not in serve_line("sglang", pair)


def test_a_revision_and_every_number_are_in_the_lines_of_other_engines(write):
    pair = pair_with(write, lookahead=5, revision="v1")
    assert "revision='v1')" in serve_line("transformers", pair)
    assert words_of("llama.cpp", pair)[5:] == [
        "--spec-type",
        "draft-simple",
        "--spec-draft-n-max",
        "5",
        "--spec-draft-p-min",
        "0.0",
    ]
