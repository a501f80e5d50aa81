"""What a policy would do along recorded answers is what the loop does: greedily to the round, sampled on average."""

from dataclasses import replace

import numpy as np
import pytest

from eval.acceptance.counts import tau
from eval.acceptance.replay import answer_logits, replay_answer, replay_counts, rule_name
from eval.acceptance.speedup import StepTimes, predicted_speedup
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.policies.policy_replay import RecordedAnswer, Replayer, Rounds, pooled_rounds, visited
from eval.policies.tune import NEVER, rounds_of, tune, worth
from eval.policies.tune_stopping import STOP_RULES, stopped_rounds, tune_stopping
from eval.proposing.policy import ProposalPolicy
from eval.proposing.stopping import Stopping

POLICIES = [
    ProposalPolicy(5, 0.3, (0.2, 0.5, 0.9), 2.0),
    ProposalPolicy(2, 0.0, (0.5,), 4.0),
    ProposalPolicy(3, 0.6, (0.1, 0.6), 8.0),
]
STEPS = StepTimes(1.0, 0.1, 0.14, {lookahead: 1 + 0.02 * lookahead for lookahead in range(1, 7)})
TEXT = 60


def recorded(pair, prompt, answer, temperature=0.0, limit=TEXT):
    own, drafts = (answer_logits(model, prompt, answer) for model in pair)
    replayed = replay_answer(own, drafts, answer, sampling=Sampling(temperature))
    accept_T = replayed.rules[rule_name(temperature)].accept
    return RecordedAnswer(prompt, answer, accept_T, replayed.draft_confidence, limit)


@pytest.fixture(scope="module")
def limits(target, prompts):
    """At which some texts stop early and others do not."""
    texts = [set(text.token_ids) for text in plain_decode(target, prompts, limits=Limits(TEXT))]
    some = next(token for token in sorted(texts[0]) if not all(token in text for text in texts))
    return Limits(TEXT, frozenset({some}))


@pytest.fixture(scope="module")
def greedy_answers(target, noisy_draft, prompts, limits):
    texts = plain_decode(target, prompts, limits=limits)
    assert len({text.stopped for text in texts}) == 2
    return [
        recorded((target, noisy_draft), prompt, text.token_ids) for prompt, text in zip(prompts, texts, strict=True)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lookahead", [1, 3])
def test_the_loop_takes_these_rounds(target, noisy_draft, prompts, limits, greedy_answers, policy, lookahead):
    decoded = speculative_decode(
        target, noisy_draft, prompts, limits=limits, speculation=Speculation(lookahead), lookup_policy=policy
    )
    looked_up = 0
    for text, answer in zip(decoded, greedy_answers, strict=True):
        assert text.token_ids == answer.answer_ids
        rounds = Replayer(answer.rated(policy), lookahead).rounds(policy.least, policy.lookahead)
        own = [one for one in text.rounds if not one.looked_up]
        caught_up = sum(
            not now.looked_up and (last.looked_up or last.accepted == last.proposed)
            for last, now in zip(text.rounds, text.rounds[1:], strict=False)
        )
        assert rounds.tokens == len(text.token_ids)
        assert (sum(rounds.drafted.values()), rounds.caught_up) == (len(own), caught_up)
        assert sum(rounds.looked_up.values()) == len(text.rounds) - len(own)
        looked_up += len(text.rounds) - len(own)
    assert looked_up > 0


def test_sampled_rounds_are_those_of_the_loop_on_average(small_pair):
    target, draft = small_pair
    prompt, rows, policy, lookahead = (0, 1, 2, 1), 1500, ProposalPolicy(3, 0.3, (0.4, 0.6), 2.0), 2
    decoded = speculative_decode(
        target, draft, [prompt] * rows, limits=Limits(12), speculation=Speculation(lookahead),
        sampling=Sampling(1.0), row_seeds=range(rows), lookup_policy=policy,
    )  # fmt: skip
    differences = []
    for text in decoded:
        answer = recorded((target, draft), prompt, text.token_ids, temperature=1.0, limit=12)
        rounds = Replayer(answer.rated(policy), lookahead).rounds(policy.least, policy.lookahead)
        found = [one for one in text.rounds if one.looked_up]
        differences.append(
            (
                len(text.rounds) - len(found) - sum(rounds.drafted.values()),
                len(found) - sum(rounds.looked_up.values()),
            )
        )
    mean, deviation = np.mean(differences, axis=0), np.std(differences, axis=0)
    assert (deviation > 0).all()  # rounds are drawn
    assert (np.abs(mean) < 4 * deviation / rows**0.5).all(), (mean, deviation)


@pytest.mark.parametrize("lookahead", [1, 4])
def test_a_policy_that_never_looks_up_is_the_draft_alone(greedy_answers, lookahead):
    policy = ProposalPolicy(3, NEVER, (0.9, 0.9), 1.0)
    for answer in greedy_answers:
        rounds, counts = rounds_of([answer], policy, lookahead), replay_counts(answer.accept_T, lookahead=lookahead)
        assert rounds.drafted == {lookahead: pytest.approx(counts.rounds)}
        assert rounds.tau == pytest.approx(tau(counts))
        assert not rounds.looked_up
        alone = predicted_speedup(tau(counts), rounds.caught_up / counts.rounds, lookahead, STEPS)
        assert rounds.speedup(lookahead, STEPS) == pytest.approx(alone)


def test_what_was_read_by_nobody_is_caught_up_on():
    """A draft of one token: kept at 0, so that a round starts at 2 with a token unread; looked up there, it stays."""
    tail_TK = np.array([[1.0], [0.0], [0.0], [0.0]])
    visits_T, behind_T = visited(tail_TK, [0, 0, 1, 0], np.ones(4, dtype=int))
    assert visits_T.tolist() == [1, 0, 1, 1]
    assert behind_T.tolist() == [0, 0, 1, 1]


def test_nothing_is_kept_behind_the_end(small_pair):
    answer = RecordedAnswer([1, 2, 1, 2], [1, 2, 1], np.zeros(3), np.ones(3), 6)
    proposed, kept = answer.rated(ProposalPolicy(4, 0.0, (0.5, 0.5), 1.0)).looked_up(0.0, 4)
    assert proposed == [2, 2, 2]  # what stands behind the run: two tokens
    assert kept == [2, 1, 0]


def test_the_best_policy_is_the_best_of_the_grid(greedy_answers):
    tuned = tune(greedy_answers, STEPS)
    own = worth(greedy_answers, tuned.policy, STEPS)
    assert tuned.speedup == pytest.approx(own[tuned.lookahead])
    assert tuned.speedup >= tuned.draft_alone
    assert tuned.draft_alone == pytest.approx(
        max(worth(greedy_answers, ProposalPolicy(1, NEVER, (0.5,), 1.0), STEPS).values())
    )
    assert tuned.answers == len(greedy_answers)


def test_where_looking_up_pays_it_is_done():
    """A draft that is never right, and a text that says the same again and again."""
    tuned = tune([RecordedAnswer([1, 2, 3, 1], [2, 3, 1] * 6, np.zeros(18), np.ones(18), 20)], STEPS)
    assert tuned.policy.least <= 1
    assert tuned.policy.lookahead == 3  # what stands behind the run
    assert tuned.speedup > 2 > 1 > tuned.draft_alone


def test_where_looking_up_never_pays_it_is_never_done():
    """A draft that is always right, and texts without a token said twice."""
    answers = [
        RecordedAnswer([100 + place], list(range(place, place + 9)), np.ones(9), np.ones(9), 12) for place in (0, 20)
    ]
    tuned = tune(answers, STEPS)
    assert tuned.policy.least > 1
    assert tuned.speedup == tuned.draft_alone


def test_answers_are_needed():
    with pytest.raises(ValueError, match="got none"):
        tune([], STEPS)


def test_rounds_of_several_answers_add_up():
    one, other = Rounds(5, {2: 2.0}, 1.0, {1: 1.0}), Rounds(7, {0: 4.0, 1: 3.0, 2: 1.0}, 0.5, {1: 0.5, 3: 2.0})
    both = pooled_rounds([one, other])
    assert both == Rounds(12, {2: 3.0, 0: 4.0, 1: 3.0}, 1.5, {1: 1.5, 3: 2.0})
    drafted_s = 3 * (0.2 + 1.04) + 4 * (0.1 + 1) + 3 * (0.2 + 1.02)  # a step of doubt is a step
    assert both.speedup(2, STEPS) == pytest.approx(12 / (drafted_s + 1.5 * 0.04 + 1.5 * 1.02 + 2 * 1.06))
    assert both.tau == pytest.approx(12 / 13.5)


@pytest.mark.parametrize("least", [0.0, 0.3])
@pytest.mark.parametrize("look_up", [NEVER, 0.3])
def test_the_loop_takes_these_rounds_with_a_draft_that_doubts(
    target, noisy_draft, prompts, limits, greedy_answers, look_up, least
):
    """At a lookahead of 1 to the round; half of the positions are doubted, or none."""
    every = np.sort(np.concatenate([answer.confidence_T for answer in greedy_answers]))
    confidence = float(every[len(every) // 2 : len(every) // 2 + 2].mean()) if least else 0.0
    policy = ProposalPolicy(3, look_up, (0.2, 0.5, 0.9), 2.0, confidence=confidence)
    decoded = speculative_decode(
        target, noisy_draft, prompts, limits=limits, speculation=Speculation(1), lookup_policy=policy
    )
    for text, answer in zip(decoded, greedy_answers, strict=True):
        assert text.token_ids == answer.answer_ids
        rounds = rounds_of([answer], policy, 1)
        drafted = [one for one in text.rounds if not one.looked_up]
        at_the_end = sum(one.proposed == 0 and one.start + 1 == limits.max_new_tokens for one in drafted)
        doubted = sum(one.proposed == 0 for one in drafted)
        assert sum(rounds.drafted.values()) == len(drafted)
        assert doubted - at_the_end <= rounds.drafted.get(0, 0) <= doubted
        assert rounds.caught_up == sum(
            not now.looked_up and (last.looked_up or last.is_behind)
            for last, now in zip(text.rounds, text.rounds[1:], strict=False)
        )


@pytest.mark.parametrize("lookahead", [1, 2, 3])
def test_doubts_cut_rounds_short(lookahead):
    sure = np.array([0.9, 0.2, 0.9, 0.9, 0.9])
    answer = RecordedAnswer([7], [1, 2, 3, 4, 5], np.ones(5), sure, 9)
    found = rounds_of([answer], ProposalPolicy(3, NEVER, (0.5,), 1.0, confidence=0.5), lookahead)
    # position 0 proposes one, since 1 is doubted, and the target writes that; 2 goes on with as many as it may
    whole = {1: {1: 3.0}, 2: {1: 1.0, 2: 1.0}, 3: {1: 1.0, 3: 1.0}}
    assert found.drafted == whole[lookahead]
    assert found.caught_up == {1: 2.0, 2: 0.0, 3: 0.0}[lookahead]


def test_where_the_draft_is_wrong_when_it_doubts_it_is_asked_when_it_is_sure():
    """A third of its proposals would be kept, and it knows which."""
    sure = np.tile([0.9, 0.1, 0.1], 20)
    answer = RecordedAnswer([70], list(range(60)), (sure > 0.5).astype(float), sure, 80)
    steps = StepTimes(1.0, 0.1, 0.1, {1: 1.4, 2: 1.8})
    tuned = tune([answer], steps)
    assert tuned.policy.confidence > 0.1
    assert tuned.lookahead == 1
    assert tuned.speedup == pytest.approx(60 / (20 * (0.1 + 1.4) + 20 * (0.1 + 1)))
    assert tuned.draft_alone == pytest.approx(60 / (40 * (0.1 + 1.4)))


def test_a_draft_that_never_knows_is_asked_everywhere():
    """Confidence that says nothing is not listened to: a grid's zero comes first of equals."""
    rng = np.random.default_rng(0)
    answer = RecordedAnswer([70], list(range(400)), np.full(400, 0.6), rng.random(400), 500)
    tuned = tune([answer], StepTimes(1.0, 0.05, 0.05, {1: 1.05, 2: 1.06}))
    assert tuned.policy.confidence == 0.0


def test_a_verification_that_was_not_timed_costs_what_the_next_larger_one_does():
    rounds = Rounds(tokens=10, drafted={0: 1.0, 2: 3.0}, caught_up=0.0, looked_up={3: 2.0})
    every = StepTimes(1.0, 0.1, 0.2, {1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5})
    assert rounds.speedup(4, StepTimes(1.0, 0.1, 0.2, {1: 1.5, 4: 1.5})) == rounds.speedup(4, every)


STOPPINGS = [
    Stopping(confidence=0.1),
    Stopping(chance=0.05),
    Stopping(confidence=0.1, proposes_doubted=True),
    Stopping(confidence=0.05, chance=0.02, proposes_doubted=True),
]


@pytest.mark.parametrize("lookahead", [1, 4])
@pytest.mark.parametrize("stopping", STOPPINGS)
def test_the_loop_ends_its_rounds_where_replay_says(
    target, noisy_draft, prompts, limits, greedy_answers, stopping, lookahead
):
    """To the round, and at a lookahead of one to the token; lengths of longer rounds are taken from along the text."""
    policy = ProposalPolicy(1, NEVER, (0.5,), 1.0)
    decoded = speculative_decode(
        target, noisy_draft, prompts, limits=limits, speculation=Speculation(lookahead, stopping=stopping)
    )
    lengths = set()
    for text, answer in zip(decoded, greedy_answers, strict=True):
        assert text.token_ids == answer.answer_ids
        rounds = Replayer(answer.rated(policy), lookahead, stopping).rounds(policy.least, policy.lookahead)
        assert sum(rounds.drafted.values()) == len(text.rounds)
        caught_up = sum(last.is_behind for last in text.rounds[:-1])
        assert rounds.caught_up == caught_up
        lengths |= {one.proposed for one in text.rounds}
        if lookahead == 1:
            due = Replayer(answer.rated(policy), lookahead, stopping).proposed
            assert all(one.proposed == due[one.start] for one in text.rounds if one.start + 1 < TEXT)
    assert len(lengths) > 1 or (lookahead == 1 and stopping.proposes_doubted)


@pytest.mark.parametrize("stopping", STOPPINGS)
def test_sampled_rounds_that_end_by_doubt_are_those_of_replay_on_average(small_pair, stopping):
    target, draft = small_pair
    prompt, rows, lookahead, policy = (0, 1, 2, 1), 800, 3, ProposalPolicy(1, NEVER, (0.5,), 1.0)
    stopping = replace(stopping, confidence=stopping.confidence and 0.5, chance=stopping.chance and 0.3)
    decoded = speculative_decode(
        target, draft, [prompt] * rows, limits=Limits(12), sampling=Sampling(1.0), row_seeds=range(rows),
        speculation=Speculation(lookahead, stopping=stopping),
    )  # fmt: skip
    differences = []
    for text in decoded:
        answer = recorded((target, draft), prompt, text.token_ids, temperature=1.0, limit=12)
        rounds = Replayer(answer.rated(policy), lookahead, stopping).rounds(policy.least, policy.lookahead)
        differences.append(len(text.rounds) - sum(rounds.drafted.values()))
    assert np.std(differences) > 0
    assert abs(np.mean(differences)) < 4 * np.std(differences) / rows**0.5


def test_each_rule_is_tuned_to_the_best_of_its_grid_and_no_worse_than_whole_rounds(greedy_answers):
    alone = max(worth(greedy_answers, ProposalPolicy(1, NEVER, (0.5,), 1.0), STEPS).values())
    tuned = tune_stopping(greedy_answers, STEPS)
    assert [one.rule for one in tuned] == list(STOP_RULES)
    for one in tuned:
        assert one.speedup == pytest.approx(stopped_rounds(greedy_answers, one).speedup(one.lookahead, STEPS))
        assert one.speedup >= alone - 1e-9


def test_a_draft_that_knows_when_it_is_right_ends_rounds_where_it_is_not():
    """Right where it is at least 0.6 sure and nowhere else; verifying is dear."""
    confidence_T = np.random.default_rng(3).random(400)
    answer = RecordedAnswer([1], [1] * 400, (confidence_T >= 0.6).astype(float), confidence_T, 400)
    dear = StepTimes(1.0, 0.1, 0.14, {lookahead: 1 + 0.4 * lookahead for lookahead in range(1, 7)})
    before, behind, gain = tune_stopping([answer], dear)
    assert before.least == 0.6
    assert gain.least > 0
    assert before.speedup > behind.speedup


def test_a_round_that_ends_with_its_token_of_doubt_pays_no_step_for_it():
    before = Rounds(10, {2: 5.0}, 0.0, {})
    behind = replace(before, proposes_doubted=True)
    steps = StepTimes(1.0, 0.5, 0.6, {2: 1.0, 3: 1.0})
    assert before.speedup(3, steps) == pytest.approx(10 / (5 * (3 * 0.5 + 1)))
    assert behind.speedup(3, steps) == pytest.approx(10 / (5 * (2 * 0.5 + 1)))
    assert before.speedup(2, steps) == behind.speedup(2, steps)


@pytest.mark.parametrize(
    ("stopping", "lengths"),
    [
        (Stopping(confidence=0.5), [2, 0, 3]),
        (Stopping(confidence=0.5, proposes_doubted=True), [3, 1, 3]),
        (Stopping(chance=0.5), [2, 0, 2]),
        (Stopping(confidence=0.45, chance=0.3), [2, 0, 3]),
        (Stopping(), [3, 3, 3]),
    ],
)
def test_a_round_is_as_long_as_its_confidences_say(stopping, lengths):
    confidence_TK = np.array([[0.9, 0.6, 0.4], [0.2, 0.9, 0.9], [0.8, 0.7, 0.6]])
    assert stopping.proposed(confidence_TK).sum(axis=1).tolist() == lengths


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"confidence": 1.5}, "confidence must be in"),
        ({"chance": -0.1}, "chance must be in"),
        ({"proposes_doubted": True}, "give a confidence or a chance"),
    ],
)
def test_what_no_doubt_can_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Stopping(**wrong)
    with pytest.raises(ValueError, match="which doubt cuts short"):
        Speculation(2, adaptive=True, stopping=Stopping(0.5))
