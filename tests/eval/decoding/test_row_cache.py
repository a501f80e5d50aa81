"""Rows of several lengths in one cache: each finds what it wrote, whatever room was added and whoever left."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.decoding.kv_cache import RowCache


def numbers(names, positions_BT, *, seed):
    """Keys of one head and two dimensions that say their row and position; noise where there is only filling."""
    rows_BT = torch.tensor(names)[:, None].expand_as(positions_BT)
    told_BTD = torch.stack([rows_BT, positions_BT], dim=-1).float()
    noise_BTD = torch.rand(told_BTD.shape, generator=torch.Generator().manual_seed(seed)) - 2
    return told_BTD.where(positions_BT[:, :, None] >= 0, noise_BTD)[:, None]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_every_row_finds_what_it_wrote(data):
    """Steps forward and back by any number of tokens, of rows that each have their own."""
    names = list(range(data.draw(st.integers(1, 4))))
    cache, lengths = RowCache(data.draw(st.integers(0, 9))), [0] * len(names)
    for step in range(data.draw(st.integers(1, 6))):
        starts = [data.draw(st.integers(0, length)) for length in lengths]
        counts = [data.draw(st.integers(0, 40)) for _ in starts]
        spans = list(zip(starts, counts, strict=True))
        positions = torch.tensor([[start + t if t < count else -1 for t in range(41)] for start, count in spans])
        lengths = [start + count for start, count in spans]
        width = max(1, *lengths)
        if width > cache.capacity:
            cache.widen(width + data.draw(st.integers(0, 9)))
        cache.write_at(positions.where(positions >= 0, cache.capacity), width=width)
        keys_BHTD = numbers(names, positions, seed=step)
        for layer in (0, 1):
            kept, values = cache.update(keys_BHTD + layer, -keys_BHTD - layer, layer)
            assert values.equal(-kept)
            assert kept.shape[2] == width
            assert cache.keys[layer].shape[2] == cache.capacity + 1
            for row, length in enumerate(lengths):
                expected = torch.stack([torch.full((length,), names[row]), torch.arange(length)], dim=-1)
                assert kept[row, 0, :length].equal(expected + float(layer))
        places = data.draw(st.permutations(range(len(names))))[: data.draw(st.integers(1, len(names)))]
        cache.keep(places)
        names, lengths = [names[place] for place in places], [lengths[place] for place in places]
