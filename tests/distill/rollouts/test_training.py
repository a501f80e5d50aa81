"""Trainings on responses that are written anew: what is learned, what is counted, and that nothing else decides it."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from composer.devices import DeviceCPU

import distill.trainer
from distill.chunked_loss import ResponseLogits
from distill.data.batches import Example, collate
from distill.losses import LOSSES, LossTerm, build_objective, forward_kl
from distill.model import DistillModel
from distill.response_batches import read_responses
from distill.rollouts import (
    COINS,
    STUDENT_TOKENS,
    TEACHER_TOKENS,
    Generation,
    RolloutPrompt,
    examples_of,
    generate_rollouts,
    places_in,
)
from distill.run import Run
from distill.teacher import Teacher
from distill.train import train
from distill.trainer import build_model, response_training
from eval.decoding.sampling import Limits, Sampling, stream
from eval.decoding.speculative import DecodingRequest, collected, decode_steps, plain_decode
from eval.models import load_model
from eval.responses import read_traces, write_shard
from tests.distill.after_training import (
    assert_equal,
    assert_resumes,
    assert_same_end,
    changed,
    last_state,
    mean_gradients,
    metrics,
    relative_difference,
)
from tests.distill.conftest import MAX_SEQ_LEN
from tests.distill.small_heads import VOCAB, cut_draft
from tests.distill.test_callbacks import a_log
from tests.distill.two_processes import train_by

UPDATE_RTOL = 1e-5  # of the norm: float32 sums in another order
SAMPLES = ["student", "mix_request", "mix_token"]
PROBABILITY = "distill.trainer.MIXED_PROBABILITY"
DRAWN = {"data_temperature": 1.0}


def trained(make_run, name, **distill):
    recipe = make_run(
        name,
        **{"max_duration": "2ba", "eval_interval": "1dur", "save_interval": "1dur", **distill},
    )
    train(recipe)
    return recipe


def rollouts_of(recipe, model, *, temperature=None, samples="student"):
    """The callback at the start of a training, and what it logs."""
    distill = recipe.distill.model_copy(update={"samples": samples})
    data = recipe.data if temperature is None else recipe.data.model_copy(update={"temperature": temperature})
    run = Run.of(recipe.model_copy(update={"distill": distill, "data": data}))
    train_set, _ = read_responses(run)
    _, [rollouts] = response_training(run, model, train_set, batch_size=4)
    state = SimpleNamespace(timestamp=SimpleNamespace(batch=SimpleNamespace(value=2)), device=DeviceCPU())
    rollouts.init(state, logged := a_log())
    return rollouts, logged


@pytest.fixture
def started(make_run):
    """(recipe, model, a batch of four responses)."""
    recipe = make_run()
    run = Run.of(recipe)
    train_set, _ = read_responses(run)
    return recipe, build_model(run, eval_tasks=()), collate(train_set.examples[:4])


def test_at_probability_0_the_training_is_that_of_the_teachers_responses(make_run, monkeypatch):
    monkeypatch.setattr(PROBABILITY, 0.0)
    plain = trained(make_run, "plain")
    for source in ("mix_request", "mix_token"):
        mixed = trained(make_run, source, samples=source)
        assert_same_end(plain, mixed)
        assert metrics(mixed)[1][STUDENT_TOKENS] == 0
    assert not any(name.startswith("samples/") for line in metrics(plain).values() for name in line)


def test_at_probability_1_the_training_is_that_of_the_students_responses(make_run, monkeypatch):
    monkeypatch.setattr(PROBABILITY, 1.0)
    alone = trained(make_run, "alone", samples="student")
    for source in ("mix_request", "mix_token"):
        mixed = trained(make_run, source, samples=source)
        assert_same_end(alone, mixed)
        assert_equal(metrics(alone)[1][STUDENT_TOKENS], metrics(mixed)[1][STUDENT_TOKENS])
    assert metrics(alone)[1][TEACHER_TOKENS] == 0 < metrics(alone)[1][STUDENT_TOKENS]


def test_responses_are_those_of_the_weights_of_the_moment(started):
    recipe, model, batch = started
    rollouts, _ = rollouts_of(recipe, model)
    before = rollouts.replace_responses(batch)
    assert torch.equal(rollouts.replace_responses(batch)["next_ids"], before["next_ids"])
    model.train()
    with torch.no_grad():
        for parameter in model.student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.1)
    after = rollouts.replace_responses(batch)
    assert after["next_ids"].shape != before["next_ids"].shape or not torch.equal(after["next_ids"], before["next_ids"])
    assert model.student.lm.training


def test_a_training_mode_with_dropout_is_left_while_it_writes(make_checkpoint, make_run):
    init = make_checkpoint(seed=2, num_hidden_layers=2, attention_dropout=0.5)
    recipe = make_run(init=init)
    model = build_model(Run.of(recipe), eval_tasks=())
    train_set, _ = read_responses(Run.of(recipe))
    rollouts, _ = rollouts_of(recipe, model)
    batch, state = collate(train_set.examples[:3]), torch.get_rng_state()
    model.train()
    while_training = rollouts.replace_responses(batch)
    model.eval()
    assert_equal(while_training, rollouts.replace_responses(batch))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("samples", SAMPLES)
def test_the_shares_of_two_processes_are_written_as_by_one(started, samples):
    recipe, model, batch = started
    whole, counted = rollouts_of(recipe, model, temperature=1.0, samples=samples)
    together = examples_of(whole.replace_responses(batch))
    shares = [rollouts_of(recipe, model, temperature=1.0, samples=samples) for _ in range(2)]
    parts = [
        examples_of(one.replace_responses({name: each[rank::2] for name, each in batch.items()}))
        for rank, (one, _) in enumerate(shares)
    ]
    assert [example for pair in zip(*parts, strict=True) for example in pair] == together
    for name in (TEACHER_TOKENS, STUDENT_TOKENS):
        assert sum(logged.metrics[name] for _, logged in shares) == counted.metrics[name]


def test_what_is_counted_is_what_is_trained_on(make_run):
    """One token a sequence: an epoch has as many as sequences, and Composer's clock counts prompts alone."""
    recipe = trained(make_run, "run", max_duration="4ba", samples="student", data_max_new_tokens=1)
    train_set, _ = read_responses(Run.of(recipe))
    lines, prompts = metrics(recipe), [example.spans[0][0] + 1 for example in train_set.examples]
    assert [lines[batch][STUDENT_TOKENS] for batch in range(3)] == [4, 8, len(prompts)]
    assert lines[3]["time/token"] == sum(prompts)
    assert lines[2]["step/rollouts_s"] > 0


@pytest.mark.parametrize("samples", SAMPLES[1:])
def test_resumed_equals_uninterrupted_bit_for_bit(make_run, stopped, samples):
    settings = {"max_duration": "3ba", "eval_interval": "1dur", "samples": samples, **DRAWN}
    straight, resumed = make_run("straight", **settings), make_run("resumed", **settings)
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 2))
    names = (TEACHER_TOKENS, STUDENT_TOKENS)
    told = [[[metrics(each)[batch][name] for name in names] for batch in range(3)] for each in (straight, resumed)]
    assert told[0] == told[1]


def test_two_processes_learn_and_count_what_one_does(pair, make_run):
    settings = {"max_duration": "2ba", "device_train_microbatch_size": 1, **DRAWN}
    alone, together = (make_run(name, samples="mix_token", **settings) for name in ("alone", "together"))
    train(alone)
    train_by(pair, together)
    for name in (TEACHER_TOKENS, STUDENT_TOKENS):
        assert [metrics(alone)[batch][name] for batch in (0, 1)] == [metrics(together)[batch][name] for batch in (0, 1)]
    assert relative_difference(mean_gradients(alone), mean_gradients(together)) < UPDATE_RTOL


def test_a_conversation_keeps_the_responses_before_the_new_one(started):
    """Of a turn that is drawn; what followed another response is gone, and what is learned counts for who wrote it."""
    recipe, model, _ = started
    turns = Example(tuple(range(5, 24)), 24, ((1, 4), (7, 9), (14, 19)))
    batch = collate([turns, replace(turns, last_id=25), replace(turns, last_id=26)])
    rollouts, logged = rollouts_of(recipe, model)
    new = examples_of(rollouts.replace_responses(batch))
    kept = sum(end - first for example in new for first, end in example.spans[:-1])
    for before, example in zip(examples_of(batch), new, strict=True):
        assert example.spans[:-1] == before.spans[: len(example.spans) - 1]
        prompt = before.spans[len(example.spans) - 1][0] + 1
        assert example.input_ids[:prompt] == before.input_ids[:prompt]
        assert len(example.input_ids) + 1 <= 30
    assert logged.metrics[TEACHER_TOKENS] == kept
    assert logged.metrics[STUDENT_TOKENS] == sum(example.num_kept for example in new) - kept


BESIDE = {
    "all losses, micro-batches": {
        "loss": [{"name": name, "weight": 0.1} for name in LOSSES],
        "device_train_microbatch_size": 1,
    },
    "temperature, packing, bfloat16": {
        "loss": "forward_kl",
        "temperature": 2.0,
        "packing": True,
        "precision": "amp_bf16",
    },
    "small head, unknown inputs": {"small": True, "unknown_inputs": 0.5},
}
ONE_STEP = {"max_duration": "1ba", "eval_interval": "1dur", "save_interval": "1dur"}


def greedy_response(student, prompt_ids):
    limits = Limits(min(25, MAX_SEQ_LEN - len(prompt_ids)), frozenset({2}))
    wanted = DecodingRequest([prompt_ids], limits, Sampling(), target_vocab=VOCAB)
    return collected(decode_steps([student], wanted), 1)[0].token_ids


def generated_by_the_student(recipe):
    """The data of a run, answered anew."""
    run = Run.of(recipe)
    student, folder = build_model(run, eval_tasks=()).student.lm.eval(), run.data.path
    traces = [
        replace(trace, response_ids=greedy_response(student, trace.prompt_ids))
        for trace in read_traces(folder, "train")
    ]
    [path] = folder.glob("train-*.jsonl")
    write_shard(path, [asdict(trace) for trace in traces])


@pytest.mark.parametrize("beside", BESIDE)
def test_the_update_is_that_of_a_training_on_the_same_responses(make_run, tiny_target, tiny_draft, tmp_path, beside):
    settings = {**ONE_STEP, **BESIDE[beside]}
    share = settings.pop("unknown_inputs", 0.0)
    if settings.pop("small", False):
        settings["init"] = cut_draft(tiny_target, tmp_path / "small")
    ours, theirs = (make_run(name, **settings) for name in ("written", "given"))
    ours, theirs = (
        changed(recipe, unknown_inputs=share, **more) for recipe, more in ((ours, {"samples": "student"}), (theirs, {}))
    )
    generated_by_the_student(theirs)
    train(ours)
    train(theirs)
    assert_equal(last_state(ours)["optimizers"], last_state(theirs)["optimizers"])
    assert metrics(ours)[0]["loss/train/total"] == metrics(theirs)[0]["loss/train/total"]
    assert metrics(ours)[0][STUDENT_TOKENS] > 0


def test_a_teacher_in_shards_scores_what_the_student_writes(pair, make_run):
    settings = {**ONE_STEP, "device_train_microbatch_size": 1, "samples": "student"}
    alone, together = make_run("alone", **settings), make_run("together", **settings, teacher={"parallelism": "fsdp2"})
    train(alone)
    train_by(pair, together)
    one, other = (metrics(recipe)[0] for recipe in (alone, together))
    assert one[STUDENT_TOKENS] == other[STUDENT_TOKENS]
    assert one["loss/train/total"] == pytest.approx(other["loss/train/total"], rel=1e-5)


PROMPTS = [(5, 6, 7, 8, 9, 10, 11), (12,), (13, 14, 15)]
SEEDS = [11, 2**63 - 5, 77]
ROLLOUTS = [RolloutPrompt(prompt, seed, 7) for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]
GREEDY = Generation(Sampling(), frozenset({2}), 264)


@pytest.fixture(scope="module")
def models(make_translator):
    """Student and teacher."""
    folders = make_translator(seed=2, num_layers=2, num_decoder_layers=1), make_translator(seed=1)
    return [load_model(folder, dtype="float32", device="cpu") for folder in folders]


def next_logits(lm, prompt, response):
    """logits_V of transformers behind a response so far."""
    with torch.inference_mode():
        ids = torch.tensor([[lm.config.decoder_start_token_id, *response]])
        return lm(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0, -1]


def test_the_student_writes_what_plain_decoding_says(models):
    student, _ = models
    decoded = plain_decode(student, PROMPTS, limits=Limits(7, frozenset({2})))
    assert [one.token_ids for one in generate_rollouts(student, None, ROLLOUTS, GREEDY, probability=1)] == [
        one.token_ids for one in decoded
    ]


def test_both_read_what_was_written_whoever_wrote_it(models):
    rollouts = generate_rollouts(*models, ROLLOUTS, GREEDY, probability=0.5)
    for prompt, seed, written in zip(PROMPTS, SEEDS, rollouts, strict=True):
        response, coins = [], stream(COINS, [seed], 7, torch.device("cpu"))[0]
        for coin in coins[: len(written.token_ids)]:
            response.append(int(next_logits(models[0 if coin < 0.5 else 1], prompt, response).argmax()))
        assert list(written.token_ids) == response
        assert written.by_student == int((coins[: len(response)] < 0.5).sum())


def test_the_loss_sits_on_the_new_tokens(models):
    """KL(teacher || student) of transformers' own logits, token by token."""
    student, teacher = models
    batch = collate([Example((*prompt, 30), 31, ((len(prompt) - 1, len(prompt) + 1),)) for prompt in PROMPTS])
    places = places_in(batch, seed=3, batch_number=0)
    responses = generate_rollouts(student, None, ROLLOUTS, GREEDY, probability=1)
    new = collate([place.with_response(each.token_ids) for place, each in zip(places, responses, strict=True)])
    assert [example.spans[0][0] + 1 for example in examples_of(new)] == new["prompt_len"][:, 0].tolist()
    objective = build_objective([LossTerm(name="forward_kl")], temperature=1.0)
    model = DistillModel(
        ResponseLogits(student), Teacher(ResponseLogits(teacher)), objective=objective, cpu_bfloat16=False
    )
    expected = 0.0
    for prompt, each in zip(PROMPTS, responses, strict=True):
        for index in range(len(each.token_ids)):
            logits = [next_logits(lm, prompt, each.token_ids[:index])[None] for lm in (student, teacher)]
            expected += float(forward_kl(*logits, temperature=1.0).sum())
    torch.testing.assert_close(float(model(new).detach()), expected, rtol=1e-4, atol=0)
