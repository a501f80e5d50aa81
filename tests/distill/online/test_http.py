"""Requests over HTTP that a draft learns from: what is recorded of them, what is swapped, and what survives a kill."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest
import requests
import torch
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import widedraft
from architectures.errors import UserError
from distill.chunked_loss import head_of
from distill.online import http_serving
from distill.online.http_serving import MAX_BACKLOG, LearningEngine
from distill.online.learning import compare_on_stream
from distill.online.serving import SERVER_VARIABLE, Journal, load_models, read_records
from distill.recipe.recipe import save_recipe
from distill.run import Run
from distill.train import train
from eval.config import ServeSettings
from eval.decoding.sampling import Limits, Sampling
from eval.decoding.speculative import plain_decode
from eval.models import load_tokenizer, stop_token_ids
from eval.pair import LoadedPair
from eval.replay import response_logits
from eval.serving_engine import ResponseText, ServedRequest
from tests.distill.online.test_live import ROOT, lines
from tests.distill.online.test_serving import pair  # noqa: F401  # a fixture
from tests.eval import running_server
from tests.rejections import rejects

HTTP = {"responses": "live", "stream": None}
MOST_S = 120
PROMPTS = [f"{word}{number}" for word in ("say ", "q") for number in range(30)]
MAX_TOKENS = 12
GREEDY, SAMPLED = Sampling(), Sampling(0.9, top_p=0.95)


class Inbox(SimpleNamespace):
    """Of drafts that never come, unless a test changes `newest`."""

    updates = newest = 0

    def newest_for(self, served):
        self.updates = self.newest
        return self.updates


@contextmanager
def engine_of(pair, folder, journal_folder):  # noqa: F811
    settings = ServeSettings(target="t", draft="d", dtype="float32", num_speculative_tokens=3, max_model_len=60)
    both = LoadedPair(*pair, load_tokenizer(folder), (folder, folder))
    journal = Journal(journal_folder, 0, 1, 2)
    journal.begin()
    with LearningEngine(both, settings, journal, seed=0) as running:
        running.inbox = Inbox()
        yield running


@pytest.fixture
def engine(pair, tiny_target, tmp_path):  # noqa: F811
    with engine_of(pair, tiny_target, tmp_path) as running:
        yield running


def submit(engine, prompt, *, count=20, sampling=GREEDY, stop=(), **how):
    """Submit a request; returns it and a list of its tokens, complete once `finished` is set."""
    tokens, finished = [], threading.Event()

    def deliver(token):
        tokens.append(token)
        if token is None or token.finish_reason is not None:
            finished.set()

    text = ResponseText(engine.pair.tokenizer, stop)
    request = ServedRequest(tuple(prompt), sampling, count, 5, text, deliver, **how)
    engine.submit(request)
    return SimpleNamespace(request=request, tokens=tokens, finished=finished)


until = partial(running_server.until, limit_s=MOST_S)


def test_what_is_recorded_of_a_batch_is_each_rows_own(engine, pair, capsys):  # noqa: F811
    """Greedy and sampled ones together: the target's states, its greedy tokens, and each request's own sampling."""
    target, draft = pair
    prompts = [[5, 9, 200, 31], [7], [40, 41, 42, 43, 44, 45, 46], [8, 8], [90, 30, 31]]
    samplings = [GREEDY, GREEDY, SAMPLED, GREEDY, SAMPLED]
    sent = [submit(engine, *each) for each in ((ids,) for ids in prompts[:2])]
    sent += [submit(engine, ids, sampling=own) for ids, own in zip(prompts[2:], samplings[2:], strict=True)]
    until(lambda: engine.num_recorded == len(prompts))
    assert capsys.readouterr().out == "served\n" * len(prompts)
    for served in engine.journal.read(range(len(prompts))):
        record, place = served.record, prompts.index(list(served.prompt_ids))
        assert [token.token_id for token in sent[place].tokens] == list(record.response_ids)
        assert record.sampling == samplings[place]
        expected_AV = response_logits(target, served.prompt_ids, record.response_ids)
        torch.testing.assert_close(head_of(target).logits(served.hidden_AH), expected_AV, rtol=1e-3, atol=1e-4)
        assert record.tokens == record.accepted + record.steps
        drafted_A = response_logits(draft, served.prompt_ids, record.response_ids).argmax(dim=-1).tolist()
        agreed = [a == b for a, b in zip(drafted_A, record.response_ids, strict=True)]
        if record.sampling.is_greedy:
            [alone] = plain_decode(target, [served.prompt_ids], limits=Limits(20, stop_token_ids(target)))
            assert record.response_ids == alone.token_ids
            assert record.alpha == pytest.approx(sum(agreed) / len(agreed))
        else:
            assert 0 < record.alpha < 1


def test_a_response_with_a_stop_string_is_recorded_to_the_end_of_its_step(engine):
    sent = submit(engine, [5, 9, 200, 31])
    until(sent.finished.is_set)
    text = "".join(token.text for token in sent.tokens)
    stopped = submit(engine, [5, 9, 200, 31], stop=[text[3:5]])
    until(lambda: engine.num_recorded == 2)
    whole, short = engine.journal.read([0, 1])
    assert whole.record.response_ids[: short.record.tokens] == short.record.response_ids
    assert len(stopped.tokens) <= short.record.tokens == len(short.hidden_AH) < 20


def test_cancelled_and_plain_requests_are_not_recorded(engine):
    cancelled = submit(engine, [5, 9], count=50)
    cancelled.request.cancelled.set()
    plain = submit(engine, [5, 9], speculative=False)
    until(lambda: cancelled.finished.is_set() and plain.finished.is_set())
    last = submit(engine, [5, 9])
    until(lambda: engine.num_recorded == 1)
    assert len(last.tokens) == len(plain.tokens) > 1
    assert not plain.request.states


def test_requests_far_ahead_of_training_are_skipped(engine):
    engine.num_recorded = MAX_BACKLOG
    sent = submit(engine, [5, 9])
    until(lambda: engine.num_skipped == 1)
    engine.inbox.newest = 1
    until(sent.finished.is_set)
    submit(engine, [5, 9])
    until(lambda: engine.num_recorded == MAX_BACKLOG + 1)
    assert [served.record.request for served in engine.journal.read([MAX_BACKLOG])] == [MAX_BACKLOG]


def test_acceptance_of_the_first_and_last_requests_is_shown_also_after_a_restart(
    pair,  # noqa: F811
    tiny_target,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(http_serving, "WINDOW", 2)
    for count in (3, 4):
        with engine_of(pair, tiny_target, tmp_path) as engine:
            for number in range(engine.num_recorded, count):
                submit(engine, [5 + 7 * number, 9], count=10 + number)
                until(lambda expected=number + 1: engine.num_recorded == expected)
            records = list(read_records(engine.journal.records_file))
            shown = gauges(generate_latest(engine.metrics.registry).decode())
        for window, some in (("first", records[:2]), ("last", records[-2:])):
            accepted = sum(record.alpha * record.tokens for record in some)
            rate = accepted / sum(record.tokens for record in some)
            assert shown["widedraft:online_acceptance_rate", window] == pytest.approx(rate)
        assert shown["widedraft:online_requests", "recorded"] == count == len(records)


def test_weights_that_change_in_the_middle_change_no_token(engine, pair):  # noqa: F811
    """The draft becomes the target: from then on every token is accepted, as its cache is made anew."""
    target, draft = pair
    expected = {}
    for prompt in ([5, 9, 200, 31], [7, 7]):
        [alone] = plain_decode(target, [prompt], limits=Limits(50, stop_token_ids(target)))
        expected[tuple(prompt)] = alone.token_ids
    step, steps = engine.step, []

    def one_step(batch, requests):
        steps.append(len(batch.texts))
        if len(steps) == 3:
            draft.load_state_dict(deepcopy(target.state_dict()))
            engine.inbox.newest = 1
        step(batch, requests)

    engine.step = one_step
    for prompt in expected:
        submit(engine, prompt, count=50)
    until(lambda: engine.num_recorded == 2)
    for served in engine.journal.read([0, 1]):
        assert served.record.response_ids == expected[served.prompt_ids]
        assert (served.record.updates, served.record.alpha) == (1, 1.0)
        assert served.record.steps <= 4 + served.record.tokens / 4


def test_its_draft_cannot_be_replaced_by_a_client(engine):
    with pytest.raises(UserError):
        engine.swap_draft("other")


def test_a_full_disk_ends_the_server(engine, monkeypatch):
    ended = threading.Event()
    engine.inbox.end = ended.set

    def no_space(served):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "write", lambda self, served: no_space(served))
    submit(engine, [5, 9])
    until(ended.is_set)
    assert engine.num_recorded == 0


# With training


@pytest.fixture
def make_served(make_online, tmp_path):
    """make_served(**how) -> Recipe that passes `widedraft check`, whose stages before distillation are complete."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"tell {number}"}) + "\n" for number in range(80)))

    def make(online=HTTP, **distill):
        recipe = make_online(online=online, prompts=prompts, **distill)
        save_recipe(recipe, Path(recipe.run_dir) / "recipe.yaml")
        return recipe

    return make


def gauges(text):
    families = text_string_to_metric_families(text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def metrics_of(url):
    return gauges(requests.get(f"{url}/metrics", timeout=60).text)


@contextmanager
def program_of(recipe):
    """`widedraft serve RECIPE` in a process group of its own, killed at the end."""
    words = [sys.executable, "-m", "widedraft", "serve", str(Path(recipe.run_dir) / "recipe.yaml"), "--port", "0"]
    path = Path(recipe.run_dir).with_suffix(".log")
    with path.open("w") as log:
        process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or "OpenAI API: " in path.read_text())
        found = re.search(r"OpenAI API: (http://\S+)/v1\n", path.read_text())
        assert found is not None, path.read_text()
        with openai.OpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=0, timeout=60) as client:
            complete = partial(client.completions.create, model=recipe.target.path, max_tokens=MAX_TOKENS)

            def respond(prompt):
                return complete(prompt=prompt, temperature=0).choices[0].text

            yield SimpleNamespace(process=process, url=found[1], respond=respond)
        assert process.wait(MOST_S) is not None
        until(lambda: not left_of(process.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def left_of(group):
    """Processes of a group that have not ended."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return [stat for stat in stats if stat[2] == str(group) and stat[0] != "Z"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("warm")
def test_a_shifted_stream_over_http_is_learned(make_served, tiny_target):
    """58 requests of 4 clients: texts are the target's, drafts change meanwhile, and the last is the better one."""
    recipe = make_served({**HTTP, "baselines": ["init"]}, max_duration="29ba", save_interval="10ba")
    with program_of(recipe) as program:
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(program.respond, PROMPTS[:50]))
        shown = metrics_of(program.url)
        texts += [program.respond(prompt) for prompt in PROMPTS[50:58]]
    assert program.process.returncode == 0

    run = Run.of(recipe)
    tokenizer, records = load_tokenizer(tiny_target), lines(recipe)
    target = load_models(run, rank=0)[0]
    ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS[:58]]
    decoded = plain_decode(target, ids, limits=Limits(MAX_TOKENS, stop_token_ids(target)))
    assert texts == [tokenizer.decode(each.token_ids, skip_special_tokens=True) for each in decoded]
    assert [record["request"] for record in records] == list(range(58))
    updates = [record["updates"] for record in records]
    assert updates == sorted(updates)
    assert len(set(updates)) > 5
    assert shown["widedraft:online_updates",] > 0
    assert shown["widedraft:online_requests", "recorded"] == 50
    assert shown["widedraft:online_acceptance_rate", "first"] == pytest.approx(
        sum(record["alpha"] * record["tokens"] for record in records[:50]) / sum(r["tokens"] for r in records[:50])
    )
    init, online = compare_on_stream(run)
    assert init.alpha.value < online.alpha.value
    assert online.alpha_gain.value == pytest.approx(online.alpha.value - init.alpha.value)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("warm")
def test_killed_and_terminated_it_keeps_what_it_recorded(make_served):
    recipe = make_served(max_duration="100ba", save_interval="1ba")
    with program_of(recipe) as program:
        for prompt in PROMPTS[:7]:
            program.respond(prompt)
        until(lambda: len(lines(recipe)) == 7)
        os.killpg(program.process.pid, signal.SIGKILL)
    before = lines(recipe)
    with program_of(recipe) as program:
        program.respond(PROMPTS[7])
        until(lambda: metrics_of(program.url)["widedraft:online_requests", "recorded"] == 8)
        program.process.terminate()  # while it waits for requests
    assert program.process.returncode in (143, -signal.SIGTERM)
    assert lines(recipe)[:7] == before
    with program_of(recipe) as program:
        program.respond(PROMPTS[8])
        os.killpg(program.process.pid, signal.SIGINT)
    assert program.process.returncode == 130
    found = lines(recipe)
    assert [line["request"] for line in found] == list(range(9))
    assert found[:7] == before


def test_training_on_http_requests_needs_the_server(make_online, monkeypatch):
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    with rejects("distill.online.stream", "serve"):
        train(make_online(online=HTTP, max_duration="2ba"))
    monkeypatch.setenv(SERVER_VARIABLE, json.dumps({}))
    with rejects("distill.max_duration"):
        train(make_online("whole", online=HTTP))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--target"),
        (["--target", "A"], "--draft"),
        (["r.yaml", "--draft", "B"], "--draft"),
        (["r.yaml", "--dtype", "float32"], "--dtype"),
        (["r.yaml", "--max-model-len", "9"], "--max-model-len"),
    ],
)
def test_a_recipe_or_a_pair(capsys, words, named):
    assert widedraft.main(["serve", *words]) == 2
    assert named in capsys.readouterr().err


def test_a_recipe_that_does_not_learn_over_http_is_not_served(make_online, capsys):
    recipe = make_online(online={"responses": "live"})
    path = str(Path(recipe.run_dir) / "recipe.yaml")
    save_recipe(recipe, Path(path))
    assert widedraft.main(["serve", path]) == 2
    assert widedraft.main(["serve", path, "distill.online=null"]) == 2
    assert capsys.readouterr().err.count("distill.online") == 2
