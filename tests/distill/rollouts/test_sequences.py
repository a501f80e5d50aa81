"""Which response of a sequence is written anew, where the loss then sits, and that nothing but the sequence decides."""

import random

import pytest
import torch

from distill.data.batches import Example, collate
from distill.rollouts import Place, drawn, examples_of, places_in

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
