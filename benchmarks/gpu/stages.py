"""The stages in order of worth, with the time each may take. `python -m benchmarks.gpu.stages` prints them.

Together they and the installation before them fit into one call of ten minutes; what a stage leaves over is not handed
on, so that the later ones are as long as they were tried with.
"""

from typing import NamedTuple

SLACK = {"full": 1, "laptop": 3, "tiny": 10}  # times a stage's limit: only a GPU is had for minutes
MOST_S = 560  # of all stages together; unpacking and installing come before them


class Listed(NamedTuple):
    """A stage by its name.

    Attributes:
        limit_s: After which it is cut off; the rows it has yielded by then are kept.
        what: In a line.
        module: Whose `rows` it is: a benchmarks.gpu.stage.Stage.
    """

    limit_s: int
    what: str
    module: str


STAGES = {
    "machine": Listed(20, "peak FLOP/s and memory bandwidth, and the versions of everything", "benchmarks.gpu.machine"),
    "tests": Listed(115, "the tests marked gpu", "benchmarks.gpu.tests_stage"),
    "steps": Listed(90, "step times of named shapes beside the bandwidth floor", "benchmarks.gpu.steps"),
    "break_even": Listed(15, "the acceptance from which each shape pays, from the step times", "benchmarks.gpu.break_even"),
    "distillation": Listed(70, "tokens/s and MFU of training: teacher live, cached, none", "benchmarks.gpu.distillation"),
    "loss": Listed(30, "chunked loss beside whole logits and Liger: memory and time", "benchmarks.gpu.losses"),
    "draft": Listed(135, "a draft trained there and then: speed-up beside assisted generation", "benchmarks.gpu.draft"),
    "answers": Listed(40, "answers/s of our decoder beside transformers' generate", "benchmarks.gpu.answers"),
    "profile": Listed(45, "a trace and a memory timeline of a round and of a training step", "benchmarks.gpu.profiles"),
}


def listing() -> str:
    """Every stage with its limit, and the sum."""
    lines = [f"{stage.limit_s:5} s  {name:13} {stage.what}" for name, stage in STAGES.items()]
    return "\n".join([*lines, f"{sum(stage.limit_s for stage in STAGES.values()):5} s  together, at most"])


if __name__ == "__main__":
    print(listing())
