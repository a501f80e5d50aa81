"""Answers alone and with a draft: a sound draft changes none, and a fault in the loop is named."""

import json
import re
from dataclasses import replace

import pytest

import widedraft
from eval.acceptance.replay import answer_logits
from eval.checks.exams import open_exam
from eval.checks.loaded_pair import load_pair
from eval.checks.near_ties import Parting, find_parting, tie_allowance
from eval.checks.quality import Asking, Outcome, check_answers, compare_answers, favour_p, share_words
from eval.checks.verify import LEAST_P
from eval.decoding import rules
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Decoded, Limits
from eval.models.loading import load_model
from eval.rounds.round_trace import read_round_trace

ASKING = Asking(max_new_tokens=12, batch_size=3)


@pytest.fixture(scope="module")
def pair(target_folder, noisy_folder):
    return load_pair(str(target_folder), str(noisy_folder), dtype="float32")


@pytest.fixture(scope="module")
def products():
    return open_exam("multiplication", 5, seed=2)


def right_in(exam, texts):
    """The exam whose every answer is the number that a text gives."""
    questions = [
        replace(question, answer=exam.read(text)) for question, text in zip(exam.questions, texts, strict=True)
    ]
    return replace(exam, questions=questions)


def test_a_sound_draft_changes_no_answer(pair, products):
    finding = check_answers(pair, products, ASKING)
    assert finding.holds
    assert finding.detail.startswith(
        "alone 0 of 5 right, 0.000 [0.000, 0.434]; with the draft 0 of 5 right, 0.000 [0.000, 0.434]; right only alone "
        "0, only with the draft 0; 5 of 5 texts are equal, 0 part at a near tie, 0 elsewhere; "
    )
    assert " proposed tokens kept" in finding.detail
    assert [len(one.rounds) > 0 for one in finding.run.decoded] == [True] * 5
    prompts = [pair.rendered(question.prompt) for question in products.questions]
    plain = plain_decode(pair.target, prompts, limits=Limits(12, pair.stop_ids))
    assert [one.token_ids for one in finding.run.decoded] == [one.token_ids for one in plain]
    num_cut = sum(not one.stopped for one in plain)
    assert f"; {num_cut} of 5 are cut at 12 tokens; " in finding.detail


def test_the_length_is_the_exams_where_none_is_asked_for(pair, products):
    assert check_answers(pair, products, Asking()).run.max_new_tokens == products.max_new_tokens


def test_right_answers_are_counted_on_either_side(pair, products):
    """Three are right alone, two with the draft, one of them not alone."""
    exam = right_in(products, ["1", "2", "3", "4", "5"])
    prompts = [pair.rendered(question.prompt) for question in exam.questions]

    def texts(*words):
        ids = [pair.tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
        return [Decoded(tuple(token_ids), (), 0.0, 0.0) for token_ids in ids]

    plain, drafted = texts("1", "2", "3", "no", "no"), texts("1", "no", "no", "4", "no")
    outcome = compare_answers(pair, exam, prompts, plain, drafted, width=5)
    assert outcome.alone == [True, True, True, False, False]
    assert outcome.drafted == [True, False, False, True, False]
    assert outcome.equal == [True, False, False, False, True]
    assert outcome.words().startswith(
        "alone 3 of 5 right, 0.600 [0.231, 0.882]; with the draft 2 of 5 right, 0.400 [0.118, 0.769]; right only alone "
        "2, only with the draft 1; 2 of 5 texts are equal, "
    )


def keep_everything(patch):
    """Whatever the draft proposes is kept, so that its words stand in the target's text."""
    patch(rules, "leading", lambda _kept_BK, counts_B: counts_B)


def test_a_draft_that_writes_the_text_itself_fails(monkeypatch, pair, products):
    keep_everything(monkeypatch.setattr)
    finding = check_answers(pair, products, ASKING)
    assert not finding.holds
    assert ", 0 part at a near tie, 0 elsewhere" not in finding.detail


def test_batches_change_nothing(pair, products):
    whole = check_answers(pair, products, replace(ASKING, batch_size=5)).run.decoded
    for size in (1, 2):
        parted = check_answers(pair, products, replace(ASKING, batch_size=size)).run.decoded
        assert [one.token_ids for one in parted] == [one.token_ids for one in whole]
        assert {one.rows for text in parted for one in text.rounds} <= set(range(1, size + 1))


@pytest.mark.parametrize(
    ("equal", "tied", "holds"),
    [
        ((True, True), (False, False), True),
        ((True, False), (False, True), True),
        ((False, True), (False, False), False),
    ],
)
def test_the_law_is_that_texts_are_equal_or_part_at_a_tie(equal, tied, holds):
    right = (False, False)
    assert Outcome(right, right, equal, tied).holds is holds
    assert Outcome((True, True), (False, True), equal, tied).holds is holds  # what is right does not matter


def test_texts_part_at_a_tie_only_where_the_target_nearly_ties(target, prompts):
    prompt = prompts[3]
    [plain] = plain_decode(target, [prompt], limits=Limits(6))
    ids = plain.token_ids
    second = int(answer_logits(target, prompt, ids)[2].topk(2).indices[1])
    other = (*ids[:2], second, *ids[3:])
    for one, two, side in ((ids, other, 1), (other, ids, 0)):
        parting = find_parting(target, prompt, one, two, width=3)
        assert not parting.is_tie(tie_allowance([parting.noise]))
        assert parting.leaves(side)
        assert not parting.leaves(1 - side)
    assert find_parting(target, prompt, ids, ids[:3], width=3) is None  # one is the beginning of the other


def test_half_precision_ties_are_ties(target_folder, prompts):
    """Two tokens of one logit: rounding to bfloat16 makes some. Of more logits apart than readings differ none is."""
    model = load_model(target_folder, dtype="bfloat16", device="cpu")
    found = {True: 0, False: 0}
    for prompt in prompts[1:5]:
        [plain] = plain_decode(model, [prompt], limits=Limits(12))
        ids = plain.token_ids
        logits_TV = answer_logits(model, prompt, ids)
        for place, row_V in enumerate(logits_TV):
            best, second = row_V.topk(2).indices.tolist()
            if ids[place] != best:
                continue
            parting = find_parting(model, prompt, ids, (*ids[:place], second), width=3)
            gap = float(row_V[best] - row_V[second])
            assert parting.short == (0.0, gap)
            assert parting.is_tie(gap) is (gap <= parting.tolerance)
            assert not parting.is_tie(gap - 1e-6)
            found[gap <= tie_allowance([parting.noise])] += 1
    assert found[True]
    assert found[False]


def test_a_draft_that_always_takes_the_second_of_two_near_ties_is_found():
    """Each text parts at a near tie, as honest ones do; but honest ones leave the argmax alone as often."""
    only_drafted, only_alone = Parting((0.0, 0.1), 1.0, 0.2), Parting((0.1, 0.0), 1.0, 0.2)
    neither = Parting((0.1, 0.1), 1.0, 0.2)
    assert favour_p([]) == favour_p([neither] * 50) == 1.0
    assert favour_p([only_drafted] * 9) > LEAST_P > favour_p([only_drafted] * 10)
    assert favour_p([only_drafted] * 10 + [only_alone] * 10) > 0.5
    right, texts = (False,), {"equal": (False,), "tied": (True,)}
    assert Outcome(right, right, **texts, p_value=favour_p([only_drafted] * 9)).holds
    assert not Outcome(right, right, **texts, p_value=favour_p([only_drafted] * 10)).holds


def wilson(count, total, z=1.959963984540054):
    """The interval by its formula: the p at which |p - count/total| is z standard errors."""
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


@pytest.mark.parametrize(("count", "total"), [(0, 4), (4, 4), (284, 1000), (1, 1)])
def test_intervals_are_wilsons(count, total):
    low, high = wilson(count, total)
    right = [True] * count + [False] * (total - count)
    assert share_words(right) == f"{count} of {total} right, {count / total:.3f} [{low:.3f}, {high:.3f}]"


# From the command line


@pytest.fixture
def command(target_folder, noisy_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"say {word}", "answer": "#### 7"} for word in ("one", "two", "three")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*words):
        pair = ["--target", str(target_folder), "--draft", str(noisy_folder)]
        return widedraft.main(["quality", *pair, "--max-new-tokens", "6", *words])

    return run


def test_both_exams_from_the_command_line(command, capsys, tmp_path):
    words = [
        "--checks",
        "gsm8k=rows.jsonl",
        "--checks",
        "multiplication",
        "--num-prompts",
        "4",
        "--rounds",
        "rounds.jsonl",
    ]
    assert command(*words) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("holds  gsm8k: alone 0 of 3 right, ")
    assert told[1].startswith("holds  multiplication: alone 0 of 4 right, ")
    assert told[-1].endswith(" as they are: yes")
    trace = read_round_trace(tmp_path / "rounds.jsonl")
    assert [(run.label, run.texts) for run in trace.header.runs] == [("gsm8k", 3), ("multiplication", 4)]
    by_run = {label: {one.prompt for one in trace.rounds_of(label)} for label in ("gsm8k", "multiplication")}
    assert by_run["gsm8k"] == {f"rows.jsonl:{number}" for number in (1, 2, 3)}
    assert by_run["multiplication"] == {f"multiplication:{number}" for number in (1, 2, 3, 4)}


def test_a_changed_text_ends_in_exit_code_1(command, capsys, monkeypatch):
    keep_everything(monkeypatch.setattr)
    with pytest.raises(SystemExit) as stopped:
        command("--checks", "multiplication", "--num-prompts", "4")
    assert stopped.value.code == 1
    told = capsys.readouterr().out
    assert told.startswith("FAILS  multiplication: ")
    assert told.endswith(" as they are: NO\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--checks", "gsm8k=rows.jsonl", "--seed", "3"],
            "--seed must be left out: it draws the numbers of multiplicatio",
        ),
        (
            ["--checks", "gsm8k", "--checks", "gsm8k=rows.jsonl"],
            "--checks must name each kind once, got gsm8k and gsm8k=r",
        ),
        (["--checks", "sums"], "--checks sums: must be gsm8k"),
        (["--checks", "gsm8k=no.jsonl"], "no.jsonl: cannot be read"),
        (
            ["--checks", "multiplication", "--num-prompts", "0"],
            "--num-prompts must be a whole number >= 1 and <= 1000000, got 0.",
        ),
        (
            ["--checks", "multiplication", "--batch-size", "0"],
            "--batch-size must be a whole number >= 1 and <= 1000000, got 0.",
        ),
        (
            ["--checks", "multiplication", "--max-new-tokens", "0"],
            "--max-new-tokens must be a whole number >= 1 and <= 1000000, got 0.",
        ),
        (["--checks", "multiplication", "--rounds", "."], "--rounds .: is a folder."),
    ],
)
def test_what_quality_refuses(command, capsys, words, message):
    assert command(*words) == 2
    assert capsys.readouterr().err.startswith(message)


def test_texts_that_leave_the_models_positions_are_refused(command, capsys):
    assert command("--checks", "multiplication", "--max-new-tokens", "2100") == 2
    assert re.search(r"max_position_embeddings is 2048, .* Lower max_new_tokens, or", capsys.readouterr().err)
