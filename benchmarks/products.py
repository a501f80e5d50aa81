"""Steps of a model that reads one to 48 tokens, by the form in which PyTorch multiplies them by the weights.

    python benchmarks/products.py --target models/SmolLM2-135M-Instruct --threads 2 --dtype float32 bfloat16

All forms and all numbers of tokens take turns in one process, in an order drawn anew each time; medians. The last
form is the one that eval/models/products.py takes for few tokens where the usual one is slow: where another is
faster, it should change; where the first is, eval.models.products.slow_type must not name it on this processor.
Nothing else may run.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from architectures.checkpoints.manifest import processor_name
from architectures.pages.blocks import Table
from architectures.pages.markdown import markdown
from architectures.progress.track import track
from eval.latency.machine import torch_threads
from eval.models.loading import load_model
from eval.models.products import Packed, onednn_product
from eval.steps.sequencer import Sequencer, open_sequencer

CONTEXT, WARM_UPS = 128, 2
TOKENS = (1, 2, 3, 4, 5, 6, 8, 16, 48)
Kind = tuple[int, str, str]  # tokens, number type, form
Form = Callable[[nn.Linear, torch.Tensor], torch.Tensor]


FORMS: dict[str, Form] = {
    "x Wᵀ": lambda layer, inputs: linear(inputs, layer.weight, layer.bias),
    "W xᵀ": lambda layer, inputs: turned(inputs, layer.weight, layer.bias),
    "oneDNN": lambda layer, inputs: onednn_product(inputs, layer.weight, layer.bias),
    "oneDNN, packed": lambda layer, inputs: onednn_product(inputs, PACKED[layer].of(layer.weight), layer.bias),
}
PACKED: defaultdict[nn.Linear, Packed] = defaultdict(Packed)


def turned(inputs: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """(W xᵀ)ᵀ, which MKL takes another way."""
    rows_RO = torch.mm(weight_OI, inputs.reshape(-1, inputs.shape[-1]).t()).t().contiguous()
    outputs = rows_RO.view(*inputs.shape[:-1], -1)
    return outputs if bias_O is None else outputs + bias_O


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/products.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=("float32", "bfloat16"))
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args(argv)
    with torch_threads(options.threads), torch.inference_mode():
        models = {dtype: load_model(options.target, dtype=dtype, device="cpu") for dtype in options.dtype}
        ms = step_ms(models, options.repeats)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{processor_name()} ({capability}), {options.threads} threads, torch {torch.__version__}; ms\n")
    columns = list(product(models, FORMS))
    cells = [[str(n), *(f"{ms[n, dtype, form]:.1f}" for dtype, form in columns)] for n in TOKENS]
    print(markdown(Table(("tokens", *(f"{dtype}, {form}" for dtype, form in columns)), cells)))


def step_ms(models: Mapping[str, PreTrainedModel], repeats: int) -> dict[Kind, float]:
    """Median milliseconds by tokens, number type and form."""
    sequencers = {dtype: read_context(model) for dtype, model in models.items()}
    kinds = list(product(TOKENS, models, FORMS))
    rng, spent_by_kind = np.random.default_rng(0), {kind: [] for kind in kinds}
    for repeat in track(range(WARM_UPS + repeats), description="repetitions", total=WARM_UPS + repeats):
        for index in rng.permutation(len(kinds)):
            tokens, dtype, form = kinds[index]
            spent_s = timed(sequencers[dtype], tokens, form)
            if repeat >= WARM_UPS:
                spent_by_kind[kinds[index]].append(spent_s)
    return {kind: 1000 * float(np.median(spent)) for kind, spent in spent_by_kind.items()}


def read_context(model: PreTrainedModel) -> Sequencer:
    """A model that has read CONTEXT tokens."""
    capacity = CONTEXT + max(TOKENS)
    sequencer = open_sequencer(model, [[1]], capacity=capacity, vocab_size=model.config.vocab_size)
    sequencer.feed(torch.arange(CONTEXT)[None], [(0, CONTEXT)], whole=False)
    return sequencer


def timed(sequencer: Sequencer, tokens: int, form: str) -> float:
    """Seconds of one step."""
    take_form(sequencer.model, FORMS[form])
    start_s = time.perf_counter()
    sequencer.feed(torch.full((1, tokens), 5), [(CONTEXT, tokens)], whole=True)
    return time.perf_counter() - start_s


def take_form(model: PreTrainedModel, form: Form) -> None:
    """Have every layer multiply in this form, wherever this runs."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = lambda inputs, layer=module: form(layer, inputs)  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    main()
