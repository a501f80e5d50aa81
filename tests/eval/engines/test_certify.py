"""transformers' assisted generation of tiny models, counted and certified for real."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import widedraft
from architectures.compatibility import ENGINES, LABELS
from architectures.manifest import write_manifest
from eval.engines.certificate import read_certificates
from eval.engines.certify import CertifySettings, make_certificate
from eval.engines.runs import NONE, OwnTokens, own_tokens, replay_run
from eval.models import load_model
from tests.eval.conftest import with_noise

LAWS = ["enough", "files", "prompts", "own draft", "same text", "counts"]


@pytest.fixture(scope="session")
def pair(make_checkpoint, tmp_path_factory):
    """Folders of a target of one layer, some of whose texts end early, and of its noisy copy."""
    target = make_checkpoint(seed=1, pad_token_id=2, num_hidden_layers=1)
    settings = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [2, *range(100, 264, 18)]}))
    return target, with_noise(target, tmp_path_factory.mktemp("noisy"), scale=0.01)


@pytest.fixture(scope="session")
def certified(pair, tmp_path_factory):
    """What the command writes of the pair; made once, for it decodes 24 prompts in three ways."""
    out = tmp_path_factory.mktemp("certified")
    words = ["certify", str(pair[1]), "--target", str(pair[0]), "--engine", "transformers"]
    assert widedraft.main([*words, "--out", str(out), "--num-threads", "1"]) == 0
    return read_certificates(out).engines["transformers"]


@pytest.fixture(scope="session")
def draft(pair):
    return load_model(pair[1], dtype="float32", device="cpu")


def test_a_pair_that_is_right_is_certified(certified):
    assert certified.holds
    assert [(one.law, one.holds) for one in certified.findings] == [(law, True) for law in LAWS]


def test_every_step_and_every_accepted_token_is_that_of_the_replay(certified):
    counts = [text.counted for text in certified.run.texts]
    by_position = tuple(map(sum, zip(*(one.by_position for one in counts), strict=True)))
    assert by_position == certified.replay.by_position
    assert 0 < certified.replay.accepted < certified.replay.proposed


@pytest.mark.parametrize(("engine", "alone"), [("transformers", 0), ("vllm", 1), ("llama.cpp", 1), ("openvino", 1)])
def test_steps_write_every_token_but_the_one_that_the_prompt_gave(certified, draft, engine, alone):
    run = replace(certified.run, engine=engine)
    for text, counted in zip(run.texts, replay_run(draft, run), strict=True):
        assert counted.steps + counted.accepted + alone == len(text.plain_ids)


def test_a_text_of_one_token_has_no_step_where_the_prompt_gave_it(certified, draft):
    one = replace(certified.run.texts[0], plain_ids=certified.run.texts[0].plain_ids[:1])
    [counted] = replay_run(draft, replace(certified.run, engine="vllm", texts=(one,)))
    assert (counted.steps, counted.by_position) == (0, (0, 0, 0))


def test_a_draft_of_another_target_fails_and_its_files_are_named(pair, tmp_path, capsys):
    target, wrong = pair[0], tmp_path / "draft"
    shutil.copytree(pair[1], wrong)
    for name in ("tokenizer.json", "chat_template.jinja"):
        text = (wrong / name).read_text() if (wrong / name).exists() else ""
        (wrong / name).write_text(f"{text}\n")
    settings = CertifySettings(draft=str(wrong), target=str(target), engine="transformers", max_new_tokens=2)
    certificate = make_certificate(settings, target, wrong, threads=1)
    assert "--max-new-tokens" in capsys.readouterr().err  # too few
    failed = {one.law: one.detail for one in certificate.findings if not one.holds}
    assert {"enough", "files"} <= set(failed)  # of two tokens each, for speed
    assert failed["files"].endswith("tokenizer, chat template")


def test_a_draft_is_measured_with_the_template_arguments_of_its_training(pair, tmp_path):
    folders = [Path(shutil.copytree(each, tmp_path / each.name)) for each in pair]
    for folder in folders:
        template = (folder / "chat_template.jinja").read_text()
        (folder / "chat_template.jinja").write_text(template + "{{ '!' * mark|default(0) }}")
    write_manifest(folders[1], stage="export", inputs={}, chat_template_kwargs=[{"mark": 5}])

    def prompt(**changes):
        settings = CertifySettings(
            draft=str(folders[1]), target=str(folders[0]), engine="transformers", max_new_tokens=2, **changes
        )
        run = make_certificate(settings, *folders, threads=1).run
        return run.texts[0].prompt_ids, "'mark': 5" in run.command

    (trained, is_named), (other, is_named_too) = prompt(), prompt(chat_template_kwargs="{}")
    assert (len(trained) - len(other), is_named, is_named_too) == (5, True, False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--engine", "transformers", "--num-prompts", "8"], "--num-prompts"),
        ([], "--engine"),
        (["--engine", "sglang"], "--engine"),
        (["--engine", "transformers", "--tensor-parallel", "2"], "--tensor-parallel"),
        (["--engine", "transformers", "--dry-run", "--num-prompts", "24"], "--num-prompts"),
        (["--engine", "openvino", "--as-served"], "--engine"),
        (["--engine", "transformers", "--max-model-len", "512"], "--max-model-len"),
        (["--engine", "vllm", "--as-served", "--dry-run"], "--as-served"),
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
    assert "export" in capsys.readouterr().err


def test_a_dry_run_prints_the_command_of_every_engine(target_folder, noisy_folder, small_head_folder, capsys):
    words = ["--target", str(target_folder), "--dry-run", "--num-speculative-tokens", "5"]
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
    assert states_of(printed) == Counter({"ok": len(ENGINES)})
    with pytest.raises(SystemExit) as stopped:
        widedraft.main(["certify", str(small_head_folder), *words, "--engine", "vllm"])
    assert stopped.value.code == 1
    assert "--form own-tokenizer" in capsys.readouterr().out


def test_a_quantised_draft_is_not_checked(target_folder, noisy_folder, tmp_path, capsys):
    draft = Path(shutil.copytree(noisy_folder, tmp_path / "draft"))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    assert widedraft.main(["certify", str(draft), "--target", str(target_folder), "--dry-run"]) == 0
    assert states_of(capsys.readouterr().out) == Counter({"not checked": len(ENGINES)})


def states_of(page):
    """How often each state is printed for an engine."""
    heads = [line.partition(": ") for line in page.splitlines()]
    return Counter(state for engine, _, state in heads if engine in LABELS.values())


def test_a_tokenizer_of_as_many_tokens_is_no_own_one(target_folder, noisy_folder):
    assert own_tokens(target_folder, noisy_folder) is None


def test_a_token_that_the_draft_has_not_is_read_as_the_unknown_one_and_never_kept():
    own = OwnTokens({5: 0}, unknown=1)
    assert (own.read([5, 6]), own.expected([5, 6])) == ([0, 1], [0, NONE])
