"""`eval --endpoint`: acceptance on what a server's model generates, without the weights of the target."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import widedraft
from eval.chat import render_prompt, user_turn
from eval.models import load_model
from eval.prompts import Prompt
from tests.eval.conftest import with_noise
from tests.eval.engines.fake_server import FakeServer, served

QUESTIONS = ("why", "how many", "say hello", "x", "2+2?")
KS, LENGTH = (1, 2, 4), 24
KEYS = [f"eval.num_speculative_tokens={list(KS)}", f"eval.max_new_tokens={LENGTH}"]


@pytest.fixture(scope="module")
def original(target_folder, tmp_path_factory):
    """The target, with a config that says it is quantised: nothing may load it."""
    folder = Path(shutil.copytree(target_folder, tmp_path_factory.mktemp("original") / "awq"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    return folder


@pytest.fixture(scope="module")
def draft(target_folder, tmp_path_factory):
    return with_noise(target_folder, tmp_path_factory.mktemp("draft"), scale=0.003)


@pytest.fixture
def words(original, draft, tmp_path, monkeypatch):
    """words(url) are those of the command."""
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in QUESTIONS))
    pair = ["--target", str(original), "--draft", str(draft), "--prompts", "p.jsonl", "--out", "card"]
    return lambda url: ["eval", "--endpoint", url, *pair, *KEYS]


@torch.inference_mode()
def next_token(model, ids):
    return int(model(torch.tensor([ids])).logits[0, -1].argmax())


def counts_of_decoding(served_model, draft, prompt, k):
    """Verification steps, and accepted tokens, of plain speculative decoding with one model call per token."""
    response = []
    while len(response) < LENGTH and response[-1:] != [2]:
        response.append(next_token(served_model, [*prompt, *response]))
    done = steps = accepted = 0
    while done < len(response):
        start = done
        while done - start < min(k, len(response) - start - 1):
            if next_token(draft, [*prompt, *response[:done]]) != response[done]:
                break
            done += 1
        accepted += done - start
        done, steps = done + 1, steps + 1
    return steps, accepted


def read_card(folder):
    return json.loads((Path(folder) / "scorecard.json").read_text())


def test_acceptance_is_that_of_decoding_with_the_served_model(
    words, original, draft, noisy_folder, target_tokenizer, capsys
):
    """Of one kind of server; test_generate.py has the responses of every kind byte for byte."""
    with served(FakeServer(noisy_folder)) as server:
        assert widedraft.main(words(f"{server.url}/v1")) == 0
        num_requests = len(server.requests)
        assert num_requests == len(QUESTIONS)
        assert {request["temperature"] for request in server.requests} == {0.0}
        card = read_card("card")
        assert widedraft.main(words(server.url)) == 0
        assert len(server.requests) == num_requests
    assert capsys.readouterr().out.count(server.url) == 2
    assert card["recording"]["served"] == {"name": "tiny", "url": server.url, "target": str(original)}

    served_model, draft_model = (load_model(folder, dtype="float32", device="cpu") for folder in (noisy_folder, draft))
    prompts = [render_prompt(target_tokenizer, Prompt("p", (user_turn(text),))) for text in QUESTIONS]
    [row] = card["acceptance"]
    for k, entry in zip(KS, row["by_k"], strict=True):
        counts = [counts_of_decoding(served_model, draft_model, prompt, k) for prompt in prompts]
        assert (entry["steps"], entry["accepted"]) == tuple(map(sum, zip(*counts, strict=True)))
        assert 0 < entry["accepted"] < entry["proposed"]

    # Further drafts need no server, and are told whose responses these are.
    recorded = ["--recorded", "card/responses/T0", "--draft", str(draft), "--out", "b"]
    assert widedraft.main(["eval", *recorded, KEYS[0]]) == 0
    assert read_card("b")["acceptance"] == card["acceptance"]
    assert read_card("b")["recording"]["served"]["name"] == "tiny"


def test_responses_of_two_served_models_do_not_mix(words, noisy_folder, capsys):
    for name, code in (("fp8", 0), ("awq", 2)):
        with served(FakeServer(noisy_folder, models=(name,))) as server:
            assert widedraft.main(words(server.url)) == code
    assert "served_model" in capsys.readouterr().err


def test_an_error_of_the_server_names_it_and_the_prompt(words, noisy_folder, capsys):
    with served(FakeServer(noisy_folder, statuses=[400])) as server:
        assert widedraft.main([*words(server.url), "generate.concurrency=1"]) == 2
    assert f"p.jsonl:1: {server.url}: HTTP 400" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["eval.temperatures=[0.7]"], "eval.temperatures"),
        (["eval.latency_repeats=9"], "eval.latency_repeats"),
        (["--baseline", "x"], "--baseline"),
        (["--recorded", "x"], "--recorded"),
        (["--target-bits", "4"], "--target-bits"),
        (["--processes", "2"], "--processes"),
        (["generate.model=other"], "generate.model"),
    ],
)
def test_what_an_endpoint_does_not_support_is_rejected(words, noisy_folder, more, named, capsys):
    with served(FakeServer(noisy_folder)) as server:
        assert widedraft.main([*words(server.url), *more]) == 2
    assert named in capsys.readouterr().err
