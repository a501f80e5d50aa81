"""Which models read several texts in one row apart, as `distill.packing` and `isolate_documents` need. No torch."""

from architectures.errors import UserError

SEPARATING_ATTENTION = ("sdpa", "eager")  # of transformers, which take a mask


def refuse_attention(implementation: str, *, where: str) -> None:
    """Raise UserError if an attention implementation of transformers does not separate texts in several rows.

    Its FlashAttention looks at positions only where all texts lie in one row.
    """
    if implementation not in SEPARATING_ATTENTION:
        raise UserError(
            f"{where}: its attn_implementation is {implementation!r}, which lets the texts of one row see each other. "
            "Set distill.packing, and of text distill.isolate_documents, to false, or have config.json name one of "
            f"{', '.join(SEPARATING_ATTENTION)}."
        )
