"""Which keys of a recipe go with requests, and what the others are told."""

import pytest

RECIPE = """
run_name: r
target: {path: models/x}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: p.jsonl}], num_eval_prompts: 2}
distill:
  mode: online
  teacher: {source: cache}
  online: {stream: {sources: [{path: p.jsonl}]}}
"""
REFUSED = {
    "distill.mode=offline": "distill.online",
    "distill.online=null": "distill.online",
    "distill.teacher={source: live}": "distill.teacher",
    "distill.teacher={source: cache, contents: top_k}": "distill.teacher",
    "distill.packing=true": "distill.packing",
    "distill.unknown_inputs=0.5": "distill.unknown_inputs",
    "distill.global_train_batch_size=4": "distill.online.update_interval",
    "distill.max_duration=2ep": "distill.max_duration",
    "distill.online.buffer_size=4": "distill.online.buffer_size",
    "distill.online.positions=some": "distill.online.positions",
    "distill.samples={source: student}": "distill.samples.source",
    "distill.parallelism=fsdp2": "distill.parallelism",
    "architecture.vocabulary={size: 9, from: answers}": "architecture.vocabulary.from",
    "data.answers=given": "data.answers",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_does_not_go_with_requests_is_refused(mistakes, word):
    found = mistakes(RECIPE, "distill.device_train_microbatch_size=1", word)
    assert any(f": {REFUSED[word]} " in line for line in found), found
