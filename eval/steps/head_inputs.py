"""Who is told what a model's output head is given: by the model's own passes, and by steps that run none of its Python.

Shape suffixes used in this file:
    B = rows, T = tokens whose logits are wanted, H = width of the last hidden state
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import PreTrainedModel

Listener = Callable[[Tensor], None]  # hidden_BTH, which the next step of the model may write over

LISTENERS: WeakKeyDictionary[PreTrainedModel, list[Listener]] = WeakKeyDictionary()


def listen(model: PreTrainedModel, listener: Listener) -> None:
    """Call a function before each product with the output head, from now on.

    It must not wait for the device: it is called while a step is captured, too.
    """
    head_of(model).register_forward_pre_hook(lambda _head, inputs: listener(inputs[0]))
    LISTENERS.setdefault(model, []).append(listener)


def tell(model: PreTrainedModel, hidden_BTH: Tensor) -> None:
    """What a step has given the head that ran no Python."""
    for listener in LISTENERS.get(model, ()):
        listener(hidden_BTH)


def with_head_input(model: PreTrainedModel, run: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """A pass that returns its logits and, if anybody listens, what it gave the head."""

    def both() -> tuple[Tensor, ...]:
        if model not in LISTENERS:
            return (run(),)
        given: list[Tensor] = []
        hook = head_of(model).register_forward_pre_hook(lambda _head, inputs: given.append(inputs[0]))
        try:
            return (run(), *given)
        finally:
            hook.remove()

    return both


def head_of(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear), "a causal language model has a linear output head"
    return head
