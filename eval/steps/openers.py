"""What runs the models, by the word for it."""

from eval.models.execution import How
from eval.steps import captured, compiled
from eval.steps.sequencer import Opener, open_sequencer


def new_opener(how: How) -> Opener:
    """One for all calls: what it has compiled or captured it keeps."""
    if how == "eager":
        return open_sequencer
    return compiled.CompiledSteps() if how == "compiled" else captured.CapturedSteps()
