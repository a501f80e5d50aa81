"""The losses that compare student and teacher by their logits, with the options that a recipe gets by itself."""

from functools import partial

from distill.formulas.losses import LOSSES, Knowledge, loss_term

COMPARED = {
    name: partial(loss.formulas[Knowledge.LOGITS], **loss_term(name).options)
    for name, loss in LOSSES.items()
    if Knowledge.LOGITS in loss.formulas
}
