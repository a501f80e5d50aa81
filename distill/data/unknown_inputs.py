"""Some of the tokens that a draft cannot output are shown to it as one unknown id while it trains.

The teacher reads what stands there, and so does the student at every evaluation. Which tokens are shown so depends on
the seed, the batch's number and their own sequence alone: not on processes, micro-batches, padding or interruptions.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens of the longest sequence in it, V = vocabulary entries of the target
"""

import zlib

import numpy as np
import torch
from composer import Algorithm, Event, Logger, State
from torch import Tensor

from architectures.vocabulary import DraftVocabulary

STUDENT_IDS = "student_ids"  # of a batch: what the student reads in place of input_ids


class UnknownInputs(Algorithm):
    """Adds to each training batch what the student reads.

    Args:
        vocabulary: Of the student, with unknown_id.
        share: Chance in (0, 1] of a token that is not said.
        seed: Of the training.
    """

    def __init__(self, vocabulary: DraftVocabulary, *, share: float, seed: int):
        assert vocabulary.unknown_id is not None, "the record of a training that shows unknown ids names one"
        self.unknown_id = vocabulary.unknown_id
        self.share = share
        self.seed = seed
        self.is_output_V = torch.zeros(vocabulary.vocab_size, dtype=torch.bool)
        self.is_output_V[torch.tensor(vocabulary.ids)] = True

    def match(self, event: Event, state: State) -> bool:  # noqa: ARG002  # Composer's signature
        """Before a training batch is cut into micro-batches."""
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Show the student its batch."""
        batch = state.batch
        ids_BT = self.shown(batch["input_ids"], batch["attention_mask"], batch_number=state.timestamp.batch.value)
        state.batch = {**batch, STUDENT_IDS: ids_BT}

    def shown(self, input_ids_BT: Tensor, real_BT: Tensor, *, batch_number: int) -> Tensor:
        """ids_BT as the student reads them.

        Args:
            input_ids_BT: Padded on the right.
            real_BT: False where padding stands.
            batch_number: Batches trained before this one.
        """
        ids_BT, lengths = input_ids_BT.cpu(), real_BT.sum(dim=1).tolist()
        chance_BT = torch.ones(ids_BT.shape)
        for row, (ids_T, length) in enumerate(zip(ids_BT, lengths, strict=True)):
            content = zlib.crc32(ids_T[:length].numpy().tobytes())
            drawn_T = np.random.default_rng([self.seed, batch_number, content]).random(length, dtype=np.float32)
            chance_BT[row, :length] = torch.from_numpy(drawn_T)
        is_hidden_BT = ~self.is_output_V[ids_BT] & (chance_BT < self.share)
        return input_ids_BT.masked_fill(is_hidden_BT.to(input_ids_BT.device), self.unknown_id)
