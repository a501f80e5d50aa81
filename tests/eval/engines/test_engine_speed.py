"""`widedraft benchmark --engine`, with a script in the worker's place: what it asks of an engine, and makes of it."""

import json
import subprocess
import sys

import pytest
from pydantic import TypeAdapter

import widedraft
from eval.benchmark import DRAFT, LOOKUP, LOOKUP_FIRST, PLAIN, BenchmarkFile
from eval.engines import engine_speed, worker_process
from eval.engines.worker_process import WORKER

STAND_IN = """
import json, sys
engine, log = sys.argv[2], open(LOG, "a")
opened = json.loads(sys.stdin.readline())
print(json.dumps({"version": "0.1"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"engine": engine, "opened": opened, "asked": asked}), file=log, flush=True)
    seconds = 1.0 if opened["draft"] else 1.5 if opened["lookup"] else 2.0
    accepted = 4 * len(asked["prompts"]) if opened["draft"] or opened["lookup"] else 0
    first_s = 0.5 if len(asked["prompts"]) == 1 else None
    print(json.dumps({"tokens": 9 * len(asked["prompts"]), "accepted": accepted, "first_s": first_s,
                      "elapsed_s": seconds}), flush=True)
"""


@pytest.fixture
def benchmarked(tmp_path, monkeypatch, target_folder):
    """benchmarked(engine, drafts, flags): what the command writes, and every message of the engine's log."""

    def run(engine, *drafts, flags=()):
        log, out = tmp_path / "log", tmp_path / "out.json"
        script = tmp_path / "worker.py"
        script.write_text(STAND_IN.replace("LOG", repr(str(log))))
        monkeypatch.setattr(worker_process, "WORKER", script)
        words = ["benchmark", "--engine", engine, "--python", sys.executable, "--target", target_folder, "--draft"]
        common = ["--num-prompts", 8, "--max-new-tokens", 9, "--dtype", "float32", "--out", out]
        widedraft.main([*map(str, (*words, *drafts, *common, *flags))])
        record = TypeAdapter(BenchmarkFile).validate_json(out.read_text())
        return record, [json.loads(line) for line in log.read_text().splitlines()]

    return run


def test_vllm_decodes_plainly_with_each_draft_and_with_prompt_lookup(benchmarked, noisy_folder):
    record, messages = benchmarked("vllm", noisy_folder)
    assert record.engine == "vllm 0.1"
    assert [(row.method, row.num_speculative_tokens) for row in record.rows] == [(PLAIN, 0), (DRAFT, 3), (LOOKUP, 3)]
    plain, draft, lookup = record.rows
    assert (plain.tokens_per_s, draft.speedup.value, lookup.speedup.value) == (4.5, 2.0, pytest.approx(4 / 3))
    assert draft.decode_speedup is not None
    assert draft.decode_speedup.value == 3.0  # 1.5 s of 9 tokens after the first, 0.5 s with the draft
    assert (plain.acceptance_length, draft.acceptance_length) == (None, 2.0)  # 8 tokens in 4 steps, 4 accepted
    opened = {json.dumps(each["opened"], sort_keys=True): each["opened"] for each in messages}.values()
    assert sorted((each["draft"] or "", sorted(each["lookup"])) for each in opened) == [
        ("", []),
        ("", ["prompt_lookup_max", "prompt_lookup_min"]),
        (str(noisy_folder.resolve()), []),
    ]
    assert all(each["engine_settings"] == {"gpu_memory_utilization": 0.3} for each in opened)
    assert len(messages) == 3 * (8 + 1)  # each prompt by each method, and one to warm up


def test_a_seed_belongs_to_a_prompt_and_sampling_reaches_the_engine(benchmarked, noisy_folder):
    flags = ("--temperature", 0.8, "--top-p", 0.95, "--batch-size", 2, "--num-speculative-tokens", 1, 2)
    record, messages = benchmarked("vllm", noisy_folder, flags=flags)
    seeds = {}
    for each in messages:
        for ids, sampling in zip(each["asked"]["prompts"], each["asked"]["sampling"], strict=True):
            seeds.setdefault(tuple(ids), set()).add(sampling["seed"])
            assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (0.8, 0.95, 9)
    assert all(len(each) == 1 for each in seeds.values())
    assert len(set.union(*seeds.values())) == 8
    assert record.groups == 4
    assert [row.decode_speedup for row in record.rows] == [None] * 5  # the first token is not known for each row


def test_llama_cpp_takes_files_and_prompt_lookup_in_front_of_a_draft(benchmarked, tmp_path):
    files = [tmp_path / name for name in ("target.gguf", "a.gguf", "b.gguf")]
    for path in files:
        path.write_bytes(path.name.encode())
    flags = ("--target-file", files[0], "--ngram-size-n", 4, "--ngram-size-m", 7)
    record, messages = benchmarked("llama.cpp", *files[1:], flags=flags)
    assert {(row.method, row.draft) for row in record.rows} == {
        (PLAIN, None),
        (LOOKUP, None),
        *((kind, f"draft {path}") for kind in (DRAFT, LOOKUP_FIRST) for path in files[1:]),
    }
    assert {each["opened"]["target"] for each in messages} == {str(files[0])}
    lookups = {(each["opened"]["draft"] is None, *each["opened"]["lookup"].values()) for each in messages}
    assert lookups == {(True,), (True, 3, 3), (False,), (False, 4, 7)}


def test_targets_that_do_not_fit_into_memory_are_rejected(target_folder, noisy_folder, monkeypatch, capsys):
    monkeypatch.setattr(engine_speed, "free_bytes", lambda _device: 1000)
    given = ("benchmark", "--engine", "vllm", "--python", "no/python", "--target", target_folder)
    assert widedraft.main([*map(str, (*given, "--draft", noisy_folder))]) == 2
    assert "--num-speculative-tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--python", sys.executable), "--python"),
        (("--engine", "vllm"), "--python"),
        (("--engine", "vllm", "--python", sys.executable, "--assisted"), "--assisted"),
        (("--engine", "vllm", "--python", sys.executable, "--target-file", "x.gguf"), "--target-file"),
        (("--engine", "llama.cpp", "--python", sys.executable), "--target-file"),
        (("--engine", "vllm", "--python", sys.executable, "--ngram-size-n", 3), "--ngram-size-n"),
        (("--engine", "openvino", "--python", sys.executable, "--target-file", ".", "--batch-size", 2), "--batch-size"),
        (("--engine", "llama.cpp", "--python", sys.executable, "--target-file", "."), "--draft"),  # no file
        (("--engine", "vllm", "--python", "no/python"), "--python"),
        (("--engine", "openvino", "--python", sys.executable, "--target-file", "no/dir"), "--target-file"),
        (("--engine", "vllm", "--grid"), "--engine"),
    ],
)
def test_what_an_engine_does_not_take_is_rejected(target_folder, noisy_folder, capsys, words, named):
    given = ("benchmark", "--target", target_folder, "--draft", noisy_folder, *words)
    assert widedraft.main([*map(str, given)]) == 2
    assert named in capsys.readouterr().err


def test_the_worker_times_the_prompts_of_each_line_and_keeps_prints_apart():
    program = (
        "import sys; import worker\n"
        "class Fake:\n"
        "    def __init__(self, request, draft): self.draft = draft\n"
        "    def decode_together(self, prompts, sampling):\n"
        "        print('noise'); return {'tokens': len(prompts), 'draft': self.draft}\n"
        "    def close(self): pass\n"
        "worker.ENGINES['vllm'] = (Fake, 'pytest'); worker.package_version = lambda package: '7'\n"
        "worker.main('benchmark', 'vllm')\n"
    )
    lines = [{"draft": "D"}, {"prompts": [[1], [2]], "sampling": [{}, {}]}]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="".join(json.dumps(line) + "\n" for line in lines),
        cwd=WORKER.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    opened, decoded = map(json.loads, done.stdout.splitlines())
    assert opened == {"version": "7"}
    assert (decoded["tokens"], decoded["draft"]) == (2, "D")
    assert decoded["elapsed_s"] >= 0
