"""Training from a cache of the teacher, which teaches what the live one would, and without any teacher.

Tolerances are for float32: a cached hidden state was computed in another batch than the live one, whose products may
sum in another order.
"""

from pathlib import Path

import pytest
import torch

import distill.response_batches
import distill.trainer
from architectures.manifest import write_manifest
from distill.checkpoints.checkpoint_files import BEST_NAME
from distill.chunked_loss import logits_of
from distill.estimate import forward_flops, head_flops, responses_in, training_flops
from distill.losses import forward_kl, sampled_cross_entropy, top_k_kl
from distill.metrics import KS, Known, acceptance_prob, eval_metrics, own_acceptance_prob
from distill.model import HeldOut
from distill.pipeline import cache_stage
from distill.recipe.recipe import Recipe
from distill.response_batches import cut_padding, read_responses, split_batch
from distill.run import Run
from distill.stage_inputs import generate_inputs
from distill.teacher_cache import CachedResponses, TeacherCache, join_rows, rows_in
from distill.train import train
from distill.trainer import build_model
from eval.decoding.sampling import EXACT_SAMPLED_DRAFT, Sampling
from eval.replay import replay_response
from tests.distill.after_training import assert_equal, assert_resumes, greatest_difference, last_state, metrics
from tests.distill.recipe_files import text_section
from tests.distill.small_heads import IDS, cut_draft
from tests.rejections import rejects

VOCAB = 264
LOSS_RTOL = 1e-6
WEIGHTS_ATOL = 1e-5  # after six steps at learning rate 1e-3; Adam's steps do not shrink with small gradients
HALF_RTOL = 1e-3  # log-probabilities of a top-k cache are float16
HIDDEN = {"source": "cache"}
TOP_K = {"source": "cache", "contents": "top_k", "k": 5}
SAMPLES = {"source": "cache", "contents": "samples", "num_samples": 7}
CONTENTS = pytest.mark.parametrize("teacher", [HIDDEN, TOP_K, SAMPLES], ids=["hidden", "top_k", "samples"])


@pytest.fixture
def cached(make_run):
    """cached(name, teacher, **keys of distill) -> Recipe whose cache is written."""

    def make(name, teacher, **more):
        recipe = make_run(name, teacher=teacher, **more)
        cache_stage(Run.of(recipe))
        return recipe

    return make


def reject_to_load(*_, **__):
    raise AssertionError("a cached teacher has no weights but its head's")


def values(recipe, name: str) -> list[float]:
    return [record[name] for record in metrics(recipe).values() if name in record]


def responses_of(recipe, name="train") -> CachedResponses:
    responses = dict(zip(("train", "eval"), read_responses(Run.of(recipe)), strict=True))[name]
    return CachedResponses(responses, TeacherCache(Path(recipe.run_dir) / "teacher_cache", name))


def model_of(recipe):
    return build_model(Run.of(recipe), eval_tasks=())


def batch_of(recipe, *responses: int):
    dataset = responses_of(recipe)
    return dataset.collate([dataset[response] for response in responses])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "loss": [{"name": "reverse_kl"}, {"name": "cross_entropy", "weight": 0.5}],
            "temperature": 2.0,
            "device_train_microbatch_size": 1,
        },
    ],
    ids=["forward_kl", "sum at a temperature in micro-batches"],
)
def test_hidden_states_teach_what_the_live_teacher_teaches(make_run, cached, monkeypatch, settings):
    live, read = make_run("live", **settings), cached("read", HIDDEN, **settings)
    train(live)
    monkeypatch.setattr(distill.trainer, "load_teacher", reject_to_load)
    train(read)
    losses = [values(recipe, "loss/train/total") for recipe in (live, read)]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=LOSS_RTOL)
    assert greatest_difference(live, read) < WEIGHTS_ATOL
    for name in ("alpha", "greedy_match", "tau_5"):
        found = [values(recipe, f"metrics/eval/{name}") for recipe in (live, read)]
        assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_every_entry_teaches_what_the_live_teacher_teaches(make_run, cached):
    live, read = make_run("live", loss="forward_kl"), cached("read", {**TOP_K, "k": VOCAB})
    train(live)
    train(read)
    assert values(read, "loss/train/total") == pytest.approx(values(live, "loss/train/total"), rel=HALF_RTOL)
    assert values(read, "metrics/eval/alpha") == pytest.approx(values(live, "metrics/eval/alpha"), rel=HALF_RTOL)


@CONTENTS
def test_loss_and_gradient_are_those_of_the_rows_kept(cached, teacher):
    weighted = [{"name": "forward_kl", "weight": 2.0}, {"name": "cross_entropy", "weight": 0.5}]
    recipe = cached("run", teacher, loss=weighted)
    model, chosen = model_of(recipe), (7, 0, 9, 3)
    batch = batch_of(recipe, *chosen)
    model.loss(model(batch), batch).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found_loss = model.loss(model(batch), batch)
    model.zero_grad()
    cache = TeacherCache(Path(recipe.run_dir) / "teacher_cache", "train")
    rows = join_rows([cache.rows(response) for response in chosen])
    student = model.student(batch["input_ids"], batch["keep"], lambda hidden, head: head.logits(hidden))
    comparison = {
        "hidden": lambda: forward_kl(student, model.teacher.head.logits(rows["hidden"])),
        "top_k": lambda: top_k_kl(student, rows["ids"], rows["log_probs"], rows["log_tail"]),
        "samples": lambda: sampled_cross_entropy(student, rows["ids"]),
    }[recipe.distill.teacher.contents]()
    tokens = torch.nn.functional.cross_entropy(student, batch["next_ids"][batch["keep"]], reduction="none")
    expected = (2 * comparison + 0.5 * tokens).mean()
    expected.backward()
    torch.testing.assert_close(found_loss, expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


@CONTENTS
def test_a_split_batch_says_what_the_whole_batch_says(cached, teacher):
    recipe = cached("run", teacher)
    model, batch = model_of(recipe), batch_of(recipe, 4, 1, 8, 2, 6)
    whole = rows_in(batch)
    assert {len(rows) for rows in whole.values()} == {int(batch["keep"].sum())}
    for size in (1, 2, 3):
        pieces = [cut_padding(piece) for piece in split_batch(batch, size)]
        assert len(pieces) == -(-5 // size)
        parts = [rows_in(piece) for piece in pieces]
        assert all(torch.equal(torch.cat([part[name] for part in parts]), rows) for name, rows in whole.items())
        torch.testing.assert_close(sum(model(piece) for piece in pieces), model(batch), rtol=1e-5, atol=1e-5)


@CONTENTS
def test_resumed_equals_uninterrupted_bit_for_bit(cached, stopped, teacher):
    """In the second epoch."""
    straight, resumed = cached("straight", teacher), cached("resumed", teacher)
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 5))
    assert values(resumed, "loss/train/total") == values(straight, "loss/train/total")


def test_a_cache_of_other_responses_is_refused(cached, monkeypatch):
    recipe = cached("run", TOP_K)
    monkeypatch.setattr(distill.response_batches, "read_responses", lambda *given: read_responses(*given)[::-1])
    with rejects("train"):
        train(recipe)


@CONTENTS
def test_flops_count_what_is_done_of_the_teacher(cached, teacher):
    recipe = cached("run", teacher)
    model, batch = model_of(recipe), batch_of(recipe, 1, 5)
    lengths = zip(batch["attention_mask"].sum(1).tolist(), batch["keep"].sum(1).tolist(), strict=True)
    student = 3 * forward_flops(model.shape, lengths)
    head = int(batch["keep"].sum()) * head_flops(VOCAB, 64) if teacher == HIDDEN else 0
    assert model.flops_per_batch(batch) == student + head


@pytest.fixture
def narrow(make_checkpoint):
    """A draft whose vocabulary is padded to fewer entries than the target's."""
    return make_checkpoint(seed=2, num_hidden_layers=2, vocab_size=260)


@pytest.mark.parametrize("teacher", [TOP_K, SAMPLES], ids=["top_k", "samples"])
def test_entries_beyond_the_students_vocabulary_are_refused(cached, narrow, teacher):
    recipe = cached("run", teacher, init=narrow)
    with rejects("distill.teacher.contents", "hidden"):
        train(recipe)


def test_hidden_states_teach_a_student_of_fewer_entries(make_run, cached, narrow):
    settings = {"init": narrow, "max_duration": "2ba"}
    live, read = make_run("live", **settings), cached("read", HIDDEN, **settings)
    train(live)
    train(read)
    assert values(read, "loss/train/total") == pytest.approx(values(live, "loss/train/total"), rel=LOSS_RTOL)
    assert greatest_difference(live, read) < WEIGHTS_ATOL


def test_autocast_around_it_does_not_change_what_a_cached_teacher_says(cached):
    recipe = cached("run", HIDDEN)
    model, batch = model_of(recipe), batch_of(recipe, 2, 3)
    exact = model.rows_of(model.teacher, batch).logits(slice(None))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        surrounded = model.rows_of(model.teacher, batch).logits(slice(None))
    assert torch.equal(exact, surrounded)


NONE = {"source": "none"}


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
    text = text_section(tmp_path / "a.txt", max_seq_len=12, num_eval_sequences=2, mixture="fixed")
    settings = {"train_on": "text", "max_duration": "20ba", "eval_interval": "10ba", "save_interval": "10ba"}
    recipe = make_run(text=text, teacher=NONE, **settings)
    train(recipe)
    log = metrics(recipe)
    assert log[19]["loss/train/total"] < log[0]["loss/train/total"]
    assert "metrics/eval/tau_5" in log[20]
