"""Which models read several texts in one row apart, as `distill.packing` and training on text need. No torch."""

from architectures.errors import UserError

SEPARATING_ATTENTION = ("sdpa", "eager")  # of transformers, which take a mask


def refuse_attention(implementation: str, *, where: str) -> None:
    """Raise UserError if an attention implementation of transformers does not separate texts in several rows.

    Its FlashAttention looks at positions only where all texts lie in one row.
    """
    if implementation not in SEPARATING_ATTENTION:
        raise UserError(
            f"{where}: its attn_implementation is {implementation!r}, which lets the texts of one row see each other. "
            f"Have config.json name one of {', '.join(SEPARATING_ATTENTION)}, or set distill.packing to false."
        )
