"""The figure of the README is drawn from committed results."""

import json
import xml.etree.ElementTree as ET

from benchmarks.gpu.record import DEVICES
from benchmarks.gpu.vllm_table import is_step, rows_of
from benchmarks.step_time_figure import DEVICE, OUT, draw


def test_the_figure_names_every_draft_that_was_measured(tmp_path):
    record = json.loads((DEVICES / f"{DEVICE}.json").read_text(encoding="utf-8"))
    rows = list(filter(is_step, rows_of(record)))
    draw(rows, record["stages"]["steps"]["rows"], tmp_path / "figure.svg")
    drawn = " ".join(ET.parse(tmp_path / "figure.svg").getroot().itertext())
    assert all(name in drawn for name in ("wide-290m", "wide-1.3b", "deep-1.3b"))
    assert OUT.stat().st_size < 100_000
