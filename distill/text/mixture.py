"""Which domain the next sequence comes from: the two published rules, and the dataset that follows their weights.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence

Weights, losses and references are in the order of the domains. Losses are in nats per token, weights add up to 1.

Source of both rules: Xia et al. 2023, "Sheared LLaMA: Accelerating Language Model Pre-training via Structured Pruning",
Algorithm 1 (arXiv 2310.06694), and the code released with it, DynamicLoadingCallback.update_proportion in
github.com/princeton-nlp/LLM-Shearing (commit b87218b, update_type "doremi"). They differ in two things:

    * the paper takes max(loss - reference, 0); the code takes the difference as it is, so that a domain better than its
      reference loses weight by itself, and not only because others gain;
    * the code then mixes in 1e-4 of the uniform distribution, so that no weight falls below 1e-4 / domains.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from composer.utils import dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from architectures.errors import UserError
from distill.recipe.sections.text import TextConfig
from distill.text.streams import DomainStream, held_out_sequences, open_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNIFORM_SHARE = 1e-4  # of the released code, which has it from DoReMi (Xie et al. 2023, arXiv 2305.10429)
SHUFFLE_BLOCK = 1024  # consecutive sequences of a domain that are put in random order together

Sample = dict[str, Tensor | int]
Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]  # from samples to a batch


def paper_weights(weights: Sequence[float], losses: Sequence[float], references: Sequence[float]) -> list[float]:
    """W * exp(max(loss - reference, 0)), normalised: Algorithm 1 of the paper. Unchanged at the references."""
    excess = [max(loss - reference, 0.0) for loss, reference in zip(losses, references, strict=True)]
    return exponentiated(weights, excess)


def code_weights(weights: Sequence[float], losses: Sequence[float], references: Sequence[float]) -> list[float]:
    """W * exp(loss - reference), normalised, with 1e-4 of the uniform distribution mixed in: the released code.

    In float64, where the released code has float32.
    """
    excess = [loss - reference for loss, reference in zip(losses, references, strict=True)]
    return [(1 - UNIFORM_SHARE) * w + UNIFORM_SHARE / len(weights) for w in exponentiated(weights, excess)]


def fixed_weights(weights: Sequence[float], losses: Sequence[float], references: Sequence[float]) -> list[float]:  # noqa: ARG001  # one signature for all rules
    """The weights as they are."""
    return list(weights)


RULES: dict[str, Callable[[Sequence[float], Sequence[float], Sequence[float]], list[float]]] = {
    "fixed": fixed_weights,
    "paper": paper_weights,
    "code": code_weights,
}


def exponentiated(weights: Sequence[float], excess: Sequence[float]) -> list[float]:
    """W * exp(excess), normalised. A weight of 0 stays 0."""
    if not any(excess):
        return list(weights)  # bit for bit, where a division by their sum need not be
    largest = max(excess)
    scaled = [w * math.exp(e - largest) for w, e in zip(weights, excess, strict=True)]
    return [value / sum(scaled) for value in scaled]


class MixedDomains(IterableDataset[Sample]):
    """Training sequences without end, each from a domain drawn by the current weights.

    All processes draw the same domains in the same order and keep every world_size-th sequence, so that the sequences
    of a batch do not depend on how many processes share it, and one state says where all of them stand.

    The position belongs to the dataset and not to its iterators: a second iteration continues the first. Composer's
    checkpoints hold it through `state_dict`, and then do not skip batches on resuming.

    Args:
        streams: The sequences of each domain, by its name.
        weights: Share of each, adding up to 1.
        seed: Of the draws.
        fingerprint: What the streams were cut with; a state with another is refused.
        rank: Of this process among those that draw together.
        size: How many there are.
    """

    def __init__(
        self,
        streams: Mapping[str, DomainStream],
        weights: Sequence[float],
        *,
        seed: int,
        fingerprint: Mapping[str, int],
        rank: int = 0,
        size: int = 1,
    ):
        self.rank, self.size = rank, size
        self.streams = dict(streams)
        self.names = tuple(self.streams)
        self.weights = list(weights)
        self.fingerprint = dict(fingerprint)
        self.num_used = dict.fromkeys(self.names, 0)  # sequences over all processes
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[Sample]:
        """Yield {"input_ids": ids_T, "domain": position of its domain}.

        Raises:
            ValueError: In a DataLoader's worker process, which would never learn of new weights.
        """
        if (worker := get_worker_info()) is not None:
            raise ValueError(f"num_workers must be 0, got {worker.num_workers}: new weights do not reach workers.")
        while True:
            yield [self._draw() for _ in range(self.size)][self.rank]

    def set_weights(self, weights: Sequence[float]) -> None:
        """The share of each domain from the next sequence on."""
        assert len(weights) == len(self.names)
        assert abs(sum(weights) - 1) < 1e-9, weights
        self.weights = list(weights)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002  # Composer's signature
        """Everything the next sequences follow from, the same on every process between two batches."""
        return {
            "fingerprint": self.fingerprint,
            "weights": dict(zip(self.names, self.weights, strict=True)),
            "num_used": dict(self.num_used),
            "generator": self.generator.get_state(),
            "streams": {name: stream.state_dict() for name, stream in self.streams.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken.

        Raises:
            UserError: If it is of other domains, or of sequences cut otherwise.
        """
        ours, theirs = (
            {"domains": list(names), **marks}
            for names, marks in ((self.names, self.fingerprint), (state["weights"], state["fingerprint"]))
        )
        different = [key for key in ours if ours[key] != theirs.get(key)]
        if different:
            key = different[0]
            raise UserError(
                f"text.{key} was {theirs.get(key)} when the checkpoint was written, and is {ours[key]} now. "
                "Change it back, or start a run with another run_name."
            )
        self.weights = [state["weights"][name] for name in self.names]
        self.num_used = dict(state["num_used"])
        self.generator.set_state(state["generator"])
        for name, stream in self.streams.items():
            stream.load_state_dict(state["streams"][name])

    def _draw(self) -> Sample:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        domain = int(torch.multinomial(weights, 1, generator=self.generator))
        name = self.names[domain]
        self.num_used[name] += 1
        return {"input_ids": torch.tensor(self.streams[name].next_sequence()), "domain": domain}


def text_loader(
    config: TextConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    batch_size: int,
    seed: int,
    rank: int = 0,
    size: int = 1,
    collate: Collate | None = None,
) -> tuple[DataLoader[Any], MixedDomains]:
    """Batches {"input_ids": ids_BT, "domain": domain_B} without end for this process, and the dataset they come from.

    Args:
        batch_size: Sequences per batch of this process.
        seed: Of the draws and of the order within each domain.
        rank: Of this process among those that share the batches.
        size: How many there are.
        collate: Makes other batches of the same sequences.

    Raises:
        UserError: If the text of a domain cannot be read, or is too short.
    """
    texts = open_texts(config, tokenizer)
    for text in texts.values():
        held_out_sequences(text, count=config.num_eval_sequences)
    streams = {name: DomainStream(text, seed=seed, block_size=SHUFFLE_BLOCK) for name, text in texts.items()}
    fingerprint = {key: getattr(config, key) for key in ("max_seq_len", "num_eval_sequences")}
    dataset = MixedDomains(streams, initial_weights(config), seed=seed, fingerprint=fingerprint, rank=rank, size=size)
    # A generator of its own: without one, every new iterator would draw from torch's, which dropout and masks use.
    generator = torch.Generator()
    return DataLoader(dataset, batch_size=batch_size, collate_fn=collate, generator=generator), dataset


def text_eval_loaders(
    config: TextConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    batch_size: int,
    collate: Collate | None = None,
) -> dict[str, DataLoader[Any]]:
    """Batches of each domain's held-out sequences, in order, by its name: this process's share of them.

    Arguments are those of text_loader.

    Raises:
        UserError: If the text of a domain cannot be read, or is too short.
    """
    loaders = {}
    for domain, (name, text) in enumerate(open_texts(config, tokenizer).items()):
        sequences = held_out_sequences(text, count=config.num_eval_sequences)
        dataset = cast("Dataset[Sample]", [{"input_ids": torch.tensor(ids), "domain": domain} for ids in sequences])
        sampler = dist.get_sampler(dataset, shuffle=False)
        generator = torch.Generator()
        loaders[name] = DataLoader(
            dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate, generator=generator
        )
    return loaders


def initial_weights(config: TextConfig) -> list[float]:
    """The weights of the recipe, adding up to 1."""
    total = sum(domain.weight for domain in config.domains)
    return [domain.weight / total for domain in config.domains]
