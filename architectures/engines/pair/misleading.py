"""Names by which vLLM takes a draft for another method's, whatever it is told."""

from architectures.errors import UserError

OTHER_METHODS = ("eagle-", "eagle3", "dflash", "dspark")  # Source: vLLM 0.32, vllm/config/speculative.py


def misleading_part(name: str) -> str | None:
    """The part of a path or hub id that misleads; None if there is none."""
    return next((part for part in OTHER_METHODS if part in name.lower()), None)


def refuse_misleading_name(name: str) -> None:
    """Raise UserError for a name by which vLLM would take the draft for something else.

    Args:
        name: A hub id, or an absolute path: folders above count too.
    """
    part = misleading_part(name)
    if part is not None:
        raise UserError(
            f"{name}: holds {part!r}, and vLLM then does not load a draft_model, whatever it is told. "
            "Choose another name."
        )
