"""Inputs shown as one unknown id: which, how many, and that nothing but seed, batch and sequence decides."""

import numpy as np
import pytest
import torch

from architectures.vocabulary import DraftVocabulary
from distill.data.batches import STUDENT_IDS, UnknownInputs

V, UNKNOWN = 100, 99
SAID = tuple(range(0, 60, 2))


def hider(share: float = 0.5, seed: int = 5) -> UnknownInputs:
    return UnknownInputs(DraftVocabulary(ids=SAID, vocab_size=V, unknown_id=UNKNOWN), share=share, seed=seed)


def batch(rows: int = 6, width: int = 50, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sequences of several lengths, padded with an id that is not said."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(0, V, (rows, width), generator=generator)
    lengths_B1 = torch.randint(width // 2, width + 1, (rows, 1), generator=generator)
    real_BT = torch.arange(width) < lengths_B1
    return ids_BT.masked_fill(~real_BT, 1), real_BT


def test_what_is_said_is_never_hidden_and_hidden_is_one_id():
    ids_BT, real_BT = batch()
    shown_BT = hider().shown(ids_BT, real_BT, batch_number=3)
    changed_BT = shown_BT != ids_BT
    assert changed_BT.any()
    assert (shown_BT[changed_BT] == UNKNOWN).all()
    assert not torch.isin(ids_BT[changed_BT], torch.tensor(SAID)).any()
    assert not changed_BT[~real_BT].any()


def test_a_share_of_one_hides_all_that_is_not_said():
    ids_BT, real_BT = batch()
    shown_BT = hider(1.0).shown(ids_BT, real_BT, batch_number=0)
    is_said_BT = torch.isin(ids_BT, torch.tensor(SAID))
    assert torch.equal(shown_BT[real_BT], ids_BT.where(is_said_BT, UNKNOWN)[real_BT])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_share_is_the_share(share):
    ids_BT, real_BT = batch(rows=40, width=400)
    shown_BT = hider(share).shown(ids_BT, real_BT, batch_number=0)
    not_said_BT = real_BT & ~torch.isin(ids_BT, torch.tensor((*SAID, UNKNOWN)))
    hidden, total = int((shown_BT != ids_BT)[not_said_BT].sum()), int(not_said_BT.sum())
    assert abs(hidden / total - share) < 4 * (share * (1 - share) / total) ** 0.5


def test_neither_padding_nor_neighbours_nor_their_order_matter():
    ids_BT, real_BT = batch()
    whole_BT = hider().shown(ids_BT, real_BT, batch_number=7)
    for row in (5, 0, 3):
        length = int(real_BT[row].sum())
        alone_BT = hider().shown(ids_BT[row : row + 1, :length], real_BT[row : row + 1, :length], batch_number=7)
        assert torch.equal(alone_BT[0], whole_BT[row, :length])


@pytest.mark.parametrize("changed", ["seed", "batch", "sequence"])
def test_another_seed_batch_or_sequence_hides_others(changed):
    ids_BT, real_BT = batch(rows=1)
    first_BT = hider().shown(ids_BT, real_BT, batch_number=7)
    other_BT = ids_BT.clone()
    if changed == "sequence":
        other_BT[0, 0] = (ids_BT[0, 0] + 2) % 60
    again_BT = hider(seed=6 if changed == "seed" else 5).shown(
        other_BT, real_BT, batch_number=8 if changed == "batch" else 7
    )
    assert not torch.equal(again_BT[0, 1:], first_BT[0, 1:])


def test_global_random_states_are_neither_read_nor_moved():
    ids_BT, real_BT = batch()
    torch.manual_seed(1)
    np.random.seed(1)
    first_BT, drawn = hider().shown(ids_BT, real_BT, batch_number=0), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(hider().shown(ids_BT, real_BT, batch_number=0), first_BT)


def test_a_training_batch_keeps_what_the_teacher_reads():
    from types import SimpleNamespace

    from composer import Event

    ids_BT, real_BT = batch()
    state = SimpleNamespace(
        batch={"input_ids": ids_BT, "attention_mask": real_BT, "keep": real_BT},
        timestamp=SimpleNamespace(batch=SimpleNamespace(value=4)),
    )
    algorithm = hider()
    assert [event for event in Event if algorithm.match(event, state)] == [Event.AFTER_DATALOADER]
    algorithm.apply(Event.AFTER_DATALOADER, state, logger=None)
    assert torch.equal(state.batch["input_ids"], ids_BT)
    assert torch.equal(state.batch[STUDENT_IDS], algorithm.shown(ids_BT, real_BT, batch_number=4))
