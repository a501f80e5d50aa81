"""Prompts written by a target that has learnt a few by heart."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from distill.data import training_data
from distill.data.training_data import NAME, SelfWriting, UserTurn, Writer, find_user_turn, write_own_prompts
from eval.models import load_tokenizer
from tests.rejections import rejects
from tests.sharing import by_processes

KNOWN = (
    "Why is the sky blue?",
    "Tell me a short story.",
    "How tall is a giraffe?",
    "What is a good soup?",
    "Name a river.",
)
SETTINGS = SelfWriting(seed=3, dtype="float32", batch_size=4, shard_size=6, max_new_tokens=40)


@pytest.fixture(scope="module")
def asking_target(make_checkpoint) -> Path:
    """A two-layer model trained until it says one of five things in the user's place."""
    folder = make_checkpoint(seed=4, num_hidden_layers=2, initializer_range=0.02)
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    texts = [f"<|im_start|>user\n{prompt}<|im_end|>" for prompt in KNOWN]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(120):
            loss = model(**batch, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def shard_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob(f"{NAME}-*.jsonl"))}


def test_prompts_are_distinct_and_its_own(asking_target, tmp_path):
    prompts = write_own_prompts(asking_target, 4, tmp_path, SETTINGS)
    texts = [prompt.messages[0]["content"] for prompt in prompts]
    assert len(set(texts)) == len(texts) == 4
    assert set(texts) <= set(KNOWN)
    assert [prompt.source for prompt in prompts] == [f"self-written:{i}" for i in (1, 2, 3, 4)]
    assert all(len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user" for prompt in prompts)


def test_lost_shards_are_written_again_as_they_were_and_finished_ones_load_no_model(
    asking_target, tmp_path, monkeypatch
):
    prompts = write_own_prompts(asking_target, 4, tmp_path, SETTINGS)
    before = shard_bytes(tmp_path)
    assert len(before) >= 2
    (tmp_path / f"{NAME}-00001.jsonl").unlink()
    assert write_own_prompts(asking_target, 4, tmp_path, SETTINGS) == prompts
    assert shard_bytes(tmp_path) == before
    monkeypatch.setattr(training_data, "load_target", None)
    assert write_own_prompts(asking_target, 4, tmp_path, SETTINGS) == prompts
    assert write_own_prompts(asking_target, 3, tmp_path, SETTINGS) == prompts[:3]


def test_seed_and_candidate_decide_what_is_written_not_the_batch(asking_target, tmp_path):
    def candidates(**changes) -> dict[int, str]:
        out = tmp_path / str(changes)
        write_own_prompts(asking_target, 3, out, dataclasses.replace(SETTINGS, **changes))
        rows = [json.loads(line) for shard in shard_bytes(out).values() for line in shard.splitlines()]
        return {row["candidate"]: row["prompt"] for row in rows if row["candidate"] < 6}

    assert candidates(batch_size=6) == candidates()
    assert candidates(seed=4) != candidates()


def test_a_target_that_repeats_itself(asking_target, tmp_path):
    with rejects(5, 84, "data.self_written_prompts=20"):
        write_own_prompts(asking_target, 20, tmp_path, SETTINGS)


def test_changed_settings_and_another_target_or_template_are_refused(asking_target, tmp_path):
    write_own_prompts(asking_target, 2, tmp_path / "data", SETTINGS)
    with rejects("seed", 3, 4):
        write_own_prompts(asking_target, 2, tmp_path / "data", dataclasses.replace(SETTINGS, seed=4))
    other = shutil.copytree(asking_target, tmp_path / "other")
    template = (other / "chat_template.jinja").read_text()
    (other / "chat_template.jinja").write_text(template + "{# another #}")
    with rejects("target", "template"):
        write_own_prompts(other, 2, tmp_path / "data", SETTINGS)


@pytest.fixture
def writer(asking_target) -> Writer:
    """Told nothing of what ends the user's text."""
    tokenizer = load_tokenizer(asking_target)
    opening_ids = tokenizer("<|im_start|>user\n")["input_ids"]
    return Writer(asking_target, tokenizer, UserTurn(opening_ids, frozenset(), "[/INST]"), SETTINGS)


def test_what_ends_an_response_ends_a_prompt_too(writer):
    found = {row["prompt"] for row in writer.write(range(4))}
    assert found
    assert found <= set(KNOWN)


def test_candidates_stay_in_order_whichever_ends_first(writer):
    numbers = [row["candidate"] for row in writer.write(range(10, 18))]
    assert len(numbers) > 4
    assert numbers == sorted(numbers)


def test_a_candidate_that_the_limit_cut_off_is_not_used(writer):
    writer.settings = dataclasses.replace(SETTINGS, max_new_tokens=12)  # what it knows has 13 characters or more
    assert writer.write(range(8)) == []


def test_a_target_without_a_chat_template(asking_target, make_checkpoint, tmp_path):
    plain = make_checkpoint(seed=5)
    (plain / "chat_template.jinja").unlink()
    with rejects("data.self_written_prompts"):
        write_own_prompts(plain, 2, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
WITH_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML
IN_WORDS = "{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"
WITH_RESPONSE = CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CLOSED_BY_THE_RESPONSE = (
    "{% for m in messages %}USER: {{ m['content'] }}{% endfor %}{% if add_generation_prompt %}\nBOT: {% endif %}"
)


@pytest.mark.parametrize(
    ("template", "opening", "ending", "num_stop_ids"),
    [
        (CHATML, "<|im_start|>user\n", "<|im_end|>", 1),
        (WITH_SYSTEM, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n", "<|im_end|>", 1),
        (WITH_RESPONSE, "<|im_start|>user\n", "<|im_end|>", 1),
        (IN_WORDS, "[INST]", "[/INST]", 0),
        (CLOSED_BY_THE_RESPONSE, "USER:", "BOT: ", 0),
    ],
)
def test_user_turn_is_found_in_the_template(tiny_target, template, opening, ending, num_stop_ids):
    tokenizer = load_tokenizer(tiny_target)
    tokenizer.chat_template = template
    turn = find_user_turn(tokenizer, tiny_target)
    assert tokenizer.decode(turn.opening_ids) == opening
    assert turn.stop_text == ending.strip()
    assert len(turn.stop_ids) == num_stop_ids
    assert turn.stop_ids <= {tokenizer.convert_tokens_to_ids("<|im_end|>")}


SAID = "{{ messages[0]['content'] }}"


@pytest.mark.parametrize("template", [f"{SAID}!", "hello", f"a {SAID} {SAID}", f"a {SAID}\n"])
def test_template_that_hides_the_user_turn(tiny_target, template):
    tokenizer = load_tokenizer(tiny_target)
    tokenizer.chat_template = template
    with rejects(tiny_target):
        find_user_turn(tokenizer, tiny_target)


@pytest.mark.parametrize(
    ("text", "stopped", "expected"),
    [
        ("  What is the time?\n", True, "What is the time?"),
        ("What is the time?", False, None),  # cut off by the limit
        ("What is the time? [/INST] It is", False, "What is the time?"),
        ("What is<|im_start|> the time?", True, None),
        ("Go on now", True, None),  # nine characters
        ("Go on then", True, "Go on then"),
        ("Onewordonly?", True, None),
        ("What is \ufffd this?", True, None),
        ("", True, None),
    ],
)
def test_which_candidates_are_usable(tiny_target, text, stopped, expected):
    tokenizer = load_tokenizer(tiny_target)
    writer = Writer(tiny_target, tokenizer, UserTurn([1], frozenset({2}), "[/INST]"), SETTINGS)
    ids = tokenizer(text)["input_ids"]
    assert writer.read([*ids, 2] if stopped else ids, stopped=stopped) == expected


def test_same_words_in_other_case_and_spacing_count_once(tiny_target, tmp_path):
    path = tmp_path / "shard.jsonl"
    said = ("Why so?  Tell", "why so? tell", "why not?")
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in said))
    writer = Writer(tiny_target, load_tokenizer(tiny_target), UserTurn([1], frozenset(), "x"), SETTINGS)
    assert list(training_data.distinct_texts(writer, [path], 3)) == ["Why so?  Tell", "why not?"]


def test_prompts_are_no_longer_than_the_context_leaves_behind_the_opening(make_checkpoint):
    target = make_checkpoint(num_hidden_layers=1, max_position_embeddings=30)
    assert training_data.shortened_to_context(target, SETTINGS, opening=6).max_new_tokens == 24
    long_enough = dataclasses.replace(SETTINGS, max_new_tokens=20)
    assert training_data.shortened_to_context(target, long_enough, opening=6) == long_enough
    with rejects("max_position_embeddings", 30):
        training_data.shortened_to_context(target, SETTINGS, opening=30)


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_write_the_prompts_and_the_shards_of_one(asking_target, tmp_path, count):
    alone = write_own_prompts(asking_target, 5, tmp_path / "alone", SETTINGS)
    out = tmp_path / "together"
    assert (
        by_processes(count, lambda share: write_own_prompts(asking_target, 5, out, SETTINGS, share)) == [alone] * count
    )
    files = shard_bytes(tmp_path / "alone")
    assert len(files) >= 2
    assert shard_bytes(out) == files


def test_no_process_writes_a_shard_ahead_of_what_is_known_to_be_needed(asking_target, tmp_path):
    by_processes(4, lambda share: write_own_prompts(asking_target, 1, tmp_path, SETTINGS, share))
    assert list(shard_bytes(tmp_path)) == [f"{NAME}-00000.jsonl"]
