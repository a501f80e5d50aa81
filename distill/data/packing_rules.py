"""Which models read several texts in one row apart, as `distill.packing` needs. No torch."""

from architectures.errors import UserError
from architectures.families import FAMILIES

SEPARATING_ATTENTION = ("sdpa", "eager")  # of transformers, whose masks follow positions


def refuse_unpackable(family: str, *, where: str) -> None:
    """Raise UserError if a text in a row would see the texts before it.

    Args:
        family: model_type of a checkpoint.
        where: The checkpoint, as the user names it.
    """
    if family not in FAMILIES or not FAMILIES[family].separates_texts:
        able = ", ".join(name for name, each in FAMILIES.items() if each.separates_texts)
        raise UserError(
            f"{where}: distill.packing is true, and models of the family {family!r} do not keep the texts of one row "
            f"apart; those of {able} do. Set distill.packing to false."
        )


def refuse_attention(implementation: str, *, where: str) -> None:
    """Raise UserError if an attention implementation of transformers does not separate texts in several rows.

    Its FlashAttention looks at positions only where all texts lie in one row.
    """
    if implementation not in SEPARATING_ATTENTION:
        raise UserError(
            f"{where}: distill.packing is true, and its attn_implementation is {implementation!r}, which lets the "
            f"texts of one row see each other. Set distill.packing to false, or have config.json name one of "
            f"{', '.join(SEPARATING_ATTENTION)}."
        )
