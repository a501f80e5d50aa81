"""transformers' assisted generation of tiny models, counted and certified for real."""

import shutil
from dataclasses import replace

import pytest

import widedraft
from eval.engines.certificate import read_certificates
from eval.engines.certify import CertifySettings, make_certificate
from eval.engines.runs import NONE, OwnTokens, own_tokens, replay_run
from eval.models import load_model


def certify_pair(target, draft, **changed):
    settings = CertifySettings(draft=str(draft), target=str(target), engine="transformers", **changed)
    return make_certificate(settings, target, draft, threads=1)


@pytest.fixture(scope="module")
def certified(target_folder, noisy_folder):
    return certify_pair(target_folder, noisy_folder)


def test_a_pair_that_is_right_is_certified(certified):
    assert [(one.law, one.holds) for one in certified.findings] == [
        ("enough", True),
        ("files", True),
        ("prompts", True),
        ("own draft", True),
        ("same text", True),
        ("counts", True),
    ]


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


@pytest.mark.parametrize(("name", "kind"), [("tokenizer.json", "tokenizer"), ("chat_template.jinja", "chat template")])
def test_a_draft_of_another_target_fails_and_its_file_is_named(target_folder, noisy_folder, tmp_path, name, kind):
    wrong = tmp_path / "draft"
    shutil.copytree(noisy_folder, wrong)
    text = (wrong / name).read_text() if (wrong / name).exists() else ""
    (wrong / name).write_text(f"{text}\n")
    certificate = certify_pair(target_folder, wrong, max_new_tokens=8)
    assert [one.law for one in certificate.findings if not one.holds] == ["enough", "files"]  # short texts, for speed
    assert certificate.findings[1].detail.endswith(kind)


def test_the_command_writes_beside_the_draft_and_prints(target_folder, noisy_folder, tmp_path, capsys):
    words = ["certify", str(noisy_folder), "--target", str(target_folder), "--engine", "transformers"]
    assert widedraft.main([*words, "--out", str(tmp_path), "--num-threads", "1"]) == 0
    assert "serves this draft as scored" in capsys.readouterr().out
    assert read_certificates(tmp_path).engines["transformers"].holds


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--engine", "transformers", "--num-prompts", "8"], "--num-prompts"),
        ([], "--engine"),
        (["--engine", "sglang"], "--engine"),
        (["--engine", "transformers", "--tensor-parallel", "2"], "--tensor-parallel"),
        (["--engine", "transformers", "--dry-run", "--num-prompts", "24"], "--num-prompts"),
        (["--engine", "vllm"], "--python"),
        (["--engine", "vllm", "--python", "no-such-python", "--target-file", "a.gguf"], "--target-file"),
        (["--engine", "llama.cpp", "--python", "no-such-python"], "--target-file"),
        (["--engine", "openvino", "--python", "no-such-python", "--target-file", "a"], "--target-file"),
        (["--engine", "vllm", "--python", "no-such-python"], "--python: no-such-python"),
    ],
)
def test_what_cannot_be_certified_names_its_flag(target_folder, noisy_folder, words, named, capsys):
    assert widedraft.main(["certify", str(noisy_folder), "--target", str(target_folder), *words]) == 2
    assert named in capsys.readouterr().err


def test_a_reduced_vocabulary_is_exported_in_a_form_first(target_folder, small_head_folder, capsys):
    words = ["certify", str(small_head_folder), "--target", str(target_folder), "--engine", "transformers"]
    assert widedraft.main(words) == 2
    assert "widedraft export" in capsys.readouterr().err


def test_a_dry_run_prints_the_command_of_every_engine(target_folder, noisy_folder, small_head_folder, capsys):
    words = ["--target", str(target_folder), "--dry-run", "--lookahead", "5"]
    assert widedraft.main(["certify", str(noisy_folder), *words]) == 0
    printed = capsys.readouterr().out
    for part in (
        '"num_speculative_tokens": 5',
        "STANDALONE",
        "--spec-draft-n-max 5",
        "assistant_model=draft",
        "LLMPipe",
    ):
        assert part in printed
    with pytest.raises(SystemExit) as stopped:
        widedraft.main(["certify", str(small_head_folder), *words, "--engine", "vllm"])
    assert stopped.value.code == 1
    assert "--form whole or --form own-tokenizer" in capsys.readouterr().out


def test_a_tokenizer_of_as_many_tokens_is_no_own_one(target_folder, noisy_folder):
    assert own_tokens(target_folder, noisy_folder) is None


def test_a_token_that_the_draft_has_not_is_read_as_the_unknown_one_and_never_kept():
    own = OwnTokens({5: 0}, unknown=1)
    assert (own.read([5, 6]), own.wanted([5, 6])) == ([0, 1], [0, NONE])
