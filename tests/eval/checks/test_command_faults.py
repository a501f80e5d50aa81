"""Faults found in the command lines of other tools, each with a test that its name tells; docs/faults.md lists all."""

import pytest

import widedraft
from architectures.settings.flags import flag_of
from architectures.settings.holding import PLACING
from eval.checks import loaded_pair as opened
from eval.decoding.speculative import speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.models.loading import load_model
from eval.prompts import render_prompt
from eval.rounds.round_trace import read_round_trace
from eval.steps import captured, compiled
from eval.targets import loading as targets
from tests.eval.decoding.stand_ins import watched_maker


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("asked") / "questions.jsonl"
    path.write_text("\n".join(f'{{"prompt": "say {word}"}}' for word in ("one", "two", "three")))
    return path


@pytest.fixture(scope="module")
def from_the_command_line(target_folder, noisy_folder, tmp_path_factory):
    """Run verify, quality or compare on the pair in float32; returns the trace, and which folders were loaded."""

    def command(name, *words):
        path, loaded = tmp_path_factory.mktemp(name) / "rounds.jsonl", []

        def load(folder, **settings):
            loaded.append(folder)
            return load_model(folder, **settings)

        given = ["--target", str(target_folder), "--draft", str(noisy_folder), "--dtype", "float32"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opened, "load_model", load)  # of drafts
            patch.setattr(targets, "load_model", load)
            assert widedraft.main([name, *given, "--rounds", str(path), *map(str, words)]) == 0
        return read_round_trace(path), loaded

    return command


@pytest.fixture(scope="module")
def compared(from_the_command_line, questions):
    return from_the_command_line("compare", "--prompts", questions, "--lookahead", 3, "--max-new-tokens", 12)


def test_the_target_is_not_replaced_by_the_draft_after_the_first_prompt(
    compared, target, noisy_draft, target_tokenizer, questions
):
    """By the draft in the target's place everything would be kept."""
    trace, _ = compared
    asked = opened.prompts_of([str(questions)], count=None)
    ids = [render_prompt(target_tokenizer, prompt.messages) for prompt in asked]
    expected = speculative_decode(target, noisy_draft, ids, limits=Limits(12, {2}), speculation=Speculation(3))
    for prompt, text in zip(asked, expected, strict=True):
        found = [one for one in trace.rounds if one.prompt == prompt.source]
        assert [(one.proposed, one.accepted) for one in found] == [(one.proposed, one.accepted) for one in text.rounds]
        assert any(one.accepted < one.proposed for one in found)


def test_both_models_are_loaded_once_and_not_for_every_prompt(compared, target_folder, noisy_folder):
    assert compared[1] == [target_folder, noisy_folder]


def test_neither_the_first_nor_the_last_prompt_is_skipped(compared, questions):
    assert list(dict.fromkeys(one.prompt for one in compared[0].rounds)) == [f"{questions}:{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize("count", [1, 2])
def test_as_many_prompts_as_asked_for_are_decoded_and_none_more(from_the_command_line, questions, count):
    words = ("--prompts", questions, "--num-prompts", count, "--max-new-tokens", 4, "--samples", 1)
    trace, _ = from_the_command_line("verify", *words)
    assert {run.texts for run in trace.header.runs} == {count}
    assert {one.prompt for one in trace.rounds} == {f"{questions}:{n + 1}" for n in range(count)}


@pytest.mark.parametrize("lookahead", [1, 5])
@pytest.mark.parametrize("command", ["verify", "compare"])
def test_the_lookahead_flag_is_really_passed_on(from_the_command_line, questions, command, lookahead):
    words = ("--prompts", questions, "--max-new-tokens", 8)
    trace, _ = from_the_command_line(command, *words, "--lookahead", lookahead)
    for run in trace.header.runs:
        assert max(one.proposed for one in trace.rounds_of(run.label)) == lookahead
        assert {one.lookahead for one in trace.rounds_of(run.label)} == {lookahead}


OPTIONS = {  # each with a value that must change what is decoded, or how; None for a flag
    "verify": {
        "target": "NOISY",
        "draft": "TARGET",
        "prompts": "QUESTIONS",
        "lookahead": 2,
        "seed": 4,
        "dtype": "bfloat16",
        "num-prompts": 1,
        "max-new-tokens": 5,
        "temperature": 0.3,
        "samples": 1,
        "top-p": 0.3,
        "top-k": 2,
        "min-p": 0.5,
        "repetition-penalty": 3,
        "adaptive": None,
        "least-confidence": 0.2,
        "least-chance": 0.1,
        "compile": None,
        "capture": None,
    },
    "quality": {
        "target": "NOISY",
        "draft": "TARGET",
        "checks": "EXAM",
        "lookahead": 2,
        "seed": 4,
        "dtype": "bfloat16",
        "num-prompts": 1,
        "max-new-tokens": 5,
        "batch-size": 1,
        "adaptive": None,
        "least-confidence": 0.2,
        "least-chance": 0.1,
        "compile": None,
        "capture": None,
    },
    "compare": {
        "target": "NOISY",
        "draft": "TARGET",
        "prompts": "OTHER QUESTIONS",
        "lookahead": 2,
        "seed": 4,
        "dtype": "bfloat16",
        "max-new-tokens": 5,
        "temperature": 0.3,
        "num-threads": 2,
        "top-p": 0.3,
        "top-k": 2,
        "min-p": 0.5,
        "repetition-penalty": 3,
        "adaptive": None,
        "least-confidence": 0.2,
        "least-chance": 0.1,
        "compile": None,
        "capture": None,
    },
}
USUAL = {
    "verify": ("--max-new-tokens", 24, "--num-prompts", 2, "--samples", 2),
    "quality": ("--checks", "multiplication", "--max-new-tokens", 24, "--num-prompts", 2),
    "compare": ("--max-new-tokens", 24, "--temperature", 1, "--num-threads", 1),
}


def what_was_decoded(trace):
    """Everything of a trace that its options decide: no times, and nothing that only repeats an option."""
    rounds = [
        (one.prompt, one.sample, one.start, one.proposed, one.accepted, one.stopped, one.rows) for one in trace.rounds
    ]
    return rounds, trace.header.target.dtype, trace.header.threads, trace.header.compiled, trace.header.captured


@pytest.fixture(scope="module")
def usual(from_the_command_line, questions):
    """What each command decodes when one of its options is left as it is."""
    found = {}
    for name in OPTIONS:
        words = ("--prompts", questions) if name == "compare" else ()
        found[name] = what_was_decoded(from_the_command_line(name, *USUAL[name], *words)[0])
    return found


@pytest.mark.parametrize(("command", "option"), [(name, option) for name, given in OPTIONS.items() for option in given])
def test_no_option_is_accepted_and_ignored(
    from_the_command_line, usual, questions, target_folder, noisy_folder, tmp_path, monkeypatch, command, option
):
    monkeypatch.setattr(compiled, "CompiledSteps", watched_maker("compiled", monkeypatch).opener)  # it takes minutes
    monkeypatch.setattr(captured, "CapturedSteps", watched_maker("captured", monkeypatch).opener)  # it takes a GPU
    (tmp_path / "other.jsonl").write_text('{"prompt": "another question"}\n')
    (tmp_path / "exam.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    values = {
        "NOISY": noisy_folder,
        "TARGET": target_folder,
        "QUESTIONS": questions,
        "OTHER QUESTIONS": tmp_path / "other.jsonl",
        "EXAM": f"gsm8k={tmp_path / 'exam.jsonl'}",
    }
    value = OPTIONS[command][option]
    prompts = ("--prompts", questions) if command == "compare" else ()
    given = () if value is None else (values.get(value, value),)
    words = (*USUAL[command], *prompts, f"--{option}", *given)
    assert what_was_decoded(from_the_command_line(command, *words)[0]) != usual[command]


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_among_those_tried(command):
    known = {name.replace("_", "-") for name in widedraft.STAGES[command].settings.model_fields}
    elsewhere = {"propose-doubted"}  # below
    elsewhere |= {flag_of(name).removeprefix("--") for name in (*PLACING, "target_bits")}
    elsewhere |= {"beside"} if command == "verify" else set()  # tests/eval/policies/test_policy_file.py
    assert known == {*OPTIONS[command], *elsewhere, "rounds", "rehash"}  # what is written, and how files are known


@pytest.mark.parametrize("command", OPTIONS)
def test_the_token_of_doubt_is_proposed_where_that_is_asked_for(from_the_command_line, questions, command):
    prompts = ("--prompts", questions) if command == "compare" else ()
    words = (*USUAL[command], *prompts, "--least-confidence", 0.2)
    before, behind = (
        [one.proposed for one in from_the_command_line(command, *words, *more)[0].rounds]
        for more in ((), ("--propose-doubted",))
    )
    assert 0 in before
    assert behind.count(1) > before.count(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--adaptive", "--least-chance", "0.2"), "--adaptive learns how long rounds may be from whole ones"),
        (("--propose-doubted",), "Give --least-confidence or --least-chance too"),
    ],
)
@pytest.mark.parametrize("command", [*OPTIONS, "speed"])
def test_rounds_end_in_one_way(command, words, message, capsys):
    given = ["--target", "a", "--drafts" if command == "speed" else "--draft", "b"]
    given += ["--checks", "multiplication"] if command == "quality" else []
    assert widedraft.main([command, *given, *words]) == 2
    assert message in capsys.readouterr().err
