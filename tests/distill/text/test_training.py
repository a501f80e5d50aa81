"""A student that learns from text: documents alone in their sequences, every token learned, resumed to the last bit."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import distill.data.training_data
import distill.text_training
import distill.trainer
from distill.chunked_loss import Head
from distill.pipeline import generate_stage
from distill.run import Run
from distill.stage_inputs import require_training_inputs
from distill.text_training import (
    collate_text,
    student_losses,
    teacher_losses,
    text_training,
    token_losses,
    without_dur,
)
from distill.train import train
from distill.trainer import build_model
from tests.distill.after_training import assert_same_end, assert_same_update, changed, metrics, train_in_two_sessions
from tests.distill.two_processes import train_by
from tests.rejections import rejects

EOS = 2  # of the tiny tokenizer, whose other tokens are single bytes
T = 12  # tokens of a sequence
CPU = torch.device("cpu")
COUNTS = {"prompts": 0, "train": {"responses": 0, "response_tokens": 0}}  # of responses nobody wrote
# Rows of other lengths in one product, float32: 1e-6 of a loss of 5 nats.
ALONE = {"rtol": 1e-6, "atol": 5e-6}
UPDATE_RTOL = 1e-5  # of the norm of Adam's first moments: float32 sums in another order


@pytest.fixture
def make_text_run(make_run, tmp_path):
    """make_text_run(name, text={...}, **keys of distill) -> Recipe that trains on two domains of short documents."""
    generator = random.Random(3)
    for name, letters, count in (("a", "abcdefgh", 60), ("b", "stuvwxyz", 40)):
        texts = ("".join(generator.choices(letters, k=generator.randint(1, 9))) for _ in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def make(name: str = "run", *, text=None, **settings):
        domains = [{"name": name, "path": str(tmp_path / f"{name}.jsonl")} for name in "ab"]
        section = {
            "domains": domains,
            "max_seq_len": T,
            "num_eval_sequences": 3,
            "update_interval": "2ba",
            **(text or {}),
        }
        return make_run(
            name, text=section, **{"train_on": "text", "max_duration": "6ba", "eval_interval": "3ba", **settings}
        )

    return make


def model_of(recipe):
    return build_model(Run.of(recipe), eval_tasks=())


def text_of(recipe, *, batch_size: int = 4):
    """The batches, the held-out losses' callback, and the model."""
    model = model_of(recipe)
    data, (mixture, _) = text_training(Run.of(recipe), model, batch_size=batch_size, device=CPU)
    return data, mixture, model


def samples(*rows: list[int]) -> list[dict]:
    return [{"input_ids": torch.tensor(row), "domain": 0} for row in rows]


def learned(recipe) -> dict[int, dict[str, float]]:
    """What was logged of losses, mixture and evaluations, and no times."""
    kept = ("loss/", "mixture/", "metrics/")
    return {
        batch: {name: value for name, value in record.items() if name.startswith(kept)}
        for batch, record in metrics(recipe).items()
    }


# Batches


def test_a_batch_in_full():
    batch = collate_text(samples([5, 6, EOS, 7, 8, 9], [EOS, EOS, 5, 6, 7, EOS]), end_id=EOS)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, EOS, 7, 8], [EOS, EOS, 5, 6, 7]],
        "next_ids": [[6, EOS, 7, 8, 9], [EOS, 5, 6, 7, EOS]],
        "attention_mask": [[True] * 5] * 2,
        "keep": [[True, True, False, True, True], [False, False, True, True, True]],
        "position_ids": [[0, 1, 2, 0, 1], [0, 0, 0, 1, 2]],
    }


@pytest.mark.parametrize("loss", ["forward_kl", "cross_entropy"])
def test_documents_in_one_row_lose_what_each_loses_alone(make_text_run, loss):
    model = model_of(make_text_run(loss=loss))
    generator = torch.Generator().manual_seed(1)
    documents = [[*torch.randint(3, 250, (length,), generator=generator).tolist(), EOS] for length in (7, 1, 9)]
    together = collate_text(samples([token for document in documents for token in document]), end_id=EOS)
    alone = [collate_text(samples(document), end_id=EOS) for document in documents]
    assert int(together["keep"].sum()) == 7 + 1 + 9
    torch.testing.assert_close(model(together), torch.stack([model(batch) for batch in alone]).sum(), **ALONE)
    open_to_all = {name: values for name, values in together.items() if name != "position_ids"}
    assert abs(model(open_to_all) - model(together)) > 0.01


def test_gradients_of_documents_in_one_row_are_those_of_each_alone(make_text_run):
    model = model_of(make_text_run())
    first, second = [9, 8, 7, 6, EOS], [30, 31, 32, EOS]
    found = []
    for batches in ([[*first, *second]], [first, second]):
        model.zero_grad()
        for row in batches:
            model(collate_text(samples(row), end_id=EOS)).backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert (found[0] - found[1]).norm() < UPDATE_RTOL * found[1].norm()


# Held-out losses


def test_held_out_losses_are_those_of_isolated_documents(make_text_run):
    """Of student and teacher, against each document alone in float64."""
    recipe = make_text_run()
    model = model_of(recipe)
    rows = [[5, 6, 7, EOS, 9, 10], [EOS, 20, 21, 22, 23, 24]]
    batch = collate_text(samples(*rows), end_id=EOS)
    for folder, losses_of in ((Path(recipe.run_dir) / "init", student_losses), (recipe.target.path, teacher_losses)):
        lm = AutoModelForCausalLM.from_pretrained(folder).double()
        with torch.no_grad():
            found = losses_of(model, batch)
        assert [len(losses) for losses in found] == [4, 4]
        for losses, parts in zip(found, ([[5, 6, 7, EOS], [9, 10]], [[20, 21, 22, 23, 24]]), strict=True):
            expected = []
            for part in parts:
                logp = lm(torch.tensor([part])).logits[0].log_softmax(-1)
                expected += [-float(logp[i, token]) for i, token in enumerate(part[1:])]
            assert losses.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_mixture_follows_the_students_losses_above_the_teachers(make_text_run):
    _, mixture, model = text_of(make_text_run(text={"mixture": "code"}))
    losses = mixture.measure(None)
    assert model.training
    assert list(losses) == ["a", "b"]
    assert min(losses.values()) > 1  # a random model of 256 bytes
    teacher = mixture.references
    assert all(reference not in losses.values() for reference in teacher)
    fixed = text_of(make_text_run("fixed", text={"mixture": "fixed"}))[1]
    assert fixed.references == {"a": float("inf"), "b": float("inf")}


def test_entries_that_not_all_models_have_do_not_count():
    generator = torch.Generator().manual_seed(1)
    hidden_AH, weight_VH = torch.randn(5, 4, generator=generator), torch.randn(9, 4, generator=generator)
    batch = {"next_ids": torch.arange(5)[None], "keep": torch.ones(1, 5, dtype=torch.bool)}
    losses_A = token_losses(hidden_AH, Head(weight_VH, None, None, vocab_size=9), batch=batch, rows=6)
    expected_A = -(hidden_AH @ weight_VH[:6].T).log_softmax(-1)[range(5), range(5)]
    torch.testing.assert_close(losses_A, expected_A)


def test_dropout_is_off_while_the_student_is_measured(make_text_run, make_checkpoint):
    init = make_checkpoint(num_hidden_layers=2, attention_dropout=0.5)
    _, mixture, _ = text_of(make_text_run(init=init))
    assert mixture.measure(None) == mixture.measure(None)


def test_a_held_out_loss_that_is_no_number_is_said(make_text_run, monkeypatch):
    monkeypatch.setattr(distill.text_training, "held_out_loss", lambda *_, **__: float("nan"))
    with rejects("distill.optimizer.lr"):
        train(make_text_run())


# Training


def test_learns_the_teacher_on_text_and_leaves_a_draft(make_text_run):
    recipe = make_text_run(
        max_duration="40ba", save_interval="1dur", eval_interval="0.5dur", text={"update_interval": "0.25dur"}
    )
    train(recipe)
    log = metrics(recipe)
    assert log[39]["loss/train/total"] < 0.8 * log[0]["loss/train/total"]
    assert [batch for batch in log if "metrics/eval/tau_5" in log[batch]] == [0, 20, 40]
    assert [batch for batch in log if "mixture/a/weight" in log[batch]] == [10, 20, 30, 40]
    assert log[40]["mixture/a/loss"] < log[10]["mixture/a/loss"]
    weights = [log[40][f"mixture/{name}/weight"] for name in "ab"]
    assert sum(weights) == pytest.approx(1)
    assert weights[0] != 0.5
    assert log[11]["step/evaluation_s"] > 0 == log[12]["step/evaluation_s"]  # of the update after batch 10
    assert AutoModelForCausalLM.from_pretrained(Path(recipe.run_dir) / "draft").dtype == torch.bfloat16


def test_resumed_equals_uninterrupted_bit_for_bit(make_text_run, make_checkpoint, stopped):
    """Dropout included, and the mixture's weights."""
    init = make_checkpoint(num_hidden_layers=2, attention_dropout=0.5)
    straight = make_text_run("straight", init=init)
    train(straight)
    assert len(learned(straight)) == 7
    for batch in (2, 5):
        resumed = make_text_run(f"resumed-{batch}", init=init)
        train_in_two_sessions(resumed, stopped(distill.trainer, "build_loggers", batch), batch)
        assert_same_end(straight, resumed)
        assert learned(straight) == learned(resumed)


def test_microbatches_do_not_change_the_update(make_text_run):
    """Of unequal size, too: three and one."""
    settings = {"max_duration": "1ba", "scheduler": {"t_warmup": "0ba"}, "gradient_clipping": None}
    whole = make_text_run("whole", **settings)
    cut = make_text_run("cut", device_train_microbatch_size=3, **settings)
    train(whole)
    train(cut)
    assert_same_update(whole, cut, UPDATE_RTOL)


@pytest.mark.slow  # two processes import torch and Composer
def test_two_processes_equal_one_also_after_they_are_continued_by_one(pair, make_text_run):
    settings = {"device_train_microbatch_size": 1, "max_duration": "3ba"}
    alone = make_text_run("alone", **settings)
    both = [make_text_run(parallelism, parallelism=parallelism, **settings) for parallelism in ("ddp", "fsdp2")]
    train(alone)
    for together in both:
        train_by(pair, together)
        assert_same_training(alone, together)
    for recipe in (alone, *both):
        train(changed(recipe, max_duration="4ba", parallelism="ddp"))
    for together in both:
        assert_same_training(alone, together)


def assert_same_training(one, other) -> None:
    assert_same_update(one, other, UPDATE_RTOL)
    logs = [learned(recipe) for recipe in (one, other)]
    assert logs[0].keys() == logs[1].keys()
    for batch, record in logs[0].items():
        values, others = (  # intervals are drawn from responses in the order of the processes
            {name: value for name, value in each.items() if not name.endswith(("/low", "/high"))}
            for each in (record, logs[1][batch])
        )
        assert values == pytest.approx(others, rel=1e-4), batch  # after steps of 1e-3 in another order


@pytest.mark.parametrize("train_on", ["responses", "text"])
def test_responses_to_train_on_are_written_only_where_they_are(make_run, make_text_run, monkeypatch, train_on):
    asked = []
    monkeypatch.setattr(
        distill.data.training_data, "generate_responses", lambda *_, **settings: asked.append(settings) or COUNTS
    )
    recipe = make_text_run() if train_on == "text" else make_run()
    shutil.rmtree(Path(recipe.run_dir) / "data")
    generate_stage(Run.of(recipe))
    assert [settings["to_train_on"] for settings in asked] == [train_on == "responses"]
    require_training_inputs(Run.of(recipe))


# Refusals


def test_another_text_does_not_continue_this_training(make_text_run, tmp_path, stopped):
    recipe = make_text_run()
    with stopped(distill.trainer, "build_loggers", 3):
        train(recipe)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    with rejects("checkpoints"):
        train(recipe)


@pytest.mark.parametrize(
    ("time", "max_duration", "expected"),
    [
        ("0.25dur", "2000ba", "500ba"),
        ("0.25dur", "1_000tok", "250tok"),
        ("0.001dur", "20sp", "1sp"),
        ("0.5dur", "13sp", "7sp"),
        ("1dur", "7ba", "7ba"),
        ("30ba", "1_000tok", "30ba"),
    ],
)
def test_shares_of_the_training_are_times(time, max_duration, expected):
    assert without_dur(time, max_duration) == expected


def test_text_is_learned_as_on_the_processor(make_text_run, device, processor_only):
    """float32, three steps with an update of the mixture."""
    here, expected = (make_text_run(name, max_duration="3ba") for name in ("here", "expected"))
    train(here)
    with processor_only():
        train(expected)
    logs = [metrics(recipe) for recipe in (here, expected)]
    for name in ("loss/train/total", "mixture/a/loss", "mixture/a/weight", "metrics/eval/alpha"):
        found, wanted = ([record[name] for record in log.values() if name in record] for log in logs)
        assert found == pytest.approx(wanted, rel=1e-3), name
