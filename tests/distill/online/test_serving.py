"""A served request: the answer is the target's, mistakes are where proposals failed, states are the target's."""

from copy import deepcopy

import pytest
import torch

from distill.losses.answer_logits import head_of
from distill.online.replayed import Asker, Recorded, replay_request, rounds_along
from distill.online.served import Journal, RequestShare, Served
from distill.online.serving import Asked, Server
from eval.acceptance.replay import answer_logits
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits, Seeds, Speculation, row_seed
from eval.models.loading import load_model, shared_vocab_size
from tests.architectures.conftest import FAMILY_SETTINGS, perturb_vectors

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


def serve(target, draft, sampling, *, request=3, lookahead=3):
    server = Server(target, draft, Speculation(lookahead), sampling, frozenset({2}), Seeds.of(17))
    return server.serve(Asked(request, "letters", PROMPT, 20), updates=4, since_s=0.0)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.9, top_p=0.95)], ids=["greedy", "sampled"])
def test_the_answer_is_the_targets_and_its_states_make_its_logits(pair, sampling):
    target, draft = pair
    served, record = serve(target, draft, sampling)
    expected_AV = answer_logits(target, PROMPT, served.answer_ids)
    torch.testing.assert_close(head_of(target).logits(served.hidden_AH), expected_AV, rtol=1e-4, atol=1e-5)
    if sampling.is_greedy:
        [alone] = plain_decode(target, [PROMPT], limits=Limits(20, frozenset({2})), row_seeds=[row_seed(3)])
        assert served.answer_ids == alone.token_ids
    assert served.mistakes
    assert record.tokens == len(served.answer_ids) == record.accepted + record.rounds
    assert (record.updates, record.source, served.seen_by) == (4, "letters", 4)


def test_mistakes_are_where_another_token_was_proposed(pair):
    """Of greedy responses: where the draft's argmax is not the target's, at the first such place of each step."""
    target, draft = pair
    served, record = serve(target, draft, Sampling(0.0))
    drafted = answer_logits(draft, PROMPT, served.answer_ids).argmax(dim=-1).tolist()
    rounds = rounds_along([a == b for a, b in zip(drafted, served.answer_ids, strict=True)], lookahead=3)
    assert served.mistakes == rounds.mistakes
    assert (record.rounds, record.accepted) == (len(rounds.starts), sum(rounds.kept))


def test_a_draft_that_is_the_target_makes_no_mistake(pair):
    """Each round ends in a bonus token, which nobody proposed another one for."""
    served, record = serve(pair[0], deepcopy(pair[0]), Sampling(0.0))
    assert served.mistakes == ()
    assert record.alpha == 1
    assert record.tau == pytest.approx(record.tokens / record.rounds)


@pytest.mark.parametrize("lookahead", [1, 4])
def test_a_replay_of_the_answer_says_what_serving_said(pair, lookahead):
    """Of greedy responses, exactly: the same verification steps, mistakes and alpha."""
    target, draft = pair
    served, record = serve(target, draft, Sampling(0.0), lookahead=lookahead)
    asker = Asker(draft, head_of(target), shared_vocab_size(target, draft), Sampling(0.0))
    recorded = Recorded(3, "letters", PROMPT, served.answer_ids, served.hidden_AH)
    accepts = asker.accepts(PROMPT, served.answer_ids, served.hidden_AH)
    again, line = replay_request(recorded, accepts, lookahead=lookahead, seed=17, updates=4)
    assert again.mistakes == served.mistakes
    assert (line.accepted, line.rounds, line.proposed) == (record.accepted, record.rounds, record.proposed)
    assert line.alpha == pytest.approx(record.alpha)
    assert line.seconds is None


def test_replayed_sampled_answers_accept_tokens_as_often_as_their_probability(pair):
    """Binomial over 400 seeds of one response: within 4 standard errors of exact replay, at the first token."""
    target, draft = pair
    sampling = Sampling(0.9)
    served, _ = serve(target, draft, sampling)
    asker = Asker(draft, head_of(target), shared_vocab_size(target, draft), sampling)
    accepts = asker.accepts(PROMPT, served.answer_ids, served.hidden_AH)
    recorded = Recorded(3, "letters", PROMPT, served.answer_ids, served.hidden_AH)
    replays = [replay_request(recorded, accepts, lookahead=1, seed=seed, updates=0)[0] for seed in range(400)]
    accepted = sum(0 not in replay.mistakes for replay in replays) / 400
    expected = accepts.accept[0]
    assert abs(accepted - expected) < 4 * (expected * (1 - expected) / 400) ** 0.5 + 1e-9


@pytest.mark.parametrize("family", sorted(FAMILY_SETTINGS))
def test_every_family_serves_with_its_states(make_checkpoint, family):
    folder = perturb_vectors(make_checkpoint(seed=3, model_type=family, **FAMILY_SETTINGS[family]))
    model = load_model(folder, dtype="float32", device="cpu")
    served, record = serve(model, deepcopy(model), Sampling(0.0))
    expected_AV = answer_logits(model, PROMPT, served.answer_ids)
    torch.testing.assert_close(head_of(model).logits(served.hidden_AH), expected_AV, rtol=1e-3, atol=1e-4)
    assert record.alpha == 1


def test_a_request_is_learned_at_its_own_positions():
    """By hand: prompt 5 9 200, answer 40 41 42, a mistake at 41; it is predicted where 40 stands, and nowhere else."""
    hidden_AH = torch.arange(12.0).view(3, 4)
    served = Served(0, "a", (5, 9, 200), (40, 41, 42), (1,), hidden_AH, 0)
    wrong, every = served.example("rejected"), served.example("all")
    assert wrong.input_ids == (5, 9, 200, 40, 41)
    assert wrong.spans == ((3, 4),)
    assert list(wrong.answer_ids) == [41]
    assert list(every.answer_ids) == [40, 41, 42]
    assert torch.equal(served.states("rejected"), hidden_AH[1:2])
    assert torch.equal(served.states("all"), hidden_AH)


def test_the_journal_gives_back_what_was_served_and_drops_what_was_in_flight(tmp_path, pair):
    journal = Journal(tmp_path, RequestShare(1, 2, 4))
    journal.begin()
    for index in range(3):
        journal.write(*serve(*pair, Sampling(0.0), request=journal.share.request(index)))
    assert journal.num_served() == 3
    journal.path(5).unlink()  # as if killed between its line and its file
    with journal.records_file.open("a") as file:
        file.write('{"request": 7, "sou')
    assert journal.begin() == 2
    assert [record.request for record in journal.records()] == [1, 3]
    again = journal.read([3])[0]
    expected, _ = serve(*pair, Sampling(0.0), request=3)
    assert (again.answer_ids, again.mistakes, again.prompt_ids) == (
        (expected.answer_ids, expected.mistakes, expected.prompt_ids)
    )
    assert torch.equal(again.hidden_AH, expected.hidden_AH)
    journal.forget([1, 3])
    assert not journal.path(1).exists()
    assert journal.num_served() == 2
