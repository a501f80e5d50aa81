"""What a recipe cannot ask of answers that an engine decodes. No torch."""

from pydantic import ValidationInfo

from architectures.shapes.section import TargetConfig
from distill.recipe.sections.data import DataConfig
from eval.config import EvalConfig

OWN_STEPS = "an engine's steps are its own."


def refuse_engine(target: TargetConfig | None, data: DataConfig | None, engine: str) -> None:
    """Raise ValueError where an engine would answer with weights that are not packed, or by steps that are not ours."""
    if target is not None and target.bits is not None and engine != "local":
        raise ValueError(
            f"must be local when target.bits is {target.bits}, got {engine}: an engine runs the weights of its own "
            "folder, which are those of another model. Leave target.bits out, or let widedraft answer."
        )
    steps = "auto" if data is None or data.self_written_prompts else data.answer_steps
    if steps != "auto" and engine != "local":
        raise ValueError(
            f"must be local when data.answer_steps is {steps}, got {engine}: {OWN_STEPS} Leave data.answer_steps out."
        )


def require_own_steps(scoring: EvalConfig, info: ValidationInfo) -> EvalConfig:
    """The section `eval`; ValueError for steps that nothing would be decoded by."""
    generate = info.data.get("generate")
    if generate is not None and not generate.is_local and scoring.answer_steps != "auto":
        raise ValueError(
            f"must leave out answer_steps when generate.engine is {generate.engine}, got {scoring.answer_steps}: "
            f"{OWN_STEPS}"
        )
    return scoring
