"""`widedraft verify` from the command line: its three modes, every option, and coloured output."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import widedraft
from architectures.settings import flag_of
from eval import accuracy, large_targets, lossless, pair, side_by_side
from eval.decoding import cuda_graphs, sampling
from eval.decoding.sampling import Limits, Speculation
from eval.decoding.speculative import Emitted, decode_steps, speculative_decode
from eval.models import load_model
from eval.pair import prompts_of
from eval.side_by_side import spans, writers_of
from tests.eval.decoding.stand_ins import watched_maker

ROOT = Path(__file__).parents[2]
ACCURACY, SHOW = ("--accuracy", "multiplication"), ("--show",)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(f'{{"prompt": "say {word}"}}' for word in ("one", "two", "three")))
    return path


@pytest.fixture
def run(target_folder, noisy_folder, monkeypatch):
    """Run the command in float32 on the pair; returns what was decoded, by which models and opener, in order."""

    def run(*words, code=0):
        seen = []

        def watched(decode):
            def decoded(*args, **how):
                texts = decode(*args, **how)
                seen.append([len(args[-1]), how["opener"], [(text.token_ids, outcome(text)) for text in texts]])
                return texts

            return decoded

        def stepped(models, wanted, **how):
            seen.append([how["opener"], wanted.limits.max_new_tokens])
            for step in decode_steps(models, wanted, **how):
                seen[-1].append(step if isinstance(step, Emitted) else None)
                yield step

        def loaded(folder, **how):
            model = load_model(folder, **how)
            seen.append([str(folder), str(model.dtype)])
            return model

        with monkeypatch.context() as patch:
            for module in (lossless, accuracy):
                patch.setattr(module, "speculative_decode", watched(speculative_decode))
            patch.setattr(side_by_side, "decode_steps", stepped)
            patch.setattr(pair, "load_model", loaded)
            patch.setattr(large_targets, "load_model", loaded)
            given = ["verify", "--target", target_folder, "--draft", noisy_folder, *words]
            if code == 1:
                with pytest.raises(SystemExit) as stopped:
                    widedraft.main([*map(str, given)])
                assert stopped.value.code == 1
            else:
                assert widedraft.main([*map(str, given)]) == code
        return seen

    return run


def outcome(text):
    return [(one.proposed, one.accepted, one.rows) for one in text.steps]


def test_both_models_are_loaded_once_and_the_target_decides(run, questions, pair, target_folder, noisy_folder):
    seen = run("--prompts", questions, "--num-speculative-tokens", 3, "--max-new-tokens", 12, "--num-prompts", 2)
    assert [folder for folder, _ in seen[:2]] == [str(target_folder), str(noisy_folder)]
    prompts = [pair.rendered(prompt) for prompt in prompts_of([str(questions)], 2)]
    models = pair.target, pair.draft
    expected = speculative_decode(*models, prompts, limits=Limits(12, {2}), speculation=Speculation(3))
    num_prompts, _, texts = seen[2]
    assert num_prompts == 2
    assert texts == [(text.token_ids, outcome(text)) for text in expected]
    assert [len(each[2]) for each in seen[2:]] == [2, 2, 8, 8, 8]


USUAL = {
    "checks": ("--max-new-tokens", 12, "--num-prompts", 2, "--samples", 2),
    "accuracy": (*ACCURACY, "--max-new-tokens", 12, "--num-prompts", 2),
    "show": (*SHOW, "--prompts", "QUESTIONS", "--max-new-tokens", 12, "--temperature", 1),
}
DECODED: dict[str, list] = {}  # what each mode decodes if no option is given
EVERYWHERE = {"target": "NOISY", "draft": "TARGET", "num-speculative-tokens": 2, "seed": 4, "dtype": "bfloat16",
              "num-prompts": 1, "max-new-tokens": 5, "draft-p-min": 0.2,
              "capture": None}  # fmt: skip
SAMPLED = {"temperature": 0.3, "top-p": 0.3, "top-k": 2, "min-p": 0.5, "repetition-penalty": 3}
OPTIONS = {  # each with a value that must change what is decoded, or how; None for a flag
    "checks": {**EVERYWHERE, **SAMPLED, "prompts": "QUESTIONS", "samples": 1},
    "accuracy": {**EVERYWHERE, "batch-size": 1},
    "show": {**EVERYWHERE, **SAMPLED},
}


@pytest.mark.parametrize(("mode", "option"), [(mode, option) for mode, given in OPTIONS.items() for option in given])
def test_no_option_is_accepted_and_ignored(run, questions, target_folder, noisy_folder, monkeypatch, mode, option):
    monkeypatch.setattr(cuda_graphs, "CapturedSteps", watched_maker("captured").opener)  # it takes a GPU
    values = {"NOISY": noisy_folder, "TARGET": target_folder, "QUESTIONS": questions}
    usual = [values.get(word, word) for word in USUAL[mode]]
    value = OPTIONS[mode][option]
    given = () if value is None else (values.get(value, value),)
    if mode not in DECODED:
        DECODED[mode] = run(*usual)
    assert run(*usual, f"--{option}", *given) != DECODED[mode]


def test_arguments_of_the_chat_template_reach_every_prompt(questions):
    for words in (None, (str(questions),)):
        prompts = prompts_of(words, 3, {"enable_thinking": False})
        assert [prompt.chat_template_kwargs for prompt in prompts] == [{"enable_thinking": False}] * 3


def test_every_option_is_among_those_tried():
    known = {flag_of(name).removeprefix("--") for name in widedraft.COMMANDS["verify"].settings.model_fields}
    held = {"target-placement", "target-device-memory-gib", "target-bits", "chat-template-kwargs"}  # below
    assert known == set().union(*OPTIONS.values()) | held | {"accuracy", "show"}


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--target-bits", "4", "--target-placement", "layers"), "--target-placement"),
        (("--target-placement", "layers", "--capture"), "--capture"),
        ((*ACCURACY, *SHOW), "--show"),
        ((*ACCURACY, "--temperature", "2"), "--temperature"),
        ((*ACCURACY, *ACCURACY), "--accuracy"),
        (("--accuracy", "gsm8k=no.jsonl"), "no.jsonl"),
        ((*SHOW, "--samples", "2"), "--samples"),
        (("--batch-size", "2"), "--batch-size"),
        (("--temperature", "0"), "--temperature"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--max-new-tokens", "5000"), "max_position_embeddings"),
    ],
)
def test_a_mistake_names_its_flag_or_file(run, capsys, words, flag):
    run(*words, code=2)
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize("mode", [("--num-prompts", "2"), ACCURACY])
def test_a_changed_text_ends_in_exit_code_1(run, capsys, monkeypatch, mode):
    monkeypatch.setattr(sampling, "leading", lambda _kept_BK, counts_B: counts_B)  # whatever is proposed is accepted
    run(*mode, "--max-new-tokens", "8", code=1)
    assert "FAIL " in capsys.readouterr().out


def test_a_draft_of_another_tokenizer_is_refused(capsys, target_folder, make_checkpoint):
    other = make_checkpoint(seed=8, eos_token_id=2)
    config = json.loads((other / "tokenizer_config.json").read_text(encoding="utf-8")) | {"eos_token": "<|pad|>"}
    (other / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert widedraft.main(["verify", "--target", str(target_folder), "--draft", str(other)]) == 2
    assert "eos_token_id is 0" in capsys.readouterr().err


def test_prompts_are_read_from_a_file_or_built_in(questions):
    assert [prompt.messages[0]["content"] for prompt in prompts_of([str(questions)], 2)] == ["say one", "say two"]
    assert len(prompts_of([str(questions)], None)) == 3
    assert [prompt.source for prompt in prompts_of(None, 2)] == ["built-in:1", "built-in:2"]


HELD = {
    "whole": [],
    "layers": ["--target-placement", "layers"],
    "spread": ["--target-placement", "spread", "--target-device-memory-gib", "0.00045"],
}


@pytest.mark.parametrize("mode", [["--samples", "1"], list(ACCURACY)])
def test_findings_are_those_of_the_whole_target(mode, tiny_target, capsys):
    said = {}
    for placement, flags in HELD.items():
        pair = ["--target", str(tiny_target), "--draft", str(tiny_target)]
        assert widedraft.main(["verify", *pair, "--max-new-tokens", "6", "--num-prompts", "2", *mode, *flags]) == 0
        said[placement] = re.findall(r"^\w+|\d+ of \d+|equal \d+", capsys.readouterr().out, re.MULTILINE)
    assert said["layers"] == said["whole"] == said["spread"]


# Side by side


@pytest.mark.usefixtures("warm")
def test_typed_prompts_are_shown(target_folder, noisy_folder):
    words = ["verify", "--show", "--target", target_folder, "--draft", noisy_folder, "--max-new-tokens", "6"]
    done = subprocess.run(
        [sys.executable, ROOT / "widedraft.py", *words],
        input="first\nsecond\n\nnever\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall("^> (.*)$", done.stdout, re.MULTILINE) == ["first", "second"]


def test_every_token_has_its_writer():
    assert writers_of(Emitted(0, (5,)), drafts=False) == ["target"]
    corrected = Emitted(0, (5, 6, 7), accepted=2, rejected=9)
    assert writers_of(corrected, drafts=True) == ["accepted", "accepted", "corrected"]
    assert writers_of(Emitted(0, (5, 6, 7), accepted=2), drafts=True) == ["accepted", "accepted", "bonus"]


def test_pieces_make_up_the_text_and_no_character_is_torn(target_tokenizer):
    ids = target_tokenizer.encode("a é 漢", add_special_tokens=False)  # a byte a token
    writers = ["accepted", "corrected"] * 4
    pieces = spans(target_tokenizer, ids, writers[: len(ids)])
    assert "".join(text for text, _ in pieces) == "a é 漢"
    assert pieces[2] == ("é", "corrected")  # of two tokens, the last one's writer
