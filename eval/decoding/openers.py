"""What runs the models, by the word for it."""

from eval.decoding import captured, compiled
from eval.decoding.sequencer import Opener, open_sequencer
from eval.how import How


def new_opener(how: How) -> Opener:
    """One for all calls: what it has compiled or captured it keeps."""
    if how == "eager":
        return open_sequencer
    return compiled.CompiledSteps() if how == "compiled" else captured.CapturedSteps()
