"""Answers by servers are those of our own decoding, in the same shards; what is not the target's is refused."""

import json
import threading
from dataclasses import replace

import pytest

from architectures.errors import UserError
from eval.answer_engines import judge
from eval.answer_engines.answerer import engine_asked
from eval.answer_engines.clients import endpoint
from eval.answer_engines.clients.config import GenerateConfig
from eval.answer_engines.probe import PROBE_TOKENS
from eval.answers.engine_evidence import answered_by, evidence_of
from eval.answers.traces import DecodingSettings, read_traces
from eval.decoding.answering import write_traces
from eval.prompts.forms import Prompt
from tests.eval.answer_engines.fake_server import FakeServer, GoneError, served

SETTINGS = DecodingSettings(
    max_new_tokens=8,
    temperature=0.0,
    top_p=1.0,
    batch_size=4,
    shard_size=3,
    max_prompt_len=200,
    seed=5,
    dtype="float32",
)
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SYSTEM = {"role": "system", "content": "Be short."}
PROMPTS = [
    *(Prompt(f"f:{i}", ({"role": "user", "content": f"say {i}"},)) for i in range(6)),
    Prompt("f:6", ({"role": "user", "content": "first"},), ("second", "third")),
    Prompt("f:7", (SYSTEM, {"role": "user", "content": '<tool_response>{"a": 1}</tool_response>'})),
]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.0)


@pytest.fixture(scope="module")
def own_folder(target_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write_traces(target_folder, PROMPTS, folder, SETTINGS)
    return folder


@pytest.fixture
def own(own_folder):
    """The shards of our own decoding, as bytes."""
    return shards(own_folder)


def shards(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("train-*.jsonl"))}


def asked(*servers, **changes):
    return GenerateConfig(engine="endpoint", urls=tuple(server.url for server in servers), concurrency=4, **changes)


def answer(target, out, config, settings=SETTINGS, prompts=PROMPTS):
    with engine_asked(config) as kind:
        write_traces(target, prompts, out, settings, answered_by=kind)


def refused(target, out, config, settings=SETTINGS):
    with pytest.raises(UserError) as raised:
        answer(target, out, config, settings)
    return str(raised.value)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_greedy_answers_are_the_bytes_of_our_own_decoding(target_folder, tmp_path, own, kind, capsys):
    """Of several turns, of system prompts and of what a tool said alike; with two servers, and every answer read."""
    with served(FakeServer(target_folder, kind)) as first, served(FakeServer(target_folder, kind)) as second:
        answer(target_folder, tmp_path / "out", asked(first, second, checked=1.0))
        assert shards(tmp_path / "out") == own
        assert min(len(first.asked), len(second.asked)) > 1
    version = "vllm 0.32.0" if kind == "vllm" else "sglang 0.5.23"
    row = {"engine": version, "of": "train", "answers": 10, "checked": 10, "differing": 0}
    assert answered_by(tmp_path / "out", "train") == [{**row, "largest_gap": 0.0, "sigmas": 0.0}]
    told = capsys.readouterr().err
    assert f"train: 10 answers by {version}, 10 of them read by the target here: none of these differs" in told
    template = "the same chat template" if kind == "vllm" else "whose template was not asked for"
    assert template in told
    assert "vocabulary 264, ends at 2" in told


def test_nothing_that_decides_a_token_is_left_to_the_server(target_folder, tmp_path):
    """A server takes what is not said from the checkpoint's generation_config.json."""
    with served(FakeServer(target_folder)) as server:
        answer(target_folder, tmp_path, asked(server))
        names = {"temperature", "top_p", "top_k", "min_p", *PENALTIES}
        assert all(names <= set(body) and body["stop_token_ids"] == [2] for body in server.asked)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_text_without_ids_is_refused(target_folder, tmp_path, kind):
    def without_ids(told):
        told.pop("output_ids", None)
        for choice in told.get("choices", ()):
            del choice["token_ids"]
        return told

    with served(FakeServer(target_folder, kind, tamper=without_ids)) as server:
        assert f"{server.url}: returns text without token ids. " in refused(target_folder, tmp_path, asked(server))


def test_another_kind_of_server_is_refused(target_folder, tmp_path):
    with served(FakeServer(target_folder, "llama.cpp")) as server:
        told = refused(target_folder, tmp_path, asked(server))
    assert told.startswith(f"{server.url}: is neither vLLM's server nor SGLang's. ")


def test_the_token_that_ends_a_text_may_stand_beside_it(target_folder, tmp_path, own):
    """SGLang may leave it out of the ids and name it as what matched."""

    def trimmed(told):
        if told["meta_info"]["finish_reason"]["type"] == "stop":
            told["output_ids"].pop()
        return told

    with served(FakeServer(target_folder, "sglang", tamper=trimmed)) as server:
        answer(target_folder, tmp_path / "out", asked(server))
    assert shards(tmp_path / "out") == own


def test_older_servers_of_sglang_say_elsewhere_what_they_serve(target_folder, tmp_path, own):
    with served(FakeServer(target_folder, "sglang", pages=("/get_model_info", "/get_server_info"))) as server:
        answer(target_folder, tmp_path / "out", asked(server))
    assert shards(tmp_path / "out") == own


def test_other_weights_are_refused_before_anything_is_asked(target_folder, noisy_folder, tmp_path):
    with served(FakeServer(noisy_folder)) as server:
        told = refused(target_folder, tmp_path, asked(server))
        assert len(server.asked) == 1
    assert told.startswith(f"{server.url}: does not serve the target, or in a coarser number type: token ")
    assert shards(tmp_path) == {}


def test_another_template_is_refused(target_folder, tmp_path):
    with served(FakeServer(target_folder)) as server:
        server.tokenizer.chat_template = "{{ messages[0]['content'] }}"
        told = refused(target_folder, tmp_path, asked(server))
    assert "frames the same conversation by another tokenizer or chat template: " in told
    assert server.asked == []


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_context_that_cuts_answers_off_is_refused(target_folder, tmp_path, kind):
    with served(FakeServer(target_folder, kind, context=207)) as server:
        told = refused(target_folder, tmp_path, asked(server))
    assert "serves texts of 207 tokens at most, prompts and answers may have 208. " in told


def first_choice(**changes):
    def changed(told):
        told["choices"][0] |= {name: value(told["choices"][0]) for name, value in changes.items()}
        return told

    return changed


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (first_choice(text=lambda _: "another"), "returned ids that its text does not have: the ids say "),
        (first_choice(token_ids=lambda one: [264, *one["token_ids"][1:]]), "token id 264, beyond the target's vocab"),
        (first_choice(token_ids=lambda one: one["token_ids"][:-1]), "returned 47 tokens of an answer that may have 48"),
        (first_choice(token_ids=lambda _: []), "returned no token of an answer"),
        (first_choice(finish_reason=lambda _: "stop"), "says that an answer stopped whose last token is "),
        (first_choice(prompt_token_ids=lambda one: one["prompt_token_ids"][1:]), " tokens where "),
        (lambda told: {"choices": []}, "its answer has another form than vllm 0.32.0 documents"),
    ],
)
def test_what_the_target_cannot_have_written_is_refused(target_folder, tmp_path, tamper, words):
    with served(FakeServer(target_folder, tamper=tamper)) as server:
        assert words in refused(target_folder, tmp_path, asked(server))
    assert shards(tmp_path) == {}


def test_texts_that_are_cut_in_a_character_are_their_own(target_folder, tmp_path):
    """Engines hold back bytes that are no whole character, and drop white space at the beginning."""
    whole = first_choice(text=lambda one: one["text"].replace("\ufffd", "").strip())
    with served(FakeServer(target_folder, tamper=whole)) as server:
        answer(target_folder, tmp_path, asked(server))
    assert len(read_traces(tmp_path, "train")) == 10


def test_a_server_that_is_busy_is_asked_again(target_folder, tmp_path, own):
    with served(FakeServer(target_folder, statuses=[503, 429])) as server:
        answer(target_folder, tmp_path / "out", asked(server, retries=2))
    assert shards(tmp_path / "out") == own
    with served(FakeServer(target_folder, statuses=[503, 503])) as server:
        told = refused(target_folder, tmp_path / "other", asked(server, retries=1))
    assert told.startswith(f'{server.url}: HTTP 503: {{"error": "busy"}}, asked 2 times. Start the server again')


def test_a_server_that_refuses_is_quoted(target_folder, tmp_path):
    with served(FakeServer(target_folder, statuses=[400])) as server:
        told = refused(target_folder, tmp_path, asked(server))
    assert told.startswith(f'{server.url}: refuses to answer (HTTP 400: {{"error": "busy"}}). ')


def test_nobody_at_an_address_is_no_slow_server(target_folder, tmp_path):
    with served(FakeServer(target_folder)) as server:
        pass
    told = refused(target_folder, tmp_path, asked(server, retries=1))
    assert told.startswith(f"{server.url}: no connection (Connection refused), asked 2 times. Start the server again")


def test_what_a_dying_server_answered_is_kept(target_folder, tmp_path, own):
    """It is asked no more; the next run continues, in the bytes of one that was left alone."""

    def dies(_server, number):
        if number > 7:  # the probe and six answers
            raise GoneError

    out = tmp_path / "out"
    with served(FakeServer(target_folder, before=dies)) as server:
        told = refused(target_folder, out, asked(server, retries=1).model_copy(update={"concurrency": 1}))
    assert told.startswith(f"{server.url}: no connection (ProtocolError), asked 2 times. ")
    assert "\n2 of the 3 shards of train answers that were missing are kept in " in told
    assert shards(out) == {name: own[name] for name in ("train-00000.jsonl", "train-00001.jsonl")}
    with served(FakeServer(target_folder)) as server:
        answer(target_folder, out, asked(server))
        assert len(server.asked) == 4 + 2  # a probe before and one behind
    assert shards(out) == own


def test_one_of_two_servers_may_die(target_folder, tmp_path, own, capsys):
    def dies(_server, number):
        if number > 2:
            raise GoneError

    with served(FakeServer(target_folder, before=dies)) as first, served(FakeServer(target_folder)) as second:
        answer(target_folder, tmp_path / "out", asked(first, second, retries=0))
    assert shards(tmp_path / "out") == own
    assert capsys.readouterr().err.count("1 of 2 servers go on.") == 1


def test_a_server_that_is_too_slow_is_told_of(target_folder, tmp_path):
    let_go = threading.Event()
    with served(FakeServer(target_folder, before=lambda *_: let_go.wait(5) and None)) as server:
        told = refused(target_folder, tmp_path, asked(server, timeout_s=0.05, retries=0))
        let_go.set()
    assert told.startswith(f"{server.url}: no answer within 0.05 s (generate.timeout_s), asked once. ")


def test_weights_that_change_half_way_are_noticed(target_folder, noisy_folder, tmp_path, own):
    """Shards before the last good probe are kept, and nothing of what came since."""

    probes = []

    def changes(server, _number):
        if is_probe(server):
            probes.append(server)
        elif len(probes) == 2:
            server.serve(noisy_folder)

    out = tmp_path / "out"
    with served(FakeServer(target_folder, before=changes)) as server:
        config = asked(server, probe_interval=3).model_copy(update={"concurrency": 1})
        told = refused(target_folder, out, config)
    assert told.startswith(f"{server.url}: no longer serves the target: ")
    assert "3 answers since the last good probe are dropped" in told
    assert shards(out) == {"train-00000.jsonl": own["train-00000.jsonl"]}


def is_probe(server):
    """Whether the text that is asked for now is a probe's: it may be longer than an answer, and is greedy."""
    return server.asked[-1]["max_tokens"] == PROBE_TOKENS and server.asked[-1]["temperature"] == 0


def test_answers_of_the_sample_are_read(target_folder, noisy_folder, tmp_path):
    """A server that knows the probe and nothing else."""

    def cheats(server, _number):
        server.serve(target_folder if is_probe(server) else noisy_folder)

    with served(FakeServer(target_folder, before=cheats)) as server:
        config = asked(server, checked=1.0).model_copy(update={"concurrency": 1})
        told = refused(target_folder, tmp_path, config)
    assert told.startswith("vllm 0.32.0: its answer to f:")
    assert shards(tmp_path) == {}


def test_near_ties_are_counted(target_folder, noisy_folder, tmp_path, own_folder, monkeypatch, capsys):
    """With a tolerance that takes everything for a near tie, the noisy model's answers count as differing."""
    monkeypatch.setattr(judge, "KERNELS", 1e9)
    monkeypatch.setattr(judge, "TIES_SHARE", 1.0)
    with served(FakeServer(noisy_folder)) as server:
        answer(target_folder, tmp_path / "out", asked(server, checked=1.0))
    ours = [trace.answer_ids for trace in read_traces(own_folder, "train")]
    theirs = [trace.answer_ids for trace in read_traces(tmp_path / "out", "train")]
    [row] = answered_by(tmp_path / "out", "train")
    several_turns = slice(6, 9)  # whose later prompts differ as soon as an answer does
    del ours[several_turns], theirs[several_turns]
    count = sum(one != other for one, other in zip(ours, theirs, strict=True))
    assert count > 0
    assert count <= row["differing"] <= count + 3
    assert row["largest_gap"] > 0
    assert f"{row['differing']} of these ({row['differing'] / 10:.1%}) differ" in capsys.readouterr().err


def test_near_ties_that_are_too_many_are_refused(target_folder, noisy_folder, tmp_path, monkeypatch):
    """As of a server whose weights were quantised: each gap is small, and there are many."""
    monkeypatch.setattr(judge, "KERNELS", 1e9)
    with served(FakeServer(noisy_folder)) as server:
        told = refused(target_folder, tmp_path, asked(server, checked=1.0), replace(SETTINGS, shard_size=20))
    assert told.startswith("vllm 0.32.0: the target here takes another token at ")
    assert shards(tmp_path) == {}


SAMPLED = replace(SETTINGS, temperature=1.0, top_p=0.9, max_new_tokens=24)


def test_sampled_answers_follow_their_seeds_and_the_targets_distribution(target_folder, tmp_path):
    for name in ("once", "again"):
        with served(FakeServer(target_folder, "sglang", is_deterministic=True)) as server:
            answer(target_folder, tmp_path / name, asked(server, checked=1.0), SAMPLED)
            seeds = [body["sampling_seed"] for body in server.asked if body["temperature"]]
            assert len(set(seeds)) == len(seeds) == 10
    assert shards(tmp_path / "once") == shards(tmp_path / "again")
    assert all(abs(row["sigmas"]) < 4 for row in answered_by(tmp_path / "once", "train"))
    settings = json.loads((tmp_path / "once" / "settings.json").read_text())["train"]["settings"]
    assert settings["draws"] == "endpoint: the engine's own, seeded by answer"


def test_samples_of_another_temperature_are_refused(target_folder, tmp_path):
    hot = replace(SAMPLED, top_p=1.0, temperature=0.5, shard_size=20)

    def heats(server, _number):
        server.temperature = None if is_probe(server) else 2.0

    with served(FakeServer(target_folder, before=heats)) as server:
        told = refused(target_folder, tmp_path, asked(server, checked=1.0), hot)
    assert told.startswith("vllm 0.32.0: its answers are not drawn from the target's distribution: ")


def test_a_server_that_does_not_look_at_seeds_is_refused(target_folder, tmp_path):
    with served(FakeServer(target_folder, "sglang")) as server:
        assert "draws without regard to seeds" in refused(target_folder, tmp_path, asked(server), SAMPLED)


def test_which_of_several_models_is_asked_must_be_said(target_folder, tmp_path):
    with served(FakeServer(target_folder, names=("tiny", "large"))) as server:
        told = refused(target_folder, tmp_path, asked(server))
        assert told == f"{server.url}: serves tiny, large, generate.model names no one. Name one of them."
        told = refused(target_folder, tmp_path, asked(server, model="other"))
        assert told == f"{server.url}: serves tiny, large, generate.model names other. Name one of them."
        answer(target_folder, tmp_path, asked(server, model="tiny"))


def test_a_key_is_sent_and_missed(target_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with served(FakeServer(target_folder)) as server:
        told = refused(target_folder, tmp_path, asked(server, api_key_variable="NO_SUCH_KEY"))
    assert told == "generate.api_key_variable: NO_SUCH_KEY is not set. Export it, or leave the key out."


def test_a_run_goes_on_with_another_engine_and_says_so(target_folder, tmp_path, own, capsys):
    """Greedy answers agree up to near ties, so the folder is the same; who wrote which shard is known."""
    with served(FakeServer(target_folder)) as server:
        answer(target_folder, tmp_path / "out", asked(server))
    for path in (tmp_path / "out").glob("train-00001.*"):
        path.unlink()
    capsys.readouterr()
    write_traces(target_folder, PROMPTS, tmp_path / "out", SETTINGS)
    assert "train answers that are there were written by vllm 0.32.0; now widedraft goes on" in capsys.readouterr().err
    assert shards(tmp_path / "out") == own
    assert evidence_of(tmp_path / "out" / "train-00001.jsonl") is None
    assert sum(row["answers"] for row in answered_by(tmp_path / "out", "train")) == 7
