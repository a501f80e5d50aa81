"""`widedraft certify --as-served`, with a script in the worker's place that decodes with tiny models."""

import json
import random
import sys
from dataclasses import replace

import pytest

import widedraft
from eval.engines import worker_process
from eval.engines.as_served import coverage, part_counts, same_texts, sampled_acceptance, served_length
from eval.engines.certificate import Counted, ServedPart, TextPair, read_certificates
from tests.eval.conftest import with_noise

STAND_IN = """
import json, sys
from pathlib import Path
import torch
from eval.engines.runs import replay_text
from eval.models import load_model
torch.set_num_threads(1)
for line in sys.stdin:
    message = json.loads(line)
    if message["call"] == "open":
        [opened] = message["arguments"]
        target = load_model(Path(opened["target"]), dtype="float32", device="cpu")
        draft = load_model(Path(opened["draft"]), dtype="float32", device="cpu") if opened["draft"] else None
        k, longest = opened["num_speculative_tokens"], 0
        print(json.dumps("0.1"), flush=True)
        continue
    if message["call"] == "features":
        print(json.dumps({"chunked prefill": longest > 200, "CUDA graphs": False}), flush=True)
        continue
    ids, positions, steps = [], [0] * k, 0
    for prompt, how in zip(*message["arguments"]):
        longest = max(longest, len(prompt))
        torch.manual_seed(how["seed"])
        out = target.generate(torch.tensor([prompt]), do_sample=how["temperature"] > 0, top_k=0, pad_token_id=2,
                              max_new_tokens=how["max_tokens"], eos_token_id=None)
        text = out[0, len(prompt):].tolist()
        if draft is not None:
            counts = replay_text(draft, prompt, text, k, None)
            steps += counts.steps
            positions = [a + b for a, b in zip(positions, counts.by_position)]
        ids.append(text)
    print(json.dumps({"ids": ids, "steps": steps, "proposed": steps * k, "accepted": sum(positions),
                      "by_position": positions if draft else None}), flush=True)
"""


@pytest.fixture(scope="session")
def pair(make_checkpoint, tmp_path_factory):
    target = make_checkpoint(seed=1, pad_token_id=2, num_hidden_layers=1)
    return target, with_noise(target, tmp_path_factory.mktemp("noisy"), scale=0.01)


@pytest.fixture(scope="session")
def certified(pair, tmp_path_factory):
    """Exit code and certificate; made once."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "worker.py").write_text(STAND_IN)
    words = ["certify", pair[1], "--target", pair[0], "--engine", "vllm", "--python", sys.executable, "--as-served"]
    flags = ["--max-new-tokens", 16, "--max-model-len", 512, "--num-threads", 1, "--out", folder]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "WORKER", folder / "worker.py")
        with pytest.raises(SystemExit) as ended:
            widedraft.main([str(word) for word in (*words, *flags)])
    return ended.value.code, read_certificates(folder).as_served["vllm"]


def test_a_right_engine_fails_only_for_its_short_responses_and_says_what_was_not_exercised(certified):
    code, certificate = certified
    assert (code, [each.law for each in certificate.findings if not each.holds]) == (1, ["enough"])
    assert "chunked prefill" in certificate.exercised
    assert certificate.not_exercised[-1] == "CUDA graphs"
    lengths = {part.name: [len(text.prompt_ids) for text in part.texts] for part in certificate.parts}
    assert [len(lengths[name]) for name in ("short", "turns", "mixed", "middle", "long", "sampled")] == [
        24,
        24,
        16,
        4,
        4,
        24,
    ]
    assert (set(lengths["middle"]), set(lengths["long"]), max(lengths["mixed"])) == ({256}, {512 - 16 - 3 - 1}, 256)
    parts = {part.name: part for part in certificate.parts}
    first, *_, last = parts["short"].texts
    before = parts["long"].texts[0].prompt_ids[: -len(first.prompt_ids)]
    assert before[-len(last.prompt_ids) - 16 :] == (*last.prompt_ids, *last.plain_ids)
    for first, second in zip(parts["short"].texts, parts["turns"].texts, strict=True):
        assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert all(part.counted.by_position == part.replay.by_position for part in certificate.parts)
    assert parts["sampled"].texts[0].plain_ids != parts["sampled"].texts[0].drafted_ids


def test_a_part_with_few_steps_counts_as_not_exercised(certified):
    long = certified[1].parts[4]
    parts = [replace(long, replay=replace(long.replay, steps=steps)) for steps in (15, 16)]  # of 4 texts
    assert coverage(512, {}, parts)[1][1:] == ("long (15 steps)",)


def test_a_changed_text_fails_its_part(certified, pair):
    *others, long, sampled = certified[1].parts
    first = long.texts[0]
    changed = replace(first, drafted_ids=(*first.drafted_ids[:3], first.drafted_ids[3] + 1, *first.drafted_ids[4:]))
    findings = same_texts([*others, replace(long, texts=(changed, *long.texts[1:])), sampled], pair[0], "float32")
    assert [finding.law for finding in findings if not finding.holds] == ["same text, long"]


@pytest.mark.parametrize(("lost", "holds"), [(0, True), (24, True), (40, False)])
def test_one_step_of_each_text_may_be_counted_differently(lost, holds):
    replay = Counted(steps=700, proposed=2100, accepted=600, by_position=(400, 150, 50))
    counted = replace(replay, by_position=(400 - lost, 150, 50))
    text = TextPair(prompt_ids=(1,), plain_ids=(1,), drafted_ids=(1,))
    part = ServedPart(name="short", texts=(text,) * 24, counted=counted, replay=replay)
    assert part_counts(part).holds == holds
    assert not part_counts(
        replace(part, counted=replace(counted, steps=0, by_position=None))
    ).holds  # the engine did not draft


def test_an_engine_that_accepts_too_much_when_sampling_fails():
    rng = random.Random(3)
    plain = [Counted(steps=40, proposed=120, accepted=rng.randint(10, 30)) for _ in range(24)]
    again = [Counted(steps=40, proposed=120, accepted=rng.randint(10, 30)) for _ in range(24)]
    more = [replace(each, accepted=each.accepted + 8) for each in again]
    assert (sampled_acceptance(plain, again, 1).holds, sampled_acceptance(plain, more, 1).holds) == (True, False)


def test_the_context_is_that_of_the_shorter_model_and_no_longer(pair):
    longest = json.loads((pair[0] / "config.json").read_text())["max_position_embeddings"]
    assert served_length(pair, None) == min(longest, 4096)
    assert served_length(pair, longest) == longest
    with pytest.raises(Exception, match="--max-model-len"):
        served_length(pair, longest + 1)
