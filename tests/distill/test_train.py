"""Training as a whole, in this process: what it learns, and that how it is cut up does not change what it learns."""

import json
import platform
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from composer.loggers import LoggerDestination
from transformers import AutoModelForCausalLM

import distill.trainer
from architectures.manifest import read_manifest, write_manifest
from distill.pipeline import cache_stage
from distill.process import end_on_sigterm
from distill.recipe.sections import DistillConfig
from distill.response_batches import read_responses
from distill.run import Run
from distill.stage_inputs import generate_inputs, prune_inputs, training_inputs
from distill.train import main, train
from distill.trainer import build_model, device_batch_size, microbatch_size, shard_degree
from eval import machine
from eval.responses import read_traces
from tests.distill.after_training import assert_same_end, mean_gradients, metrics, train_in_two_sessions
from tests.distill.conftest import NUM_TRAIN
from tests.processes import run
from tests.rejections import rejects


def test_learns_and_leaves_a_draft(make_run):
    recipe = make_run(max_duration="12ep", save_interval="1dur", eval_interval="1dur")
    train(recipe)
    run = Path(recipe.run_dir)
    log = metrics(recipe)
    assert log[35]["loss/train/total"] < 0.9 * log[0]["loss/train/total"]
    assert log[35]["throughput/tokens_per_sec"] > 0
    assert log[36]["metrics/eval/alpha"] != log[0]["metrics/eval/alpha"]
    draft = AutoModelForCausalLM.from_pretrained(run / "draft")
    assert draft.dtype == torch.bfloat16
    manifest = read_manifest(run / "draft")
    assert manifest["finished"] is True
    assert manifest["checkpoint"] == "ep11-ba36-rank0.pt"
    assert read_manifest(run / "checkpoints")["inputs"] == training_inputs(Run.of(recipe))


def test_resumed_equals_uninterrupted_bit_for_bit(make_run, stopped):
    """In the first epoch and in the second."""
    straight = make_run("straight")
    train(straight)
    for batch in (2, 5):
        resumed = make_run(f"resumed-{batch}")
        train_in_two_sessions(resumed, stopped(distill.trainer, "build_loggers", batch), batch)
        assert_same_end(straight, resumed)
        assert evaluated(resumed) == evaluated(straight) == [0, 3, 6]


def evaluated(recipe) -> list[int]:
    """Batches after which the held-out responses were looked at."""
    return [batch for batch, record in metrics(recipe).items() if "metrics/eval/alpha" in record]


def test_metrics_are_logged_at_the_start_and_at_every_interval(make_run):
    recipe = make_run(max_duration="6ba", eval_interval="2ba")
    train(recipe)
    log = metrics(recipe)
    assert evaluated(recipe) == [0, 2, 4, 6]
    assert [batch for batch in log if "loss/train/total" in log[batch]] == [0, 1, 2, 3, 4, 5]
    assert all(0 <= log[batch]["metrics/eval/greedy_match"] <= 1 for batch in (0, 2, 4, 6))
    assert log[0]["metrics/eval/alpha"] == pytest.approx(held_out_alpha(recipe), rel=1e-5)


def logits_by_hand(recipe, split: str):
    """Of the target and of the init at every response, from two models and the text alone."""
    folders = recipe.target.path, Path(recipe.run_dir) / "init"
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
    for trace in read_traces(Path(recipe.run_dir) / "data", split):
        response = trace.response_ids[: recipe.data.max_seq_len - len(trace.prompt_ids)]
        ids = torch.tensor([[*trace.prompt_ids, *response]])
        yield [model(ids).logits[0, len(trace.prompt_ids) - 1 : -1].detach() for model in models]


def held_out_alpha(recipe) -> float:
    """Mean of sum_x min(p, q) over the held-out responses."""
    both = [[each.softmax(-1) for each in logits] for logits in logits_by_hand(recipe, "eval")]
    return float(torch.cat([torch.minimum(p, q).sum(-1) for p, q in both]).mean())


def test_the_first_loss_is_the_mean_over_the_batchs_response_tokens(make_run):
    # one batch holds all responses
    recipe = make_run(loss="forward_kl", max_duration="1ba", global_train_batch_size=10)
    train(recipe)
    both = [[each.log_softmax(-1) for each in logits] for logits in logits_by_hand(recipe, "train")]
    expected = float(torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in both]).mean())
    assert metrics(recipe)[0]["loss/train/total"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "dtype", "expected"),
    [
        ("amp_bf16", "bfloat16", torch.bfloat16),
        ("amp_bf16", "float32", torch.float32),
        ("fp32", "bfloat16", torch.float32),
    ],
)
def test_the_teacher_runs_in_the_targets_dtype_unless_all_is_float32(make_run, precision, dtype, expected):
    recipe = make_run(precision=precision, temperature=3.0)
    recipe = recipe.model_copy(update={"target": recipe.target.model_copy(update={"dtype": dtype})})
    model = build_model(Run.of(recipe), eval_tasks=())
    assert {parameter.dtype for parameter in model.teacher.model.parameters()} == {expected}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.cpu_bfloat16 == (precision == "amp_bf16")
    assert model.objective.temperature == 3.0


def test_gradients_are_clipped_before_the_step(make_run):
    settings = {"max_duration": "1ba", "optimizer": {"lr": 1e-3}}
    free = make_run("free", gradient_clipping=None, **settings)
    clipped = make_run("clipped", gradient_clipping=0.01, **settings)
    train(free)
    train(clipped)
    norms = [
        sum(float(moment.double().square().sum()) for moment in mean_gradients(recipe).values()) ** 0.5 / (1 - 0.9)
        for recipe in (free, clipped)
    ]
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-4)


LINEAR = {"name": "linear_decay_with_warmup"}


@pytest.mark.parametrize(
    ("duration", "scheduler", "multiples"),
    [
        ("4ba", {"name": "cosine_with_warmup", "t_warmup": "2ba", "alpha_f": 0.2}, [0, 0.5, 1, 0.6]),
        ("4ba", {"name": "constant_with_warmup", "t_warmup": "2ba"}, [0, 0.5, 1, 1]),
        ("8ba", {**LINEAR, "t_warmup": "1ep", "alpha_f": 0.25}, [0, 1 / 3, 2 / 3, 1, 0.85, 0.7, 0.55, 0.4]),
        ("3ep", {**LINEAR, "t_warmup": "0.5dur", "alpha_f": 0.25}, [0, 0.25, 0.5, 0.75, 1, 0.85, 0.7, 0.55, 0.4]),
    ],
)
def test_learning_rates(make_run, monkeypatch, duration, scheduler, multiples):
    """One schedule over all epochs: Composer moves the rate before it counts a batch, so the first rate comes twice."""
    recipe = make_run(max_duration=duration, scheduler=scheduler)
    rates = []
    step = torch.optim.AdamW.step

    def recorded_step(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded_step)
    train(recipe)
    expected = [1e-3 * multiple for multiple in (multiples[0], *multiples[:-1])]
    assert rates == pytest.approx(expected, rel=1e-5, abs=1e-12)
    log = metrics(recipe)
    logged = [log[batch]["lr-AdamW/group0"] for batch in range(1, len(multiples) + 1)]  # the rate that comes next
    assert logged == pytest.approx([1e-3 * multiple for multiple in multiples], rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(("folder", "command"), [("init", "widedraft prune"), ("data", "widedraft generate")])
def test_what_is_missing_is_named_with_the_command_that_makes_it(make_run, folder, command):
    recipe = make_run()
    shutil.rmtree(Path(recipe.run_dir) / folder)
    with rejects(f"{recipe.run_dir}/{folder}:", f"`{command}"):
        train(recipe)


def test_responses_that_do_not_fit_are_counted(make_run, capsys):
    recipe = make_run(max_duration="1ba")
    train(recipe)
    traces = read_traces(Path(recipe.run_dir) / "data", "train")
    limit = recipe.data.max_seq_len
    cut = sum(len(trace.prompt_ids) + len(trace.response_ids) > limit for trace in traces)
    assert cut > 0
    assert f"data.max_seq_len={limit} cut {cut} " in capsys.readouterr().err


def test_no_response_left_is_an_error(make_run):
    recipe = make_run()
    short = recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_seq_len": 1})})
    write_manifest(Path(recipe.run_dir) / "data", stage="generate", inputs=generate_inputs(Run.of(short)))
    with rejects("data.max_seq_len=1"):
        train(short)


def test_a_student_with_another_tokenizer_is_refused(make_run):
    recipe = make_run()
    init = Path(recipe.run_dir) / "init"
    tokenizer = json.loads((init / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {token[::-1]: index for token, index in tokenizer["model"]["vocab"].items()}
    tokenizer["added_tokens"] = []
    (init / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_manifest(init, stage="prune", inputs=prune_inputs(Run.of(recipe)))
    with rejects("tokenizer"):
        train(recipe)


def test_auto_microbatch_on_a_processor_is_the_whole_batch(make_run):
    assert microbatch_size("auto", make_run().distill) == 4


@pytest.mark.parametrize("num_processes", [3, 8])
def test_processes_share_the_batch_evenly_or_not_at_all(make_run, monkeypatch, num_processes):
    monkeypatch.setenv("WORLD_SIZE", str(num_processes))
    with rejects(4, num_processes):
        device_batch_size(make_run().distill)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert device_batch_size(make_run("two").distill) == 2


@pytest.mark.parametrize(("omp", "processes", "expected"), [(None, "1", 6), (None, "4", 1), ("3", "1", None)])
def test_cores_are_shared_unless_the_user_said_otherwise(monkeypatch, omp, processes, expected):
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(machine, "usable_cores", lambda: 6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    distill.trainer.use_resources()
    assert chosen == ([] if expected is None else [expected])


def test_signals_are_handled_as_before_composers_import(monkeypatch, tmp_path):
    """Composer replaces both handlers when it is imported."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def composers(*_):
        pass

    try:
        for number in before:
            signal.signal(number, composers)
        assert main([str(tmp_path / "absent.yaml")]) == 2
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is end_on_sigterm
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def divided(asked, processes, of_machine):
    config = DistillConfig(device_train_microbatch_size=1, parallelism="hsdp", shard_degree=asked)
    return shard_degree(config, processes, of_machine)


DEGREES = [("auto", 16, 8, 8), (2, 4, 4, 2), (1, 3, 3, 1)]


@pytest.mark.parametrize(("asked", "processes", "of_machine", "degree"), DEGREES)
def test_auto_takes_those_of_a_machine(asked, processes, of_machine, degree):
    assert divided(asked, processes, of_machine) == degree


@pytest.mark.parametrize(("asked", "named"), [(3, [3, 4]), ("auto", ["auto", 3, 4])])
def test_copies_of_unequal_size_are_refused(asked, named):
    with rejects(*named):
        divided(asked, 4, 3)


STEPS = 3  # of an epoch: batches of 4, 4 and 2


class Noted(LoggerDestination):
    """Notes which sequences each batch held, as the texts of their ids."""

    def __init__(self):
        self.batches = []

    def batch_end(self, state, logger):
        rows = zip(state.batch["input_ids"].tolist(), state.batch["attention_mask"].sum(1).tolist(), strict=True)
        self.batches.append([tuple(ids[:length]) for ids, length in rows])


@pytest.fixture
def batches_of(monkeypatch):
    """batches_of(recipe) -> the sequences of every batch it is trained on."""

    def trained(recipe):
        noted, build = Noted(), distill.trainer.build_loggers
        with monkeypatch.context() as patch:
            patch.setattr(distill.trainer, "build_loggers", lambda *given: [*build(*given), noted])
            train(recipe)
        return noted.batches

    return trained


@pytest.mark.parametrize("duration", ["3ep", "8ba"])
def test_each_epoch_reads_every_response_once_in_an_order_of_its_own(make_run, batches_of, duration):
    recipe = make_run(max_duration=duration, eval_interval="1dur", teacher={"source": "none"})
    batches = batches_of(recipe)
    train_set, _ = read_responses(Run.of(recipe))
    responses = sorted(example.input_ids for example in train_set.examples)
    assert len(responses) == NUM_TRAIN
    orders = [[row for batch in batches[first : first + STEPS] for row in batch] for first in range(0, 9, STEPS)]
    whole = [order for order in orders if len(order) == NUM_TRAIN]
    assert len(whole) == {"3ep": 3, "8ba": 2}[duration]
    assert all(sorted(order) == responses for order in whole)
    assert len({tuple(order) for order in orders}) == 3
    assert len(set(orders[2])) == len(orders[2])  # also of an epoch that is cut short


def test_the_orders_are_the_same_whatever_the_teacher(make_run, batches_of):
    found = []
    for source in ("live", "cache", "none"):
        recipe = make_run(source, max_duration="2ep", eval_interval="1dur", teacher={"source": source})
        if source == "cache":
            cache_stage(Run.of(recipe))
        found.append(batches_of(recipe))
    assert len(found[0]) == 2 * STEPS
    assert found[0] == found[1] == found[2]


SCRIPT = """
import resource, torch
from eval.models import keep_freed_memory
def step():
    rows = [torch.ones(10 << 20) for _ in range(3)]  # 40 MiB each, which glibc never keeps by itself
    return sum(float(row[0]) for row in rows)
def pages():  # of each three steps
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(3):
            step()
        yield resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = min(pages())
assert keep_freed_memory()
print(given_back, *pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_steps_after_the_first_ask_for_hardly_any_memory():
    given_back, *kept = map(int, run([sys.executable, "-c", SCRIPT], check=True).stdout.split())
    assert min(kept[1:]) < given_back / 10  # a fragmented heap still grows in some steps
    assert sum(kept) < 2 * given_back  # without it, six times as much
