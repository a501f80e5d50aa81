"""Recipe key `distill.token_selection`, and how many tokens a chunk of a loss holds. No torch.

What `distill.loss` may hold is made from the table of losses, distill/formulas/losses.py.
"""

from pydantic import Field

from architectures.files.section import Section
from distill.formulas.losses import OpenFraction

# Logits entries of a chunk. 2**23 of them, with their probabilities and gradients, are 200 MB. With 2**24 the peak at
# 8,192 tokens from 32,000 entries was 0.136 of the plain path's, where an eighth is asked for; time is the same
# (benchmarks/loss.py).
CHUNK_ENTRIES = 2**23
MIN_CHUNK_TOKENS = 256  # below, each pass over the head's weight and its gradient serves too few tokens
GPU_CHUNKS = 4  # such chunks at a time: on an H200 8,192 tokens took 25 ms from 32,000 entries, and 40.5 by single ones


def chunk_size(vocab_size: int) -> int:
    """Tokens whose logits exist at a time while a loss is computed; so many or fewer take the plain path.

    On a processor; a GPU takes GPU_CHUNKS times as many.
    """
    return max(MIN_CHUNK_TOKENS, CHUNK_ENTRIES // vocab_size)


class TokenSelection(Section):
    """Train on the answer tokens whose KL is furthest above that of a frozen reference draft (AdaSPEC)."""

    fraction: OpenFraction = Field(default=0.4, description="Share of each answer's tokens trained on, at least one.")
    reference: str = Field(
        min_length=1, description="Folder of the reference: a draft of the same target, distilled before."
    )
