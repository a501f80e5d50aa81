"""A served request: the response and its hidden states are the target's, and acceptance is the draft's."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from distill.chunked_loss import head_of
from distill.online.serving import (
    DraftReplay,
    Journal,
    OnlineRequest,
    OnlineServer,
    Recorded,
    RequestRecord,
    Served,
    read_records,
    steps_along,
)
from eval.decoding.sampling import Limits, Sampling, row_seed
from eval.decoding.speculative import plain_decode
from eval.models import load_model, shared_vocab_size
from eval.replay import replay_counts, response_logits
from tests.architectures.conftest import FAMILY_SETTINGS, perturb
from tests.rejections import rejects

PROMPT = (5, 9, 200, 31)


@pytest.fixture
def pair(tiny_target, make_checkpoint):
    """A target, and itself with noise: right about half of the time."""
    target, draft = (load_model(tiny_target, dtype="float32", device="cpu") for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.005)
    return target, draft


def serve(target, draft, sampling, *, request=3, num_speculative_tokens=3):
    server = OnlineServer(target, draft, num_speculative_tokens, sampling, frozenset({2}), 17)
    return server.serve(OnlineRequest(request, "letters", PROMPT, 20), updates=4)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.9, top_p=0.95)], ids=["greedy", "sampled"])
def test_the_response_is_the_targets_and_its_states_make_its_logits(pair, sampling):
    target, draft = pair
    served = serve(target, draft, sampling)
    record = served.record
    expected_AV = response_logits(target, PROMPT, served.record.response_ids)
    torch.testing.assert_close(head_of(target).logits(served.hidden_AH), expected_AV, rtol=1e-4, atol=1e-5)
    if sampling.is_greedy:
        [alone] = plain_decode(target, [PROMPT], limits=Limits(20, frozenset({2})), row_seeds=[row_seed(3)])
        assert served.record.response_ids == alone.token_ids
    assert record.accepted < record.proposed
    assert record.tokens == len(served.record.response_ids) == record.accepted + record.steps
    assert (record.updates, record.source) == (4, "letters")


def test_tokens_are_accepted_up_to_the_first_that_differs(pair):
    """Of greedy responses: where the draft's argmax is not the target's, a step ends."""
    target, draft = pair
    served = serve(target, draft, Sampling(0.0))
    drafted = response_logits(draft, PROMPT, served.record.response_ids).argmax(dim=-1).tolist()
    agreed = [a == b for a, b in zip(drafted, served.record.response_ids, strict=True)]
    steps = steps_along(agreed, num_speculative_tokens=3)
    assert (served.record.steps, served.record.accepted) == (len(steps), sum(accepted for _, accepted in steps))


def test_a_draft_that_is_the_target_is_always_accepted(pair):
    """Each step ends in a bonus token, which nobody proposed another one for."""
    served = serve(pair[0], deepcopy(pair[0]), Sampling(0.0))
    assert served.record.accepted == served.record.proposed > 0
    assert served.record.alpha == 1


@pytest.mark.parametrize("num_speculative_tokens", [1, 4])
def test_a_replay_of_the_response_says_what_serving_said(pair, num_speculative_tokens):
    """Of greedy responses, exactly: the same verification steps and alpha."""
    target, draft = pair
    served = serve(target, draft, Sampling(0.0), num_speculative_tokens=num_speculative_tokens)
    replay = DraftReplay(draft, head_of(target), shared_vocab_size(target, draft), num_speculative_tokens, 17)
    again = replay.serve(served.recorded, updates=4)
    record = served.record
    assert again.record == replace(record, alpha=pytest.approx(record.alpha), seconds=None)


def test_replayed_sampled_responses_accept_tokens_as_often_as_their_probability(pair):
    """Binomial over 400 seeds of one response: within 4 standard errors of exact replay, at the first token."""
    target, draft = pair
    sampling = Sampling(0.9)
    served = serve(target, draft, sampling)
    replay = DraftReplay(draft, head_of(target), shared_vocab_size(target, draft), 1, 0)
    accepts = replay.accepts(served.recorded)
    recorded = Recorded(3, "letters", PROMPT, served.record.response_ids[:2], sampling, served.hidden_AH[:2])
    replays = [replace(replay, seed=seed).serve(recorded, updates=0) for seed in range(400)]
    accepted = sum(each.record.steps == 1 for each in replays) / 400  # then the second token is the bonus token
    expected = accepts.accept[0]
    assert abs(accepted - expected) < 4 * (expected * (1 - expected) / 400) ** 0.5 + 1e-9


@pytest.mark.parametrize("family", sorted(FAMILY_SETTINGS))
def test_every_family_serves_with_its_states(make_checkpoint, family):
    folder = perturb(make_checkpoint(seed=3, model_type=family, **FAMILY_SETTINGS[family]))
    model = load_model(folder, dtype="float32", device="cpu")
    served = serve(model, deepcopy(model), Sampling(0.0))
    expected_AV = response_logits(model, PROMPT, served.record.response_ids)
    torch.testing.assert_close(head_of(model).logits(served.hidden_AH), expected_AV, rtol=1e-3, atol=1e-4)
    assert served.record.alpha == 1


def test_a_request_is_learned_at_its_own_positions():
    """By hand: prompt 5 9 200, response 40 41 42; each token is predicted at the one before it, and nowhere else."""
    fields = {"tokens": 3, "steps": 2, "proposed": 2, "accepted": 1, "seconds": None, "sampling": Sampling()}
    record = RequestRecord(request=0, source="a", updates=0, alpha=0.5, response_ids=(40, 41, 42), **fields)
    example = Served(record, (5, 9, 200), torch.zeros(3, 4)).example
    assert (example.input_ids, example.last_id, example.spans) == ((5, 9, 200, 40, 41), 42, ((2, 5),))
    assert list(example.response_ids) == [40, 41, 42]


def test_the_journal_gives_back_what_was_served_and_drops_what_was_in_flight(tmp_path, pair):
    journal = Journal(tmp_path, 1, 2, 4)
    journal.begin()
    all_served = [serve(*pair, Sampling(0.0), request=journal.request(index)) for index in range(3)]
    for each in all_served:
        journal.write(each)
    assert journal.num_served() == 3
    journal.path(5).unlink()  # as if killed between its line and its file
    with journal.records_file.open("a") as file:
        file.write('{"request": 7, "sou')
    assert journal.begin() == 2
    assert list(read_records(journal.records_file)) == [each.record for each in all_served[:2]]
    [again] = journal.read([3])
    assert replace(again, hidden_AH=None) == replace(all_served[1], hidden_AH=None)
    assert torch.equal(again.hidden_AH, all_served[1].hidden_AH)
    journal.forget(before=5)
    assert not journal.path(1).exists()
    assert journal.num_served() == 2


def test_damaged_requests_and_records_are_named(tmp_path):
    journal = Journal(tmp_path, 0, 1, 2)
    path = journal.path(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no tensors")
    with rejects("00000000.safetensors"):
        journal.read([0])
    journal.records_file.write_text('{"request": 0}\n')
    with rejects("records.jsonl:1"):
        journal.begin()


@pytest.mark.parametrize(
    ("accepted", "num_speculative_tokens", "steps"),
    [
        ("yynyyyyy", 3, [(3, 2), (3, 3), (0, 0)]),  # one corrected; three accepted and a bonus; the last
        ("nnnn", 2, [(2, 0), (2, 0), (1, 0), (0, 0)]),
        ("yyyyy", 4, [(4, 4)]),
    ],
)
def test_cases_by_hand(accepted, num_speculative_tokens, steps):
    assert steps_along([each == "y" for each in accepted], num_speculative_tokens=num_speculative_tokens) == steps


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 5])
def test_steps_are_as_many_as_exact_replay_counts(num_speculative_tokens):
    accepted = np.random.default_rng(0).random(40) < 0.6
    counts = replay_counts(accepted.astype(float), num_speculative_tokens=num_speculative_tokens)
    assert len(steps_along(list(accepted), num_speculative_tokens=num_speculative_tokens)) == pytest.approx(
        counts.steps
    )
