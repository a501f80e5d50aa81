"""Traces of a decoding round and of a training step: how much of the time a GPU works, and on what.

The round is of the target with an untrained draft of a fifth of its layers; the step distils that draft from it, on
random tokens: what an operation takes depends on shapes, not on weights or words.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.attempt import attempt
from benchmarks.gpu.stage import Row, Setting, lack_of_memory, lack_of_time, number_type
from benchmarks.gpu.training import leave_out_checkpoints_and_evaluations
from distill.data.batches import AnswerDataset
from distill.monitoring.step_profile import WARM_STEPS, StepProfile
from distill.recipe.recipe import Recipe, load_recipe
from distill.run.run import Run
from distill.training.trainer import build_model, build_trainer
from eval.answers.traces import Trace
from eval.decoding.texts import Limits
from eval.latency.untrained import source_shape, untrained_model
from eval.models.execution import How
from eval.models.loading import load_model
from eval.profiling.option import PROFILED_ROUNDS
from eval.profiling.recording import Profile
from eval.speed.profiled_round import profile_round
from eval.speed.ways import Setup
from eval.steps.openers import new_opener

RECIPE = Path(__file__).parents[1] / "smollm2.yaml"
LOOKAHEAD, LAYERS_SHARE, ANSWER_SHARE = 4, 5, 3
MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        context: Tokens of a prompt.
        batches: Prompts decoded together, of one round each; the most valuable first.
        seq_len: Tokens of a sequence that is learned from.
        train_batch: Sequences of a step.
        cell_s: Seconds that a cell takes at most, loading of models included.
        needed_bytes: Of memory.
    """

    context: int
    batches: tuple[int, ...]
    seq_len: int
    train_batch: int
    cell_s: float
    needed_bytes: int


SIZES = {
    "full": Sizes(context=512, batches=(1, 8), seq_len=1024, train_batch=16, cell_s=5, needed_bytes=16 * 2**30),
    "laptop": Sizes(context=64, batches=(1, 4), seq_len=96, train_batch=2, cell_s=20, needed_bytes=4 * 2**30),
    "tiny": Sizes(context=16, batches=(1, 3), seq_len=24, train_batch=2, cell_s=1, needed_bytes=2**28),
}


def rows(setting: Setting) -> Iterator[Row]:
    """A round at the first batch, a training step, and rounds at other batches; on a GPU captured ones too."""
    sizes, pair = SIZES[setting.size], Pair(setting)
    first, *others = sizes.batches
    hows: tuple[How, ...] = ("eager", "captured") if setting.device.type == "cuda" else ("eager",)
    cells: list[tuple[Row, Callable[[], Profile]]] = [
        ({"what": "round", "how": how, "batch": batch}, partial(pair.round, batch, how))
        for batch in (first, *others)
        for how in hows
    ]
    cells.insert(1, ({"what": "step", "batch": sizes.train_batch}, pair.step))
    for cell, measure in cells:
        row = cell | {"dtype": str(number_type(setting.device)).removeprefix("torch.")}
        what = f"a profiled {cell['what']}"
        lack = lack_of_memory(setting, sizes.needed_bytes, what) or lack_of_time(setting, sizes.cell_s, what)
        yield row | {"skipped": lack} if lack else attempt(row, partial(profiled, measure, setting.out))


def profiled(measure: Callable[[], Profile], out: Path) -> Row:
    """The row of a profile that is taken now."""
    return figures(measure(), out)


def figures(profile: Profile, out: Path) -> Row:
    """The row of a profile; `bytes` are those of the trace."""
    trace = profile.files[0]
    busy = {} if profile.gpu_busy_share is None else {"gpu_busy_share": round(profile.gpu_busy_share, 4)}
    return {
        "file": str(trace.relative_to(out)),
        "bytes": trace.stat().st_size,
        "all_bytes": sum(path.stat().st_size for path in profile.files),
        "ms": round(profile.ms, 3),
        **{f"{part.replace(' ', '_')}_ms": round(ms, 3) for part, ms in profile.parts_ms.items()},
        **{f"peak_{device.replace(':', '_')}_mib": round(size / MIB, 1) for device, size in profile.peak_bytes.items()},
        "top_operation": profile.top_operation,
        **busy,
    }


class Pair:
    """The target and its untrained draft, loaded when first needed.

    Args:
        setting: Of the stage.
    """

    def __init__(self, setting: Setting):
        self.setting, self.sizes = setting, SIZES[setting.size]
        self.generator = torch.Generator().manual_seed(0)

    @cached_property
    def target(self) -> PreTrainedModel:
        """As decoding takes it."""
        dtype = str(number_type(self.setting.device)).removeprefix("torch.")
        return load_model(self.setting.target, dtype=dtype, device=str(self.setting.device))

    @cached_property
    def draft(self) -> PreTrainedModel:
        shape = source_shape(self.target)
        return untrained_model(self.target, replace(shape, layers=max(1, shape.layers // LAYERS_SHARE)))

    def random_ids(self, count: int) -> list[int]:
        vocab = self.target.config.get_text_config(decoder=True).vocab_size
        return torch.randint(vocab, (count,), generator=self.generator).tolist()

    def round(self, batch: int, how: How) -> Profile:
        """A greedy round of so many texts."""
        prompts = [self.random_ids(self.sizes.context) for _ in range(batch)]
        limits = Limits(PROFILED_ROUNDS * (LOOKAHEAD + 1))
        setup = Setup(self.target, {"draft": self.draft}, limits, opener=new_opener(how))
        folder = self.setting.out / f"profile-round-{batch}{'' if how == 'eager' else f'-{how}'}"
        return profile_round(setup, self.draft, LOOKAHEAD, prompts, row_seeds=list(range(batch)), folder=folder)

    def step(self) -> Profile:
        """The fourth step of a training as `distill` makes it, without evaluation and checkpoints."""
        recipe = self.recipe()
        self.draft.save_pretrained(Run.of(recipe).init.path)
        model = build_model(Run.of(recipe), eval_tasks=())
        answers, folder = self.answers(), self.setting.out / "profile-step"
        trainer = build_trainer(
            Run.of(recipe), model, train_set=answers, eval_set=answers, checkpoint=None, profile=folder
        )
        leave_out_checkpoints_and_evaluations(trainer)
        try:
            trainer.fit()
        finally:
            trainer.engine.close()
        (step_profile,) = (each.profile for each in trainer.state.callbacks if isinstance(each, StepProfile))
        assert step_profile is not None, "as many steps are trained as a profile takes"
        return step_profile

    def recipe(self) -> Recipe:
        """That of the benches, on this target, of four steps."""
        settings = {
            "target.path": self.setting.target,
            "run_dir": self.setting.work / "profiled-step",
            "data.max_seq_len": self.sizes.seq_len,
            "data.max_new_tokens": self.sizes.seq_len // ANSWER_SHARE,
            "distill.max_duration": f"{WARM_STEPS + 1}ba",
            "distill.eval_first": "false",
            "distill.scheduler.t_warmup": "1ba",
            "distill.global_train_batch_size": self.sizes.train_batch,
            "distill.device_train_microbatch_size": self.sizes.train_batch,
            "distill.progress_bar": "false",
        }
        return load_recipe(RECIPE, [f"{key}={value}" for key, value in settings.items()])

    def answers(self) -> AnswerDataset:
        """As many sequences as the steps take, a third of each an answer."""
        answer = self.sizes.seq_len // ANSWER_SHARE
        prompt = self.sizes.seq_len - answer
        traces = []
        for index in range((WARM_STEPS + 1) * self.sizes.train_batch):
            asked, answered = (tuple(self.random_ids(count)) for count in (prompt, answer))
            traces.append(Trace(index, f"bench:{index}", (), asked, answered, "", "length"))
        return AnswerDataset(traces, max_seq_len=self.sizes.seq_len)
