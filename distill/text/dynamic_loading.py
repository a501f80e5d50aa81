"""Held-out loss of each domain while training, and the mixture that follows it.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, V = vocabulary entries
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from composer import Callback, Event, Logger, State
from composer.utils import dist, reproducibility
from composer.utils.misc import create_interval_scheduler
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from architectures.errors import UserError
from distill.recipe.sections.text import TextConfig
from distill.text.mixture import RULES, MixedDomains

Losses = Mapping[str, float]
LossesOfRows = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]  # from a batch: of each sequence, nats of its tokens


class DynamicLoading(Callback):
    """Measures the held-out loss of every domain at each interval and sets the weights by the recipe's rule.

    Acts at the end of a batch, before Composer evaluates and saves, so a checkpoint holds the weights that the next
    batch is drawn with. The weights themselves are saved with the dataset.

    Args:
        domains: What training reads.
        measure: The held-out loss of each domain in nats per token; called on all processes.
        references: What the losses are held against, as `reference_losses` gives them.
        rates: What to lower where a loss is no number, as a recipe calls it.
    """

    def __init__(
        self,
        domains: MixedDomains,
        measure: Callable[[State], Losses],
        *,
        rule: str,
        update_interval: str,
        references: Losses,
        rates: str,
    ):
        self.domains = domains
        self.measure = measure
        self.rule = rule
        self.references = [references[name] for name in domains.names]
        self.rates = rates
        self.is_due = create_interval_scheduler(update_interval, include_end_of_training=False, checkpoint_events=False)
        self.history: list[dict[str, Any]] = []  # of every update: batch, losses, and the weights after it

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update when the interval has passed."""
        if self.is_due(state, Event.BATCH_END):
            self.update(state, logger)

    def update(self, state: State, logger: Logger) -> None:
        """Measure, set the weights of rank 0 on all ranks, and log.

        Raises:
            UserError: If a loss is not a number.
        """
        names, batch = self.domains.names, int(state.timestamp.batch)
        losses = finite_losses(self.measure(state), names, batch=batch, rates=self.rates)
        agreed = [RULES[self.rule](self.domains.weights, losses, self.references)]
        dist.broadcast_object_list(agreed, src=0)
        weights = agreed[0]
        self.domains.set_weights(weights)
        self.history.append({"batch": batch, "losses": losses, "weights": weights})
        for name, loss, weight in zip(names, losses, weights, strict=True):
            logger.log_metrics(
                {
                    f"mixture/{name}/loss": loss,
                    f"mixture/{name}/weight": weight,
                    f"mixture/{name}/sequences": self.domains.num_used[name],
                }
            )

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the list of updates."""
        self.history = list(state["history"])


class RandomStateOnResume(Callback):
    """Restores every process's random state before the first batch of a resumed training.

    Composer restores it only at the start of an epoch or after batches it skipped itself. With a dataset that knows its
    own position, in the middle of an epoch without end, it does neither (Trainer._train_loop, mosaicml 0.32.1).
    """

    def __init__(self) -> None:
        self.loaded: list[dict[str, Any]] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The random states of all processes, which all take part."""
        return {"rng": reproducibility.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep them for the first batch."""
        self.loaded = state["rng"]

    def batch_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        if self.loaded is not None:
            reproducibility.load_rng_state(self.loaded)
            self.loaded = None


def finite_losses(losses: Losses, names: Sequence[str], *, batch: int, rates: str) -> list[float]:
    """The losses in the order of the names.

    Args:
        losses: By name.
        names: The order.
        batch: Batches trained.
        rates: The learning rates of that training, as its recipe calls them.

    Raises:
        UserError: If one is not a number.
    """
    for name in names:
        if not math.isfinite(losses[name]):
            raise UserError(
                f"The held-out loss of text domain {name} is {losses[name]} after {batch} batches: training "
                f"diverged. Lower {rates}."
            )
    return [losses[name] for name in names]


def reference_losses(config: TextConfig, measure: Callable[[], Losses]) -> dict[str, float]:
    """What each domain's loss is held against: the recipe's number, else that of the model the student is made from.

    Args:
        measure: The losses of that model; called on all processes, and only if the recipe leaves one out.

    Returns:
        Nats per token; infinite where the recipe gives none and the rule is fixed.
    """
    given = {domain.name: domain.reference_loss_nats for domain in config.domains}
    if config.mixture == "fixed":  # which holds losses against nothing
        return {name: math.inf if loss is None else loss for name, loss in given.items()}
    measured = measure() if None in given.values() else {}
    return {name: measured[name] if loss is None else loss for name, loss in given.items()}


def held_out_losses(
    logits_of: Callable[[Tensor], Tensor], loaders: Mapping[str, DataLoader[Any]], *, device: torch.device
) -> dict[str, float]:
    """Mean loss of each domain over the held-out sequences of all processes, nats per token.

    Args:
        logits_of: From ids_BT to logits_BTV, of a model that was put into evaluation mode.
        loaders: As `text_eval_loaders` makes them; repeats that fill up a process's share are left out.
    """

    def losses_of(batch: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return next_token_nll(logits_of(batch["input_ids"]), batch["input_ids"]).unbind()

    return {name: held_out_loss(losses_of, loader, device=device) for name, loader in loaders.items()}


@torch.no_grad()
def held_out_loss(losses_of: LossesOfRows, loader: DataLoader[Any], *, device: torch.device) -> float:
    """Mean loss over the held-out sequences of one domain, on all processes, nats per token.

    Every process calls the model equally often, as a sharded one needs it; repeats are dropped from what it says.
    Infinite where no token has a loss, as of a head that can output none of them.
    """
    num_own = len(range(dist.get_global_rank(), len(loader.dataset), dist.get_world_size()))  # pyright: ignore[reportArgumentType]  # a sized dataset
    sum_and_tokens = torch.zeros(2, dtype=torch.float64)
    for batch in loader:
        rows = losses_of({name: tensor.to(device) for name, tensor in batch.items()})
        for nll_T in rows[: max(0, num_own)]:
            sum_and_tokens += torch.tensor([nll_T.sum(dtype=torch.float64).item(), nll_T.numel()])
        num_own -= len(rows)
    sum_and_tokens = sum_and_tokens.to(device)
    dist.all_reduce(sum_and_tokens)
    loss_sum, num_tokens = sum_and_tokens.tolist()
    return loss_sum / num_tokens if num_tokens else math.inf


def next_token_nll(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """-log p of every token but the first, in float32; one position fewer than T."""
    return cross_entropy(logits_BTV[:, :-1].float().transpose(1, 2), ids_BT[:, 1:], reduction="none")
