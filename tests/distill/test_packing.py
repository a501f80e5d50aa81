"""Several texts in one row: none sees another, and nothing tells them from texts that have a row each."""

import torch

from distill.answer_logits import AnswerLogits, logits_of
from eval.models import load_model

OTHER_HEIGHT = {"rtol": 1e-5, "atol": 5e-5}  # float32: a product of more rows may sum in another order


def test_texts_whose_positions_begin_again_are_read_apart(tiny_draft):
    model = AnswerLogits(load_model(tiny_draft, dtype="float32", device="cpu"))
    ids = torch.arange(3, 17)[None]
    positions = torch.tensor([[*range(6), *range(1), *range(7)]])
    everything = torch.ones_like(ids, dtype=torch.bool)
    together = model(ids, everything, logits_of, positions)
    alone = [model(ids[:, text], everything[:, text], logits_of) for text in (slice(6), slice(6, 7), slice(7, 14))]
    torch.testing.assert_close(together, torch.cat(alone), **OTHER_HEIGHT)
