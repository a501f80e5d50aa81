"""Rows for a target's vocabulary: old ids keep theirs, and an id that was added is never the likeliest."""

import pytest
import torch

from architectures.vocabulary_head import ROWS_AT_ONCE, fit_rows


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [5, 8, 11])
def test_rows_that_were_there_stay_bit_for_bit(generator, dtype, vocab_size):
    rows_VH = torch.randn(8, 3, generator=generator).to(dtype)
    fitted_VH = fit_rows(rows_VH, vocab_size)
    assert (fitted_VH.shape, fitted_VH.dtype) == ((vocab_size, 3), dtype)
    kept = min(8, vocab_size)
    assert torch.equal(fitted_VH[:kept], rows_VH[:kept])


def test_new_rows_are_the_mean_of_the_old_ones(generator):
    for size in ((8, 3), (8,), (2 * ROWS_AT_ONCE + 7, 2)):
        rows_VX = torch.randn(size, generator=generator)
        torch.testing.assert_close(fit_rows(rows_VX, size[0] + 2)[size[0] :], rows_VX.mean(dim=0).expand(2, *size[1:]))


@pytest.mark.parametrize("offset", [-40.0, 0.0, 40.0])  # models whose logits are all below or above zero
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_added_id_is_never_the_likeliest_and_less_likely_than_the_average_one(generator, dtype, offset):
    hidden_AH = torch.cat([torch.randn(200, 16, generator=generator), torch.ones(200, 1)], dim=1).to(dtype)
    head_VH = torch.cat([torch.randn(50, 16, generator=generator), torch.full((50, 1), offset)], dim=1).to(dtype)
    logits_AV = (hidden_AH @ fit_rows(head_VH, 60).T).float()
    assert int(logits_AV.argmax(dim=-1).max()) < 50
    assert float(logits_AV.softmax(dim=-1)[:, 50:].max()) < 1 / 50
