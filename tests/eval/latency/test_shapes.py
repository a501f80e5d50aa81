"""What depth and width cost is read off step times rightly, and the drafts timed have the shapes that were planned."""

import re
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

import widedraft
from architectures.errors import UserError
from architectures.pages.markdown import markdown
from architectures.shapes.equal_shapes import EqualShape, equal_shape, equal_shapes
from eval.acceptance.estimates import Estimate, Resampling
from eval.commands.depth_and_width_page import depth_sentences, shapes_table, verdict
from eval.commands.depth_and_width_plot import draw
from eval.commands.latency import with_head_of
from eval.commands.latency_page import grid_page
from eval.latency.depth_and_width import with_depth_and_width
from eval.latency.floor import shape_of, weight_bytes_read
from eval.latency.untrained import source_shape, untrained_models
from eval.models.loading import load_model
from eval.records.grid import Cell, GridFigures, GridStep, GridSteps, SizeEnds, read_grid_file
from tests.eval.records import percentiles

RESAMPLING = Resampling(confidence=0.9, num_resamples=400, seed=17)
REPEATS = 9


@pytest.fixture(scope="module")
def shapes(target):
    source = shape_of(target)
    return equal_shapes(source, range(1, source.layers + 1), [source.parameters() // 2, source.parameters()])


def timed(shapes, time_ms, noise=lambda _repeat: 0.0):
    """Figures of a grid in which a step of a shape takes so long."""
    steps = GridSteps(
        repeats=REPEATS,
        warm_up_repeats=1,
        settled=True,
        steps=tuple(
            GridStep(
                model=one.name,
                tokens=tokens,
                prefill=False,
                each_ms=tuple(tokens * time_ms(one.shape) * (1 + noise(repeat)) for repeat in range(REPEATS)),
                **percentiles(tokens * time_ms(one.shape)),
            )
            for one in shapes
            for tokens in (1, 2)
        ),
    )
    return figures(Cell(batch=1, context_tokens=8, compiled=False, together=steps, alone=steps, floor={}))


def figures(*cells):
    return GridFigures(lookaheads=(), bandwidth_gb_s=None, machine=None, cells=cells)


def found_in(shapes, target, time_ms, **noise):
    record = with_depth_and_width(timed(shapes, time_ms, **noise), shapes, shape_of(target), RESAMPLING)
    return record.cells[0].depth_and_width


def test_a_straight_line_is_found_again(shapes, target):
    fit = found_in(shapes, target, lambda shape: 3 + 0.5 * shape.layers + 0.02 * shape.hidden).fit
    assert fit.constant_ms.value == pytest.approx(3)
    assert fit.layer_ms.value == pytest.approx(0.5)
    assert fit.hundred_channels_ms.value == pytest.approx(2)
    assert fit.layer_ms.interval == pytest.approx((0.5, 0.5))
    assert fit.largest_residual == pytest.approx(0, abs=1e-9)


def test_what_no_line_explains_is_the_residual(shapes, target):
    assert found_in(shapes, target, lambda shape: shape.layers**3).fit.largest_residual > 0.5


def test_a_drift_that_meets_all_shapes_alike_leaves_ratios_alone(shapes, target):
    found = found_in(shapes, target, lambda shape: 4 + shape.layers, noise=lambda repeat: repeat / 4)
    layer_ms = found.fit.layer_ms
    assert layer_ms.value == pytest.approx(2)
    assert layer_ms.interval[0] < 2 < layer_ms.interval[1]
    for size in found.sizes:
        ratio = size.deepest_over_shallowest
        deepest = int(size.deepest.split()[0])
        assert ratio.value == pytest.approx((4 + deepest) / 5)
        assert ratio.interval == pytest.approx((ratio.value, ratio.value))


def test_each_size_has_its_ends_and_its_fastest(shapes, target):
    found = found_in(shapes, target, lambda shape: abs(shape.layers - 2) + 1).sizes
    assert [size.size for size in found] == list(dict.fromkeys(one.size for one in shapes))
    for size in found:
        named = [one.name for one in shapes if one.size == size.size]
        assert (size.shallowest, size.fastest, size.deepest) == (named[0], named[1], named[-1])
        assert (
            f"The fastest is {named[1]}."
            in depth_sentences(replace(found_in(shapes, target, one_second), sizes=(size,)))[0]
        )


def one_second(_shape):
    return 1000.0


@pytest.mark.parametrize(
    ("intervals", "words"),
    [
        ([(1.1, 1.2), (1.01, 3)], "So depth costs here"),
        ([(0.1, 0.2), (0.5, 0.9)], "So depth does not cost here"),
        ([(1.1, 1.2), (0.99, 3)], "not decided"),
        ([(1.1, 1.2), (0.5, 0.9)], "not decided"),
        ([(0.9, 1.2)], "not decided"),
    ],
)
def test_the_claim_holds_where_every_interval_says_so(intervals, words):
    assert words in verdict([ends(interval) for interval in intervals])


def ends(interval):
    names = dict.fromkeys(("shallowest", "deepest", "fastest"), "a")
    return SizeEnds(size=1, **names, deepest_over_shallowest=Estimate(sum(interval) / 2, interval))


def test_untrained_drafts_have_the_planned_shapes(target, shapes):
    drafts = untrained_models(target, [one.shape for one in shapes])
    for one, draft in zip(shapes, drafts, strict=True):
        assert shape_of(draft) == one.shape
        assert draft.num_parameters() == one.shape.parameters()
        assert (draft.dtype, draft.device, draft.training) == (target.dtype, target.device, False)


def test_untrained_drafts_are_of_the_targets_number_type(target_folder, shapes):
    half = load_model(target_folder, dtype="bfloat16", device="cpu")
    [draft] = untrained_models(half, [shapes[0].shape])
    assert {parameter.dtype for parameter in draft.parameters()} == {half.dtype}


def test_drafts_that_do_not_fit_are_refused(target, shapes, monkeypatch):
    needed = 4 * sum(one.shape.parameters() for one in shapes)
    monkeypatch.setattr("eval.latency.untrained.free_bytes", lambda _device: needed)
    assert len(untrained_models(target, [one.shape for one in shapes])) == len(shapes)
    monkeypatch.setattr("eval.latency.untrained.free_bytes", lambda _device: needed - 1)
    with pytest.raises(UserError, match=r"the untrained drafts take .* GiB together.*Ask for fewer shapes"):
        untrained_models(target, [one.shape for one in shapes])


def test_a_target_of_unknown_shape_is_refused(make_checkpoint):
    model = load_model(make_checkpoint(seed=1, model_type="cohere2", sliding_window=9), dtype="float32", device="cpu")
    with pytest.raises(UserError, match=r"no untrained drafts are made of models of type cohere2.*Leave --shapes away"):
        source_shape(model)


def test_shapes_that_cannot_be_cut_are_marked(target):
    source = shape_of(target)
    wide = EqualShape(1, equal_shape(source, layers=1, parameters=4 * source.parameters()))
    record = with_depth_and_width(figures(), [wide, EqualShape(1, source)], source, RESAMPLING)
    assert record.shapes[0].larger == ("hidden", "intermediate", "heads", "kv_heads")
    assert record.shapes[1].larger == ()
    assert "| hidden, intermediate, heads, kv_heads |" in markdown(shapes_table(record.shapes))


def run_latency(*words):
    return widedraft.main(["latency", *map(str, words)])


def test_the_command_measures_every_shape(target_folder, target, tmp_path, capsys):
    out, size = tmp_path / "shapes.json", f"{target.num_parameters() / 1e6:.2f}M"
    words = ("--batch-sizes", 1, "--contexts", 8, "--lookaheads", 2, "--repeats", 6, "--dtype", "float32")
    asked = ("--shapes", 1, 2, 3, "--parameters", size)
    assert run_latency("--target", target_folder, *words, *asked, "--out", out, "--plot", tmp_path / "shapes.png") == 0
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
    record, printed = read_grid_file(out), capsys.readouterr().out
    assert markdown(*grid_page(record), level=2) in printed
    assert [one.layers for one in record.shapes] == [1, 2, 3]
    assert list(record.models) == ["target"]
    [cell] = record.cells
    assert {step.model for step in cell.together.steps} == {
        "target",
        *(one.name for one in record.shapes),
    }
    assert not any(step.prefill for step in cell.together.steps)
    assert re.search(r"Fitted: .* more for each layer", printed)
    assert "depth costs here" in printed or "depth does not cost here" in printed


def test_the_plot_has_a_series_for_every_size(shapes, target):
    record = with_depth_and_width(timed(shapes, lambda shape: 4 + shape.layers), shapes, shape_of(target), RESAMPLING)
    axes = Figure().add_subplot()
    draw(axes, record)
    depths = list(range(1, shape_of(target).layers + 1))
    lines = axes.get_lines()
    assert len(lines) == 2
    for line in lines:
        assert list(line.get_xdata()) == depths
        assert list(line.get_ydata()) == [4 + depth for depth in depths]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--parameters", "290M"), "--parameters are the sizes of --shapes: give --shapes too"),
        (("--shapes", "--drafts", "B"), "--shapes measures untrained drafts: leave --drafts away"),
        (("--plot", "shapes.png"), "--plot draws the step times of --shapes: give --shapes too"),
        (("--shapes", "--plot", "shapes.pdf"), "--plot shapes.pdf: must name a file that ends in .png"),
        (("--shapes", 1, 2), "--shapes 1 2: name at least 3 numbers of layers"),
        (("--shapes", 1, 2, 4, 4), "--shapes 1 2 4 4: name at least 3 numbers of layers, each once"),
        (("--shapes", "--parameters", "2M", "2M"), r"--parameters must name each value once, got \[2000000, 2000000\]"),
        (("--shapes", 1, 2, 99), "99 layers: a draft has 1 to"),
    ],
)
def test_shapes_nothing_can_be_learned_from(target_folder, capsys, words, message):
    assert run_latency("--target", target_folder, *words) == 2
    assert re.search(message, capsys.readouterr().err)


def test_drafts_that_say_some_ids_alone_are_measured(target_folder, target, tmp_path, capsys):
    """The head takes K rows of the size, and the embedding all of its own."""
    out, size = tmp_path / "shapes.json", f"{target.num_parameters() / 1e6:.2f}M"
    words = ("--batch-sizes", 1, "--contexts", 8, "--lookaheads", 2, "--repeats", 6, "--dtype", "float32")
    asked = ("--shapes", 1, 2, 3, "--parameters", size, "--vocabulary", 100, "--out", out)
    assert run_latency("--target", target_folder, *words, *asked) == 0
    shapes = read_grid_file(out).shapes
    assert {(one.vocab, one.head_vocab, one.tied) for one in shapes} == {(264, 100, False)}
    assert re.search(r"larger than the target in \| ids it says \|", capsys.readouterr().out)
    plain, small = (
        equal_shape(source, layers=2, parameters=4 * target.num_parameters())
        for source in (shape_of(target), with_head_of(shape_of(target), 100))
    )
    [model] = untrained_models(target, [small])
    assert model(torch.tensor([[5, 6]])).logits.shape == (1, 2, 100)
    assert model.num_parameters() == small.parameters()
    assert shape_of(model) == small
    assert weight_bytes_read(model) == 4 * (small.parameters() - 264 * small.hidden)
    assert plain.head_vocab == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--vocabulary", 100), "--vocabulary is of the drafts of --shapes: give --shapes too"),
        (("--shapes", "--vocabulary", 0), "--vocabulary must be a whole number >= 1 and <= 1000000, got 0."),
        (("--shapes", "--vocabulary", 264), "--vocabulary must be from 1 to 263, of the target's 264; got 264"),
    ],
)
def test_heads_that_cannot_be(target_folder, capsys, words, message):
    assert run_latency("--target", target_folder, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["290", "0M", "M", "-1M", "1.5.2B", "290K"])
def test_a_size_is_a_number_of_millions_or_billions(target_folder, capsys, text):
    assert run_latency("--target", target_folder, "--shapes", f"--parameters={text}") == 2
    assert "must be a number above 0 of M or B" in capsys.readouterr().err
