"""`widedraft benchmark --engine`, with a script in the worker's place: what it asks of an engine, and makes of it."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from pydantic import TypeAdapter

import widedraft
from architectures.compatibility import Pair, read_model, serve_command
from architectures.convert import convert_draft
from architectures.gguf_export import export_gguf
from eval.benchmark import DRAFT, LOOKUP, LOOKUP_FIRST, PLAIN, BenchmarkFile, Method
from eval.chat import render_prompt
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode
from eval.engines import engine_speed, worker, worker_process
from eval.engines.worker_process import WORKER
from eval.intervals import Estimate
from eval.pair import load_pair, prompts_of
from tests.eval.engines.fake_server import FakeServer, served
from tests.eval.engines.fake_vllm import output
from tests.eval.test_http_server import counted
from tests.eval.test_http_server import served as served_here

STAND_IN = """
import json, sys
engine, log = sys.argv[1], open(LOG, "a")
for line in sys.stdin:
    message = json.loads(line)
    if message["call"] == "open":
        [opened] = message["arguments"]
        print(json.dumps("0.1"), flush=True)
        continue
    asked = dict(zip(("prompts", "sampling"), message["arguments"]))
    print(json.dumps({"engine": engine, "opened": opened, "asked": asked}), file=log, flush=True)
    count, k = len(asked["prompts"]), opened["num_speculative_tokens"]
    seconds = DRAFTED_S if opened["draft"] else 1.5 if opened["lookup"] else 2.0
    accepted = [count * each for each in (ACCEPTED + [0] * k)[:k]]
    responses = [RESPONSE] * (count - 1) + [RESPONSE if count == 1 else RESPONSE[:5]]
    positions = None if engine == "llama.cpp" else accepted
    print(json.dumps({"ids": responses, "steps": STEPS, "accepted": sum(accepted), "by_position": positions,
                      "first_s": [0.1] * (count - 1) + [0.2], "last_s": [seconds - 0.1] * count,
                      "elapsed_s": seconds}), flush=True)
"""
CONVERSATION = [{"role": "user", "content": "hi"}]
RESPONSE = [40, 41, 42, 43, 44, 45, 46, 47, 48]


@pytest.fixture
def benchmarked(tmp_path, monkeypatch, target_folder):
    """benchmarked(engine, drafts, flags): what the command writes, and every message of the engine's log."""

    def run(engine, *drafts, flags=(), response=RESPONSE, drafted_s=1.0, accepted=(3, 1), steps=0):
        log, out = tmp_path / "log", tmp_path / "out.json"
        script = tmp_path / "worker.py"
        given = STAND_IN.replace("LOG", repr(str(log))).replace("DRAFTED_S", str(drafted_s))
        script.write_text(f"RESPONSE, ACCEPTED, STEPS = {response}, {[*accepted]}, {steps}\n{given}")
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
    assert draft.decode_speedup.value == pytest.approx(1.8 / 0.8)  # without the 0.2 s to the first token
    assert (plain.ttft_ms, draft.ttft_ms) == (200, 200)
    assert plain.tpot_ms == pytest.approx(1700 / 8)  # from 0.2 to 1.9 s
    assert draft.tpot_ms == pytest.approx(700 / 8)
    assert (plain.acceptance_length, plain.accepted_by_position) == (None, None)
    assert (draft.acceptance_length, draft.accepted_by_position) == (2.0, (0.75, 0.25, 0.0))  # of 4 steps
    opened = {json.dumps(each["opened"], sort_keys=True): each["opened"] for each in messages}.values()
    assert sorted((each["draft"] or "", sorted(each["lookup"])) for each in opened) == [
        ("", []),
        ("", ["prompt_lookup_max", "prompt_lookup_min"]),
        (str(noisy_folder.resolve()), []),
    ]
    assert all(each["engine_settings"] == {"gpu_memory_utilization": 0.3} for each in opened)
    assert not any(each["has_own_tokenizer"] for each in opened)
    longest = max(len(each["asked"]["prompts"][0]) for each in messages)
    assert sorted(each["max_model_len"] for each in opened) == [longest + 9 + k + 1 for k in (0, 3, 3)]
    assert len(messages) == 3 * (8 + 1)  # each prompt by each method, and one to warm up


@pytest.mark.parametrize(
    ("accepted", "steps", "length", "positions"),
    [
        ((4, 3, 3), 5, 8 / 5, (0.8, 0.6, 0.6)),  # more than the 8 tokens after the first: some are beyond the end
        ((3, 1, 1), 4, 8 / 4, (0.75, 0.25, 0.25)),  # two beyond the end
        ((2, 0, 0), 3, 8 / 6, (2 / 6, 0, 0)),  # of prompt lookup, with steps without a proposal
    ],
)
def test_tokens_accepted_beyond_the_end_make_no_fewer_steps(
    benchmarked, noisy_folder, accepted, steps, length, positions
):
    record, _ = benchmarked("vllm", noisy_folder, accepted=accepted, steps=steps)
    for row in record.rows[1:]:
        assert row.acceptance_length == pytest.approx(length)
        assert row.accepted_by_position == pytest.approx(positions)


def test_a_seed_belongs_to_a_prompt_and_sampling_reaches_the_engine(benchmarked, noisy_folder):
    flags = ("--temperature", 0.8, "--top-p", 0.95, "--concurrency", 2, "--num-speculative-tokens", 1, 2)
    record, messages = benchmarked("vllm", noisy_folder, flags=flags)
    seeds = {}
    for each in messages:
        for ids, sampling in zip(each["asked"]["prompts"], each["asked"]["sampling"], strict=True):
            seeds.setdefault(tuple(ids), set()).add(sampling["seed"])
            assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (0.8, 0.95, 9)
    assert all(len(each) == 1 for each in seeds.values())
    assert len(set.union(*seeds.values())) == 8
    assert record.prompts == {2: 8}
    assert [row.replayed_by_position for row in record.rows] == [None] * 5  # replay is of greedy responses


def test_every_concurrency_has_its_own_plain_decoding_and_intervals(benchmarked, noisy_folder):
    record, messages = benchmarked("vllm", noisy_folder, flags=("--concurrency", 1, 2, "--num-prompts", 12))
    assert [(row.concurrency, row.method) for row in record.rows] == [*product((1, 2), (PLAIN, DRAFT, LOOKUP))]
    assert record.prompts == {1: 12, 2: 12}
    assert [row.tokens for row in record.rows] == [12 * 9] * 3 + [6 * 14] * 3
    assert [row.tokens_per_s for row in record.rows if row.method == PLAIN] == [4.5, 7.0]
    assert [row.speedup.value for row in record.rows if row.method == DRAFT] == [2.0, 2.0]
    assert all(row.speedup.interval for row in record.rows)
    assert [row.concurrency for row in record.best if row.over == PLAIN and row.method == DRAFT] == [1, 2]
    assert {each["opened"]["concurrency"] for each in messages} == {2}
    [two] = [row for row in record.rows if (row.concurrency, row.method) == (2, DRAFT)]
    assert two.acceptance_length == 3.0  # 14 tokens, 2 of prefill, 8 accepted: 4 steps
    assert two.decode_speedup is not None
    assert two.decode_speedup.value == pytest.approx(1.8 / 0.8)  # until both have their first token
    assert two.ttft_ms == pytest.approx(150)
    assert two.tpot_ms == pytest.approx((800 / 8 + 700 / 4) / 2)


def accepted_by_position(model, prompt, response, k):
    """Accepted tokens by position, and verification steps, of decoding with one model call per token."""
    counts, steps, done = [0] * k, 0, 1
    while done < len(response):
        accepted = 0
        while accepted < min(k, len(response) - done - 1):
            ids = torch.tensor([[*prompt, *response[: done + accepted]]])
            if int(model(ids).logits[0, -1].argmax()) != response[done + accepted]:
                break
            counts[accepted] += 1
            accepted += 1
        done, steps = done + accepted + 1, steps + 1
    return counts, steps


def test_replay_reads_the_greedy_responses_without_a_draft(
    benchmarked, noisy_folder, noisy_draft, target, target_tokenizer
):
    [prompt] = prompts_of((), 1)
    [text] = plain_decode(target, [render_prompt(target_tokenizer, prompt)], limits=Limits(9))
    record, messages = benchmarked("vllm", noisy_folder, response=list(text.token_ids))
    asked = {tuple(each["asked"]["prompts"][0]) for each in messages}
    found = [accepted_by_position(noisy_draft, prompt, text.token_ids, 3) for prompt in asked]
    steps, counts = sum(each for _, each in found), [sum(each) for each in zip(*(c for c, _ in found), strict=True)]
    assert sum(counts) > 0
    plain, draft, lookup = record.rows
    assert draft.replayed_by_position == pytest.approx([count / steps for count in counts])
    assert plain.replayed_by_position is lookup.replayed_by_position is None


def test_a_draft_with_its_own_tokenizer_is_mapped_and_replayed(benchmarked, small_head_folder, tmp_path, capsys):
    convert_draft(small_head_folder, tmp_path / "own", "own-tokenizer")
    record, messages = benchmarked("vllm", tmp_path / "own")
    assert {each["opened"]["has_own_tokenizer"] for each in messages if each["opened"]["draft"]} == {True}
    assert '"use_heterogeneous_vocab": true' in capsys.readouterr().out
    assert record.rows[1].replayed_by_position is not None


def test_the_serving_command_of_the_fastest_method_is_printed_if_it_pays(benchmarked, noisy_folder, capsys):
    benchmarked("vllm", noisy_folder)
    out = capsys.readouterr().out
    pair = Pair(draft=read_model(str(noisy_folder)), target=read_model(out.split("vllm serve ")[1].split()[0]))
    assert all(line.strip() in out for line in serve_command("vllm", pair).splitlines())
    benchmarked("vllm", noisy_folder, drafted_s=1.8)
    out = capsys.readouterr().out
    assert '"method": "ngram", "num_speculative_tokens": 3' in out  # 1.5 s
    assert str(noisy_folder) not in out.split("ngram")[-1]


@pytest.mark.parametrize(("drafted_s", "pays"), [(1.0, True), (2.0, False), (3.0, False)])
def test_no_command_is_printed_if_nothing_pays(benchmarked, noisy_folder, capsys, monkeypatch, drafted_s, pays):
    monkeypatch.setattr(engine_speed, "methods_of", lambda _setup, _ks: [Method(PLAIN), Method(DRAFT, 3, "draft")])
    benchmarked("vllm", noisy_folder, drafted_s=drafted_s)
    assert ("vllm serve" in capsys.readouterr().out) == pays


def test_decoding_stops_at_the_default_precision(benchmarked, noisy_folder):
    record, _ = benchmarked("vllm", noisy_folder, flags=("--num-prompts", 20))
    assert record.prompts == {1: 12}
    record, _ = benchmarked("vllm", noisy_folder, flags=("--num-prompts", 20, "--repeats", 1))
    assert record.prompts == {1: 20}


def test_llama_cpp_takes_files_and_prompt_lookup_in_front_of_a_draft(
    benchmarked, make_checkpoint, with_merges, tmp_path
):
    folder = with_merges(make_checkpoint(num_hidden_layers=1))
    files = [tmp_path / name for name in ("target.gguf", "a.gguf", "b.gguf")]
    for path in files:
        export_gguf(folder, path, "f16", name="tiny")
    flags = ("--target-file", files[0], "--ngram-size-n", 4, "--ngram-size-m", 7, "--draft-p-min", 0.5)
    record, messages = benchmarked("llama.cpp", *files[1:], flags=flags)
    assert {(row.method, row.draft) for row in record.rows} == {
        (PLAIN, None),
        (LOOKUP, None),
        *((kind, f"draft {path}") for kind in (DRAFT, LOOKUP_FIRST) for path in files[1:]),
    }
    assert {each["opened"]["target"] for each in messages} == {str(files[0])}
    assert {each["opened"]["draft_p_min"] for each in messages} == {0.5}
    lookups = {(each["opened"]["draft"] is None, *each["opened"]["lookup"].values()) for each in messages}
    assert lookups == {(True,), (True, 3, 3), (False,), (False, 4, 7)}
    assert [row.accepted_by_position for row in record.rows] == [None] * 6  # llama.cpp reports their sum
    assert [row.acceptance_length for row in record.rows] == [None] + [2.0] * 5
    method = Method(LOOKUP_FIRST, 3, f"draft {files[1]}")
    command = engine_speed.serve_command_of(record, method).split()
    assert command[command.index("--spec-draft-p-min") + 1] == "0.5"
    assert command[command.index("--spec-type") + 1 :][:3] == [
        "ngram-simple,draft-simple",
        "--spec-ngram-simple-size-n=4",
        "--spec-ngram-simple-size-m=7",
    ]
    assert command[command.index("-md") + 1] == str(files[1])
    assert "--spec-ngram-simple-size-m=3" in engine_speed.serve_command_of(record, Method(LOOKUP, 3))


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
        (("--engine", "vllm", "--python", sys.executable, "--draft-p-min", 0.5), "--draft-p-min"),
        (
            ("--engine", "openvino", "--python", sys.executable, "--target-file", ".", "--concurrency", 2),
            "--concurrency",
        ),
        (("--engine", "llama.cpp", "--python", sys.executable, "--target-file", "."), "--draft"),  # no file
        (("--engine", "vllm", "--python", "no/python"), "--python"),
        (("--engine", "openvino", "--python", sys.executable, "--target-file", "no/dir"), "--target-file"),
        (("--engine", "vllm", "--grid"), "--engine"),
        (("--url", "http://localhost:1"), "--url"),  # no server with a draft
        (("--url", *["http://localhost:1"] * 3), "--url"),  # two with a draft, but one draft
        (("--url", *["http://localhost:1"] * 2, "--num-speculative-tokens", 1, 2), "--num-speculative-tokens"),
        (("--url", *["http://localhost:1"] * 2, "--engine", "vllm"), "--engine"),
        (("--url", *["http://localhost:1"] * 2, "--draft-p-min", 0.5), "--draft-p-min"),
        (("--url", *["http://localhost:1"] * 2, "--grid"), "--url"),
    ],
)
def test_what_an_engine_does_not_take_is_rejected(target_folder, noisy_folder, capsys, words, named):
    given = ("benchmark", "--target", target_folder, "--draft", noisy_folder, *words)
    assert widedraft.main([*map(str, given)]) == 2
    assert named in capsys.readouterr().err


def test_a_worker_has_several_engines_and_keeps_prints_apart():
    program = (
        "import worker\n"
        "class Fake:\n"
        "    def __init__(self, request): self.request = request\n"
        "    def decode(self, prompts, sampling): print('noise'); return [self.request.draft, prompts, sampling]\n"
        "    def features(self): return {'of': self.request.draft}\n"
        "    def close(self): print('closed', self.request.draft)\n"
        "worker.ENGINES['vllm'] = (Fake, 'pytest'); worker.package_version = lambda package: '7'\n"
        "worker.main('vllm')\n"
    )
    one, two = ({"target": "T", "max_model_len": 9, "dtype": "float32", "draft": draft} for draft in "DE")
    calls = [(0, "open", one), (1, "open", two), (0, "decode", [[1], [2]], [{}, {}]), (0, "close"), (1, "features")]
    lines = [{"engine": engine, "call": call, "arguments": arguments} for engine, call, *arguments in calls]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="".join(json.dumps(line) + "\n" for line in lines),
        cwd=WORKER.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    replies = ["7", "7", ["D", [[1], [2]], [{}, {}]], None, {"of": "E"}]
    assert [json.loads(line) for line in done.stdout.splitlines()] == replies
    assert done.stderr.split() == ["noise", "closed", "D", "closed", "E"]  # the last with the end of its input


def opened(**changes):
    return worker.EngineRequest(**{"target": "T", "dtype": "float32", "max_model_len": 64} | changes)


def llama_server(post, **changes):
    """One whose requests post(path, body) replies to."""
    server = worker.LlamaServer.__new__(worker.LlamaServer)
    server.request, server.post = opened(num_speculative_tokens=3, **changes), post
    server.longest_prompt = server.cached_tokens = 0
    return server


def test_vllms_statistics_and_counters_are_those_of_one_call(monkeypatch):
    by_position = [5, 3]  # before

    class FakeLLM:
        def __init__(self, **settings):
            self.settings = settings

        def generate(self, prompts, params, *, use_tqdm):
            assert prompts == [{"prompt_token_ids": ids} for ids in ([1], [2, 3])]
            assert [each["seed"] for each in params] == [7, 8]
            return self.respond([1], [2, 3])

        def chat(self, conversations, params, *, use_tqdm, chat_template_kwargs):
            assert (conversations, chat_template_kwargs) == ([CONVERSATION] * 2, {"x": 1})
            return self.respond([5], [5, 6])

        def respond(self, *prompts):
            by_position[:] = [by_position[0] + 4, by_position[1] + 1]
            responses = ([4, 5, 6], "length", 0.1), ([7], "stop", 0.3)
            return [output(prompt, *each) for prompt, each in zip(prompts, responses, strict=True)]

        def get_metrics(self):
            prefix = "vllm:spec_decode_num"
            counts = {
                "drafts": by_position[0] + 2,
                "draft_tokens": 2 * by_position[0],
                "accepted_tokens": sum(by_position),
            }
            return [
                SimpleNamespace(name=f"{prefix}_accepted_tokens_per_pos", values=by_position),
                *(SimpleNamespace(name=f"{prefix}_{name}", value=value) for name, value in counts.items()),
                SimpleNamespace(name="vllm:generation_tokens", value=9),
            ]

    on_cpus = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: True))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=dict))
    monkeypatch.setitem(sys.modules, "vllm.platforms", on_cpus)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    how = {"draft": "D", "num_speculative_tokens": 2, "concurrency": 2, "has_own_tokenizer": True}
    engine = worker.VllmEngine(opened(**how, is_chat=True, chat_template_kwargs={"x": 1}))
    assert engine.engine.settings["max_num_seqs"] == 2
    assert engine.engine.settings["enable_prefix_caching"] is False
    assert engine.engine.settings["enforce_eager"] is True
    assert engine.engine.settings["speculative_config"] == {
        "method": "draft_model",
        "model": "D",
        "num_speculative_tokens": 2,
        "use_heterogeneous_vocab": True,
    }
    decoded = engine.decode([[1], [2, 3]], [{"seed": 7}, {"seed": 8}])
    assert decoded["elapsed_s"] >= 0
    assert {name: value for name, value in decoded.items() if name != "elapsed_s"} == {
        "prompt_ids": [[1], [2, 3]],
        "ids": [[4, 5, 6], [7]],
        "stopped": [False, True],
        "steps": 4,
        "proposed": 8,
        "accepted": 5,
        "by_position": [4, 1],
        "first_s": [0.1, 0.3],
        "last_s": [pytest.approx(0.6), pytest.approx(0.8)],
    }
    rendered = engine.decode([CONVERSATION] * 2, [{}, {}])
    assert (rendered["prompt_ids"], rendered["steps"]) == ([[5], [5, 6]], 4)
    plain = worker.VllmEngine(opened(as_served=True, lookup={"prompt_lookup_max": 3}, num_speculative_tokens=4))
    assert plain.engine.settings["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
    }
    assert {"enable_prefix_caching", "enforce_eager"}.isdisjoint(plain.engine.settings)


def test_llama_cpp_requests_are_sent_at_once_and_timed_to_their_first_token():
    together = threading.Barrier(2, timeout=20)

    def post(path, body):
        together.wait()
        time.sleep(0.06)
        assert (path, body["cache_prompt"], body["n_predict"]) == ("completion", False, 9)
        drafted = {"draft_n": 6, "draft_n_accepted": len(body["prompt"])}
        return {"tokens": [*body["prompt"], 1], "timings": {"predicted_ms": 20.0, **drafted}}

    decoded = llama_server(post).decode([[5], [6, 7]], [{"max_tokens": 9, "temperature": 0}] * 2)
    assert (decoded["prompt_ids"], decoded["ids"]) == ([[5], [6, 7]], [[5, 1], [6, 7, 1]])
    assert (decoded["proposed"], decoded["accepted"], decoded["by_position"]) == (12, 3, None)
    assert decoded["steps"] == 2 + 2  # of 6 proposals each, though 0 of 1 and 0 of 2 tokens were not accepted
    spans = [last - first for first, last in zip(decoded["first_s"], decoded["last_s"], strict=True)]
    assert spans == pytest.approx([0.02, 0.02])
    assert min(decoded["first_s"]) >= 0.04
    assert decoded["elapsed_s"] >= 0.06


@pytest.mark.parametrize("is_chat", [True, False])
def test_llama_cpp_renders_conversations_with_its_own_template(is_chat):
    def post(path, body):
        if path == "apply-template":
            assert (body["messages"], body["chat_template_kwargs"]) == (CONVERSATION, {"x": 1})
            return {"prompt": "<hi>"}
        if path == "tokenize":
            assert body["content"] == ("<hi>" if is_chat else "hi")
            return {"tokens": [8, 9]}
        assert body["prompt"] == [8, 9]
        timings = {"predicted_ms": 1.0, "draft_n": 5, "draft_n_accepted": 2}
        return {"tokens": [3, 4, 5, 6], "timings": timings}

    server = llama_server(post, is_chat=is_chat, chat_template_kwargs={"x": 1})
    decoded = server.decode([CONVERSATION], [{"max_tokens": 4, "temperature": 0}])
    assert (decoded["prompt_ids"], decoded["steps"]) == ([[8, 9]], 2)  # of 5 proposals, at most 3 each


@pytest.mark.parametrize(
    ("sizes", "k", "proposed", "by_position"),
    [
        ([6, 3, 1, 2], 3, 6, [2, 1, 0]),
        ([1, 3, 1, 1], 2, 3, [1, 1]),  # the prompt's token; two accepted, none, and none with room for none
        ([1, 3, 2], 2, 3, [2, 1]),  # the last step has room for one proposal
    ],
)
def test_openvinos_runs_of_the_target_give_positions(monkeypatch, sizes, k, proposed, by_position):
    ttft = SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=250.0))
    raw = SimpleNamespace(m_batch_sizes=sizes)  # the prompt's, then accepted tokens and one more
    metrics = SimpleNamespace(main_model_metrics=SimpleNamespace(raw_metrics=raw))
    output = SimpleNamespace(tokens=[[1, 2, 3]], perf_metrics=ttft, extended_perf_metrics=metrics)
    pipeline = worker.OpenVinoPipeline.__new__(worker.OpenVinoPipeline)
    pipeline.request = opened(num_speculative_tokens=k, draft="D")
    monkeypatch.setattr(pipeline, "generate", lambda *_: time.sleep(0.01) or output)
    decoded = pipeline.decode([[1]], [{}])
    assert (decoded["ids"], decoded["by_position"], decoded["first_s"]) == ([[1, 2, 3]], by_position, [0.25])
    assert (decoded["steps"], decoded["proposed"]) == (len(sizes) - 1, proposed)
    assert decoded["accepted"] == sum(by_position)
    assert decoded["last_s"] == [decoded["elapsed_s"]]
    assert decoded["elapsed_s"] >= 0.01


def test_the_serving_command_is_of_the_fastest_method_that_is_decided(benchmarked, noisy_folder):
    record, _ = benchmarked("vllm", noisy_folder)
    rows = [row for row in record.best if row.over == PLAIN]
    draft, lookup = sorted(rows, key=lambda row: row.method != DRAFT)
    lucky = replace(draft, speedup=Estimate(9.0, (0.9, 90.0)))
    lines = engine_speed.serve_lines(replace(record, best=(lucky, lookup), prompts={1: 8, 8: 8})).splitlines()
    assert (lines[0].startswith("Concurrency 1: prompt lookup"), '"ngram"' in lines[2]) == (True, True)
    assert lines[-1].startswith("Concurrency 8: no method")


# Running servers


@pytest.fixture
def benchmarked_at(tmp_path, target_folder):
    """benchmarked_at(urls, flags): what the command writes about running servers."""

    def run(*urls, flags=()):
        out = tmp_path / "out.json"
        words = ["benchmark", "--target", target_folder, "--url", *urls, "--num-prompts", 6, "--max-new-tokens", 9]
        assert widedraft.main([*map(str, (*words, "--dtype", "float32", "--out", out, *flags))]) == 0
        return TypeAdapter(BenchmarkFile).validate_json(out.read_text())

    return run


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_servers_are_streamed_and_count(benchmarked_at, target_folder, noisy_folder, capsys, kind):
    with served(FakeServer(target_folder, kind)) as plain, served(FakeServer(target_folder, kind, k=2)) as drafted:
        flags = ("--draft", noisy_folder, "--num-speculative-tokens", 2, "--concurrency", 1, 2)
        record = benchmarked_at(plain.url, drafted.url, flags=flags)
    assert record.engine == {"llamacpp": "llama.cpp"}.get(kind, kind) + " server"
    assert [(row.concurrency, row.method) for row in record.rows] == [*product((1, 2), (PLAIN, DRAFT))]
    first, second = record.rows[:2]
    assert first.tokens == second.tokens
    assert len(plain.requests) == len(drafted.requests) == 6 + 1 + 6 + 2  # and a group to warm up
    assert first.tokens == 6 * 9
    assert second.acceptance_length == pytest.approx(8 / 3)  # of 3 steps for the 8 tokens after the first
    shares = pytest.approx((3 / 3, 2 / 3))
    assert second.accepted_by_position == (None if kind == "sglang" else shares)
    assert (second.replayed_by_position is None) == (kind == "llamacpp")  # which streams text only
    assert all(row.ttft_ms > 0 and row.tpot_ms >= 0 for row in record.rows)
    for request in (*plain.requests, *drafted.requests):
        assert (request["temperature"], request["max_tokens"], request["repetition_penalty"]) == (0, 9, 1)
    name = {"vllm": "cache_salt", "sglang": "extra_key", "llamacpp": "cache_prompt"}[kind]
    caches = [request[name] for request in drafted.requests]
    assert caches == [False] * 15 if kind == "llamacpp" else len(set(caches)) == 15


def test_widedrafts_own_server_decodes_with_and_without_its_draft(
    benchmarked_at, target_folder, noisy_folder, tmp_path
):
    pair = load_pair(str(target_folder), str(noisy_folder), dtype="float32")
    with served_here(pair) as server:
        url = str(server.client.base_url).removesuffix("/v1/")
        flags = ("--draft", noisy_folder, "--num-speculative-tokens", 3, "--temperature", 0.7, "--top-k", 8)
        sampled = benchmarked_at(url, url, flags=flags)
        before = counted(server)
        greedy = benchmarked_at(url, url, flags=flags[:4])
        new = {name: value - before[name] for name, value in counted(server).items() if name in before}
    with_draft = new["spec_decode_num_drafts_total",] + new["spec_decode_num_accepted_tokens_total",]
    assert new["generation_tokens_total",] == 2 * with_draft > 0
    assert sampled.rows[1].acceptance_length is not None
    plain, drafted = greedy.rows
    assert (plain.tokens, plain.acceptance_length, greedy.engine) == (drafted.tokens, None, "widedraft server")
    assert drafted.accepted_by_position is not None
    assert drafted.acceptance_length == pytest.approx(1 + sum(drafted.accepted_by_position))
    own = tmp_path / "own.json"
    words = (*flags[:4], "--target", target_folder, "--num-prompts", 6, "--max-new-tokens", 9, "--dtype", "float32")
    assert widedraft.main([*map(str, ("benchmark", *words, "--out", own))]) == 0
    [loop] = [row for row in TypeAdapter(BenchmarkFile).validate_json(own.read_text()).rows if row.method == DRAFT]
    assert drafted.accepted_by_position == pytest.approx(loop.accepted_by_position)


@pytest.mark.parametrize(("plain_k", "k"), [(2, 0), (0, 3)])
def test_servers_in_the_wrong_order_or_with_another_k_are_rejected(target_folder, capsys, plain_k, k):
    with served(FakeServer(target_folder, k=plain_k)) as plain, served(FakeServer(target_folder, k=k)) as drafted:
        words = ("--url", plain.url, drafted.url, "--target", target_folder, "--num-speculative-tokens", 2)
        more = ("--num-prompts", 2, "--max-new-tokens", 9, "--dtype", "float32")
        assert widedraft.main([*map(str, ("benchmark", *words, *more))]) == 2
    assert "--num-speculative-tokens" in capsys.readouterr().err
