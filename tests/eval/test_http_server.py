"""The server, driven by the openai client: many clients at once, responses, errors, metrics, a new draft."""

import random
import socket
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial

import openai
import pytest
import torch
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

import widedraft
from eval import serving_engine
from eval.chat import Turn, render_prompt
from eval.decoding.kv_cache import RowSequencer
from eval.decoding.sampling import Limits, Sampling
from eval.decoding.speculative import Batch, plain_decode
from eval.http_server import MAX_BODY_BYTES
from eval.models import load_model
from eval.serving_engine import QueueFullError, ResponseText, ServedRequest
from tests.eval.running_server import is_idle, served, until

PROMPTS = [f"{word} {number}" for number in range(8) for word in ("hello", "why is it", "x", "tell me more about")]
TURNS, TAKEN = [{"role": "user", "content": "Hi"}], {"add_generation_prompt": False}  # the template's own argument
MOST_TOKENS = 160


@pytest.fixture(scope="module")
def server(pair):
    with served(pair, max_num_seqs=8) as running:
        yield running


@pytest.fixture(scope="module")
def expected(pair):
    """expected(prompt, count): the target's greedy tokens, their text, and True if it stopped."""
    ids = [pair.tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    decoded = plain_decode(pair.target, ids, limits=Limits(MOST_TOKENS, pair.stop_ids))
    by_prompt = dict(zip(PROMPTS, decoded, strict=True))

    def cut(prompt, count):
        ids = by_prompt[prompt].token_ids[:count]
        return ids, pair.tokenizer.decode(ids, skip_special_tokens=True), ids[-1] in pair.stop_ids

    return cut


def complete(server, prompt, **fields):
    extra = {name: fields.pop(name) for name in ("speculative", "widedraft", "top_k", "min_p") if name in fields}
    how = {"temperature": 0, "max_tokens": 24, **fields}
    return server.client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **how)


def counted(server):
    """Values of the counters, by name and label."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if "_created" not in sample.name]
    return {(each.name.removeprefix("widedraft:"), *each.labels.values()): each.value for each in samples}


def longest(expected):
    return max(PROMPTS, key=lambda prompt: len(expected(prompt, MOST_TOKENS)[0]))


def of_kind(server, kind, prompt, count, seed):
    if kind == "malformed":
        body = (b"{", b"[]", b'{"prompt": 3}', b'{"prompt": "x", "n": 2}', b"\xff")[seed % 5]
        return server.post("/v1/completions", data=body, headers={"content-type": "application/json"})
    if kind == "leave":
        with complete(server, prompt, max_tokens=900, stream=True, temperature=1) as stream:
            next(iter(stream))
    if kind == "stream":
        return "".join(chunk.choices[0].text for chunk in complete(server, prompt, max_tokens=count, stream=True))
    how = {"temperature": 0.8, "seed": seed} if kind == "sampled" else {"speculative": kind != "plain"}
    return complete(server, prompt, max_tokens=count, **how)


def test_many_clients_get_the_targets_own_text(server, expected):
    """Some disconnect, send bodies that are none, sample, or decode plainly; no response is lost or changed."""
    before, kinds = counted(server), ["whole", "stream", "leave", "sampled", "plain", "malformed"] * 11
    random.Random(0).shuffle(kinds)
    asked = [(kinds[number], PROMPTS[number % len(PROMPTS)], 8 + number % 5 * 8, number) for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda each: of_kind(server, *each), asked))
    for (kind, prompt, count, _), result in zip(asked, results, strict=True):
        ids, text, is_stopped = expected(prompt, count)
        if kind == "malformed":
            assert result.status_code == 400
        elif kind == "stream":
            assert result == text
        elif kind != "sampled":
            assert result.choices[0].text == text
            assert result.choices[0].finish_reason == ("stop" if is_stopped else "length")
            assert result.usage.completion_tokens == len(ids)
    until(lambda: is_idle(server))
    after = counted(server)
    assert after["num_requests_running",] == after["num_requests_waiting",] == 0
    ended = sum(after[key] - before.get(key, 0) for key in after if key[0] == "request_success_total")
    assert ended == sum({"malformed": 0, "leave": 2}.get(kind, 1) for kind, *_ in asked)


def test_counters_add_up(server, expected):
    """vLLM's acceptance length, 1 + accepted / drafts, is the one of the steps; plain tokens are no drafts."""
    before = counted(server)
    results = [complete(server, prompt, widedraft=True) for prompt in PROMPTS[:6]]
    middle = counted(server)
    complete(server, PROMPTS[0], speculative=False)
    after = counted(server)
    with_draft, plain = (
        {key: new[key] - old.get(key, 0) for key in new} for old, new in ((before, middle), (middle, after))
    )
    counts = ("drafts", "accepted_tokens", "draft_tokens")
    drafts, accepted, proposed = (with_draft[f"spec_decode_num_{name}_total",] for name in counts)
    tokens = sum(result.usage.completion_tokens for result in results)
    assert drafts + accepted == with_draft["generation_tokens_total",] == tokens
    at = [value for key, value in with_draft.items() if key[0] == "spec_decode_num_accepted_tokens_per_pos_total"]
    assert (sum(at), sorted(at, reverse=True)) == (accepted, at)
    assert with_draft["prompt_tokens_total",] == sum(result.usage.prompt_tokens for result in results)
    sources = [source for result in results for source in result.widedraft["source"]]
    assert (sources.count("draft"), sources.count("target")) == (accepted, drafts)
    assert sum(result.widedraft["num_draft_tokens"] for result in results) == proposed
    assert plain["spec_decode_num_drafts_total",] == 0
    assert plain["generation_tokens_total",] == len(expected(PROMPTS[0], 24)[0])


@pytest.mark.parametrize("speculative", [True, False])
def test_a_seed_gives_the_same_text_alone_and_among_others(server, speculative):
    how = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "seed": -7, "speculative": speculative}
    [alone] = complete(server, "once", **how).choices
    with ThreadPoolExecutor(7) as pool:
        others = [
            pool.submit(complete, server, prompt, **{**how, "seed": None, "max_tokens": 60}) for prompt in PROMPTS[:6]
        ]
        [among] = complete(server, "once", **how).choices
        assert {len(each.result().choices) for each in others} == {1}
    assert among.text == alone.text
    assert complete(server, "once", **{**how, "seed": 8}).choices[0].text != alone.text


def test_chat_is_rendered_streamed_and_counted(pair, server):
    system, parts = {"role": "system", "content": "Short."}, [{"type": "text", "text": "Hi"}]
    create = partial(server.client.chat.completions.create, model="tiny", temperature=0)
    create = partial(create, messages=[system, {"role": "user", "content": parts}])
    whole = create(max_completion_tokens=20, logprobs=True)
    usage = {"include_usage": True}
    *chunks, last = create(max_tokens=20, stream=True, stream_options=usage, extra_body={"widedraft": True})
    ids = render_prompt(pair.tokenizer, Turn((system, {"role": "user", "content": "Hi"})))
    [text] = plain_decode(pair.target, [ids], limits=Limits(20, pair.stop_ids))
    tokens = [pair.tokenizer.decode(token) for token in text.token_ids]
    assert whole.choices[0].message.content == pair.tokenizer.decode(text.token_ids, skip_special_tokens=True)
    assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (len(ids), len(ids) + len(tokens))
    assert [each.token for each in whole.choices[0].logprobs.content] == tokens
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(len(chunk.widedraft["source"]) == 1 for chunk in chunks)
    assert (last.choices, last.usage.completion_tokens) == ([], len(tokens))


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=5)])
def test_logprobs_are_the_targets_at_temperature_1(pair, server, sampling, speculative):
    tokens = {(5, 6, 7): [], (9, 8): []}
    for ids, own in tokens.items():
        text = ResponseText(pair.tokenizer, ())
        server.engine.submit(ServedRequest(ids, sampling, 24, len(ids), text, own.append, speculative, wants_logp=True))
    until(lambda: all(own and own[-1].finish_reason for own in tokens.values()))
    for prompt, own in tokens.items():
        ids = [token.token_id for token in own]
        with torch.inference_mode():
            logits_TV = pair.target(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        expected = logits_TV.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        assert [token.logp for token in own] == pytest.approx(expected, abs=1e-4)


def test_offsets_of_logprobs_are_places_in_the_text(server):
    whole, text = complete(server, PROMPTS[0], logprobs=0).choices[0], ""
    for chunk in complete(server, PROMPTS[0], logprobs=0, stream=True):
        assert chunk.choices[0].logprobs.text_offset == [len(text)]
        text += chunk.choices[0].text
    assert whole.logprobs.text_offset[:2] == [0, len(whole.logprobs.tokens[0])]
    assert text == whole.text


def test_stop_strings_end_a_response(server, expected):
    before, proposed = counted(server), 0
    for prompt in PROMPTS[:12]:
        _, text, _ = expected(prompt, 40)
        stop = text[len(text) // 2 :][:2]
        how = {"stop": [stop, "never"], "max_tokens": 40}
        response = complete(server, prompt, widedraft=True, **how)
        whole = response.choices[0]
        assert (whole.text, whole.finish_reason) == (text[: text.index(stop)], "stop")
        chunks = list(complete(server, prompt, widedraft=True, stream=True, **how))
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
        proposed += sum(each.widedraft["num_draft_tokens"] for each in (response, *chunks))
    until(lambda: is_idle(server))
    name = ("spec_decode_num_draft_tokens_total",)
    assert counted(server)[name] - before[name] == proposed


@pytest.mark.parametrize("fails", ["load", "read", None])
def test_tokens_are_emitted_while_a_draft_loads(pair, expected, tiny_draft, noisy_folder, monkeypatch, fails):
    """If it cannot be loaded, or cannot read the running sequences, the present one goes on."""
    prompt, may_load = longest(expected), threading.Event()

    def load(*words, **how):
        assert may_load.wait(20)
        return load_model(*words, **how) if fails != "load" else 1 / 0

    monkeypatch.setattr(serving_engine, "load_model", load)
    if fails == "read":
        monkeypatch.setattr(Batch, "open_drafter", lambda *_: 1 / 0)
    with served(pair) as server, ThreadPoolExecutor(1) as pool:
        step = server.engine.step

        def slow_step(*words):
            time.sleep(0.1 if may_load.is_set() and not swapped.done() else 0.01)
            step(*words)

        monkeypatch.setattr(server.engine, "step", slow_step)
        stream = iter(complete(server, prompt, max_tokens=MOST_TOKENS, stream=True))
        got = [next(stream)]
        swapped = pool.submit(server.post, "/admin/draft", json={"draft": str(tiny_draft)})
        until(server.engine.loading.locked)
        got += [next(stream) for _ in range(20)]
        may_load.set()
        assert swapped.result().status_code == (500 if fails else 200)
        assert server.engine.num_running == 1
        assert server.client.models.list().data[0].draft == str(noisy_folder if fails else tiny_draft)
        assert "".join(chunk.choices[0].text for chunk in (*got, *stream)) == expected(prompt, MOST_TOKENS)[1]


@pytest.mark.parametrize("speculative", [True, False])
def test_running_requests_go_on_while_a_long_prompt_is_prefilled(pair, server, expected, monkeypatch, speculative):
    monkeypatch.setattr(serving_engine, "MAX_PREFILL_TOKENS", 256)
    ids = {"short": pair.tokenizer(longest(expected))["input_ids"], "long": [3 + place % 200 for place in range(1500)]}
    tokens, fed, feed = [], [], RowSequencer.feed

    def watched(self, ids_bt, spans, **how):
        fed.append(ids_bt.numel())
        return feed(self, ids_bt, spans, **how)

    monkeypatch.setattr(RowSequencer, "feed", watched)

    def submit(name, count):
        text, deliver = ResponseText(pair.tokenizer, ()), partial(receive, name)
        server.engine.submit(ServedRequest(tuple(ids[name]), Sampling(), count, 1, text, deliver, speculative))

    def receive(name, token):
        tokens.append((name, token))
        if len(tokens) == 5:
            submit("long", 20)

    submit("short", MOST_TOKENS)
    until(lambda: len(tokens) > 5 and is_idle(server))
    names = [name for name, _ in tokens]
    assert names.index("long") - 5 >= 1500 // 256
    assert max(fed) == 256
    for name, count in (("short", MOST_TOKENS), ("long", 20)):
        [text] = plain_decode(pair.target, [ids[name]], limits=Limits(count, pair.stop_ids))
        assert tuple(token.token_id for own, token in tokens if own == name) == text.token_ids


def test_a_new_draft_is_the_one_of_running_and_of_later_requests(server, expected, make_checkpoint, monkeypatch):
    """The target itself, with its own k: everything is accepted, whoever was running."""
    draft = make_checkpoint(seed=1, pad_token_id=2)
    (draft / "generation_config.json").write_text('{"num_assistant_tokens": 5}')
    present, prompt, step = str(server.engine.pair.folders[1]), longest(expected), server.engine.step
    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "step", lambda *words: (time.sleep(0.1), step(*words)))
        running = iter(complete(server, prompt, max_tokens=MOST_TOKENS, stream=True, widedraft=True))
        next(running)
        assert server.post("/admin/draft", json={"draft": str(draft)}).json()["num_speculative_tokens"] == 5
    later = complete(server, prompt, max_tokens=30, widedraft=True)
    rest = [chunk.widedraft["source"][0] for chunk in running]
    assert server.post("/admin/draft", json={"draft": present}).status_code == 200
    for sources in (later.widedraft["source"], rest[-30:]):
        assert sources.count("target") <= len(sources) // 6 + 1


@pytest.mark.parametrize("changes", [{"max_position_embeddings": 64}, {"vocab_size": 263}])
def test_a_draft_that_does_not_fit_is_rejected(server, make_checkpoint, changes):
    response = server.post("/admin/draft", json={"draft": str(make_checkpoint(seed=9, **changes))})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "draft")


def request_of(server, monkeypatch, path, **fields):
    """The request that a body becomes."""
    seen = []

    def submit(request):
        seen.append(request)
        raise QueueFullError

    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "submit", submit)
        assert server.post(path, json=fields).status_code == 429
    return seen[0]


def test_fields_are_those_of_the_request(server, monkeypatch):
    text, chat = (partial(request_of, server, monkeypatch, f"/v1/{kind}completions") for kind in ("", "chat/"))
    plain = text(prompt="abc", top_k=None)
    assert (plain.sampling, plain.max_tokens, plain.wants_logp) == (Sampling(1.0), 16, False)
    assert plain.seed != text(prompt="abc").seed
    how = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1}
    full = text(prompt=[5, 6], stop="x", seed=-3, logprobs=0, speculative=False, **how)
    assert full.sampling == Sampling(0.5, 0.9, 7, 0.1)
    assert (full.prompt_ids, full.text.stop, full.seed) == ((5, 6), ["x"], -3)
    assert (full.wants_logp, full.speculative) == (True, False)
    assert text(prompt="abc", temperature=0, top_k=3).group == text(prompt="abc", temperature=0).group
    whole = chat(messages=TURNS)
    assert whole.max_tokens == server.engine.max_model_len - len(whole.prompt_ids)
    demo = request_of(server, monkeypatch, "/predict", prompt="abc")
    assert (demo.sampling, demo.max_tokens) == (Sampling(1.0, 0.9, 10), 40)


BAD_FIELDS = {"n": 2, "best_of": 2, "temperature": 0.001, "top_k": 0, "max_tokens": 0, "logprobs": 3, "stop": [""]}
BAD_FIELDS |= {"prompt": [], "stream_options": {"include_usage": True}, "frequency_penalty": 1, "seed": 2**63}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_field_that_is_not_supported_is_named(server, name):
    with pytest.raises(openai.BadRequestError) as raised:
        server.client.completions.create(model="tiny", prompt="x", extra_body={name: BAD_FIELDS[name]})
    assert raised.value.param == name


@pytest.mark.parametrize("prompt", [[264], [-1], ["a", "b"], "x" * 2048, "x" * 2025])
def test_prompts_outside_vocabulary_or_context_are_rejected(server, prompt):
    with pytest.raises(openai.BadRequestError) as raised:
        complete(server, prompt)
    assert raised.value.param == "prompt"


def test_other_errors_have_openais_form(server):
    with pytest.raises(openai.BadRequestError):
        server.client.chat.completions.create(model="tiny", messages=[])
    for response, status in (
        (server.post("/v1/completions", json={"prompt": "x" * MAX_BODY_BYTES}), 413),
        (server.post("/v1/completions", json={"prompt": "x", "model": "other"}), 404),
        (server.post("/v1/completions", data=b"{}"), 415),
        (server.post("/v1/chat/completions", json={"messages": TURNS, "chat_template_kwargs": TAKEN}), 400),
        (server.get("/nothing"), 404),
        (server.get("/v1/models", headers={"host": "attacker.example"}), 403),
        (server.post("/v1/completions", json={"prompt": "\ud800"}), 400),
        (server.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "max_completion_tokens": 1}), 400),
    ):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert server.post("/v1/completions", json={"prompt": "x", "stream": True}).text.endswith("\n\ndata: [DONE]\n\n")
    assert server.get("/health").status_code == 200
    assert "<script>" in server.get("/").text


def test_a_key_is_needed_if_there_is_one(pair, noisy_folder):
    with served(pair, api_key="secret") as server:
        assert complete(server, "hello").choices[0].text
        for headers in ({}, {"authorization": "Bearer wrong"}):
            paths = ("/v1/models", "/metrics")
            assert {server.get(path, headers=headers).status_code for path in paths} == {401}
            response = server.post("/admin/draft", json={"draft": str(noisy_folder)}, headers=headers)
            assert response.status_code == 401
        assert server.get("/health").status_code == server.get("/").status_code == 200


def test_a_full_queue_rejects_and_what_waits_is_not_lost(pair, expected):
    with served(pair, max_num_seqs=1, max_queue=2) as server, ThreadPoolExecutor(3) as pool:
        take, server.engine.take = server.engine.take, lambda: None
        waiting = [pool.submit(complete, server, PROMPTS[0]) for _ in range(3)]
        until(lambda: len(server.engine.waiting) == 3)
        with pytest.raises(openai.RateLimitError):
            complete(server, PROMPTS[0])
        server.engine.take = take
        assert {each.result().choices[0].text for each in waiting} == {expected(PROMPTS[0], 24)[1]}


def test_an_internal_error_ends_the_requests_that_it_concerns(pair, capsys):
    with served(pair) as server:
        step, server.engine.step = server.engine.step, lambda *_: 1 / 0
        with pytest.raises(openai.InternalServerError) as raised:
            complete(server, "hello")
        assert raised.value.type == "server_error"
        with pytest.raises(openai.APIError):
            list(complete(server, "hello", stream=True))
        server.engine.step = step
        assert complete(server, "hello").choices[0].text
    assert "ZeroDivisionError" in capsys.readouterr().err


# The command


def test_the_command_serves_what_it_is_given(target_folder, noisy_folder, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: seen.append((server.config.app, sockets)))
    words = ["serve", "--target", target_folder, "--draft", noisy_folder, "--port", 0, "--max-model-len", 99]
    assert widedraft.main(list(map(str, words))) == 0
    [(app, _)] = seen
    assert "/v1/chat/completions" in {route.path for route in app.routes}
    assert str(target_folder) in capsys.readouterr().out


def test_mistakes_end_before_anything_is_loaded(monkeypatch, capsys, target_folder):
    words = ["serve", "--target", "nowhere", "--draft", "nowhere"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for more, named in ((["--host", "0.0.0.0"], "--api-key"), (["--port", str(taken.getsockname()[1])], "--port")):
            assert widedraft.main([*words, *more]) == 2
            assert named in capsys.readouterr().err
    monkeypatch.setattr(widedraft, "find_spec", lambda name: None if name == "fastapi" else name)
    assert widedraft.main(words) == 2
    assert "widedraft[serve]" in capsys.readouterr().err


def test_responses_end_when_the_server_does(pair, caplog):
    with served(pair) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(complete, server, PROMPTS[0], max_tokens=2000, temperature=1, seed=3)
        until(lambda: server.engine.num_running)
        server.engine.close()
        with pytest.raises(openai.InternalServerError):
            waiting.result()
        assert server.get("/health").status_code == 503
        with pytest.raises(openai.RateLimitError):
            complete(server, PROMPTS[0])
        with pytest.raises(CancelledError):
            server.engine.swap_draft(str(server.engine.pair.folders[1]))


def test_predict_is_a_json_string(server):
    reply = server.post("/predict", json={"prompt": PROMPTS[0]})
    assert (reply.status_code, type(reply.json())) == (200, str)
    assert server.post("/predict", json={"prompt": PROMPTS[0], "n": 1}).status_code == 400
