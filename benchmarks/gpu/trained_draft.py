"""A draft trained there and then: a recipe at sizes of a device, by its own stages, within a time.

The target generates responses to the prompts of the setting, and to prompts of its own while time for them is left.
Then a few batches are trained to see how long one takes, and the draft is trained for as many as the time holds. The
run stays in the setting's work folder, and a later call takes the draft that is there.
"""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from composer import Callback, Logger, State

from architectures.errors import UserError
from architectures.files import write_json
from architectures.manifest import read_manifest
from benchmarks.gpu.stage import Row, Setting, Size, SkippedError, free_memory, number_type
from distill.data.training_data import NAME as SELF_WRITTEN
from distill.pipeline import cache_if_configured, generate_stage, prune_stage
from distill.recipe.recipe import Recipe, load_recipe
from distill.response_batches import read_responses
from distill.run import Run, owned_run
from distill.teacher_cache import CachedResponses, TeacherCache
from distill.train import train
from distill.trainer import build_model, build_trainer
from eval.decoding.cuda_graphs import generation_opener
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode
from eval.machine import clock_s
from eval.models import load_model
from eval.prompts import load_prompts
from eval.responses import read_traces

ROOT = Path(__file__).parents[2]
QUICKSTART = "recipes/quickstart.yaml"  # what a run is made of, except for its sizes
RUN, DONE = "draft", "trained.json"  # the run in the work folder, and what is written when it is finished
WRITTEN_TOKENS = 256  # of a prompt that the target writes itself, at most
WRITTEN_PER_USEFUL = 1.5  # texts sampled for each such prompt that is of use: a guess on the safe side
RATE_STEPS = 12  # decoded to see how long a step of the target takes
MARGIN = 1.3  # of predicted seconds: batches of other lengths, texts written to the disk
LEAST_BATCHES = 20  # so many that the warm-up, a twentieth of them, has one


@dataclass(frozen=True)
class Training:
    """How large a run.

    Attributes:
        layers: Kept of the target.
        calibration_tokens: Of the prompts, read to choose the layers.
        num_prompts: Of the setting's prompts, the first so many.
        num_eval_prompts: Held out of training, the target's own among them.
        self_written: Prompts that the target may write itself, the most first; what fits the time is taken.
        max_new_tokens: Of a response.
        max_seq_len: Of prompt and response.
        decoded_together: Prompts.
        trained_together: Responses of a batch.
        generate_s: For prompts and responses, as far as can be told beforehand.
        train_s: For the rest; what comes before the batches, the last evaluation and the export are taken off.
        timed_batches: Trained to see how long one takes; the first half does not count.
        recipe: Everything else.
    """

    layers: int
    calibration_tokens: int
    num_prompts: int
    num_eval_prompts: int
    self_written: Sequence[int]
    max_new_tokens: int
    max_seq_len: int
    decoded_together: int
    trained_together: int
    generate_s: float
    train_s: float
    timed_batches: int
    recipe: str = QUICKSTART

    @property
    def seconds(self) -> float:
        return self.generate_s + self.train_s


TRAINING: dict[Size, Training] = {
    "full": Training(
        layers=4,
        calibration_tokens=1024,
        num_prompts=570,
        num_eval_prompts=160,
        self_written=(1500, 600, 0),  # what fills batches of 1,024 with the 410 others
        max_new_tokens=160,
        max_seq_len=512,
        decoded_together=1024,
        trained_together=4,
        generate_s=40,
        train_s=80,
        timed_batches=16,
    ),
    "laptop": Training(
        layers=4,
        calibration_tokens=1024,
        num_prompts=64,
        num_eval_prompts=16,
        self_written=(),
        max_new_tokens=48,
        max_seq_len=256,
        decoded_together=16,
        trained_together=4,
        generate_s=40,
        train_s=60,
        timed_batches=6,
    ),
    "tiny": Training(
        layers=2,
        calibration_tokens=128,
        num_prompts=12,
        num_eval_prompts=6,
        self_written=(),
        max_new_tokens=8,
        max_seq_len=256,
        decoded_together=8,
        trained_together=2,
        generate_s=5,
        train_s=1,
        timed_batches=4,
    ),
}


@dataclass(frozen=True)
class Trained:
    """A run with a finished draft, and the row that says how it came about."""

    run: Path
    row: Row

    @property
    def draft(self) -> Path:
        """Its Hugging Face folder."""
        return self.run / "draft"

    def held_out(self) -> list[list[int]]:
        """Token ids of the setting's prompts that were not trained on; none of those the target wrote itself."""
        traces = read_traces(self.run / "data", "eval")
        return [list(trace.prompt_ids) for trace in traces if not trace.source.startswith(f"{SELF_WRITTEN}:")]


def trained_draft(setting: Setting, training: Training) -> Trained:
    """The draft that an earlier call left in the work folder, or one trained now.

    Raises:
        SkippedError: If the target is not there or broken.
    """
    run = setting.work / RUN
    kept = kept_row(run, setting, training)
    if kept is not None:
        return Trained(run, kept | {"kept": True})
    shutil.rmtree(run, ignore_errors=True)  # of a call that was cut off, or of other sizes: it is made in two minutes
    try:
        row = train_now(setting, training)
    except UserError as error:
        raise SkippedError(str(error)) from error
    write_json({"row": row, "asked": asked(setting, training)}, run / DONE)
    return Trained(run, row)


def within(training: Training, setting: Setting) -> Training:
    """The training, shortened to two thirds of what is left.

    Raises:
        SkippedError: If that is less than a tenth of it.
    """
    share = min(1.0, 2 / 3 * setting.left_s / training.seconds)
    if share < 0.1:
        raise SkippedError(f"training takes {training.seconds:.0f} s, and {max(0.0, setting.left_s):.0f} s are left")
    return replace(training, generate_s=share * training.generate_s, train_s=share * training.train_s)


def kept_row(run: Path, setting: Setting, training: Training) -> Row | None:
    """The row of a finished run of this target and these sizes; None where there is none."""
    done = run / DONE
    if not done.is_file() or read_manifest(run / "draft") is None:
        return None
    record = json.loads(done.read_text(encoding="utf-8"))
    return record["row"] if record["asked"] == asked(setting, training) else None


def asked(setting: Setting, training: Training) -> dict[str, Any]:
    """What a run was made from, as JSON gives it back; not how long it was given, which depends on the time left."""
    sizes = {name: value for name, value in vars(training).items() if not name.endswith("_s")}
    return json.loads(json.dumps({"target": str(setting.target), "prompts": str(setting.prompts), **sizes}))


def train_now(setting: Setting, training: Training) -> Row:
    """Prune, generate, distil; the row of it."""
    start_s = time.monotonic()
    recipe = recipe_of(setting, training, self_written=affordable(setting, training))
    with owned_run(Run.of(recipe)):
        run = Run.of(recipe)
        generate_stage(run)
        free_memory()
        generated_s = time.monotonic()
        prune_stage(run)
        cache_if_configured(run)
        free_memory()
        pruned_s = time.monotonic()
        timed = time_batches(recipe, training.timed_batches)
        free_memory()
        batches = batches_within(training.seconds - (time.monotonic() - start_s), timed)
        train(with_duration(recipe, batches))
        free_memory()
    end_s = time.monotonic()
    counts = (read_manifest(Path(recipe.run_dir) / "data") or {})["counts"]["train"]
    return {
        "what": "trained",
        "layers": training.layers,
        "prompts": counts["prompts"],
        "self_written": recipe.data.self_written_prompts,
        "response_tokens": counts["response_tokens"],
        "batches": batches,
        "batch_size": training.trained_together,
        "epochs": batches * training.trained_together / counts["responses"],
        "batch_ms": 1000 * timed.batch_s,
        "generate_s": generated_s - start_s,
        "prune_s": pruned_s - generated_s,
        "train_s": end_s - pruned_s,
        "seconds": end_s - start_s,
        "dtype": recipe.distill.precision,
    }


def recipe_of(setting: Setting, training: Training, *, self_written: int) -> Recipe:
    """The recipe at these sizes, in the work folder."""
    values = load_recipe(ROOT / training.recipe).model_dump(mode="json")
    values |= {"run_name": "two-minutes", "run_dir": str(setting.work / RUN)}
    values["target"] |= {"path": str(setting.target)}
    values["architecture"] |= {"layers": training.layers}
    values["architecture"]["calibration"] |= {"tokens": training.calibration_tokens}
    if vocabulary := values["architecture"].get("vocabulary"):  # the random target has fewer ids than the recipe keeps
        config = json.loads((setting.target / "config.json").read_text(encoding="utf-8"))
        vocabulary["size"] = min(vocabulary["size"], config["vocab_size"] - 5)
    values["data"] |= {
        "prompts": [{"path": str(setting.prompts), "num_prompts": training.num_prompts}],
        "num_eval_prompts": training.num_eval_prompts,
        "self_written_prompts": self_written,
        "max_new_tokens": training.max_new_tokens,
        "max_seq_len": training.max_seq_len,
        "batch_size": training.decoded_together,
    }
    values["distill"] |= {
        "global_train_batch_size": training.trained_together,
        "device_train_microbatch_size": training.trained_together,
        "device_eval_batch_size": training.trained_together,
        "eval_interval": "1dur",
        "save_interval": "1dur",
    }
    values["eval"] |= {"max_new_tokens": training.max_new_tokens}  # nothing is scored by it
    return Recipe.model_validate(values)


def with_duration(recipe: Recipe, batches: int) -> Recipe:
    """The same for so many batches."""
    return with_distill(recipe, max_duration=f"{batches}ba")


def with_distill(recipe: Recipe, **changes: Any) -> Recipe:
    """The same with other values in its section `distill`."""
    return recipe.model_copy(update={"distill": recipe.distill.model_copy(update=changes)})


def affordable(setting: Setting, training: Training) -> int:
    """How many prompts the target may write itself, so that all responses are there in time."""
    if not any(training.self_written):
        return 0
    num_prompts = len(load_prompts(recipe_of(setting, training, self_written=0).data.prompts))
    step_s = seconds_a_step(setting, training.decoded_together)
    within = (
        count
        for count in training.self_written
        if MARGIN * step_s * steps_of(training, num_prompts, count) <= training.generate_s
    )
    return next(within, 0)


def steps_of(training: Training, num_prompts: int, self_written: int) -> int:
    """Steps of the target until all prompts are written and answered, no text ending early.

    The responses to what is held out are batches of their own.
    """
    together = training.decoded_together
    writing = -(-int(self_written * WRITTEN_PER_USEFUL) // together) * WRITTEN_TOKENS
    held_out = -(-training.num_eval_prompts // together)
    learned = -(-(num_prompts + self_written - training.num_eval_prompts) // together)
    return writing + (held_out + learned) * training.max_new_tokens


def seconds_a_step(setting: Setting, batch: int) -> float:
    """Of the target, in a batch of short texts; the second of two measurements."""
    dtype = str(number_type(setting.device)).removeprefix("torch.")
    model = load_model(setting.target, dtype=dtype, device=str(setting.device))
    prompts, opener = [list(range(3, 11))] * batch, generation_opener(model)
    decoded = [plain_decode(model, prompts, limits=Limits(RATE_STEPS), opener=opener) for _ in range(2)]
    del model, opener
    free_memory()
    return decoded[-1][0].decode_s / RATE_STEPS


@dataclass(frozen=True)
class TimedBatches:
    """What a short training took: seconds a batch, and of everything around the batches."""

    batch_s: float
    around_s: float


class BatchEnds(Callback):
    """Notes when each batch ends, its work on the device included."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """The student has moved."""
        self.ends_s.append(clock_s(next(state.model.parameters()).device))


def time_batches(recipe: Recipe, count: int) -> TimedBatches:
    """Train so many batches in a folder of their own, as distill.train does."""
    start_s = time.monotonic()
    run = Run.of(recipe)
    train_set, eval_set = read_responses(run)
    tasks = eval_set.tasks
    if recipe.distill.teacher.is_cache:
        train_set, eval_set = (
            CachedResponses(responses, TeacherCache(run.teacher_cache.path, name))
            for name, responses in (("train", train_set), ("eval", eval_set))
        )
    with TemporaryDirectory(dir=Path(recipe.run_dir).parent) as folder:
        init, own = run.init.path, Run.of(recipe.model_copy(update={"run_dir": folder})).init.path
        own.symlink_to(init.resolve())
        unwarmed = recipe.distill.scheduler.model_copy(update={"t_warmup": "1ba"})
        short = with_distill(with_duration(recipe, count), scheduler=unwarmed).model_copy(update={"run_dir": folder})
        model = build_model(Run.of(short), eval_tasks=tasks)
        trainer = build_trainer(Run.of(short), model, train_set=train_set, eval_set=eval_set, checkpoint=None)
        trainer.state.callbacks.append(ends := BatchEnds())
        try:
            trainer.fit()
        finally:
            trainer.engine.close()
    settled = ends.ends_s[count // 2 - 1 :]
    batch_s = (settled[-1] - settled[0]) / (len(settled) - 1)
    return TimedBatches(batch_s, time.monotonic() - start_s - count * batch_s)


def batches_within(seconds: float, timed: TimedBatches) -> int:
    """How many batches a training of so many seconds has, LEAST_BATCHES where it is too short for any."""
    return max(LEAST_BATCHES, int((seconds - timed.around_s) / timed.batch_s))
