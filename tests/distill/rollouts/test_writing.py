"""Responses by the student alone, or by a coin at every token: which, the texts, whose tokens they are."""

import random
from functools import cache

import pytest
import torch

from distill.data.batches import Example, collate
from distill.rollouts import COINS, Generation, Place, RolloutPrompt, drawn, examples_of, generate_rollouts, places_in
from eval.decoding.sampling import Limits, Sampling, stream
from eval.decoding.speculative import plain_decode
from tests.eval.decoding.small_heads import model_of, noisy, spread_out, with_head_of

VOCAB = 264
KEPT = tuple(id_ for id_ in range(VOCAB) if id_ % 7)
PROMPTS = [(5,), (7, 14, 21, 0, 9, 30), (100, 3)]
SEEDS = [11, 2**63 - 5, 77]
GREEDY, DRAWN = Sampling(), Sampling(1.0)


@cache
def student_of(family, *, small=False):
    model = noisy(model_of(family), 0.02)
    return with_head_of(model, KEPT) if small else model


def generate(student, teacher, *, sampling=GREEDY, probability=1.0, prompts=PROMPTS, seeds=SEEDS, most=(9, 9, 9), **of):
    prompts = [RolloutPrompt(*each) for each in zip(prompts, seeds, most, strict=True)]
    generation = Generation(sampling, of.get("stop_ids", frozenset({2})), of.get("vocab_size", VOCAB))
    return generate_rollouts(student, teacher, prompts, generation, probability=probability)


def texts(written):
    return [one.token_ids for one in written]


def mixed(probability, sampling=GREEDY, *, family="llama", small=False, **of):
    models = student_of(family, small=small), model_of(family)
    return generate(*models, sampling=sampling, probability=probability, **of)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2", "bloom"])
def test_the_student_writes_what_plain_decoding_says(family):
    student = student_of(family)
    decoded = plain_decode(student, PROMPTS, limits=Limits(9, frozenset({2})))
    written = generate(student, None)
    assert texts(written) == [one.token_ids for one in decoded]
    assert [one.by_student for one in written] == [len(one.token_ids) for one in decoded]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_small_head_writes_what_its_plain_reference_writes(sampling):
    student = student_of("llama", small=True)
    ours, theirs = (texts(generate(each, None, sampling=sampling)) for each in (student, spread_out(student)))
    assert ours == theirs
    assert {token for text in ours for token in text} <= set(KEPT)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("small", [False, True], ids=["whole head", "small head"])
def test_a_coin_that_always_falls_to_the_student_writes_the_students_text(sampling, small):
    alone = generate(student_of("llama", small=small), None, sampling=sampling)
    assert mixed(1.0, sampling, small=small) == alone


def test_a_coin_that_never_does_writes_the_teachers_greedy_text():
    decoded = plain_decode(model_of("llama"), PROMPTS, limits=Limits(9, frozenset({2})))
    written = mixed(0.0)
    assert texts(written) == [one.token_ids for one in decoded]
    assert [one.by_student for one in written] == [0, 0, 0]


def slowly_mixed(family, prompt, row_seed, probability, most):
    """By the definition: whole texts, no cache; who writes a token is what its coin says."""
    coins, ids = stream(COINS, [row_seed], most, torch.device("cpu"))[0], list(prompt)
    writers = [student_of(family), model_of(family)]
    for coin in coins:
        with torch.inference_mode():
            logits_V = writers[0 if coin < probability else 1](input_ids=torch.tensor([ids])).logits[0, -1]
        ids.append(int(logits_V.argmax()))
    return tuple(ids[len(prompt) :]), int((coins < probability).sum())


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_both_read_what_was_written_whoever_wrote_it(family):
    written = mixed(0.5, family=family, stop_ids=frozenset())
    slow = [slowly_mixed(family, *each, 0.5, 9) for each in zip(PROMPTS, SEEDS, strict=True)]
    assert [(one.token_ids, one.by_student) for one in written] == slow
    assert texts(written) not in (texts(mixed(0.0, family=family)), texts(mixed(1.0, family=family)))


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_the_student_writes_its_share(probability):
    rows = 40
    prompts, seeds = [(id_ + 5,) for id_ in range(rows)], range(rows)
    written = mixed(probability, prompts=prompts, seeds=seeds, most=[30] * rows, stop_ids=frozenset())
    total, students = rows * 30, sum(one.by_student for one in written)
    assert abs(students / total - probability) < 4 * (probability * (1 - probability) / total) ** 0.5


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_a_row_depends_on_its_own_seed_alone(probability):
    together = mixed(probability, DRAWN)
    for row in (2, 0, 1):
        alone = mixed(probability, DRAWN, prompts=PROMPTS[row : row + 1], seeds=SEEDS[row : row + 1], most=[9])
        assert alone == [together[row]]
    assert mixed(probability, DRAWN, seeds=[1, 2, 3]) != together


def test_an_response_ends_at_its_own_limit_or_at_a_stop_token():
    whole = texts(mixed(0.5, stop_ids=frozenset()))
    short = texts(mixed(0.5, stop_ids=frozenset(), most=(3, 9, 1)))
    assert short == [whole[0][:3], whole[1], whole[2][:1]]
    stop = whole[1][4]
    ended = mixed(0.5, stop_ids=frozenset({stop}))
    assert texts(ended)[1] == whole[1][: whole[1].index(stop) + 1]
    alone = texts(generate(student_of("llama"), None, most=(2, 5, 9)))
    assert [len(text) for text in alone] == [2, 5, 9]


def test_an_id_that_the_target_has_not_is_never_said():
    larger = noisy(model_of("llama", vocab_size=300), 0.5)
    free = {token for text in texts(generate(larger, None, sampling=DRAWN, vocab_size=300)) for token in text}
    assert max(free) >= 250
    bound = {token for text in texts(generate(larger, None, sampling=DRAWN, vocab_size=250)) for token in text}
    assert max(bound) < 250


SINGLE = Example((5, 6, 7, 8), 9, ((2, 4),), task=1)  # prompt 5 6 7, response 8 9
CONVERSATION = Example((5, 6, 7, 8, 40, 41, 9, 10, 42, 11), 12, ((1, 3), (5, 7), (8, 10)))  # responses 7 8, 9 10, 11 12


def learned(example):
    batch = collate([example])
    return batch["next_ids"][batch["keep"]].tolist()


@pytest.mark.parametrize("response", [(20, 21, 22), (20,), (20, 21, 22, 23, 24, 25)])
def test_the_loss_sits_on_the_new_tokens_and_on_no_other(response):
    new = Place(SINGLE, 0, row_seed=0, coin=0.0).with_response(response)
    batch = collate([new])
    assert (*new.input_ids, new.last_id) == (5, 6, 7, *response)
    assert learned(new) == list(response)
    assert batch["input_ids"][batch["keep"]].tolist() == [7, *response[:-1]]  # what each is said after
    assert new.task == 1


def test_responses_before_stay_and_what_followed_another_response_goes():
    new = Place(CONVERSATION, 1, row_seed=0, coin=0.0).with_response((20, 21, 22))
    assert (*new.input_ids, new.last_id) == (5, 6, 7, 8, 40, 41, 20, 21, 22)
    assert learned(new) == [7, 8, 20, 21, 22]


def test_a_batch_tells_the_sequences_that_it_was_made_of():
    generator = random.Random(0)
    examples = [SINGLE, CONVERSATION]
    for _ in range(20):
        length = generator.randint(2, 12)
        first = generator.randrange(length - 1)
        ids = tuple(generator.randrange(1, 90) for _ in range(length))
        examples.append(Example(ids, generator.randrange(1, 90), ((first, length),), task=generator.randrange(3)))
    assert examples_of(collate(examples)) == examples
    assert examples_of(collate([SINGLE])) == [SINGLE]


def test_neither_neighbours_nor_their_order_decide():
    examples = [SINGLE, CONVERSATION, Example((1, 2), 3, ((0, 2),))]
    places = places_in(collate(examples), seed=5, batch_number=3)
    backwards = places_in(collate(examples[::-1]), seed=5, batch_number=3)
    assert places == backwards[::-1]
    assert [place.prompt_ids for place in places if len(place.example.spans) == 1] == [(5, 6, 7), (1,)]


@pytest.mark.parametrize(
    "changed", [{"seed": 6}, {"batch_number": 4}, {"example": Example((5, 6, 7, 8), 3, ((2, 4),))}]
)
def test_another_seed_batch_or_sequence_draws_others(changed):
    plain = {"example": SINGLE, "seed": 5, "batch_number": 3}
    one, other = drawn(**plain), drawn(**{**plain, **changed})
    assert one == drawn(**plain)
    assert one.row_seed != other.row_seed
    assert one.coin != other.coin


def test_coins_fall_as_they_should_and_every_response_has_its_turn():
    places = [drawn(CONVERSATION, seed=seed, batch_number=7) for seed in range(900)]
    for turn in range(3):
        assert abs(sum(place.turn == turn for place in places) - 300) < 4 * (900 * 2 / 9) ** 0.5
    assert abs(sum(place.coin < 0.3 for place in places) - 270) < 4 * (900 * 0.21) ** 0.5
    assert len({place.row_seed for place in places}) == 900


def test_global_random_states_are_neither_read_nor_moved():
    torch.manual_seed(1)
    first, number = drawn(SINGLE, seed=0, batch_number=0), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), number)
    assert drawn(SINGLE, seed=0, batch_number=0) == first
