"""New responses beside every loss, head and layout: the update is that of a training that was given them.

The student's greedy responses to all prompts are written beforehand, by plain decoding, into the data of a second run.
"""

from dataclasses import asdict, replace

import pytest

from distill.losses import LOSSES
from distill.rollouts import STUDENT_TOKENS
from distill.run import Run
from distill.train import train
from distill.trainer import build_model
from eval.decoding.sampling import Limits, Sampling
from eval.decoding.speculative import DecodingRequest, collected, decode_steps
from eval.responses import read_traces, write_shard
from tests.distill.after_training import assert_equal, changed, last_state, metrics
from tests.distill.conftest import MAX_SEQ_LEN
from tests.distill.small_heads import VOCAB, cut_draft
from tests.distill.two_processes import train_by

BESIDE = {
    "all losses, micro-batches": {
        "loss": [{"name": name, "weight": 0.1} for name in LOSSES],
        "device_train_microbatch_size": 1,
    },
    "temperature, packing, bfloat16": {
        "loss": "forward_kl",
        "temperature": 2.0,
        "packing": True,
        "precision": "amp_bf16",
    },
    "small head, unknown inputs": {"small": True, "unknown_inputs": 0.5},
}
ONE_STEP = {"max_duration": "1ba", "eval_interval": "1dur", "save_interval": "1dur"}


def greedy_response(student, prompt_ids):
    limits = Limits(min(25, MAX_SEQ_LEN - len(prompt_ids)), frozenset({2}))
    wanted = DecodingRequest([prompt_ids], limits, Sampling(), target_vocab=VOCAB)
    return collected(decode_steps([student], wanted), 1)[0].token_ids


def generated_by_the_student(recipe):
    """The data of a run, answered anew."""
    run = Run.of(recipe)
    student, folder = build_model(run, eval_tasks=()).student.lm.eval(), run.data.path
    traces = [
        replace(trace, response_ids=greedy_response(student, trace.prompt_ids))
        for trace in read_traces(folder, "train")
    ]
    [path] = folder.glob("train-*.jsonl")
    write_shard(path, [asdict(trace) for trace in traces])


@pytest.mark.parametrize("beside", BESIDE)
def test_the_update_is_that_of_a_training_on_the_same_responses(make_run, tiny_target, tiny_draft, tmp_path, beside):
    settings = {**ONE_STEP, **BESIDE[beside]}
    share = settings.pop("unknown_inputs", 0.0)
    if settings.pop("small", False):
        settings["init"] = cut_draft(tiny_target, tmp_path / "small")
    ours, theirs = (make_run(name, **settings) for name in ("written", "given"))
    ours, theirs = (
        changed(recipe, unknown_inputs=share, **more) for recipe, more in ((ours, {"samples": "student"}), (theirs, {}))
    )
    generated_by_the_student(theirs)
    train(ours)
    train(theirs)
    assert_equal(last_state(ours)["optimizers"], last_state(theirs)["optimizers"])
    assert metrics(ours)[0]["loss/train/total"] == metrics(theirs)[0]["loss/train/total"]
    assert metrics(ours)[0][STUDENT_TOKENS] > 0


def test_a_teacher_in_shards_scores_what_the_student_writes(pair, make_run):
    settings = {**ONE_STEP, "device_train_microbatch_size": 1, "samples": "student"}
    alone, together = make_run("alone", **settings), make_run("together", **settings, teacher={"parallelism": "fsdp2"})
    train(alone)
    train_by(pair, together)
    one, other = (metrics(recipe)[0] for recipe in (alone, together))
    assert one[STUDENT_TOKENS] == other[STUDENT_TOKENS]
    assert one["loss/train/total"] == pytest.approx(other["loss/train/total"], rel=1e-5)
