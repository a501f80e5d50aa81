"""Draw docs/images/step-time.svg: milliseconds of one draft token against the draft's layers, from committed results.

python -m benchmarks.step_time_figure
"""

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.gpu.record import DEVICES
from benchmarks.gpu.stage import Row
from benchmarks.gpu.vllm_steps import FULL
from benchmarks.gpu.vllm_table import OWN_LOOP, costs, is_step, medians_of, rows_of

DEVICE, TARGET = "nvidia-h200", "llama-7b"
OUT = Path(__file__).parents[1] / "docs" / "images" / "step-time.svg"
BATCH, K = 1, 3
CROWDED_LAYERS = 5
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "widedraft", "font.family": "sans-serif", "font.size": 10}


def main() -> None:
    record = json.loads((DEVICES / f"{DEVICE}.json").read_text(encoding="utf-8"))
    draw(list(filter(is_step, rows_of(record))), record["stages"]["steps"]["rows"], OUT)


@rc_context(STYLE)
def draw(vllm_rows: Sequence[Row], own_rows: Sequence[Row], out: Path) -> None:
    """Two lines: drafts in vLLM, and in our loop; dashed, one token of the target in each."""
    found = [cost for cost in costs(vllm_rows) if cost["batch"] == BATCH and cost["draft_ms"].get(K) is not None]
    vllm = sorted((FULL.drafts[cost["draft"]].layers, cost["draft_ms"][K]) for cost in found)
    how, context = OWN_LOOP
    step_ms = {name: ms[1] for (name, where), ms in medians_of(own_rows).items() if where == (how, BATCH, context)}
    own = sorted((shape.layers, step_ms[name]) for name, shape in FULL.drafts.items() if name in step_ms)

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.plot(*zip(*vllm, strict=True), "o-", color="C0", label="draft in vLLM 0.25.1")
    axes.plot(*zip(*own, strict=True), "s-", color="C1", label="draft in a CUDA graph")
    target_ms = found[0]["plain_ms"]
    axes.axhline(target_ms, color="C0", linestyle="--", linewidth=1, label="LLaMA-7B in vLLM")
    axes.axhline(step_ms[TARGET], color="C1", linestyle="--", linewidth=1, label="LLaMA-7B in a CUDA graph")
    names = {FULL.drafts[cost["draft"]].layers: cost["draft"] for cost in found}
    for layers, ms in vllm:
        # The shallow drafts are close together: their names rise at an angle.
        place = {"xytext": (-2, 6), "rotation": 50} if layers <= CROWDED_LAYERS else {"xytext": (6, -10)}
        axes.annotate(names[layers], (layers, ms), textcoords="offset points", fontsize=8, **place)
    axes.set(xlabel="layers of the draft", ylabel="ms per token", xlim=(0, 28), ylim=(0, None))
    axes.set_title("Time per token at batch size 1, NVIDIA H200, bfloat16")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
