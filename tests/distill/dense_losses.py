"""The losses that compare student and teacher by their logits, with the options that a recipe gets by itself."""

from functools import partial

from distill.losses import LOSSES, Knowledge, LossTerm

COMPARED = {
    name: partial(loss.formulas[Knowledge.LOGITS], **LossTerm(name=name).parameters)
    for name, loss in LOSSES.items()
    if Knowledge.LOGITS in loss.formulas
}
