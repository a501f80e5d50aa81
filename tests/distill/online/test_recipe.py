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
    "distill.mode=offline": "must be left out when distill.mode is offline",
    "distill.online=null": "must be given when distill.mode is online",
    "distill.teacher={source: live}": "must stand beside distill.teacher with source cache and contents hidden",
    "distill.teacher={source: none}": "must stand beside distill.teacher with source cache and contents hidden",
    "distill.teacher={source: cache, contents: top_k}": "must stand beside distill.teacher with source cache",
    "distill.packing=true": "must not stand beside distill.packing=True: in online mode each request is a row",
    "distill.unknown_inputs=0.5": "must not stand beside distill.unknown_inputs=0.5: in online mode what serves reads",
    "distill.token_selection={reference: x}": "must not stand beside distill.token_selection",
    "distill.global_train_batch_size=4": "must have update_interval of at most distill.global_train_batch_size",
    "distill.max_duration=2ep": "must stand beside distill.max_duration in ba, or 1ep",
    "distill.online.buffer_size=4": "must be at least distill.online.update_interval, got 4 and 8",
    "distill.online.positions=some": "must be",
    "distill.samples={source: student}": "distill.samples",
    "architecture.vocabulary={size: 9, from: answers}": "got live requests",
    "data.answers=given": "must have mode: offline when data.answers is given",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_does_not_go_with_requests_is_refused(mistakes, word):
    found = mistakes(RECIPE, "distill.device_train_microbatch_size=1", word)
    assert any(REFUSED[word] in line for line in found), found


def test_shards_are_refused(mistakes):
    [line] = mistakes(RECIPE, "distill.parallelism=fsdp2", "distill.device_train_microbatch_size=1")
    assert "must not stand beside distill.parallelism=fsdp2: in online mode each process hands its draft" in line
