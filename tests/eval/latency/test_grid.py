"""The grid has every cell that was asked for, its floor is what must be read, and its page says what it holds."""

import re
from dataclasses import replace
from typing import get_args

import pytest
import torch
from pydantic import TypeAdapter

import widedraft
from architectures.errors import UserError
from architectures.pages.markdown import markdown
from eval.acceptance.estimates import Resampling
from eval.commands.latency import LatencySettings, target_and_drafts
from eval.commands.latency_page import grid_page, percentiles_ms
from eval.latency.floor import byte_ratio, shape_of, step_bytes, weight_bytes_read
from eval.latency.grid import Grid, measure_grid, repeated
from eval.latency.memory import free_bytes, require_memory
from eval.latency.timing import summarise
from eval.models.execution import How, flags_of, how_of
from eval.models.loading import load_model, load_tokenizer
from eval.prompts import render_prompt, user_turn
from eval.records.grid import Bandwidth, Cell, GridFigures, GridStep, GridSteps, Machine, MachineState, read_grid_file
from eval.scorecard_schema import Percentile
from eval.steps import captured, compiled
from tests.eval.decoding.stand_ins import watched_maker
from tests.eval.records import percentiles

RESAMPLING = Resampling(confidence=0.95, num_resamples=50, seed=17)
TEXT = list(range(3, 23))


@pytest.fixture(scope="module")
def record(target, noisy_draft):
    grid = Grid(batches=[1, 2], contexts=[8, 30], lookaheads=[1, 3], repeats=3)
    return measure_grid({"target": target, "draft": noisy_draft}, TEXT, grid, RESAMPLING)


def test_every_cell_has_every_step(record):
    cells = record.cells
    assert [(cell.batch, cell.context_tokens) for cell in cells] == [(1, 8), (1, 30), (2, 8), (2, 30)]
    for cell in cells:
        assert cell.how == "eager"
        length = cell.context_tokens
        decoding = [("target", 1), ("target", 2), ("target", 4), ("draft", 1), ("draft", 2)]
        prefill = [("target", length, True), ("draft", length, True)]
        for way in (cell.together, cell.alone):  # in one order, for the page sets them side by side
            steps = [(step.model, step.tokens, step.prefill) for step in way.steps]
            assert steps == [*((*one, False) for one in decoding), *prefill]
            assert way.repeats == 3
            assert all(step.p50_ms.value > 0 for step in way.steps)


def test_the_record_is_plain_json(record):
    assert TypeAdapter(GridFigures).validate_json(TypeAdapter(GridFigures).dump_json(record), strict=True) == record
    assert record.machine.threads >= 1
    assert record.lookaheads == (1, 3)


def test_the_floor_is_the_bytes_over_the_faster_bandwidth(record, target):
    cell = record.cells[3]
    seconds = step_bytes(target, batch=2, context=30) / (1e9 * max(vars(record.bandwidth_gb_s).values()))
    assert cell.floor["target"] == pytest.approx(1000 * seconds)


def test_a_step_reads_all_weights_but_embeddings_that_are_no_head(make_checkpoint):
    tied, untied = (
        load_model(make_checkpoint(seed=1, tie_word_embeddings=is_tied), dtype="float32", device="cpu")
        for is_tied in (True, False)
    )
    assert weight_bytes_read(tied) == 4 * tied.num_parameters() == weight_bytes_read(untied)
    shape = shape_of(tied)
    of_cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    assert step_bytes(tied, batch=3, context=11) == 4 * tied.num_parameters() + 3 * 11 * of_cache


def test_a_step_reads_the_rows_of_a_small_head_and_no_others(small_head_folder, target):
    """And its embedding is no head, though the target's is."""
    draft = load_model(small_head_folder, dtype="float32", device="cpu")
    head = draft.get_output_embeddings().weight
    assert len(head) < 264
    assert weight_bytes_read(draft) == weight_bytes_read(target) - 4 * (264 - len(head)) * head.shape[1]
    assert byte_ratio(target, draft, context=9) < 1


def test_a_bfloat16_model_reads_half(target_folder, target):
    half = load_model(target_folder, dtype="bfloat16", device="cpu")
    assert 2 * step_bytes(half, batch=2, context=9) == step_bytes(target, batch=2, context=9)
    assert byte_ratio(target, half, context=9) == 0.5


def test_a_family_of_unknown_shape_has_no_floor(make_checkpoint, target):
    model = load_model(make_checkpoint(seed=1, model_type="cohere2", sliding_window=9), dtype="float32", device="cpu")
    assert step_bytes(model, batch=1, context=5) is None
    assert byte_ratio(target, model, context=5) is None
    assert byte_ratio(model, target, context=5) is None


@pytest.mark.parametrize("how", ["compiled", "captured"])
def test_cells_of_other_steps_follow_the_eager_ones(target, noisy_draft, monkeypatch, how):
    maker = watched_maker(how, monkeypatch)
    monkeypatch.setattr(
        *{"compiled": (compiled, "CompiledSteps"), "captured": (captured, "CapturedSteps")}[how], maker.opener
    )
    grid = Grid(batches=[1, 2], contexts=[8], lookaheads=[3], repeats=2, made=how)
    record = measure_grid({"target": target, "draft": noisy_draft}, TEXT, grid, RESAMPLING)
    cells = [(cell.how, cell.batch, cell.context_tokens) for cell in record.cells]
    assert cells == [("eager", 1, 8), ("eager", 2, 8), (how, 1, 8), (how, 2, 8)]
    assert {(tokens, whole) for _, tokens, whole in maker.fed} == {(1, False), (2, False), (4, True)}
    assert f"## Batch 2, 8 tokens of context, {how} steps" in markdown(*grid_page(record), level=2)


def test_what_cannot_be_captured_is_refused_before_anything_is_measured(target, monkeypatch):
    monkeypatch.setattr("eval.latency.grid.memory_bandwidth", None)
    with pytest.raises(UserError, match="--capture needs a GPU"):
        measure_grid({"target": target}, TEXT, Grid([1], [8], [1], 2, made="captured"), RESAMPLING)


def test_how_steps_are_run_is_two_flags_in_files():
    assert [how_of(**flags_of(how)) for how in get_args(How)] == list(get_args(How))


def test_a_model_of_one_text_at_a_time_is_measured_alone(make_checkpoint):
    folder = make_checkpoint(seed=1, model_type="opt", ffn_dim=128, word_embed_proj_dim=64)
    models = {"target": load_model(folder, dtype="float32", device="cpu")}
    alone = Grid(batches=[1], contexts=[8], lookaheads=[1], repeats=2)
    assert len(measure_grid(models, TEXT, alone, RESAMPLING).cells) == 1
    with pytest.raises(
        UserError, match=r"--batch-sizes 2: models of type opt .* one text at a time.*Use --batch-sizes 1"
    ):
        measure_grid(models, TEXT, Grid([1, 2], [8], [1], 2), RESAMPLING)


def test_a_text_is_said_again_until_it_is_long_enough():
    assert repeated([1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert repeated([1, 2, 3], 2) == [1, 2]


def test_what_does_not_fit_is_refused_before_it_is_measured(target, monkeypatch):
    require_memory({"target": target}, batch=1, context=100)
    with pytest.raises(UserError, match=r"--contexts 99999: the target .* made for texts of \d+ tokens.*shorter"):
        require_memory({"target": target}, batch=1, context=99999)
    monkeypatch.setattr("eval.latency.memory.free_bytes", lambda _device: 10**6)
    with pytest.raises(
        UserError, match=r"--batch-sizes 4096 with --contexts 100: the caches take .* GiB.*smaller batch"
    ):
        require_memory({"target": target}, batch=4096, context=100)
    monkeypatch.setattr("eval.latency.memory.bytes_to_pack", lambda _model: 3 * 2**29)
    with pytest.raises(UserError, match=r"the caches take 0\.0 GiB, packed copies of weights 1\.5 GiB, and cpu has"):
        require_memory({"target": target}, batch=1, context=1)


def test_memory_that_can_still_be_taken(tmp_path, target):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    assert free_bytes(target.device, meminfo) == 7 * 1024
    assert free_bytes(target.device, tmp_path / "absent") is None


def test_bounds_that_are_not_there_are_null():
    """Of nine repetitions none is surely below the 10th percentile; of 200 none is surely above the 99th."""
    few, many = (summarise([each / 1000 for each in range(1, count + 1)], 0.95) for count in (9, 200))
    assert (few.p10_ms.interval[0], few.p50_ms.interval, few.p99_ms) == (None, (2, 8), None)
    low, high = many.p99_ms.interval
    assert low > 190
    assert high is None


def a_step(model, tokens, median, *, prefill=False):
    return GridStep(model=model, tokens=tokens, prefill=prefill, **percentiles(median, 1.0))


def page_of(draft_ms, *, settled=True):
    steps = [a_step("target", 1, 40.0), a_step("target", 5, 60.0), a_step("draft", 1, draft_ms)]
    steps.append(a_step("target", 9, 80.0, prefill=True))
    way = GridSteps(steps=tuple(steps), settled=settled, repeats=2, warm_up_repeats=1)
    floor = {"target": 10.0, "draft": None}
    cell = Cell(batch=2, context_tokens=9, compiled=True, together=way, alone=way, floor=floor)
    state = MachineState(load_average=0.5, processor_mhz=None, throttled_periods=None, gpu=None)
    return markdown(
        *grid_page(
            GridFigures(
                lookaheads=(4,),
                bandwidth_gb_s=Bandwidth(copy=20.0, read=25.0),
                machine=Machine(before=state, after=state, threads=1),
                cells=(cell,),
            )
        ),
        level=2,
    )


def test_the_page_has_a_line_for_each_step():
    page = page_of(10.0)
    assert "## Batch 2, 9 tokens of context, compiled steps" in page
    assert "| target, 1 token | 40.00 [39.00, 41.00] | 40.00 | 40.00 | 40.00 | 10.00 | 25% |" in page
    assert "| target, 5 tokens (verify) | 60.00" in page
    assert "| draft, 1 token | 10.00 [9.00, 11.00] | 10.00 | 10.00 | 10.00 |  |  |" in page
    assert "| target, prefill of 9 tokens | 80.00 [79.00, 81.00] | 80.00 | 80.00 | 80.00 |  |  |" in page
    assert "A step of draft costs 0.250 of a target step." in page
    assert "not settled" not in page


def test_the_page_tells_the_99th_percentile_where_there_is_one():
    step = a_step("target", 1, 40.0)
    assert percentiles_ms(step) == {"p10": 40.0, "p90": 40.0}
    assert percentiles_ms(replace(step, p99_ms=Percentile(90.0, (60.0, None))))["p99"] == 90.0


def test_the_page_says_that_a_slow_draft_cannot_pay():
    assert "costs 1.025 of a target step: it takes no less than the target itself, and cannot pay" in page_of(41.0)


def test_the_page_says_that_the_machine_was_busy():
    assert "Times had not settled: the machine was doing other work." in page_of(10.0, settled=False)


def run_latency(*words):
    return widedraft.main(["latency", *map(str, words)])


@pytest.mark.parametrize("bits", [8, 4])
def test_a_packed_target_reads_fewer_bytes_and_is_named(target_folder, noisy_folder, target, tmp_path, capsys, bits):
    pytest.importorskip("bitsandbytes", reason="packs the weights")
    out = tmp_path / "latency.json"
    words = (
        "--batch-sizes",
        2,
        "--contexts",
        8,
        "--lookaheads",
        2,
        "--repeats",
        6,
        "--dtype",
        "float32",
        "--num-threads",
        1,
    )
    models = ("--target", target_folder, "--drafts", noisy_folder)
    assert run_latency(*models, *words, "--target-bits", bits, "--out", out) == 0
    record = read_grid_file(out)
    assert f"The target's linear layers are packed into {bits} bits a weight." in capsys.readouterr().out
    assert [record.models[name].dtype for name in ("target", "draft")] == [f"{bits} bits", "float32"]
    packed = load_model(target_folder, dtype="float32", device="cpu", bits=bits)
    layer, plain = packed.model.layers[0].mlp.up_proj.weight, target.model.layers[0].mlp.up_proj.weight
    assert layer.nbytes == plain.numel() * bits // 8
    assert packed.model.embed_tokens.weight.dtype == torch.float32
    [cell] = record.cells
    bytes_per_s = 1e9 * max(vars(record.bandwidth_gb_s).values())
    assert cell.floor["target"] == pytest.approx(1000 * step_bytes(packed, batch=2, context=8) / bytes_per_s)
    assert step_bytes(packed, batch=2, context=8) < step_bytes(target, batch=2, context=8)
    draft = load_model(noisy_folder, dtype="float32", device="cpu")
    assert cell.floor["draft"] == pytest.approx(1000 * step_bytes(draft, batch=2, context=8) / bytes_per_s)


def test_without_what_packs_them_the_remedy_is_named(target_folder, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_latency("--target", target_folder, "--target-bits", 8) == 2
    assert "bitsandbytes packs the weights and is not installed. Run: pip install 'widedraft[quantised]'" in (
        capsys.readouterr().err
    )


def test_the_command_prints_and_writes(target_folder, noisy_folder, tmp_path, capsys):
    out = tmp_path / "latency.json"
    words = (
        "--batch-sizes",
        1,
        "--contexts",
        8,
        "--lookaheads",
        2,
        "--repeats",
        6,
        "--dtype",
        "float32",
        "--num-threads",
        1,
    )
    assert run_latency("--target", target_folder, "--drafts", noisy_folder, *words, "--out", out) == 0
    record = read_grid_file(out)
    printed = capsys.readouterr().out
    assert markdown(*grid_page(record), level=2) in printed
    assert f"{out}: the figures" in printed
    assert record.models["draft"].path == str(noisy_folder)
    assert record.models["draft"].fingerprint != record.models["target"].fingerprint
    assert record.machine.threads == 1
    assert record.provenance.hardware


def test_a_target_alone_has_its_own_time(target_folder, capsys):
    assert run_latency("--target", target_folder, "--batch-sizes", 1, "--contexts", 8, "--repeats", 6) == 0
    printed = capsys.readouterr().out
    assert "target, 1 token" in printed
    assert "draft" not in printed


def test_caches_are_filled_with_the_prompts_that_are_named(target_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "2+2?"}\n')
    _, text_ids = target_and_drafts(LatencySettings(target=str(target_folder), prompts=(f"gsm8k={rows}",)))
    assert text_ids == render_prompt(load_tokenizer(target_folder), [user_turn("2+2?")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch-sizes", 0), "--batch-sizes must be a whole number >= 1 and <= 1000000, got 0"),
        (("--contexts", -1), "--contexts must be a whole number >= 1 and <= 1000000, got -1"),
        (("--target-bits", 8, "--compile"), "--compile measures steps of plain weights"),
        (("--target-bits", 8, "--capture"), "--capture measures steps of plain weights"),
        (("--target-bits", 4, "--shapes"), "--target-bits packs a target beside its drafts"),
        (("--lookaheads", 0), "--lookaheads must be a whole number >= 1 and <= 1000000, got 0"),
        (("--repeats", 5), "--repeats must be at least 6, or no median has an interval at confidence 0.95; got 5"),
        (("--confidence", 1.5), "--confidence must be a number > 0 and < 1, got 1.5"),
        (("--num-threads", 0), "--num-threads must be a whole number >= 1 and <= 1024 or auto, got 0"),
        (("--out", "."), "--out .: is a folder"),
    ],
)
def test_numbers_nothing_can_be_measured_with(target_folder, capsys, words, message):
    assert run_latency("--target", target_folder, *words) == 2
    assert re.search(message, capsys.readouterr().err)
