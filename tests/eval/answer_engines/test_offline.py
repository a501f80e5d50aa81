"""vLLM's worker: what it is told, what it answers, and what becomes of a run when it ends."""

import json
import sys
from pathlib import Path

import pytest

from architectures.errors import UserError
from eval.answer_engines.answerer import engine_asked
from eval.answer_engines.clients.config import GenerateConfig
from eval.answer_engines.probe import PROBE_TOKENS, QUESTION
from eval.answers.engine_evidence import answered_by
from eval.answers.traces import DecodingSettings, read_traces
from eval.decoding.answering import write_traces
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits
from eval.models.loading import load_tokenizer
from eval.prompts.forms import Prompt
from eval.prompts.rendering import render_prompt

FAKE = Path(__file__).with_name("fake_vllm.py")
OUTPUT_KINDS = "class RequestOutputKind:\n    FINAL_ONLY = 'final only'\n"
SETTINGS = DecodingSettings(
    max_new_tokens=6,
    temperature=0.0,
    top_p=1.0,
    batch_size=4,
    shard_size=2,
    max_prompt_len=100,
    seed=5,
    dtype="float32",
)
PROMPTS = [Prompt(f"f:{i}", ({"role": "user", "content": f"say {i}"},)) for i in range(5)]
NEVER = -1


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Of an environment whose vLLM is the fake one."""
    package = tmp_path / "environment" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE.read_text())
    (package / "sampling_params.py").write_text(OUTPUT_KINDS)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return GenerateConfig(engine="vllm", python=sys.executable, concurrency=2, gpu_memory_utilization=0.5)


@pytest.fixture
def prepare(target, target_folder, tmp_path, monkeypatch):
    """prepare(dies_after) gives the fake the target's own texts, that of the probe among them."""
    tokenizer = load_tokenizer(target_folder)
    known = render_prompt(tokenizer, [{"role": "user", "content": QUESTION}])
    prompts = [known, *(render_prompt(tokenizer, prompt.messages) for prompt in PROMPTS)]
    lengths = [PROBE_TOKENS, *(SETTINGS.max_new_tokens for _ in PROMPTS)]
    texts = {}
    for prompt, most in zip(prompts, lengths, strict=True):
        [text] = plain_decode(target, [prompt], limits=Limits(most, frozenset([2])))
        words = tokenizer.decode(list(text.token_ids), skip_special_tokens=True)
        texts[json.dumps(prompt)] = {str(most): [list(text.token_ids), words]}

    def write(dies_after=NEVER):
        path = tmp_path / "prepared.json"
        path.write_text(json.dumps({"texts": texts, "dies_after": dies_after}))
        monkeypatch.setenv("FAKE_VLLM", str(path))
        return path

    return write


def answer(target, out, config):
    with engine_asked(config) as kind:
        for name in ("eval", "train"):
            write_traces(target, PROMPTS[:2] if name == "eval" else PROMPTS, out, SETTINGS, name=name, answered_by=kind)


def test_one_worker_answers_all_names_in_the_bytes_of_our_own_decoding(target_folder, tmp_path, config, prepare):
    loaded = prepare().with_suffix(".loaded")
    answer(target_folder, tmp_path / "out", config)
    write_traces(target_folder, PROMPTS, tmp_path / "own", SETTINGS)
    assert read_traces(tmp_path / "out", "train") == read_traces(tmp_path / "own", "train")
    told = json.loads(loaded.read_text())
    wanted = {"dtype": "float32", "max_num_seqs": 2, "tensor_parallel_size": 1, "gpu_memory_utilization": 0.5}
    assert wanted.items() <= told.items()
    assert told["target"] == str(target_folder.resolve())
    assert told["max_model_len"] == 256  # for the probe; texts have 106 at most
    [row] = answered_by(tmp_path / "out", "train")
    assert (row["engine"], row["answers"], row["checked"]) == ("vllm 0.0.fake", 5, 3)


def test_nothing_is_loaded_where_no_answer_is_missing(target_folder, tmp_path, config, prepare):
    loaded = prepare().with_suffix(".loaded")
    answer(target_folder, tmp_path / "out", config)
    loaded.unlink()
    answer(target_folder, tmp_path / "out", config)
    assert not loaded.exists()


def test_a_worker_that_dies_is_quoted_and_its_shards_are_kept(target_folder, tmp_path, config, prepare):
    prepare(dies_after=8)  # of eval: a probe, two answers, a probe; of train: a probe and three answers
    one = config.model_copy(update={"concurrency": 1})
    with pytest.raises(UserError) as raised:
        answer(target_folder, tmp_path, one)
    assert str(raised.value).startswith(f"vLLM ended ({sys.executable}). Mend what it said last:\n")
    assert "\nout of memory\n1 of the 3 shards of train answers that were missing are kept in " in str(raised.value)
    assert [path.name for path in sorted(tmp_path.glob("train-*.jsonl"))] == ["train-00000.jsonl"]


def test_a_target_that_does_not_load_is_told_of(target_folder, tmp_path, config, prepare):
    prepare()
    with pytest.raises(UserError, match="no such devices"):
        answer(target_folder, tmp_path, config.model_copy(update={"tensor_parallel": 2}))


def test_a_python_that_is_none_is_refused(target_folder, tmp_path, config):
    with pytest.raises(UserError, match=r"^generate\.python: /nowhere/python could not be run \(No such file"):
        answer(target_folder, tmp_path, config.model_copy(update={"python": "/nowhere/python"}))
