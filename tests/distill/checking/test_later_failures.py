"""What a stage would refuse hours later `widedraft check` refuses, and `widedraft run` before its first stage."""

import json
from importlib import util
from pathlib import Path

import pytest

import widedraft
from architectures.checkpoints.manifest import write_manifest
from distill.recipe.recipe import load_recipe
from distill.recipe.sections import monitoring
from distill.run.recorded import target_record
from distill.run.run import Run
from distill.run.stage_inputs import asked_inputs

RECIPE = """\
run_name: demo
run_dir: run
target: {path: TARGET}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2, max_seq_len: 100, max_new_tokens: 40}
distill: {global_train_batch_size: 4}
"""
GREEDY = "architecture={layers: 2, method: greedy, calibration: {CALIBRATION}}"


@pytest.fixture
def told(tmp_path, tiny_target, monkeypatch, capsys):
    """told("key=value", ...) -> exit code, what `check` prints, and its messages."""
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(RECIPE.replace("TARGET", str(tiny_target)), encoding="utf-8")
    write_prompts(12)

    def check(*words: str, command: str = "check") -> tuple[int, str, str]:
        code = widedraft.main([command, "demo.yaml", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return check


def write_prompts(count: int, *, different: int | None = None, file: str = "prompts.jsonl") -> None:
    rows = [json.dumps({"prompt": f"Count to {number % (different or count)}."}) for number in range(count)]
    Path(file).write_text("\n".join(rows), encoding="utf-8")


def greedy(calibration: str) -> str:
    return GREEDY.replace("CALIBRATION", calibration)


def finish_answers() -> None:
    """Record that the answers of this very recipe are there."""
    recipe = load_recipe("demo.yaml")
    split = {"prompts": 10, "answers": 10, "answer_tokens": 100}
    write_manifest(
        Run.of(recipe).data.path,
        stage="generate",
        inputs={"target": "any", **asked_inputs(recipe)},
        counts={"prompts": 12, "train": split, "eval": split},
        target=target_record(recipe.target),
    )


@pytest.fixture
def no_wandb(monkeypatch):
    monkeypatch.setattr(monitoring, "find_spec", lambda name: None if name == "wandb" else util.find_spec(name))


def test_a_logger_without_its_package(told, no_wandb):
    code, _, error = told("distill.loggers={wandb: {}, file: {}}")
    assert code == 2
    assert error == (
        "distill.loggers.wandb: the package wandb is not installed. Run `pip install 'widedraft[wandb]'`, or leave the "
        "logger out.\n"
    )


def test_a_training_that_is_done_needs_no_logger(told, no_wandb):
    finish_answers()
    recipe = load_recipe("demo.yaml")
    write_manifest(Run.of(recipe).draft.path, stage="export", inputs={}, finished=True)
    Path("run/recipe.yaml").write_text("# Resolved by widedraft", encoding="utf-8")
    assert told("distill.loggers={wandb: {}}")[0] == 0
    write_prompts(11)  # answers are written anew, and learned from
    assert told("distill.loggers={wandb: {}}")[0] == 2


def test_debug_needs_no_logger(told, no_wandb):
    assert told("distill.loggers={wandb: {}}", "--debug")[0] == 0


def test_calibration_text_that_is_too_short(told):
    Path("text.txt").write_text("Some words.\n\nAnd more.", encoding="utf-8")
    code, _, error = told(greedy("text: text.txt, tokens: 64, sequence_len: 16"))
    assert code == 2
    assert error.startswith("text.txt: the calibration text has 22 tokens, 64 are asked for (4 sequences of 16).")
    assert told(greedy("text: text.txt, tokens: 16, sequence_len: 16"))[0] == 0


def test_the_count_is_that_of_the_stage(told, tiny_target):
    """What `check` lets pass by a hair the stage can cut into sequences, and what it refuses the stage refuses."""
    from architectures.importance.calibration import calibration_sequences
    from architectures.importance.calibration_text import read_text
    from eval.models.loading import load_tokenizer

    Path("text.txt").write_text("Some words.\n\nAnd more.", encoding="utf-8")
    tokenizer = load_tokenizer(tiny_target)
    for tokens, code in ((22, 0), (23, 2)):
        assert told(greedy(f"text: text.txt, tokens: {tokens}, sequence_len: {tokens}"))[0] == code
    ids = calibration_sequences(read_text(Path("text.txt")), tokenizer, tokens=22, sequence_len=22)
    assert ids.shape == (1, 22)


def test_prompts_that_are_too_few_to_calibrate_on(told):
    code, _, error = told(greedy("tokens: 4096"))
    assert code == 2
    assert error.startswith("architecture.calibration: 12 prompts in the target's chat template have at most ")
    assert "4096 are asked for (16 sequences of 256)" in error


def test_what_cannot_be_counted_is_said_to_be_unchecked(told):
    known = ("target.path=meta-llama/Llama-2-7b-chat-hf", greedy("tokens: 1024"))
    assert "whether 12 prompts have the 1,024 tokens of architecture.calibration: the target's" in told(*known)[1]
    hub = "eval.tasks=[{name: org/set}]"
    assert "whether org/set can be had, and is enough: the scorecard opens it" in told(hub)[1]
    assert "whether org/set can be had, and is enough" in told("data.prompts=[{name: org/set}]")[1]


def test_scores_that_are_there_need_no_text(told):
    words = greedy("tokens: 4096")
    Path("run").mkdir()
    Path("run/recipe.yaml").write_text("# Resolved by widedraft", encoding="utf-8")
    write_manifest(Path("run/scores"), stage="scores", inputs={})
    assert told(words)[0] == 0


def test_prompts_that_ask_the_same_leave_none_to_train_on(told):
    write_prompts(12, different=2)
    code, _, error = told()
    assert code == 2
    assert error.startswith("data.num_eval_prompts=2 leaves none to train on: 10 of the 12 prompts ask what another")
    assert told("data.num_eval_prompts=1")[0] == 0


def test_answers_that_are_there_need_no_prompts(told):
    finish_answers()
    Path("run/recipe.yaml").write_text("# Resolved by widedraft", encoding="utf-8")
    assert "not checked" not in told()[1]


def test_fewer_prompts_than_are_scored_at_most_are_told(told):
    assert "2 prompts held out (data.num_eval_prompts), of the 64 that eval.num_prompts allows" in told()[1]


def test_a_list_of_ids_beyond_a_vocabulary_that_is_known_by_name(told):
    Path("ids.json").write_text("[1, 2, 32000]", encoding="utf-8")
    vocabulary = "architecture.vocabulary={from: ids.json}"
    code, _, error = told("target.path=meta-llama/Llama-2-7b-chat-hf", vocabulary)
    assert code == 2
    assert error == (
        "ids.json: holds 32000, which is beyond the vocabulary of meta-llama/Llama-2-7b-chat-hf, vocab_size 32000. "
        "Name a list that was made with its tokenizer.\n"
    )


def test_earlier_answers_with_ids_beyond_the_vocabulary(told, tiny_target):
    from eval.answers.shards import claim_shards, write_shard

    row = {"messages": [{"role": "user", "content": "a"}], "prompt_ids": [1], "answer_ids": [263], "answer": "b"}
    [path] = claim_shards(Path("earlier"), "train", {}, num_shards=1)
    for last, code in ((263, 0), (264, 2)):
        write_shard(path, [{"id": 0, "source": "p:1", **row, "answer_ids": [last], "finish_reason": "stop"}])
        found, _, error = told("data.answers_from=[earlier]")
        assert found == code
    assert error == (
        f"data.answers_from: {path}: token id 264 of answer 0 is beyond the vocabulary of {tiny_target}, vocab_size "
        "264. Leave the folder out, or answer its prompts again.\n"
    )


def test_a_text_with_a_token_that_the_model_has_no_row_for(told, tiny_target, tmp_path):
    import shutil

    shutil.copytree(tiny_target, tmp_path / "target")
    file = tmp_path / "target" / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 300, "content": "<new>"})
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    assert told("target.path=target")[0] == 0
    Path("prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b <new>"}\n{"prompt": "c"}', encoding="utf-8")
    code, _, error = told("target.path=target")
    assert code == 2
    assert error.startswith("prompts.jsonl:2: holds '<new>', token id 300, which is beyond the vocabulary of target")


def test_a_reference_made_for_shorter_texts(told, tiny_target):
    Path("short").mkdir()
    config = json.loads((tiny_target / "config.json").read_text(encoding="utf-8"))
    (Path("short") / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 50}), encoding="utf-8")
    selection = "distill.token_selection={reference: short}"
    code, _, error = told(selection)
    assert code == 2
    assert "short was made for texts of 50 tokens" in error


def test_a_run_refuses_all_of_it_before_its_first_stage(told, no_wandb):
    write_prompts(12, different=2)
    code, out, error = told("distill.loggers={wandb: {}}", greedy("tokens: 4096"), command="run")
    assert code == 2
    assert [line.split(" ")[0] for line in error.splitlines()] == [
        "distill.loggers.wandb:",
        "data.num_eval_prompts=2",
        "architecture.calibration:",
    ]
    assert "==" not in out
    assert not Path("run/init").exists()
    assert not Path("run/recipe.yaml").exists()
