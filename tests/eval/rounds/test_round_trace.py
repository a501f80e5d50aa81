"""Traces of rounds: what is read is what was decoded, and a line that cannot be is refused by its number."""

import json
from dataclasses import asdict, replace

import pytest

from architectures.errors import UserError
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import speculative_decode
from eval.decoding.texts import Decoded, Limits, Round, Seeds, Speculation
from eval.rounds.round_trace import ModelIdentity, Run, read_round_trace, traced_rounds, write_round_trace

NAMES = ["p.jsonl:1", 'p "two"\u2028.jsonl:2']  # a line of JSON may hold what ends a line elsewhere
TARGET, DRAFT = ModelIdentity("t", "1" * 64, "float32"), ModelIdentity("d", "2" * 64, "bfloat16")
ENDED = Decoded(
    (5, 6, 7, 2), (Round(0, 3, 3, 1, 2, 0.1, 0.25), Round(2, 3, 3, 1, 2, 0.3, 1e-9)), 0, 0, "rejection", True
)
CUT = replace(ENDED, rounds=(Round(0, 3, 3, 3, 2, 0.1, 0.25),), stopped=False)
RUN = Run("warm", [0, 1, 1], [ENDED, CUT, ENDED], 4, Speculation(3), Sampling(0.8, top_k=5), Seeds.of(7))
OWN = Run("own", [1], [CUT], 4, Speculation(1, adaptive=True), Sampling(), Seeds(), drafter="target")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rounds.jsonl"


def write(path, *runs):
    write_round_trace(path, runs or (RUN, OWN), NAMES, target=TARGET, draft=DRAFT, device="cpu")
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_what_is_read_is_what_was_decoded(path):
    write(path)
    trace = read_round_trace(path)
    assert trace.rounds == (*traced_rounds(RUN, NAMES), *traced_rounds(OWN, NAMES))
    assert trace.rounds_of("own") == traced_rounds(OWN, NAMES)
    assert (trace.header.target, trace.header.draft, trace.header.device) == (TARGET, DRAFT, "cpu")
    warm, own = trace.header.runs
    assert (warm.texts, warm.rounds, own.texts, own.rounds) == (3, 5, 1, 1)
    assert (warm.sampling, warm.seeds, warm.lookahead, warm.adaptive) == (RUN.sampling, RUN.seeds, 3, False)
    assert (own.drafter, own.adaptive, own.max_new_tokens) == ("target", True, 4)
    assert {"git_commit", "hardware", "versions", "argv"} <= trace.header.provenance.keys()


def test_a_trace_from_before_steps_were_captured_is_of_none(path):
    first, *lines = write(path, RUN)
    header = json.loads(first)
    del header["captured"]
    path.write_text("\n".join([json.dumps(header), *lines, ""]), encoding="utf-8")
    assert read_round_trace(path).header.captured is False


def test_a_line_is_a_round_and_whose_it_is(path):
    _, *lines = write(path, RUN)
    assert [json.loads(line) for line in lines[:2]] == [
        {
            "run": "warm",
            "prompt": "p.jsonl:1",
            "sample": 0,
            "rule": "rejection",
            "start": start,
            "lookahead": 3,
            "proposed": 3,
            "accepted": 1,
            "emitted": 2,
            "stopped": start == 2,  # of the text's last round alone
            "rows": 2,
            "draft_s": draft_s,
            "verify_s": verify_s,
            "looked_up": False,
        }
        for start, draft_s, verify_s in ((0, 0.1, 0.25), (2, 0.3, 1e-9))
    ]
    assert [(one.prompt, one.sample, one.stopped) for one in read_round_trace(path).rounds] == [
        (NAMES[0], 0, False),
        (NAMES[0], 0, True),
        (NAMES[1], 0, False),
        (NAMES[1], 1, False),
        (NAMES[1], 1, True),
    ]


def test_rounds_of_the_loop_say_what_was_asked_for_and_who_shared_them(target, noisy_draft, prompts):
    decoded = speculative_decode(
        target, noisy_draft, prompts[:3], limits=Limits(9, {2}), speculation=Speculation(4, adaptive=True)
    )
    for text in decoded:
        wanted = 4
        for one in text.rounds:
            assert (one.lookahead, one.proposed) == (wanted, min(wanted, 9 - one.start - 1))
            wanted = Speculation(4, adaptive=True).after(one, wanted)
    for step in range(max(len(text.rounds) for text in decoded)):
        together = [text.rounds[step] for text in decoded if step < len(text.rounds)]
        assert {one.rows for one in together} == {len(together)}
        assert len({(one.draft_s, one.verify_s) for one in together}) == 1


def test_at_temperature_zero_the_rule_is_equality_whatever_was_asked_for(target, noisy_draft, prompts):
    for rule in ("rejection", "exact_sampled_draft", "typical"):
        arguments = {"limits": Limits(6), "speculation": Speculation(2, rule=rule)}
        [greedy] = speculative_decode(target, noisy_draft, prompts[1:2], **arguments)
        sampled = {"sampling": Sampling(1.0), "row_seeds": [0]}
        [warm] = speculative_decode(target, noisy_draft, prompts[1:2], **sampled, **arguments)
        assert (greedy.rule, warm.rule) == ("exact_greedy_draft", rule)


def test_a_trace_of_nothing_is_read(path):
    write(path, replace(RUN, prompt_indices=[], decoded=[]))
    assert read_round_trace(path).rounds == ()


def test_a_failure_leaves_the_earlier_trace(path, monkeypatch):
    before = write(path)
    monkeypatch.setattr("eval.rounds.round_trace.asdict", lambda one: asdict(one) | {"draft_s": object()})
    with pytest.raises(TypeError):
        write(path, RUN)
    assert path.read_text(encoding="utf-8").split("\n")[:-1] == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": 1.5}, "accepted: Input should be a valid integer"),
        ({"accepted": "1"}, "accepted: Input should be a valid integer"),
        ({"accepted": True}, "accepted: Input should be a valid integer"),
        ({"start": -2}, "start: Input should be greater than or equal to 0"),
        ({"rows": 0}, "rows: Input should be greater than or equal to 1"),
        ({"lookahead": 0}, "lookahead: Input should be greater than or equal to 1"),
        ({"draft_s": -0.1}, "draft_s: Input should be greater than or equal to 0"),
        ({"verify_s": float("inf")}, "verify_s: Input should be a finite number"),
        ({"stopped": 1}, "stopped: Input should be a valid boolean"),
        ({"rule": None}, "rule: Input should be a valid string"),
        ({"acepted": 1}, "acepted: Unexpected keyword argument"),
        ({"prompt": ...}, "prompt: Field required"),
        ({"accepted": 4, "emitted": 5}, "a round accepts at most what it proposes"),
        ({"proposed": 4}, "a round accepts at most what it proposes"),
        ({"emitted": 3}, "a round accepts at most what it proposes"),
        ({"start": 3}, "start is 3, but the text of p.jsonl:1 has 2 tokens before it"),
        ({"start": 0}, "start is 0, but the text of p.jsonl:1 has 2 tokens before it"),
        ({"sample": 1}, "start is 2, but the text of p.jsonl:1 has 0 tokens before it"),
        ({"run": "own"}, "start is 2, but the text of p.jsonl:1 has 0 tokens before it"),
    ],
)
def test_a_line_that_cannot_be_is_refused_by_file_and_number(path, changes, message):
    lines = write(path)
    row = {**json.loads(lines[2]), **changes}
    lines[2] = json.dumps({name: value for name, value in row.items() if value is not ...})
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_round_trace(path)
    assert str(caught.value).startswith(f"{path}:3: {message}")
    assert str(caught.value).endswith("take the original, or decode again with --rounds.")


@pytest.mark.parametrize("line", ["", "[3]", '{"run": "warm"', "null"])
def test_a_line_that_is_no_round_is_refused(path, line):
    lines = write(path)
    lines[2] = line
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"rounds\.jsonl:3: .* decode again"):
        read_round_trace(path)


def test_no_round_follows_a_stop(path):
    lines = write(path)
    lines.insert(3, json.dumps({**json.loads(lines[2]), "start": 4}))
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"rounds\.jsonl:4: start is 4, but the text of p\.jsonl:1 has stopped before"):
        read_round_trace(path)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ([6], "0 texts with 0 rounds of run 'own', but its first line says 1 texts with 1 rounds"),
        ([2], "3 texts with 4 rounds of run 'warm', but its first line says 3 texts with 5 rounds"),
        ([1, 2], "2 texts with 3 rounds of run 'warm'"),
    ],
)
def test_lost_lines_are_noticed(path, lost, message):
    lines = [line for number, line in enumerate(write(path)) if number not in lost]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=rf"rounds\.jsonl:1: holds {message}"):
        read_round_trace(path)


def test_a_run_the_first_line_does_not_name_is_refused(path):
    lines = write(path)
    lines.append(json.dumps({**json.loads(lines[6]), "run": "third"}))
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match="1 texts with 1 rounds of run 'third', but its first line says none"):
        read_round_trace(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "widedraft.rounds/9"}, "schema: Input should be 'widedraft.rounds/1'"),
        ({"runs": [{"label": "warm"}]}, "runs.0.drafter: Field required"),
        ({"target": "t"}, "target: Input should be an object"),
    ],
)
def test_a_first_line_of_another_kind_is_refused(path, changes, message):
    first, *rest = write(path)
    path.write_text("\n".join([json.dumps(json.loads(first) | changes), *rest]), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_round_trace(path)
    assert str(caught.value).startswith(f"{path}:1: {message}")


def test_a_file_that_is_not_there_is_named(path):
    with pytest.raises(UserError, match=r"rounds\.jsonl: cannot be read"):
        read_round_trace(path)
