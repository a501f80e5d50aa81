"""Times of stages: the FLOPs a training counts of itself over the speed, and what adds to what."""

from dataclasses import replace

import pytest

from architectures.pages.counts import number_of
from architectures.shapes.shape import NAMED_SHAPES
from distill.data.conversations import Conversation
from distill.estimates.expected_work import Work
from distill.expected_time.devices import Device, Published, find_device
from distill.expected_time.lengths import Lengths, mean_lengths
from distill.expected_time.page import spent, spent_together
from distill.expected_time.rates import step_s
from distill.expected_time.stage_time import Part, PlannedRun, StageTime, duration, unknown
from distill.expected_time.stages import stage_times
from distill.monitoring.flops import forward_flops, head_flops, training_flops
from distill.recipe.recipe import Recipe
from eval.prompts import Prompt, raw_text

TARGET, DRAFT = (NAMED_SHAPES[name].shape for name in ("llama-7b", "wide-796m"))
SPEED = 1e15
FAST = Device("GPU", published=Published("GPU", {"amp_bf16": SPEED / 0.3}, 1e9))
LENGTHS = Lengths(700, 300, "")
EACH = [(1000, 300)]
TEXT = {"domains": [{"name": "wiki", "path": "absent.txt"}], "max_seq_len": 1025}


def run_of(work: Work | None = None, *, architecture=None, text=None, data=None, scoring=None, **distill) -> PlannedRun:
    recipe = Recipe.model_validate(
        {
            "run_name": "demo",
            "target": {"path": "absent"},
            "architecture": architecture or {"layers": 5},
            "data": {"prompts": [{"path": "absent"}], "num_eval_prompts": 10, "max_seq_len": 2048, **(data or {})},
            "distill": {"eval_interval": "1dur", "eval_first": False, "precision": "amp_bf16", "pad_to_multiple": 1}
            | distill,
            "text": text,
            "eval": scoring or {},
        }
    )
    return PlannedRun(recipe, TARGET, DRAFT, TARGET, work or Work(1010, 1000), LENGTHS)


def times(run: PlannedRun, device: Device = FAST) -> dict[str, StageTime]:
    return {time.name: time for time in stage_times(run, device)}


def training(run: PlannedRun) -> float:
    found = times(run)["training"].seconds
    assert found is not None
    return found


EVALUATION = 10 * (forward_flops(TARGET, EACH) + forward_flops(DRAFT, EACH))


def test_training_takes_the_flops_that_it_will_count_of_itself():
    each = training_flops(DRAFT, EACH, teacher=forward_flops(TARGET, EACH))
    assert training(run_of()) == pytest.approx((1000 * each + EVALUATION) / SPEED)


@pytest.mark.parametrize(
    ("distill", "teacher"),
    [
        ({"teacher": {"source": "cache"}}, 300 * head_flops(TARGET.vocab, TARGET.hidden)),
        ({"teacher": {"source": "cache", "contents": "top_k"}}, 0),
        ({"loss": "cross_entropy"}, 0),
        (
            {"token_selection": {"fraction": 0.4, "reference": "absent"}},
            forward_flops(TARGET, EACH) + forward_flops(DRAFT, EACH),
        ),
        (
            {"loss": "cross_entropy", "token_selection": {"fraction": 0.4, "reference": "absent"}},
            forward_flops(TARGET, EACH) + forward_flops(DRAFT, EACH),
        ),
    ],
)
def test_what_the_teacher_takes(distill, teacher):
    each = training_flops(DRAFT, EACH, teacher=teacher)
    assert training(run_of(**distill)) == pytest.approx((1000 * each + EVALUATION) / SPEED)


SMALL = replace(DRAFT, head_vocab=4096, tied=False)


@pytest.mark.parametrize(
    ("distill", "teacher"),
    [
        ({}, forward_flops(replace(TARGET, head_vocab=4096), EACH)),
        ({"teacher": {"source": "cache"}}, 300 * head_flops(4096, TARGET.hidden)),
        ({"teacher": {"source": "cache", "contents": "top_k"}}, 0),
        ({"loss": "cross_entropy"}, 0),
        (
            {"token_selection": {"fraction": 0.4, "reference": "absent"}},
            forward_flops(replace(TARGET, head_vocab=4096), EACH) + forward_flops(SMALL, EACH),
        ),
    ],
    ids=str,
)
def test_a_small_head_takes_the_time_of_its_rows_and_evaluations_that_of_the_targets_whole_one(distill, teacher):
    run = replace(run_of(**distill), draft=SMALL)
    evaluation = 10 * (forward_flops(TARGET, EACH) + forward_flops(SMALL, EACH))
    each = training_flops(SMALL, EACH, teacher=teacher)
    assert each < training_flops(DRAFT, EACH, teacher=teacher)
    assert training(run) == pytest.approx((1000 * each + evaluation) / SPEED)


def test_every_stage_of_cuts_has_the_small_head_of_the_last():
    run = replace(run_of(architecture={"stages": [16, 8, 5]}), draft=SMALL)
    sixteen = replace(TARGET, layers=16, head_vocab=4096, tied=False)
    each = training_flops(sixteen, EACH, teacher=forward_flops(replace(TARGET, head_vocab=4096), EACH))
    evaluation = 10 * (forward_flops(TARGET, EACH) + forward_flops(sixteen, EACH))
    assert times(run)["training, 16 layers"].seconds == pytest.approx((1000 * each + evaluation) / SPEED)


def test_without_a_teacher_evaluations_are_the_drafts_alone():
    evaluation = 10 * forward_flops(DRAFT, EACH)
    each = training_flops(DRAFT, EACH, teacher=0)
    found = times(run_of(teacher={"source": "none"}))
    assert list(found) == ["answers", "training", "scorecard"]
    assert found["training"].seconds == pytest.approx((1000 * each + evaluation) / SPEED)


def test_a_cache_is_a_stage_in_which_the_teacher_reads_every_answer():
    found = times(run_of(teacher={"source": "cache"}))
    assert list(found) == ["answers", "teacher cache", "training", "scorecard"]
    assert found["teacher cache"].seconds == pytest.approx(1010 * forward_flops(TARGET, EACH) / SPEED)


def test_states_that_were_kept_while_answering_need_no_pass_of_the_teacher():
    answering = {"source": "cache", "captured_while": "answering"}
    found = times(run_of(teacher=answering))
    assert list(found) == ["answers", "training", "scorecard"]
    reading = times(run_of(teacher={"source": "cache"}))
    assert all(found[name] == reading[name] for name in found)
    of_entries = times(run_of(teacher={**answering, "contents": "top_k"}))["teacher cache"]
    assert of_entries.seconds == pytest.approx(1000 * 300 * head_flops(TARGET.vocab, TARGET.hidden) / SPEED)
    assert "top_k of the states kept of 300,000 tokens" in of_entries.words


@pytest.mark.parametrize(
    ("samples", "rows", "writers"),
    [
        ({"source": "student"}, 8, ["float32"]),
        ({"source": "mix_request", "probability": 0.25}, 2, ["float32"]),
        ({"source": "mix_request", "probability": 0.75, "begin": 0.25, "ramp": "1dur"}, 4, ["float32"]),
        ({"source": "mix_token", "probability": 0.25}, 8, ["float32", "bfloat16"]),
    ],
    ids=str,
)
def test_new_answers_take_the_steps_of_those_who_write_them(samples, rows, writers):
    run = run_of(samples={**samples, "max_new_tokens": 100})
    found, context = times(run)["new answers of training"], 700 + 50
    shapes = {"float32": DRAFT, "bfloat16": TARGET}
    rates = [step_s(FAST, shapes[dtype], dtype, batch=rows, context=context) for dtype in writers]
    assert None not in rates
    assert found.seconds == pytest.approx(1000 / 8 * 100 * sum(rate.value for rate in rates))
    assert f"{rows} at a time" in found.words
    assert "new answers of training" not in times(run_of())


def test_new_answers_whose_steps_nobody_measured_are_said_to_be_missing(device_file, records):
    found = times(run_of(samples={"source": "student"}), find_device(str(device_file(records["cores"]))))
    assert found["new answers of training"].seconds is None
    assert "no step in float32 was measured" in found["new answers of training"].words


@pytest.mark.parametrize(
    ("duration", "sequences"), [("3ep", 3000), ("200ba", 1600), ("500sp", 500), ("2_000_000tok", 2000)]
)
def test_each_unit_of_duration(duration, sequences):
    each = training_flops(DRAFT, EACH, teacher=forward_flops(TARGET, EACH))
    seconds = training(run_of(max_duration=duration, scheduler={"t_warmup": "0.05dur"}))
    assert seconds == pytest.approx((sequences * each + EVALUATION) / SPEED)


@pytest.mark.parametrize(
    ("interval", "first", "count"),
    [("1dur", False, 1), ("0.1dur", True, 11), ("50ba", True, 1 + 3), ("1ep", False, 1), ("300sp", False, 4)],
)
def test_evaluations_are_counted(interval, first, count):
    base = training(run_of()) * SPEED - EVALUATION
    found = times(run_of(eval_interval=interval, eval_first=first))["training"]
    assert found.seconds == pytest.approx((base + count * EVALUATION) / SPEED)
    assert f"and {number_of(count, 'evaluation')}" in found.words


def test_stages_of_cuts_are_trained_one_after_the_other():
    found = times(run_of(architecture={"stages": [16, 8, 5]}))
    assert list(found) == ["answers", "training, 16 layers", "training, 8 layers", "training", "scorecard"]
    sixteen = replace(TARGET, layers=16)
    each = training_flops(sixteen, EACH, teacher=forward_flops(TARGET, EACH))
    evaluation = 10 * (forward_flops(TARGET, EACH) + forward_flops(sixteen, EACH))
    assert found["training, 16 layers"].seconds == pytest.approx((1000 * each + evaluation) / SPEED)


@pytest.mark.parametrize(("multiple", "width"), [("auto", 1024), (1, 1000), (300, 1200), (4096, 2048)])
def test_what_is_padded_is_counted_up_to_the_longest(multiple, width):
    padded = [(width, 300)]
    each = training_flops(DRAFT, padded, teacher=forward_flops(TARGET, padded))
    assert training(run_of(pad_to_multiple=multiple)) == pytest.approx((1000 * each + EVALUATION) / SPEED)


def test_a_processor_pads_nothing_of_itself(device_file, records):
    cores = find_device(str(device_file(records["cores"])))
    found = [times(run_of(pad_to_multiple=multiple), cores)["training"].seconds for multiple in ("auto", 1, 64)]
    assert found[0] == found[1] < found[2]


def test_masks_train_the_whole_target():
    masks = {"max_duration": "100ba", "global_train_batch_size": 32}
    architecture = {"layers": 5, "method": "learned_masks", "masks": masks}
    found = times(run_of(architecture=architecture, text=TEXT))
    sequence = [(1025, 1024)]
    each = training_flops(TARGET, sequence, teacher=forward_flops(TARGET, sequence))
    assert found["mask training"].seconds == pytest.approx(3200 * each / SPEED)
    alone = times(run_of(architecture={**architecture, "masks": {**masks, "kl_weight": 0}}, text=TEXT))
    assert alone["mask training"].seconds == pytest.approx(3200 * training_flops(TARGET, sequence, teacher=0) / SPEED)


def test_text_training_reads_whole_sequences_and_answers_held_out_prompts_alone():
    run = run_of(train_on="text", text=TEXT, max_duration="100ba", scheduler={"t_warmup": "5ba"})
    each = training_flops(DRAFT, [(1024, 1024)], teacher=forward_flops(TARGET, [(1024, 1024)]))
    assert training(run) == pytest.approx((800 * each + EVALUATION) / SPEED)
    assert times(run)["answers"].words.startswith("10 of 300 tokens")


def test_answers_are_steps_of_whole_batches_and_the_reading_of_prompts():
    found = times(run_of(data={"max_new_tokens": 512, "batch_size": 48}))["answers"]
    steps_s = -(-1010 // 48) * 512 * 32 * 30e-3 / 32
    assert found.seconds == pytest.approx(steps_s + 1010 * forward_flops(TARGET, [(700, 1)]) / SPEED)
    assert not found.measured


def test_a_scorecard_is_answers_replay_timed_steps_and_live_decoding():
    """By hand: steps of 30 ms and, of 5 layers, 4.6875 ms; 10 held-out prompts at two temperatures, 115 tokens each."""
    target_s, draft_s, sequence = 0.03, 0.0046875, [(815, 115)]
    answers_s = 128 * target_s  # one batch of 32 rows
    replay_s = 20 * (forward_flops(TARGET, sequence) + 2 * forward_flops(DRAFT, sequence)) / SPEED
    timing_s = 50 * (9 * target_s + 18 * draft_s) + 3 * 2 * 20 * (5 * target_s + 9 * draft_s)
    live_s = 2 * 3 * 10 * 115 * target_s
    found = times(run_of())["scorecard"]
    assert found.seconds == pytest.approx(answers_s + replay_s + timing_s + live_s)
    assert not found.measured


def test_given_answers_are_not_written_but_those_of_held_out_prompts():
    found = times(run_of(data={"answers": "given", "max_new_tokens": 512}))["answers"]
    assert found.words.startswith("10 of 300 tokens")


def test_a_bound_on_the_rows_is_said_to_be_one():
    assert times(run_of(Work(1010, 1000, at_most=True)))["answers"].words.startswith("at most 1,010 of 300 tokens")


def test_rows_nobody_counted_are_no_time():
    found = times(run_of(Work(None, None)))
    assert found["answers"].seconds is None
    assert found["training"].seconds is None
    assert found["scorecard"].seconds is not None
    assert spent_together(list(found.values())).endswith(" without answers and training")


def test_an_unknown_precision_is_no_time():
    found = times(run_of(precision="fp32"))["training"]
    assert found.seconds is None
    assert found.words == "no training in fp32 was measured on GPU"


def test_training_can_be_divided_among_as_many_devices_as_share_its_batch():
    assert times(run_of(global_train_batch_size=64))["training"].processes == 8
    assert times(run_of(global_train_batch_size=6))["training"].processes == 6
    assert times(run_of())["answers"].processes == 8


def test_pieces_are_made_whole_and_what_is_one_process_s_is_not_shared():
    stage = StageTime("one", 130.0, True, "", parts=(Part(100.0, 10), Part(20.0, 2), Part(10.0)))
    assert stage.on(1) == pytest.approx(130.0)
    assert stage.on(4) == pytest.approx(30.0 + 10.0 + 10.0)  # three pieces of ten, one of two
    assert stage.on(512) == pytest.approx(10.0 + 10.0 + 10.0)
    assert stage.serial_s == 10.0
    assert StageTime("two", 80.0, True, "").on(8) == 80.0
    assert Part(80.0, 64, is_even=True).shared_s(16) == 5.0
    assert Part(80.0, 64, is_even=True).shared_s(24) is None


def test_answers_are_shared_by_files_and_what_is_timed_by_nobody():
    work, data = Work(1010, 1000), {"shard_size": 100, "batch_size": 50}
    found = times(run_of(work, data=data))
    assert [part.pieces for part in found["answers"].parts] == [1, 10]
    assert found["answers"].seconds == pytest.approx(sum(part.seconds for part in found["answers"].parts))
    scored = run_of(work, data={**data, "num_eval_prompts": 90}, scoring={"num_prompts": 70})
    *written, replayed, timed = times(scored)["scorecard"].parts
    temperatures = len(scored.recipe.eval.temperatures)
    shards = [-(-count // scored.recipe.eval.batch_size) for count in (70,)]
    assert [part.pieces for part in written] == shards * temperatures
    assert (replayed.pieces, timed.pieces) == (70 * temperatures, 1)
    alone = [part.seconds for part in written if part.pieces == 1]
    assert times(scored)["scorecard"].serial_s == pytest.approx(timed.seconds + sum(alone))


def test_a_cache_is_shared_by_files():
    [part] = times(run_of(teacher={"source": "cache"}))["teacher cache"].parts
    tokens_of_a_file = 2**28 // (2 * TARGET.hidden)  # 256 MiB of states in bfloat16
    assert part.pieces == -(-1000 * LENGTHS.answer // tokens_of_a_file) == 10


def test_processes_of_a_processor_share_its_cores(device_file, records):
    cores = find_device(str(device_file(records["cores"])))
    assert times(run_of(global_train_batch_size=64), cores)["training"].processes == 1


def test_a_divided_training_is_told_beside_the_whole_and_called_unmeasured():
    assert (
        spent(StageTime("one", 7200.0, True, "", processes=8, parts=(Part(7200.0, 64, is_even=True),)))
        == "2.0 h (on 8 devices 15.0 min, divided, unmeasured)"
    )
    assert spent(StageTime("one", 7200.0, measured=True, words="")) == "2.0 h"
    assert spent(unknown("one", "nobody knows")) == "unknown"


def test_the_sum_is_of_what_is_known():
    two = StageTime("two", 80.0, True, "", processes=8, parts=(Part(80.0, 64, is_even=True),))
    some = [StageTime("one", 60.0, measured=True, words=""), two]
    assert spent_together(some) == "2.3 min (on 8 devices 70 s)"
    assert spent_together([some[0], unknown("two", "nobody knows")]) == "60 s without two"
    assert spent_together([unknown("two", "nobody knows")]) == "unknown"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.5, "0.5 s"), (45, "45 s"), (420, "7.0 min"), (5940, "99.0 min"), (9000, "2.5 h")]
)
def test_durations_for_people(seconds, said):
    assert duration(seconds) == said


def prompt(text: str) -> Prompt:
    return Prompt("test:1", ({"role": "user", "content": text},))


def test_lengths_are_those_of_the_prompts_at_hand():
    data = run_of(data={"max_new_tokens": 128}).recipe.data
    found = mean_lengths(data, Work(2, 1), [[prompt("x" * 40), prompt("x" * 80)]])
    assert (found.prompt, found.answer) == (20 + 15, 115)
    assert found.words == "answers of 115 tokens (assumed) to prompts of 35 (4 characters a token)"


def test_lengths_of_what_check_does_not_open_are_assumed():
    data = run_of(data={"max_new_tokens": 512}).recipe.data
    found = mean_lengths(data, Work(2, 1), [None])
    assert (found.prompt, found.answer, found.whole) == (700, 300, 1000)


TEXTS = {"prompts": [{"task": "c4", "num_prompts": 9}], "max_new_tokens": 512, "max_seq_len": 1536}


def test_texts_are_continued_to_the_limit_and_no_longer_than_their_task_reads_them():
    """512 characters of c4 are 128 tokens; nothing ends a text, so nine tenths of 512 tokens are written."""
    found = mean_lengths(run_of(data=TEXTS).recipe.data, Work(2, 1), [None])
    assert (found.prompt, found.answer) == (128, 461)
    two = run_of(data={**TEXTS, "prompts": [{"task": "c4", "num_prompts": 9}, {"task": "hellaswag"}]}).recipe.data
    assert mean_lengths(two, Work(2, 1), [None, None]).prompt == 700  # nobody says how long those of hellaswag are
    mixed = run_of(data={**TEXTS, "prompts": [{"task": "c4", "num_prompts": 9}, {"task": "gsm8k"}]}).recipe.data
    found = mean_lengths(mixed, Work(2, 1), [None, None])
    assert (found.prompt, found.answer) == (700, 300)


def test_no_template_stands_around_a_text():
    text = Prompt("test:1", (raw_text("x" * 40),))
    assert mean_lengths(run_of(data=TEXTS).recipe.data, Work(2, 1), [[text]]).prompt == 10


def test_answers_on_the_disk_are_counted():
    data = run_of(data={"max_new_tokens": 512}).recipe.data
    assert mean_lengths(data, Work(11, 10, answer_tokens=1234), [None]).answer == 123


def test_given_answers_are_as_long_as_they_are():
    data = run_of(data={"answers": "given"}).recipe.data
    messages = ({"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "x" * 400})
    found = mean_lengths(data, Work(2, 1), [[Conversation("test:1", messages)]])
    assert (found.prompt, found.answer) == (30, 120)


def test_nothing_is_longer_than_the_recipe_allows():
    data = run_of(data={"max_seq_len": 100, "max_new_tokens": 40}).recipe.data
    found = mean_lengths(data, Work(2, 1), [None])
    assert (found.prompt, found.answer) == (64, 36)
    given = run_of(data={"answers": "given", "max_seq_len": 200, "max_new_tokens": 100}).recipe.data
    long = ({"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "x" * 4000})
    found = mean_lengths(given, Work(2, 1), [[Conversation("test:1", long)]])
    assert (found.prompt, found.answer) == (1, 199)
