"""Hours in recipe headers and in docs/recipes.md are those that are derived; a device file renews them."""

import pytest

from distill.commands.recipe_headers import (
    BEGIN,
    DOC,
    END,
    FLOORS_DOC,
    derived_paragraphs,
    derived_recipes,
    nominal_device,
    with_cells,
    with_floors,
    with_paragraphs,
)

STALE = "run `python -m distill.commands.recipe_reference`"
every_derived = pytest.mark.parametrize("path", derived_recipes(), ids=lambda path: path.stem)


@pytest.fixture
def measured(device_file, records):
    return nominal_device((device_file(records["h100"]).parent,))


def test_the_twelve_recipes_that_nobody_has_run_are_derived():
    assert len(derived_recipes()) == 12


@every_derived
def test_the_header_is_in_step(path):
    text = path.read_text(encoding="utf-8")
    assert with_paragraphs(text, derived_paragraphs(path, nominal_device())) == text, STALE


def test_the_table_is_in_step():
    text = DOC.read_text(encoding="utf-8")
    assert with_cells(text, nominal_device()) == text, STALE


def test_the_table_of_floors_is_in_step():
    text = FLOORS_DOC.read_text(encoding="utf-8")
    assert with_floors(text, nominal_device()) == text, STALE


def test_a_measured_device_rewrites_the_floors(measured):
    """3,000 GB/s in place of 3,350: the same bytes take longer, the same ratios remain."""
    text = with_floors(FLOORS_DOC.read_text(encoding="utf-8"), measured)
    [row] = [line.split(" | ") for line in text.splitlines() if line.startswith("| `llama2-7b-wide-796m`")]
    assert row[1:5] == ["4.43", "0.77", "0.173", "0.156"]
    assert "by bandwidth and peak from what was measured of it on 2026-12-01" in text


@every_derived
def test_a_measured_device_rewrites_the_derived_paragraphs_and_nothing_else(path, measured):
    text = path.read_text(encoding="utf-8")
    told = derived_paragraphs(path, measured)
    assert "from what was measured of it on 2026-12-01" in told["Hours"]
    assert told["Floors"].startswith("unmeasured, least times on one NVIDIA H100 80GB HBM3: a step ")
    written = with_paragraphs(text, told)
    assert written != text
    assert with_paragraphs(written, told) == written
    assert with_paragraphs(written, derived_paragraphs(path, nominal_device())) == text
    assert all(len(line) <= 120 for line in written.splitlines() if line.startswith("# "))


def test_a_measured_step_takes_the_place_of_the_published_one(measured):
    [path] = [path for path in derived_recipes() if path.stem == "llama2-7b-wide-796m"]
    assert derived_paragraphs(path, measured)["Step"] == (
        "estimate: 1.2 ms a token drafted (measured on NVIDIA H100 80GB HBM3: captured, batch 1, 1024 tokens)"
    )


def test_a_measured_device_rewrites_two_cells_of_each_derived_row(measured):
    before, after = DOC.read_text(encoding="utf-8"), with_cells(DOC.read_text(encoding="utf-8"), measured)
    changed = [
        (one.split("|"), other.split("|"))
        for one, other in zip(before.splitlines(), after.splitlines(), strict=True)
        if one != other
    ]
    rows = [pair for pair in changed if len(pair[0]) > 1]
    assert len(rows) == 12
    assert all(one[place] == other[place] for one, other in rows for place in (1, 2, 3, 6))
    assert "from what was measured of it on 2026-12-01" in after.split(BEGIN)[1].split(END)[0]


def test_the_nominal_device_is_any_h100_that_was_measured(device_file, records):
    record = records["h100"] | {"device": "NVIDIA H100 NVL", "slug": "nvidia-h100-nvl"}
    folder = device_file(record).parent
    assert nominal_device((folder,)).name == "NVIDIA H100 NVL"
    assert nominal_device((folder / "absent",)).figures is None


def test_a_measured_h200_tells_more_than_a_published_h100_and_less_than_a_measured_one(device_file, records):
    h200 = records["h100"] | {"device": "NVIDIA H200", "slug": "nvidia-h200"}
    folder = device_file(h200).parent
    assert nominal_device((folder,)).name == "NVIDIA H200"
    device_file(records["h100"])
    assert nominal_device((folder,)).name == "NVIDIA H100 80GB HBM3"
