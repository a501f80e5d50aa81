"""Acceptance metrics of the draft on held-out responses during training.

All are teacher-forced: at each token of a target response, conditioned on the target's own prefix.

Shape suffixes used in this file:
    A = response tokens of all sequences of a batch, V = vocabulary entries, Q = quantities, B = responses of a batch,
    T = tokens of one response
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from transformers import TopPLogitsWarper

from eval.decoding.sampling import EXACT_SAMPLED_DRAFT
from eval.intervals import Estimate, Resampling, pooled_ratio
from eval.replay import Array, as_array, replay_counts

KS = (1, 3, 5, 7)
BEST_K = 5  # the checkpoint with the highest tau at this k is the best
RESAMPLING = Resampling(confidence=0.95, num_resamples=1000, seed=17)


def expected_acceptance(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """Compute alpha_A, the probability that rejection sampling accepts the student's sample, at temperature 1; float32.

    alpha = sum_x min(p(x), q(x)), with p the teacher's distribution and q the student's.
    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", corollary 3.6
    (arXiv 2211.17192).
    """
    student_p_AV = student_logits_AV.float().softmax(dim=-1)
    teacher_p_AV = teacher_logits_AV.float().softmax(dim=-1)
    return torch.minimum(student_p_AV, teacher_p_AV).sum(dim=-1)


def greedy_match(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """Return match_A, float32: 1.0 if student and teacher have the same argmax, else 0.0."""
    return (student_logits_AV.argmax(dim=-1) == teacher_logits_AV.argmax(dim=-1)).float()


def acceptance_prob(
    student_logits_AV: Tensor,
    teacher_logits_AV: Tensor,
    token_ids_A: Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
) -> Tensor:
    """Compute the probability that each response token is accepted from the draft, as in exact replay.

    Args:
        temperature: Of the recorded responses; 0 is greedy.
        top_p: Of the recorded responses; applied to both models.

    Returns:
        accept_A, float32: at temperature 0, 1 if the token is the student's argmax, else 0; otherwise min(1, q / p).
    """
    if temperature == 0:
        return (student_logits_AV.argmax(dim=-1) == token_ids_A).float()
    student_logp_A = logp_of(token_ids_A, student_logits_AV, temperature, top_p)
    teacher_logp_A = logp_of(token_ids_A, teacher_logits_AV, temperature, top_p)
    # -inf - -inf: rounding excluded the token from the teacher's nucleus, and the student does not propose it
    return (student_logp_A - teacher_logp_A).clamp(max=0).exp().nan_to_num(nan=0.0)


def logp_of(token_ids_A: Tensor, logits_AV: Tensor, temperature: float, top_p: float) -> Tensor:
    """Compute logp_A of tokens, float32."""
    logits_AV = logits_AV.float() / temperature
    if top_p < 1:
        logits_AV = TopPLogitsWarper(top_p)(token_ids_A[:, None], logits_AV)  # pyright: ignore[reportArgumentType]
    return logits_AV.log_softmax(dim=-1).gather(-1, token_ids_A[:, None])[:, 0]


@dataclass(frozen=True)
class Response:
    """Per-token metrics of one response; every array is [T].

    Attributes:
        alpha: `expected_acceptance`; None without a teacher.
        match: `greedy_match`; without a teacher the match with the response's own tokens if it is greedy, else None.
        accept: `acceptance_prob`, or `own_acceptance_prob` without a teacher.
    """

    alpha: Array | None
    match: Array | None
    accept: Array


def quantities_of_rows(
    student_logits_AV: Tensor,
    teacher_logits_AV: Tensor,
    token_ids_A: Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
) -> Tensor:
    """Compute values_AQ, a column per attribute of Response; arguments as of `acceptance_prob`."""
    return torch.stack(
        [
            expected_acceptance(student_logits_AV, teacher_logits_AV),
            greedy_match(student_logits_AV, teacher_logits_AV),
            acceptance_prob(student_logits_AV, teacher_logits_AV, token_ids_A, temperature=temperature, top_p=top_p),
        ],
        dim=1,
    )


def responses_of(values_AQ: Tensor, num_tokens_B: Sequence[int]) -> list[Response]:
    """Split the quantities of a batch by response, on the host."""
    return [Response(*as_array(values_TQ).T) for values_TQ in values_AQ.split(list(num_tokens_B))]


def own_acceptance_prob(
    student_logits_AV: Tensor, token_ids_A: Tensor, *, temperature: float, top_p: float = 1.0
) -> Tensor:
    """Compute accept_A without a teacher, by the rule of eval.replay that needs none: an equal token.

    Returns:
        float32: at temperature 0 as `acceptance_prob`; else q(token), the probability that a sample of the student
            equals the target's token, a lower bound of min(1, q / p).
    """
    if temperature == 0:
        return (student_logits_AV.argmax(dim=-1) == token_ids_A).float()
    return logp_of(token_ids_A, student_logits_AV, temperature, top_p).exp()


def responses_only(accept_A: Tensor, num_tokens_B: Sequence[int], *, temperature: float) -> list[Response]:
    """Split the result of `own_acceptance_prob` by response, on the host."""
    accepts = [as_array(accept_T) for accept_T in accept_A.split(list(num_tokens_B))]
    return [Response(alpha=None, match=accept_T if temperature == 0 else None, accept=accept_T) for accept_T in accepts]


Terms = Callable[[Response], tuple[float, float]]  # numerator and denominator of one response


def mean_terms(response: Response, *, name: Literal["alpha", "match"]) -> tuple[float, float]:
    """Return sum and number of the values of a response that has them."""
    values_T = getattr(response, name)
    return float(values_T.sum()), len(values_T)


def tau_terms(response: Response, *, num_speculative_tokens: int) -> tuple[float, float]:
    """Return emitted tokens and verification steps of a response, by exact replay."""
    counts = replay_counts(response.accept, num_speculative_tokens=num_speculative_tokens)
    return counts.emitted_tokens, counts.steps


class PooledOverResponses(Metric):
    """Ratio of two sums over responses, with an interval by bootstrap over responses.

    Args:
        terms: Numerator and denominator of one response.
        task: Index of the task whose responses count; None for all.
    """

    full_state_update = False
    numerators: list[Tensor] | Tensor
    denominators: list[Tensor] | Tensor

    def __init__(self, terms: Terms, *, task: int | None = None):
        super().__init__()
        self.terms = terms
        self.task = task
        self.estimate: Estimate | None = None
        self.add_state("numerators", [], dist_reduce_fx="cat")
        self.add_state("denominators", [], dist_reduce_fx="cat")

    def update(self, responses: Sequence[Response], tasks: Sequence[int]) -> None:
        terms = [
            self.terms(response) for response, task in zip(responses, tasks, strict=True) if self.task in (None, task)
        ]
        assert isinstance(self.numerators, list)
        assert isinstance(self.denominators, list)
        sums = torch.tensor(terms, device=self.device).reshape(-1, 2)
        self.numerators.append(sums[:, 0])
        self.denominators.append(sums[:, 1])

    def compute(self) -> Tensor:
        """Compute the ratio over the responses of all ranks, and store it with its interval in `estimate`."""
        sums, counts = (as_array(dim_zero_cat(each)).tolist() for each in (self.numerators, self.denominators))
        self.estimate = estimate = pooled_ratio(sums, counts, RESAMPLING)
        return torch.tensor(estimate.value)


@dataclass(frozen=True)
class Known:
    """Information available to an evaluation, which determines its metrics and the acceptance rule behind tau.

    Attributes:
        teacher: False if only the tokens of responses are available.
        temperature: Of the recorded responses; 0 is greedy.
    """

    teacher: bool = True
    temperature: float = 0.0

    def tau_name(self, num_speculative_tokens: int) -> str:
        """Return the metric name of tau; it includes the rule if that is not the default of scorecards."""
        prefix = f"{EXACT_SAMPLED_DRAFT}_" if not self.teacher and self.temperature > 0 else ""
        return f"{prefix}tau_{num_speculative_tokens}"

    @property
    def best_by(self) -> str:
        """Metric whose highest value makes a checkpoint the best."""
        return self.tau_name(BEST_K)

    @property
    def terms(self) -> dict[str, Terms]:
        terms: dict[str, Terms] = {"alpha": partial(mean_terms, name="alpha")} if self.teacher else {}
        if self.teacher or self.temperature == 0:
            terms["greedy_match"] = partial(mean_terms, name="match")
        return terms | {self.tau_name(each): partial(tau_terms, num_speculative_tokens=each) for each in KS}


def eval_metrics(tasks: Sequence[str] = (), known: Known = Known()) -> dict[str, PooledOverResponses]:
    """Build the metrics of a held-out evaluation, by the name they are logged under "metrics/eval/".

    With several tasks each also has its own metrics, named "task/name".
    """
    terms = known.terms
    metrics = {name: PooledOverResponses(of_response) for name, of_response in terms.items()}
    if len(tasks) > 1:
        metrics |= {
            f"{task}/{name}": PooledOverResponses(of_response, task=index)
            for index, task in enumerate(tasks)
            for name, of_response in terms.items()
        }
    return metrics


def estimates(metrics: Mapping[str, Metric]) -> dict[str, Estimate]:
    """Return the last computed value of every metric, with its interval."""
    return {
        name: metric.estimate
        for name, metric in metrics.items()
        if isinstance(metric, PooledOverResponses) and metric.estimate is not None
    }
