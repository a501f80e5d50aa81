"""Drafts that say some ids alone, the same drafts as a plain reference has them, and what their steps produce."""

from copy import deepcopy

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from architectures.vocabulary_head import IDS, cut_head, head_ids, spread
from eval.decoding.speculative import SpeculativeSteps
from tests.conftest import TINY_SHAPE

SMALL = {**TINY_SHAPE, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WITHOUT_WINDOW = {"llama", "olmo2", "granite", "seed_oss", "glm4", "ministral3", "gpt_neox", "gpt2", "gpt_bigcode"}
SETTINGS = {
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "mistral": {"sliding_window": 6},
    "gemma2": {"sliding_window": 6, "tie_word_embeddings": False},  # tied, they say what they read
    "gemma3_text": {"sliding_window": 6, "tie_word_embeddings": False},
    "phi3": {"sliding_window": 6},
    "olmo2": {"tie_word_embeddings": False},
    "olmo3": {"sliding_window": 6},
    "exaone4": {"sliding_window": 6},
}


def model_of(family, seed=1, **changes):
    """A tiny random model in memory."""
    config = AutoConfig.for_model(family, **{**SMALL, **SETTINGS.get(family, {}), **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def noisy(model, size=0.005):
    """A copy with noise on its weights: right about some tokens."""
    draft, generator = deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)
    return draft


def with_head_of(model, ids):
    """A copy that says these ids alone."""
    draft = deepcopy(model)
    cut_head(draft, torch.tensor(ids))
    return draft


def spread_out(draft):
    """The plain reference: the same draft with logits for every id, -inf where it has no row."""
    twin = deepcopy(draft)
    del twin.get_output_embeddings()._buffers[IDS]
    vocab_size = twin.config.get_text_config(decoder=True).vocab_size

    def whole(_model, _inputs, output):
        output.logits = spread(output.logits, head_ids(draft), vocab_size, elsewhere=-torch.inf)
        return output

    twin.register_forward_hook(whole)
    return twin


class Produced(TorchDispatchMode):
    """Every tensor that is computed while it is on, but for views of what was there before."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        before = {one.untyped_storage().data_ptr() for one in tensors_in((arguments, keywords))}
        self.sizes += [tuple(one.shape) for one in tensors_in(result) if one.untyped_storage().data_ptr() not in before]
        return result


def tensors_in(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def sizes_of_drafting(monkeypatch):
    """Sizes of all tensors that are computed from now on while a draft proposes tokens."""
    propose, sizes = SpeculativeSteps.propose, []

    def watched(self, counts):
        with Produced() as produced:
            proposal = propose(self, counts)
        sizes.extend(produced.sizes)
        return proposal

    monkeypatch.setattr(SpeculativeSteps, "propose", watched)
    return sizes
