"""What `widedraft check` promises is what the stages then make."""

import json
import shutil
from pathlib import Path

import pytest

from architectures.checkpoints import fingerprint
from architectures.checkpoints.manifest import write_manifest
from architectures.errors import UserError
from architectures.files.disk import free_bytes, size
from architectures.pages.terminal import terminal
from distill.checking.check import check_recipe, disk_rows
from distill.checking.planned_cut import planned
from distill.data.generate import generate_answers
from distill.estimates.cache_sizes import cache_sizes
from distill.estimates.expected_work import Work
from distill.estimates.trainings import trainings
from distill.expected_time import devices
from distill.recipe.recipe import load_recipe, save_recipe
from distill.run.recorded import target_record
from distill.run.run import Run
from distill.run.stage_inputs import generate_inputs
from eval.tasks import PromptSource

RECIPE = """\
run_name: demo
run_dir: run
target: {path: TARGET}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2, max_seq_len: 100, max_new_tokens: 40}
distill: {global_train_batch_size: 4}
"""
EMBEDDING, NORM = 264 * 64, 64
LOGITS_BYTES = 24  # per answer token and vocabulary entry, as measured
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * NORM  # query and output, key and value, feed-forward, norms
DRAFT, TARGET = (EMBEDDING + layers * LAYER + NORM for layers in (2, 4))


@pytest.fixture
def checked(tmp_path, tiny_target, monkeypatch):
    """checked("key=value", ...) -> (recipe, the lines printed)."""
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(RECIPE.replace("TARGET", str(tiny_target)), encoding="utf-8")
    write_prompts(12)

    def check(*overrides: str):
        recipe = load_recipe("demo.yaml", overrides)
        return recipe, [line.strip() for line in terminal(*check_recipe(recipe)).splitlines()]

    return check


def write_prompts(count: int) -> None:
    rows = [json.dumps({"prompt": f"Count to {number}."}) for number in range(count)]
    Path("prompts.jsonl").write_text("\n".join(rows), encoding="utf-8")


def row(lines: list[str], name: str) -> str:
    """The line of a name, without the name."""
    (line,) = [line for line in lines if line.startswith(name) or line.endswith(name)]
    return line.removeprefix(name).removesuffix(name).strip()


def test_shapes_and_layers_are_those_pruning_makes(checked):
    _, lines = checked()
    dimensions = "hidden 64, intermediate 128, 4 heads of 16 (2 kv), vocabulary 264"
    assert [line for line in lines if line.endswith(dimensions)] == [
        f"4 layers, {dimensions}",
        f"2 layers, {dimensions}",
    ]
    assert row(lines, "draft ") == "cut by first_last, keeping layers 0, 3 of 0 to 3"


def test_parameters_are_the_models_own(checked, tiny_target):
    from transformers import AutoModelForCausalLM

    target = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(tiny_target).parameters())
    _, lines = checked()
    assert target == TARGET
    assert f"{target:,} parameters, {target - EMBEDDING:,} without embeddings; nominal size: none" in lines
    assert f"{DRAFT:,} parameters, {DRAFT - EMBEDDING:,} without embeddings; nominal size: none" in lines


def test_a_published_shape_is_named_by_its_nominal_size(checked):
    llama = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    }
    Path("llama").mkdir()
    Path("llama/config.json").write_text(json.dumps(llama), encoding="utf-8")
    _, lines = checked("target.path=llama", "architecture={shape: wide-796m}")
    assert any(line.startswith("6,738,415,616 parameters") and line.endswith("nominal size: 7B") for line in lines)
    assert any(line.startswith("1,274,064,896 parameters") and line.endswith("nominal size: 796M") for line in lines)


def test_a_named_shape_keeps_its_nominal_size_over_another_vocabulary(checked, tiny_target):
    config = json.loads((tiny_target / "config.json").read_text(encoding="utf-8"))
    widths = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "head_dim": 128}
    Path("code").mkdir()
    longer = {**config, **widths, "num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 32016}
    Path("code/config.json").write_text(json.dumps(longer), encoding="utf-8")
    _, lines = checked("target.path=code", "architecture={shape: wide-543m}")
    assert [line.rsplit("; ")[1] for line in lines if "; nominal size" in line] == [
        "nominal size: none",
        "nominal size: 543M",
    ]


AUTO = "estimated; less where auto finds too little"


def memory(lines: list[str], name: str) -> list[str]:
    """The sizes of a memory row, one for each number of processes; no text where a part is not there."""
    (line,) = [line for line in lines if "|" in line and f"  {name}" in line]
    return [cell.strip() for cell in line.split(f"  {name}")[0].split("|")]


def test_memory_counts_weights_gradients_moments_teacher_and_logits(checked):
    _, lines = checked()
    master, matrices = DRAFT * 4, (EMBEDDING + 2 * (LAYER - 2 * NORM)) * 2
    logits = 40 * 264 * LOGITS_BYTES
    assert f"memory of one process (of 1 | of 4; by DDP), distillation, {AUTO}" in lines
    assert memory(lines, "student weights, float32: ") == [size(master).strip()] * 2
    assert memory(lines, "gradients, float32: ") == [size(master).strip()] * 2
    assert memory(lines, "Adam's two moments, float32: ") == [size(2 * master).strip()] * 2
    assert memory(lines, "student matrices, bfloat16: ") == [size(matrices).strip()] * 2
    assert memory(lines, "gradient buckets of DDP, float32: ") == ["", size(master).strip()]
    assert memory(lines, "teacher weights, bfloat16: ") == [size(TARGET * 2).strip()] * 2
    assert memory(lines, "logits and loss: 40 tokens x 264 entries x 24 bytes") == [
        size(4 * logits).strip(),
        size(logits).strip(),
    ]


def test_memory_holds_a_chunk_of_logits_at_most(checked):
    _, lines = checked("distill.global_train_batch_size=1000", "distill.device_train_microbatch_size=1000")
    chunk = 2**23 // 264
    assert memory(lines, "logits and loss: ")[0] == size(chunk * 264 * LOGITS_BYTES + 264 * 64 * 4).strip()


def test_memory_follows_micro_batch_precision_and_sharding(checked):
    _, lines = checked("distill.device_train_microbatch_size=1", "distill.precision=fp32", "distill.parallelism=fsdp2")
    assert "memory of one process (of 1 | of 4; by FSDP2), distillation, estimated" in lines
    assert memory(lines, "logits and loss: 40 tokens x 264 entries x 28 bytes")
    assert memory(lines, "teacher weights, float32: ") == [size(TARGET * 4).strip()] * 2
    assert memory(lines, "gradients, float32: ") == [size(DRAFT * 4).strip(), size(DRAFT).strip()]


ON_TEXT = ("distill.train_on=text", "text={domains: [{name: wiki, path: wiki.txt}], max_seq_len: 64}")


@pytest.mark.parametrize(("max_duration", "steps"), [("30ba", 30), ("118sp", 30), ("7309tok", 30)])
def test_a_student_on_text_takes_steps_of_sequences(checked, max_duration, steps):
    """Of 63 tokens each: the last is only predicted. 7,309 tokens are one more than 29 steps of 4 x 63."""
    recipe, lines = checked(*ON_TEXT, f"distill.max_duration={max_duration}")
    assert row(lines, "steps ") == f"{steps} of 4 sequences each ({max_duration})"
    assert row(lines, "tokens ") == f"{steps * 4 * 63:,} of text"
    assert not [line for line in lines if "mask" in line or "answer tokens" in line]
    million = Work(prompts=10**6, answers=0)
    assert (size(2 * 100 * 12), "answers, at most") in disk_rows(recipe, planned(recipe), million)  # two are held out


def test_memory_of_a_student_on_text_is_that_of_its_sequences(checked):
    recipe, _ = checked(*ON_TEXT, "distill.max_duration=30ba")
    cut = planned(recipe)
    (training,) = trainings(recipe, cut.target, cut.draft, on_gpu=False)
    assert (training.title, training.seq_len, training.loss_tokens) == ("distillation", 63, 63)


def test_all_prompts_may_be_held_out_where_text_is_trained_on(checked):
    _, lines = checked(*ON_TEXT, "distill.max_duration=30ba", "data.num_eval_prompts=12")
    assert row(lines, "prompts ") == "12; 12 of them held out"
    with pytest.raises(UserError, match="must be at most the number of prompts, got 13 and 12"):
        checked(*ON_TEXT, "distill.max_duration=30ba", "data.num_eval_prompts=13")


TEXT = "text={domains: [{name: wiki, path: wiki.txt}], max_seq_len: 64}"
MASKS = "architecture={layers: 2, method: learned_masks, masks: {max_duration: 30ba, global_train_batch_size: 6}}"


def test_mask_training_has_its_own_memory_steps_and_disk(checked):
    _, lines = checked(MASKS, TEXT)
    assert f"memory of one process (of 1 | of 6; by DDP), mask training, {AUTO}" in lines
    assert f"memory of one process (of 1 | of 4; by DDP), distillation, {AUTO}" in lines
    assert row(lines, "mask steps ") == "30 of 6 sequences each (30ba)"
    assert row(lines, "mask tokens ") == f"{30 * 6 * 64:,} of text"
    assert row(lines, "steps ") == "3 of 4 answers each (1ep)"
    assert row(lines, "3 checkpoints of mask training") == size(3 * 12 * TARGET).strip()
    assert row(lines, "masks, bfloat16") == size(2 * TARGET).strip()


def test_disk_counts_what_the_run_folder_will_hold(checked):
    _, lines = checked("export.dtype=float32", "distill.save_num_checkpoints_to_keep=3")
    assert row(lines, "init, bfloat16") == size(DRAFT * 2).strip()
    assert row(lines, "answers, at most") == size(12 * 100 * 12).strip()
    assert row(lines, "3 checkpoints, and one more while it is written") == size(4 * 12 * DRAFT).strip()
    assert row(lines, "draft, float32") == size(DRAFT * 4).strip()


def test_disk_counts_the_cache_of_a_teacher_the_recipe_wants(checked):
    """At most 10 answers of 40 tokens to train on and 2 held out; 64 numbers of two bytes a token."""
    recipe, lines = checked("distill.teacher.source=cache")
    longest = size(12 * 40 * 128)
    assert row(lines, "teacher cache, hidden, at most") == longest.strip()
    found = disk_rows(recipe, planned(recipe), Work(12, 10, answer_tokens=55))
    assert (size((55 + 2 * 40) * 128), "teacher cache, hidden, at most") in found
    recipe, _ = checked("distill.teacher={source: cache, contents: top_k, k: 10}", "distill.precision=fp32")
    found = disk_rows(recipe, planned(recipe), Work(12, 10, answer_tokens=55))
    assert (size(55 * 44 + 2 * 40 * 256), "teacher cache, top_k, at most") in found
    assert not [line for line in checked()[1] if "teacher cache" in line]


def test_disk_counts_states_that_are_kept_beside_the_answers(checked):
    """As many as the answers have tokens, whatever the cache then keeps; and no memory of a training changes."""
    found = {}
    for contents, train in (("hidden", 55 * 128), ("top_k", 55 * 44)):
        teacher = f"distill.teacher={{source: cache, contents: {contents}, captured_while: %s}}"
        words = ["distill.teacher.k=10"] if contents == "top_k" else []
        for name in ("reading", "answering"):
            recipe, found[name] = checked(teacher % name, *words)
            rows = disk_rows(recipe, planned(recipe), Work(12, 10, answer_tokens=55))
            assert (size(train + 2 * 40 * 128), f"teacher cache, {contents}, at most") in rows
            kept = cache_sizes(recipe, Work(12, 10, answer_tokens=55), hidden=64, rows=264)
            expected = (55 + 2 * 40) * 128 if name == "answering" else None
            assert kept.get("hidden states beside the answers") == expected
            assert ("hidden states beside the answers, at most" in [row[1] for row in rows]) == (name == "answering")
        blocks = ["\n".join(found[name]).split("distillation, estimated")[1].split("disk (")[0] for name in found]
        assert blocks[0] == blocks[1]


def test_the_teacher_is_the_target_and_not_what_the_draft_is_cut_out_of(checked, make_checkpoint):
    wider = {"hidden_size": 128, "vocab_size": 300, "num_attention_heads": 8, "head_dim": 16}
    of_source = f"architecture.source={make_checkpoint(**wider)}"
    for teacher in ("{source: cache}", "{source: cache, contents: top_k, k: 264}"):
        words = (f"distill.teacher={teacher}", "distill.precision=fp32")
        name = "teacher cache, top_k, at most" if "top_k" in teacher else "teacher cache, hidden, at most"
        plain, cut_out = (row(checked(*sources, *words)[1], name) for sources in ((), (of_source,)))
        assert plain == cut_out
    with pytest.raises(UserError, match=r"k must be at most the target's vocab_size, got 265 and 264"):
        checked(of_source, "distill.teacher={source: cache, contents: top_k, k: 265}")
    assert planned(checked(of_source)[0]).draft.vocab == 264


def test_more_entries_of_the_teacher_than_it_has(checked):
    with pytest.raises(
        UserError, match=r"^distill\.teacher\.k must be at most the target's vocab_size, got 265 and 264"
    ):
        checked("distill.teacher={source: cache, contents: top_k, k: 265}")


def test_a_target_from_gguf_takes_disk_for_its_import(checked):
    recipe, _ = checked()
    imported = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": "target.gguf"})})
    imports = (size(TARGET * 4), "target imported from GGUF, float32")
    assert imports in disk_rows(imported, planned(recipe), Work(12, 10))
    assert imports not in disk_rows(recipe, planned(recipe), Work(12, 10))


@pytest.mark.parametrize(
    ("duration", "steps", "tokens"),
    [
        ("1ep", "3 of 4 answers each (1ep)", "at most 400;"),  # 10 answers: two whole batches and a smaller one
        ("2ep", "6 of 4 answers each (2ep)", "at most 800;"),
        ("5ba", "5 of 4 answers each (5ba)", "at most 720;"),  # three batches are an epoch
        ("7sp", "2 of 4 answers each (7sp)", "at most 280;"),
        ("25sp", "8 of 4 answers each (25sp)", "at most 1,000;"),
    ],
)
def test_steps_and_tokens_before_there_are_answers(checked, duration, steps, tokens):
    _, lines = checked(f"distill.max_duration={duration}")
    assert row(lines, "prompts ") == "12; 2 of them held out"
    assert row(lines, "steps ") == steps
    assert row(lines, "answer tokens ").startswith(tokens)


@pytest.mark.parametrize(
    ("duration", "epochs"),
    [
        ("1ep", "1 over 10 answers"),
        ("3ep", "3 over 10 answers, each in an order of its own"),
        ("5ba", "1.8 over 10 answers, each in an order of its own"),
        ("25sp", "2.5 over 10 answers, each in an order of its own"),
        ("2ba", "0.8 over 10 answers"),
    ],
)
def test_epochs_are_told_in_every_unit(checked, duration, epochs):
    assert row(checked(f"distill.max_duration={duration}")[1], "epochs ") == epochs


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "negative_log_acceptance"),
        (["distill.teacher.source=none"], "cross_entropy"),
        (["distill.teacher={source: cache, contents: top_k}"], "forward_kl"),
        (
            ["distill.loss=[{name: forward_kl, weight: 2.5}, {name: cross_entropy}]", "distill.temperature=2"],
            "2.5 x forward_kl + cross_entropy, at temperature 2",
        ),
    ],
)
def test_the_loss_is_named(checked, overrides, words):
    assert row(checked(*overrides)[1], "loss ") == words


def test_steps_of_a_duration_in_tokens_are_at_least(checked):
    _, lines = checked("distill.max_duration=1_000tok")
    assert row(lines, "steps ") == "at least 3 of 4 answers each (1_000tok, prompts counted)"


def test_finished_answers_are_counted_and_others_are_not(checked, tiny_target):
    recipe, _ = checked()
    counts = {"prompts": 12, "train": {"answers": 9, "answer_tokens": 180}}
    inputs = generate_inputs(Run.of(recipe))
    save_recipe(recipe, Path("run/recipe.yaml"))
    write_manifest(
        Path("run/data"), stage="generate", inputs=inputs, counts=counts, target=target_record(recipe.target)
    )
    _, lines = checked()
    assert row(lines, "answer tokens ") == "180, counted in run/data"
    assert row(lines, "steps ") == "3 of 4 answers each (1ep)"
    assert row(checked("distill.max_duration=2ep")[1], "answer tokens ") == "360, counted in run/data"
    elsewhere = {**inputs, "target": "another folder"}  # the same target: its path and revision are recorded
    write_manifest(
        Path("run/data"), stage="generate", inputs=elsewhere, counts=counts, target=target_record(recipe.target)
    )
    assert row(checked()[1], "answer tokens ") == "180, counted in run/data"
    shutil.copytree(tiny_target, "other")
    for change in ("data.temperature=1", "seed=3", "target.path=other"):
        assert row(checked(change)[1], "answer tokens ").startswith("at most")
    write_prompts(13)
    assert row(checked()[1], "answer tokens ").startswith("at most")


def test_answers_that_an_earlier_run_wrote_are_counted_and_change_nothing(checked, tiny_target):
    recipe, lines = checked()
    assert not [line for line in lines if "answers there" in line]
    small = recipe.data.model_copy(update={"prompts": (PromptSource(path="prompts.jsonl", num_prompts=5),)})
    generate_answers(tiny_target, small.model_copy(update={"num_eval_prompts": 1}), Path("a"), seed=3, dtype="float32")
    taking, lines = checked("data.answers_from=[a]")
    assert row(lines, "answers there ") == "5, taken from a"
    assert generate_inputs(Run.of(taking)) == generate_inputs(Run.of(recipe))


hash_of = fingerprint.sha256_of_file


def test_no_weights_are_read_for_finished_answers(checked, tiny_target, monkeypatch):
    recipe, _ = checked()
    counts = {"prompts": 12, "train": {"answers": 9, "answer_tokens": 180}}
    inputs = generate_inputs(Run.of(recipe))
    write_manifest(
        Path("run/data"), stage="generate", inputs=inputs, counts=counts, target=target_record(recipe.target)
    )
    save_recipe(recipe, Path("run/recipe.yaml"))
    read = []
    monkeypatch.setattr(fingerprint, "sha256_of_files", lambda paths, **_: read.append(paths))
    monkeypatch.setattr(fingerprint, "sha256_of_file", lambda path: read.append(path.name) or hash_of(path))
    assert row(checked()[1], "answer tokens ") == "180, counted in run/data"
    assert read == ["prompts.jsonl"]


GIVEN = ("data.answers=given", "data.max_new_tokens=50")


def test_given_conversations_are_counted_whole(checked, tiny_target):
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3]
    rows = [{"messages": turns}, *({"prompt": f"{number}", "answer": "y"} for number in range(9))]
    Path("prompts.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    recipe, lines = checked(*GIVEN)
    assert row(lines, "steps") == "2 of 4 answers each (1ep)"
    assert row(lines, "answer tokens") == "at most 792; known once run/data exists"
    assert memory(lines, "logits and loss: 99 tokens x 264 entries x 24 bytes")
    cached = checked(*GIVEN, "distill.teacher.source=cache")[1]
    assert row(cached, "teacher cache, hidden, at most") == size((8 * 99 + 2 * 50) * 128).strip()
    train = {"prompts": 8, "answers": 20, "answer_tokens": 90, "sequences": 9, "split": 1}
    counts = {"prompts": 10, "train": train}
    inputs = generate_inputs(Run.of(recipe))
    save_recipe(recipe, Path("run/recipe.yaml"))
    write_manifest(
        Path("run/data"), stage="generate", inputs=inputs, counts=counts, target=target_record(recipe.target)
    )
    lines = checked(*GIVEN)[1]
    assert row(lines, "steps") == "3 of 4 answers each (1ep)"
    assert row(lines, "answer tokens") == "90, counted in run/data"


def test_rows_that_bring_no_answer(checked):
    with pytest.raises(UserError, match=r"prompts\.jsonl:1: has no answer: none of the fields answer, completion"):
        checked(*GIVEN)


def test_prompts_of_several_turns_and_self_written_ones_count(checked):
    Path("prompts.jsonl").write_text('{"turns": ["a", "b", "c"]}\n' * 3, encoding="utf-8")
    _, lines = checked("data.self_written_prompts=5")
    assert row(lines, "prompts ") == "8; 2 of them held out"
    assert row(lines, "steps ") == "3 of 4 answers each (1ep)"  # 8 - 2 prompts, and 6 further turns


def test_a_data_set_of_unknown_size_is_said_to_be(checked):
    _, lines = checked("data.prompts=[{name: openai/gsm8k}]")
    assert row(lines, "prompts ").startswith("unknown until `widedraft generate`")
    assert row(lines, "steps ") == "unknown (1ep)"
    _, lines = checked("data.prompts=[{name: openai/gsm8k}, {path: prompts.jsonl}]", "distill.max_duration=5ba")
    assert row(lines, "steps ") == "5 of 4 answers each (5ba)"
    assert not [line for line in lines if line.endswith("answers, at most")]


def test_a_data_set_read_in_part_bounds_the_work(checked):
    _, lines = checked("data.prompts=[{name: openai/gsm8k, num_prompts: 90}, {path: prompts.jsonl}]")
    assert row(lines, "prompts ") == "at most 102; 2 of them held out"
    assert row(lines, "steps ") == "at most 25 of 4 answers each (1ep)"
    assert row(lines, "answer tokens ").startswith("at most 4,000;")


KNOWN = ("target.path=meta-llama/Llama-3.1-8B", "architecture={shape: wide-829m, source: meta-llama/Llama-3.2-1B}")


def test_a_published_target_is_checked_from_the_table_and_that_is_said(checked):
    _, lines = checked(*KNOWN)
    unread = [line for line in lines if line.startswith("not checked") and "not on this machine" in line]
    assert [line.split()[2] for line in unread] == ["meta-llama/Llama-3.1-8B:", "meta-llama/Llama-3.2-1B:"]
    assert row(lines, "cut out of ") == "meta-llama/Llama-3.2-1B"
    assert any(line.startswith("8,030,261,248 parameters") for line in lines)
    assert any(line.startswith("566,777,856 parameters") and line.endswith("nominal size: 829M") for line in lines)
    assert (
        memory(lines, "teacher weights, bfloat16: 8,030,261,248 parameters x 2 bytes")
        == [size(2 * 8030261248).strip()] * 2
    )


def test_a_local_target_leaves_nothing_unchecked(checked):
    assert not [line for line in checked()[1] if line.startswith(("not checked", "cut out of"))]


def test_everything_wrong_with_target_and_prompts_at_once(checked):
    Path("empty.jsonl").write_text("", encoding="utf-8")
    Path("odd.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n', encoding="utf-8")
    with pytest.raises(UserError) as raised:
        checked(
            "target.path=./nowhere",
            "data.prompts=[{path: absent.jsonl}, {path: empty.jsonl}]",
            "eval.tasks=[{path: odd.jsonl}]",
        )
    lines = str(raised.value).splitlines()
    assert lines[0] == (
        f"target.path: ./nowhere: no such folder. Looked for {Path('nowhere').absolute()}: relative paths start at the "
        "working folder. Give a Hugging Face folder, a hub id (owner/name) or a .gguf file. "
        "A GGUF file becomes this folder by `widedraft import-gguf FILE --to ./nowhere`."
    )
    assert [line.split(": ")[0] for line in lines[1:]] == ["absent.jsonl", "empty.jsonl", "odd.jsonl:2"]


def test_more_layers_than_the_target(checked):
    with pytest.raises(UserError, match=r"^architecture exceeds the target in layers 5 \(target 4\)\."):
        checked("architecture.layers=5")


def test_a_gguf_file_that_is_not_there_is_not_to_be_imported_first(checked):
    with pytest.raises(UserError, match=r"target\.path: nowhere\.gguf: ") as raised:
        checked("target.path=nowhere.gguf")
    assert "import-gguf" not in str(raised.value)


def test_nothing_left_to_train_on(checked):
    with pytest.raises(UserError) as raised:
        checked("data.num_eval_prompts=12")
    assert str(raised.value) == (
        "data.num_eval_prompts must be less than the number of prompts, got 12 and 12. Hold out fewer, or add prompts."
    )


def test_sizes_for_people():
    assert [size(count).strip() for count in (0, 2**20, 538060032, 2**30, 3 * 2**29)] == [
        "0.0 MiB",
        "1.0 MiB",
        "513.1 MiB",
        "1.0 GiB",
        "1.5 GiB",
    ]


def test_free_space_is_that_of_the_disk_the_folder_will_be_on(tmp_path):
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.01)


def test_stages_begin_within_the_target(checked):
    assert checked("architecture.layers=null", "architecture.stages=[4,2]")
    with pytest.raises(UserError, match=r"stages must begin with at most the 4 layers there are, got \[99, 1\]"):
        checked("architecture.layers=null", "architecture.stages=[99,1]")


@pytest.mark.parametrize(
    "word",
    [
        "distill.max_duration=999_999_999_999_999ba",
        "distill.max_duration=1e15tok",
        "distill.max_duration=999999999999999e15ep",
        "distill.global_train_batch_size=999999999999999999",
        "data.prompts[0].num_prompts=999999999999999999",
        "data.shard_size=999999999999999999",
        "eval.latency_batch_sizes=[1000000]",
        "distill.save_num_checkpoints_to_keep=999999999999999999",
    ],
)
def test_the_largest_numbers_a_recipe_may_hold_are_counted_with(checked, word):
    assert checked(word)


DEVICE = {"schema": 1, "device": "Some GPU", "slug": "some-gpu", "size": "full", "measured": "2026-12-01", "stages": {}}


def test_hours_are_told_of_the_device_that_is_named(checked):
    recipe, _ = checked()
    lines = terminal(*check_recipe(recipe, "nvidia-h100-80gb-hbm3")).split("\n\n")[-1].splitlines()
    assert lines[0].startswith("time on NVIDIA H100 80GB HBM3 (")
    assert [line.split()[0] for line in lines[1:]] == ["answers", "training", "scorecard", "together", "texts", "not"]


def test_a_measured_device_is_told_with_its_file(checked):
    recipe, _ = checked()
    Path("some.json").write_text(json.dumps(DEVICE), encoding="utf-8")
    lines = terminal(*check_recipe(recipe, "some.json")).split("\n\n")[-1].splitlines()
    assert lines[0] == "time on Some GPU (measured 2026-12-01, some.json)"
    reason = "unknown: no answers or steps in bfloat16 were measured on Some GPU"
    assert lines[1].split(maxsplit=1) == ["answers", reason]


def test_an_unknown_device_is_one_mistake_among_the_others(checked):
    recipe, _ = checked()
    Path("prompts.jsonl").unlink()
    with pytest.raises(UserError) as refused:
        check_recipe(recipe, "abacus")
    told = str(refused.value).splitlines()
    assert told[0].startswith("--device abacus: is no device that anything is known of. There are ")
    assert told[1].startswith("prompts.jsonl: ")
    assert len(told) == 2


def test_without_a_name_it_is_this_machine(checked, monkeypatch):
    monkeypatch.setattr(devices, "this_device_name", lambda: "Abacus, 2 cores")
    _, lines = checked()
    title = lines.index("time on Abacus, 2 cores (unknown: it has not been measured)")
    remedy = "`python -m benchmarks.gpu --size laptop` in a checkout measures it"
    assert lines[title + 1].startswith(f"not estimated  {remedy}")
