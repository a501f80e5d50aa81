"""Sampled texts: every prompt in every repetition has random numbers of its own, and the same for all ways."""

from itertools import product

import numpy as np
import pytest

from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits, Seeds, row_seed
from eval.speed import ways
from eval.speed.measure import groups_of, take_turns, warm_up
from eval.speed.ways import DRAFT, LOOKUP, PLAIN, TRANSFORMERS, Setup, Way, ways_to_decode

REPEATS = 3
WARM = Sampling(1.0)
SAME = [[5, 6, 7], [9], [5, 6, 7], [5, 6, 7]]  # four prompts, three of one text


@pytest.fixture
def written(monkeypatch, target, noisy_draft):
    """Decode by every way in turns, and tell the texts of each prompt in each repetition."""

    def written(prompts, batch, seed=17):
        found, current = {}, {}

        def watched(decode):
            def decoded(*args, **options):
                texts = decode(*args, **options)
                current["texts"] = [text.token_ids for text in texts]
                return texts

            return decoded

        monkeypatch.setattr(ways, "plain_decode", watched(plain_decode))
        monkeypatch.setattr(ways, "speculative_decode", watched(speculative_decode))
        setup = Setup(target, {"draft": noisy_draft}, Limits(12), WARM, Seeds.of(seed))
        groups = groups_of(prompts, batch)
        texts = {}

        def remembered(way, run):
            def remember(group, row_seeds):
                taken = run(group, row_seeds)
                texts[way].append(current["texts"])
                return taken

            return remember

        named = {way: remembered(way, run) for way, run in ways_to_decode(setup, [2]).items()}
        texts.update({way: [] for way in named})
        turns = list(product(range(REPEATS), range(len(groups))))
        for _ in take_turns(named, groups, turns, np.random.default_rng(1), times=found):
            pass
        return {
            way: np.array([text for group in each for text in group]).reshape(REPEATS, len(prompts), -1)
            for way, each in texts.items()
        }

    return written


def test_equal_prompts_and_repetitions_draw_differently(written):
    """Twelve texts of a way, three of one prompt in each repetition: all differ."""
    for way, texts_RPT in written(SAME, 1).items():
        assert len({tuple(text) for text in texts_RPT.reshape(-1, 12).tolist()}) == REPEATS * len(SAME), way


def test_the_same_prompt_repetition_and_seed_draw_the_same_whatever_the_batch(written):
    alone, together, again, other = written(SAME, 1), written(SAME, 3), written(SAME, 3), written(SAME, 1, seed=18)
    for way in alone:
        assert (alone[way] == together[way]).all(), way
        assert (together[way] == again[way]).all(), way
        assert (alone[way] != other[way]).any(axis=-1).all(), way


def test_more_prompts_change_no_text(written):
    few, many = written(SAME[:2], 2), written(SAME, 2)
    for way in few:
        assert (few[way] == many[way][:, :2]).all(), way


def test_all_ways_have_the_targets_draws(written):
    """What is looked up is kept where it is the target's own draw, so the text is that of the target alone."""
    texts = written(SAME, 2)
    assert (texts[Way(LOOKUP, 2)] == texts[Way(PLAIN)]).all()
    assert (texts[Way(DRAFT, 2, "draft")] != texts[Way(PLAIN)]).any()  # rejection sampling draws otherwise


def test_warm_up_draws_as_the_first_repetition():
    seeds = []
    warm_up({Way(PLAIN): lambda _group, row_seeds: seeds.append(list(row_seeds))}, ["ab", "c"])
    assert seeds == [[row_seed(0), row_seed(1)], [row_seed(2)]]


def test_transformers_draws_anew_too(monkeypatch, target, noisy_draft):
    texts = []
    generate = target.generate
    monkeypatch.setattr(target, "generate", lambda *args, **how: texts.append(generate(*args, **how)) or texts[-1])
    run = ways_to_decode(Setup(target, {"d": noisy_draft}, Limits(8), WARM), [2], assisted=True)[
        Way(TRANSFORMERS, 2, "d")
    ]
    for seed in (row_seed(0), row_seed(1), row_seed(0, 1), row_seed(0)):
        run([[5, 6, 7]], [seed])
    assert len({tuple(text[0].tolist()) for text in texts}) == 3
    assert texts[0].equal(texts[3])


def test_no_two_places_and_repetitions_share_a_row_seed():
    some = [0, 1, 2, 1000, 2**32 - 1]
    seeds = [row_seed(place, repetition) for place, repetition in product(some, some)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**64


def test_sampling_without_row_seeds_is_refused(target, noisy_draft):
    for decode in (
        lambda **how: plain_decode(target, [[5]], **how),
        lambda **how: speculative_decode(target, noisy_draft, [[5]], **how),
    ):
        with pytest.raises(ValueError, match="sampled texts need row_seeds, one per prompt that no prompt of another"):
            decode(limits=Limits(2), sampling=WARM)
        assert len(decode(limits=Limits(2), sampling=WARM, row_seeds=[3])) == 1
