"""What an engine lacks of a model type, whatever a config says."""

from architectures.families import FAMILIES


def without_vllm(model_type: str) -> str | None:
    """Why vLLM serves no draft of this type that has a vocabulary of its own; None where it does, or was not asked."""
    family = FAMILIES.get(model_type)
    if family is None:
        return None
    if "vLLM" in family.head_is_embedding:
        return f"vLLM's {family.label} has no output head but the embedding"
    return None if "vLLM" in family.engines else f"vLLM has no {family.label} of its own"


def engines_without_head(model_type: str) -> str | None:
    """The engines that take a head of this model type to be the embedding, in words; None if there are none."""
    *others, last = FAMILIES[model_type].head_is_embedding or (None,)
    return f"{', '.join(map(str, others))} and {last}" if others else last
