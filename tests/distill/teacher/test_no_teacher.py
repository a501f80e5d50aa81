"""Training without a teacher: which recipes may, what is learned, and what held-out responses then say."""

from pathlib import Path

import pytest
import torch

import distill.trainer
from architectures.manifest import write_manifest
from distill.checkpoints.checkpoint_files import BEST_NAME
from distill.chunked_loss import logits_of
from distill.estimate import responses_in, training_flops
from distill.metrics import KS, Known, acceptance_prob, eval_metrics, own_acceptance_prob
from distill.model import HeldOut
from distill.recipe.recipe import Recipe
from distill.response_batches import read_responses
from distill.run import Run
from distill.stage_inputs import generate_inputs
from distill.train import train
from distill.trainer import build_model
from eval.decoding.sampling import EXACT_SAMPLED_DRAFT, Sampling
from eval.replay import replay_response
from tests.distill.after_training import assert_equal, last_state, metrics
from tests.distill.small_heads import IDS, cut_draft

NONE = {"source": "none"}


def reject_to_load(*_, **__):
    raise AssertionError("there is no teacher")


@pytest.fixture
def no_loading(monkeypatch):
    """Fails a test in which any weight of a teacher is loaded."""
    for name in ("load_teacher", "load_sharded_teacher", "load_head"):
        monkeypatch.setattr(distill.trainer, name, reject_to_load)


def test_it_learns_and_chooses_what_a_live_teacher_beside_it_would(make_run, request):
    """To the last bit: cross_entropy never asks, so that only the evaluations differ, and of these only alpha."""
    beside = make_run("beside", loss="cross_entropy")
    train(beside)
    request.getfixturevalue("no_loading")
    alone = make_run("alone", teacher=NONE)
    train(alone)
    assert_equal(last_state(beside)["model"], last_state(alone)["model"])
    logs = [metrics(recipe) for recipe in (beside, alone)]
    for batch in (0, 3, 6):
        both = [{name: record[name] for name in record if "/tau_" in name} for record in (log[batch] for log in logs)]
        assert len(both[0]) == len(KS) == len(both[1])  # five responses give no intervals
        assert both[0] == both[1]
    assert not [name for record in logs[1].values() for name in record if "alpha" in name]
    links = [(Path(recipe.run_dir) / "checkpoints" / BEST_NAME).readlink() for recipe in (beside, alone)]
    assert links[0] == links[1]


def sampled(recipe: Recipe, temperature: float, top_p: float = 1.0) -> Recipe:
    """The same responses, said to be drawn at a temperature."""
    data = recipe.data.model_copy(update={"temperature": temperature, "top_p": top_p})
    changed = recipe.model_copy(update={"data": data})
    inputs = generate_inputs(Run.of(changed))
    write_manifest(Path(recipe.run_dir) / "data", stage="generate", inputs=inputs)
    return changed


@pytest.mark.usefixtures("no_loading")
def test_drawn_responses_are_replayed_by_the_rule_that_asks_no_teacher(make_run):
    recipe = sampled(make_run(teacher=NONE, max_duration="2ba", eval_interval="1ba"), 0.7)
    train(recipe)
    log = metrics(recipe)
    names = {name for name in log[1] if name.startswith("metrics/eval/")}
    assert names == {f"metrics/eval/{EXACT_SAMPLED_DRAFT}_tau_{k}" for k in KS}
    best = max((2, 1), key=lambda batch: log[batch][f"metrics/eval/{EXACT_SAMPLED_DRAFT}_tau_5"])
    link = (Path(recipe.run_dir) / "checkpoints" / BEST_NAME).readlink().name
    assert link == f"ep0-ba{best}-rank0.pt"


def test_the_rule_is_that_of_the_replay():
    generator = torch.Generator().manual_seed(0)
    draft_TV, target_TV = (2 * torch.randn(6, 9, generator=generator) for _ in range(2))
    ids = [3, 0, 8, 1, 2, 5]
    for temperature in (0.7, 1.0):
        found = own_acceptance_prob(draft_TV, torch.tensor(ids), temperature=temperature)
        replay = replay_response(target_TV, draft_TV, ids, sampling=Sampling(temperature))
        assert found.tolist() == pytest.approx(replay.rules[EXACT_SAMPLED_DRAFT].accept.tolist(), rel=1e-5)
        by_rejection = acceptance_prob(draft_TV, target_TV, torch.tensor(ids), temperature=temperature)
        assert (found <= by_rejection).all()
    one, other = (chance(0.0) for chance in (
        lambda t: own_acceptance_prob(draft_TV, torch.tensor(ids), temperature=t),
        lambda t: acceptance_prob(draft_TV, target_TV, torch.tensor(ids), temperature=t),
    ))  # fmt: skip
    assert torch.equal(one, other)
    nucleus = own_acceptance_prob(torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([1]), temperature=1.0, top_p=0.8)
    assert nucleus.item() == pytest.approx(0.3 / 0.9)


@pytest.mark.parametrize(
    ("teacher", "temperature", "names"),
    [
        (True, 0.0, ["alpha", "greedy_match", "tau_1", "tau_3", "tau_5", "tau_7"]),
        (True, 0.7, ["alpha", "greedy_match", "tau_1", "tau_3", "tau_5", "tau_7"]),
        (False, 0.0, ["greedy_match", "tau_1", "tau_3", "tau_5", "tau_7"]),
        (False, 0.7, [f"{EXACT_SAMPLED_DRAFT}_tau_{k}" for k in (1, 3, 5, 7)]),
    ],
)
def test_metrics_are_those_that_can_be_known(teacher, temperature, names):
    known = Known(teacher, temperature)
    assert list(eval_metrics((), known)) == names
    assert known.best_by == names[-2]


def model_of(recipe):
    return build_model(Run.of(recipe), eval_tasks=())


def some_batch(recipe):
    dataset, _ = read_responses(Run.of(recipe))
    return dataset.collate([dataset[place] for place in (0, 3, 5)])


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_loss_evaluation_and_flops_are_the_students(make_run, precision, packing):
    model = model_of(recipe := make_run(teacher=NONE, precision=precision, packing=packing))
    batch = some_batch(recipe)
    model.held_out = HeldOut(temperature=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp_bf16"):
        logits_AV = model.student(batch["input_ids"], batch["keep"], logits_of).float()
    ids_A = batch["next_ids"][batch["keep"]]
    expected = torch.nn.functional.cross_entropy(logits_AV, ids_A)
    torch.testing.assert_close(model.loss(model(batch), batch), expected)
    chance = torch.cat([torch.tensor(response.accept) for response in model.eval_forward(batch)]).float()
    torch.testing.assert_close(chance, logits_AV.softmax(-1).gather(-1, ids_A[:, None])[:, 0], rtol=1e-4, atol=1e-6)
    assert model.flops_per_batch(batch) == training_flops(model.shape, responses_in(batch), teacher=0)


@pytest.mark.usefixtures("no_loading")
def test_ids_that_the_target_does_not_have_are_not_learned(make_run, make_checkpoint):
    wide = make_checkpoint(seed=2, num_hidden_layers=2, vocab_size=300)
    recipe = make_run(init=wide, teacher=NONE)
    model = model_of(recipe)
    assert model.vocab_size == 264
    model.loss(model(batch := some_batch(recipe)), batch).backward()
    gradient = model.student.lm.get_output_embeddings().weight.grad
    assert gradient[:264].any(dim=1).all()
    assert not gradient[264:].any()


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_small_head_learns_what_it_can_say_and_is_held_against_all(make_run, tiny_target, tmp_path, temperature):
    """Responses are random bytes; half of all ids are said."""
    init = cut_draft(tiny_target, tmp_path / "init")
    model = model_of(recipe := make_run(init=init, teacher=NONE))
    batch = some_batch(recipe)
    model.held_out = HeldOut(temperature=temperature)
    logits_AK = model.student(batch["input_ids"], batch["keep"], logits_of)
    ids_A = batch["next_ids"][batch["keep"]]
    said_A = torch.tensor([token in IDS for token in ids_A.tolist()])
    assert 0 < said_A.sum() < len(said_A)
    rows_A = torch.tensor([IDS.index(token) if token in IDS else 0 for token in ids_A.tolist()])
    loss = torch.nn.functional.cross_entropy(logits_AK[said_A], rows_A[said_A], reduction="sum") / len(ids_A)
    torch.testing.assert_close(model.loss(model(batch), batch), loss)
    chance_A = logits_AK.softmax(-1).gather(-1, rows_A[:, None])[:, 0]
    if temperature == 0:
        chance_A = (logits_AK.argmax(-1) == rows_A).float()
    found = torch.cat([torch.tensor(response.accept) for response in model.eval_forward(batch)]).float()
    torch.testing.assert_close(found, chance_A * said_A, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("no_loading")
def test_text_is_learned_alone_too(make_run, tmp_path):
    (tmp_path / "a.txt").write_text("abc def ghi jkl " * 200)
    text = {
        "domains": [{"name": "a", "path": str(tmp_path / "a.txt")}],
        "max_seq_len": 12,
        "num_eval_sequences": 2,
        "mixture": "fixed",
    }
    settings = {"train_on": "text", "max_duration": "20ba", "eval_interval": "10ba", "save_interval": "10ba"}
    recipe = make_run(text=text, teacher=NONE, **settings)
    train(recipe)
    log = metrics(recipe)
    assert log[19]["loss/train/total"] < log[0]["loss/train/total"]
    assert "metrics/eval/tau_5" in log[20]
