"""transformers' assisted generation of tiny models, counted and certified for real."""

import shutil
from dataclasses import replace

import pytest

import widedraft
from eval.certificate.certify import Asked, certify_pair
from eval.certificate.replayed import NONE, OwnTokens, own_tokens, replay_run
from eval.engine_runs.record import read_certificates
from eval.models.loading import load_model

ASKED = Asked(
    draft="",
    target="",
    engine="transformers",
    prompts=None,
    num_prompts=24,
    max_new_tokens=64,
    lookahead=3,
    dtype="float32",
    python=None,
    files=None,
    threads=1,
    seed=17,
)


@pytest.fixture(scope="module")
def certified(target_folder, noisy_folder):
    certificate, _ = certify_pair(replace(ASKED, target=str(target_folder), draft=str(noisy_folder)))
    return certificate


def test_a_pair_that_is_right_is_certified(certified):
    assert [(one.law, one.holds) for one in certified.findings] == [
        ("enough", True),
        ("files", True),
        ("prompts", True),
        ("own draft", True),
        ("same text", True),
        ("counts", True),
    ]
    assert certified.causes == ()


def test_every_round_and_every_accepted_token_is_that_of_the_replay(certified):
    counts = [text.counted for text in certified.run.texts]
    by_position = tuple(map(sum, zip(*(one.by_position for one in counts), strict=True)))
    assert by_position == certified.replay.by_position
    assert 0 < certified.replay.accepted < certified.replay.proposed


@pytest.mark.parametrize(("engine", "alone"), [("transformers", 0), ("vllm", 1), ("llama.cpp", 1), ("openvino", 1)])
def test_rounds_write_every_token_but_the_one_that_the_prompt_gave(certified, noisy_folder, engine, alone):
    run = replace(certified.run, engine=engine)
    for text, counted in zip(run.texts, replay_run(load_model(noisy_folder, dtype="float32"), run), strict=True):
        assert counted.rounds + counted.accepted + alone == len(text.plain_ids)


def test_a_text_of_one_token_has_no_round_where_the_prompt_gave_it(certified, noisy_folder):
    one = replace(certified.run.texts[0], plain_ids=certified.run.texts[0].plain_ids[:1])
    [counted] = replay_run(
        load_model(noisy_folder, dtype="float32"), replace(certified.run, engine="vllm", texts=(one,))
    )
    assert (counted.rounds, counted.by_position) == (0, (0, 0, 0))


@pytest.mark.parametrize(
    ("name", "cause"), [("tokenizer.json", "tokenizer: "), ("chat_template.jinja", "chat template: ")]
)
def test_a_draft_of_another_target_fails_and_its_file_is_named(target_folder, noisy_folder, tmp_path, name, cause):
    wrong = tmp_path / "draft"
    shutil.copytree(noisy_folder, wrong)
    text = (wrong / name).read_text() if (wrong / name).exists() else ""
    (wrong / name).write_text(f"{text}\n")
    certificate, _ = certify_pair(replace(ASKED, target=str(target_folder), draft=str(wrong), max_new_tokens=8))
    assert [one.law for one in certificate.findings if not one.holds] == ["enough", "files"]  # short texts, for speed
    assert any(each.startswith(cause) for each in certificate.causes)


def test_the_command_writes_beside_the_draft_and_prints(target_folder, noisy_folder, tmp_path, capsys):
    words = ["certify", str(noisy_folder), "--target", str(target_folder), "--engine", "transformers"]
    assert widedraft.main([*words, "--out", str(tmp_path), "--num-threads", "1"]) == 0
    assert "serves this draft as scored" in capsys.readouterr().out
    assert read_certificates(tmp_path).engines["transformers"].holds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--engine", "transformers", "--num-prompts", "8"],
            "--num-prompts must be a whole number >= 24 and <= 1000000, got 8.",
        ),
        (["--engine", "vllm"], "--python must be given for this engine"),
        (["--engine", "vllm", "--target-gguf", "a.gguf"], "are for llama.cpp, not vllm."),
        (["--engine", "llama.cpp"], "--target-gguf: nothing is no file."),
        (["--engine", "llama.cpp", "--target-ir", "a"], "--target-ir and --draft-ir are for openvino, not llama.cpp."),
        (["--engine", "openvino", "--target-ir", "a"], "--target-ir: a is no folder with openvino_model.xml."),
        (["--engine", "vllm", "--python", "no-such-python"], "--python: no-such-python could not be run"),
    ],
)
def test_what_cannot_be_certified_is_refused(target_folder, noisy_folder, words, message, capsys):
    assert widedraft.main(["certify", str(noisy_folder), "--target", str(target_folder), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_small_head_is_sent_to_convert(target_folder, small_head_folder, capsys):
    words = ["certify", str(small_head_folder), "--target", str(target_folder), "--engine", "transformers"]
    assert widedraft.main(words) == 2
    assert "widedraft convert" in capsys.readouterr().err


def test_a_tokenizer_of_as_many_tokens_is_no_own_one(target_folder, noisy_folder):
    assert own_tokens(target_folder, noisy_folder) is None


def test_a_token_that_the_draft_has_not_is_read_as_the_unknown_one_and_never_kept():
    own = OwnTokens({5: 0}, unknown=1)
    assert (own.read([5, 6]), own.wanted([5, 6])) == ([0, 1], [0, NONE])
