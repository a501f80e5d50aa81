"""Learning from requests as a training: what is learned, logged, taken back, and continued."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import distill.model
import distill.online.learning
import distill.pipeline
import distill.trainer
from distill.chunked_loss import head_of
from distill.online.learning import Guard, compare_on_stream, comparison, serve_again
from distill.online.serving import RequestRecord, read_records, read_served
from distill.pipeline import read_scorecard, score_draft
from distill.run import Run
from distill.train import train
from eval.chat import raw_text
from eval.decoding.sampling import Sampling
from eval.intervals import Estimate, Resampling
from eval.models import load_model
from eval.prompts import Prompt
from eval.replay import response_logits
from eval.scorecard_tables import on_stream
from tests.distill.after_training import (
    assert_equal,
    assert_resumes,
    changed,
    last_state,
    mean_gradients,
    metrics,
    relative_difference,
    weights,
)
from tests.distill.online.conftest import NUM_REQUESTS, records
from tests.distill.two_processes import attempt, train_by
from tests.rejections import rejects

PAIR = {"update_interval": 2}


def test_a_stream_is_learned_from_its_first_request_to_its_last(make_online):
    recipe = make_online()
    train(recipe)
    lines = records(recipe)
    assert [line["request"] for line in lines] == list(range(NUM_REQUESTS))
    assert [line["updates"] for line in lines] == [i // 2 for i in range(NUM_REQUESTS)]
    assert {line["source"] for line in lines} == {"first", "second"}
    logged = metrics(recipe)
    last = logged[max(logged)]
    assert last["online/requests"] == NUM_REQUESTS
    assert (
        last["online/alpha/second"]
        == last["online/alpha"]
        == pytest.approx(sum(line["alpha"] for line in lines[-2:]) / 2)
    )
    assert last["online/tau"] == pytest.approx(
        sum(x["tokens"] for x in lines[-2:]) / sum(x["steps"] for x in lines[-2:])
    )
    assert last["online/updates_behind"] == 0
    assert (Path(recipe.run_dir) / "draft" / "model.safetensors").is_file()


@pytest.mark.parametrize("loss", ["forward_kl", "negative_log_acceptance", "cross_entropy"])
def test_one_update_is_the_gradient_of_the_loss_of_the_responses(make_online, loss):
    """Against a loss made by hand from the draft's logits where the wrong token is predicted: one token off fails."""
    recipe = make_online(
        online=PAIR,
        global_train_batch_size=2,
        max_duration="1ba",
        loss=loss,
        gradient_clipping=None,
    )
    init = load_model(Run.of(recipe).init.path, dtype="float32", device="cpu")
    target = load_model(Run.of(recipe).target, dtype="float32", device="cpu")
    train(recipe)
    folder = Path(recipe.run_dir) / "online" / "rank0" / "requests"
    total, count = torch.zeros(()), 0
    for served in (read_served(folder / f"{i:08d}.safetensors") for i in range(2)):
        ids = torch.tensor([[*served.prompt_ids, *served.record.response_ids[:-1]]])
        student_AV = init(input_ids=ids).logits[0, len(served.prompt_ids) - 1 :].float()
        target_AV = head_of(target).logits(served.hidden_AH.float())
        assert torch.allclose(
            target_AV, response_logits(target, served.prompt_ids, served.record.response_ids), atol=1e-3
        )
        total = total + by_hand(loss, student_AV, target_AV, torch.tensor(served.record.response_ids))
        count += len(served.record.response_ids)
    (total / count).backward()
    expected = {name: weight.grad for name, weight in init.named_parameters()}
    # after one step a tenth of the gradient, as beta is 0.9
    found = {name.removeprefix("student.lm."): 10 * each for name, each in mean_gradients(recipe).items()}
    assert relative_difference(found, {name: expected[name] for name in found}) < 1e-4


def by_hand(loss, student_AV, target_AV, response_A):
    """The sum over positions."""
    log_q, log_p = student_AV.log_softmax(-1), target_AV.log_softmax(-1)
    if loss == "cross_entropy":
        return -log_q.gather(1, response_A[:, None]).sum()
    if loss == "forward_kl":
        return (log_p.exp() * (log_p - log_q)).sum()
    return -torch.minimum(log_p, log_q).exp().sum(-1).log().sum()


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("responses", ["recorded", "live"])
def test_an_encoder_decoder_learns_the_responses(make_online, make_translator, stream_files, responses):
    """The loss made by hand from its own logits; no token of the prompt counts."""
    target, init = make_translator(seed=1), make_translator(seed=2, num_decoder_layers=2, dropout_rate=0.0)
    settings = {"global_train_batch_size": 2, "max_duration": "1ba", "loss": "cross_entropy", "gradient_clipping": None}
    recipe = make_online(
        target=target, init=init, prompts=stream_files[0], online={**PAIR, "responses": responses}, **settings
    )
    before = load_model(init, dtype="float32", device="cpu")
    train(recipe)
    folder, total, count = Path(recipe.run_dir) / "online" / "rank0" / "requests", 0.0, 0
    for served in (read_served(folder / f"{i:08d}.safetensors") for i in range(2)):
        log_q = response_logits(before, served.prompt_ids, served.record.response_ids).log_softmax(-1)
        total -= float(log_q.gather(1, torch.tensor(served.record.response_ids)[:, None]).sum())
        count += len(served.record.response_ids)
        teacher = load_model(target, dtype="float32", device="cpu")
        expected, head = response_logits(teacher, served.prompt_ids, served.record.response_ids), head_of(teacher)
        torch.testing.assert_close(head.logits(served.hidden_AH), expected, rtol=1e-3, atol=1e-4)
    assert count
    assert metrics(recipe)[0]["loss/train/total"] == pytest.approx(total / count, rel=1e-4)


def test_resumed_equals_uninterrupted(make_online, stopped):
    """Weights, moments and records, bit for bit; stopped between two steps of one update."""
    online = {"steps_per_update": 2}
    straight, resumed = (make_online(name, online=online, save_interval="1ba") for name in ("straight", "resumed"))
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 6))
    assert records(straight) == records(resumed)


def test_a_step_that_is_no_number_is_passed_over(make_online, monkeypatch, capsys):
    """Served requests do not wait for somebody to mend it; the weights after it are those before it."""
    loss, batches = distill.model.DistillModel.loss, []

    def broken(self, outputs, batch):
        batches.append(1)
        return loss(self, outputs, batch) * (float("nan") if len(batches) == 3 else 1)

    monkeypatch.setattr(distill.model.DistillModel, "loss", broken)
    settings = {"global_train_batch_size": 2, "device_train_microbatch_size": 2}
    recipe = make_online("three", **settings, max_duration="3ba")
    before = make_online("two", **settings, max_duration="2ba")
    train(recipe)
    assert "batch 2" in capsys.readouterr().err
    train(before)
    assert_equal(weights(recipe), weights(before))


def test_weights_that_are_no_numbers_are_taken_back():
    draft = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=0.1)
    guard = Guard(SimpleNamespace(draft=draft), optimizer)
    guard.begin(7)
    good = draft.weight.detach().clone()
    with torch.no_grad():
        draft.weight[0, 1] = float("nan")
    assert guard.judge(8) is not None
    assert torch.equal(draft.weight, good)
    assert guard.judge(9) is None


def test_a_draft_that_got_worse_is_taken_back(make_online, monkeypatch, capsys):
    """The last good draft's weights and moments, bit for bit; what is compared are requests that it did not serve."""
    asked = []

    def is_worse(new, good):
        asked.append((list(new), list(good)))
        return len(asked) == 2

    monkeypatch.setattr(distill.online.learning, "is_worse", is_worse)
    monkeypatch.setattr(distill.online.learning, "GUARD_INTERVAL", 2)
    settings = {"global_train_batch_size": 2, "data_temperature": 1.0}
    recipe = make_online("back", **settings, max_duration="4ba")
    train(recipe)
    assert "update 4" in capsys.readouterr().err
    kept = make_online("kept", **settings, max_duration="2ba")
    monkeypatch.setattr(distill.online.learning, "is_worse", lambda *_: False)
    train(kept)
    assert_equal(weights(recipe), weights(kept))
    assert [len(new) for new, _ in asked] == [2, 2]
    lines = records(recipe, "rank0/records.jsonl")
    assert asked[0][0] == [line["alpha"] for line in lines[2:4]]  # served by update 1; the first two by the good draft
    assert asked[0][1] != asked[0][0]


def test_a_stream_shorter_than_an_interval_is_refused(make_online):
    recipe = make_online(online={"update_interval": 4 * NUM_REQUESTS}, global_train_batch_size=4 * NUM_REQUESTS)
    with rejects("distill.online.stream"):
        train(recipe)


def test_a_stream_that_ends_before_max_duration_ends_the_training(make_online):
    recipe = make_online(max_duration="50ba")
    train(recipe)
    assert last_state(recipe)["timestamp"]["Timestamp"]["batch"] == NUM_REQUESTS // 2
    assert (Path(recipe.run_dir) / "draft").is_dir()


def test_a_stream_of_other_rows_than_the_responses_is_refused(make_online, tmp_path):
    recipe = make_online()
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "who"}\n' * 3)
    stream = recipe.distill.online.stream.model_copy(
        update={"sources": (recipe.distill.online.stream.sources[0].model_copy(update={"path": str(other)}),)}
    )
    online = recipe.distill.online.model_copy(update={"stream": stream})
    with rejects("data:", "distill.online.stream"):
        train(changed(recipe, online=online))


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("responses", ["recorded", "live"])
def test_drafts_that_do_not_learn_are_compared_on_the_same_stream(make_online, monkeypatch, responses):
    """The first requests, which the online draft has not learned from yet, are served alike; all kept ones count."""
    recipe = make_online(online={"responses": responses, "baselines": ["init"]}, max_duration="1ba")
    train(recipe)
    run = Run.of(recipe)
    static = [replace(each.record, seconds=None) for each in serve_again(run, run.init.path)]
    learned = read_records(run.folder / "online" / "records.jsonl")
    kept = list((run.folder / "online").glob("rank0/requests/*"))
    assert len(static) == (NUM_REQUESTS if responses == "recorded" else len(kept)) >= 2
    assert static[:2] == [replace(each, seconds=None) for each in learned][:2]
    rows = compare_on_stream(run)
    assert [row.draft for row in rows if row.source == "first"] == ["init", "online"]
    trained = recipe.distill.online.model_copy(update={"baselines": (str(run.draft.path),)})
    compare_on_stream(Run.of(changed(recipe, online=trained)))
    assert len(list((run.folder / "online").glob("baseline-*"))) == 2  # the records of one draft are not another's
    monkeypatch.setattr(distill.pipeline, "eval_prompts", lambda _run: [Prompt("f:1", (raw_text("a b"),))])
    score_draft(run, lambda: None)
    card = read_scorecard(run)
    assert card.on_stream == rows
    assert len(on_stream({"draft": card}).rows) == len(rows)


def test_a_comparison_pools_the_last_requests_of_each_source():
    """Of 40 requests, 5 of each source are the last quarter: gains by hand."""
    resampling = Resampling(0.95, 200, 1)
    fields = {"updates": 0, "tokens": 4, "steps": 2, "proposed": 4, "accepted": 2}
    fields |= {"seconds": None, "response_ids": (1, 2, 3, 4), "sampling": Sampling()}
    static = [RequestRecord(request=n, source="ab"[n // 20], alpha=0.1, **fields) for n in range(40)]
    online = [replace(each, alpha=0.4 if each.request % 20 >= 15 else 0.0) for each in static]
    rows = comparison({"static": static, "online": online}, resampling)
    assert [(row.source, row.draft, row.requests) for row in rows] == [
        ("a", "static", 5), ("a", "online", 5), ("b", "static", 5), ("b", "online", 5),
    ]  # fmt: skip
    assert [row.alpha_gain and row.alpha_gain.value for row in rows] == [None, pytest.approx(0.3)] * 2
    assert [row.tau_gain and row.tau_gain.value for row in rows] == [None, 0] * 2
    one_source = [replace(each, source="a") for each in static]
    again = comparison({"static": one_source, "again": one_source}, resampling)[1]
    assert again.alpha_gain == Estimate(0, (0, 0))


def test_a_training_on_requests_does_not_continue_on_others(make_online):
    recipe = make_online(max_duration="1ba")
    train(recipe)
    online = recipe.distill.online.model_copy(update={"num_speculative_tokens": 5})
    with rejects("checkpoints"):
        train(changed(recipe, online=online))


def test_two_processes_equal_one(pair, make_online):
    """The same requests in each update, gradients weighted by what they teach, records in the order of the stream."""
    alone, together = (make_online(name, global_train_batch_size=2) for name in ("alone", "together"))
    train(alone)
    train_by(pair, together)
    assert relative_difference(weights(alone), weights(together)) < 1e-5
    found, expected = records(together), records(alone)
    assert [line["request"] for line in found] == [line["request"] for line in expected]
    assert [line["alpha"] for line in found] == pytest.approx([line["alpha"] for line in expected], abs=1e-4)
    last = [logged[max(logged)] for logged in (metrics(alone), metrics(together))]
    for name in ("online/alpha", "online/tau", "online/requests", "online/taken_back"):
        assert last[0][name] == pytest.approx(last[1][name], abs=1e-4), name


def test_an_interval_that_cannot_be_shared_is_refused(pair, make_online):
    recipe = make_online(online={"update_interval": 1}, global_train_batch_size=2)
    completed = attempt(pair, recipe)
    assert completed.returncode == 2
    assert "distill.online.update_interval" in completed.stdout + completed.stderr
