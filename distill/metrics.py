"""How often the target would accept what the draft proposes, measured on held-out answers while training.

Shape suffixes used in this file:
    A = answer tokens of all sequences of a batch, V = vocabulary entries, Q = quantities, B = answers of a batch,
    T = tokens of one answer

All is teacher-forced: at each token of an answer the target wrote, given the target's own text before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from transformers import TopPLogitsWarper

from eval.decoding.sampling import EXACT_SAMPLED_DRAFT
from eval.intervals import Estimate, Resampling, pooled_ratio
from eval.replay import Array, as_array, replay_counts

LOOKAHEADS = (1, 3, 5, 7)
BEST_LOOKAHEAD = 5  # at which the highest tau makes a checkpoint the best
RESAMPLING = Resampling(confidence=0.95, num_resamples=1000, seed=17)


def expected_acceptance(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """Chance that a token drawn from the student is accepted by rejection sampling, at temperature 1.

    alpha = sum_x min(p(x), q(x)), with p the teacher's distribution and q the student's.
    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", corollary 3.6
    (arXiv 2211.17192).

    Returns:
        alpha_A, float32, in [0, 1].
    """
    student_p_AV = student_logits_AV.float().softmax(dim=-1)
    teacher_p_AV = teacher_logits_AV.float().softmax(dim=-1)
    return torch.minimum(student_p_AV, teacher_p_AV).sum(dim=-1)


def greedy_match(student_logits_AV: Tensor, teacher_logits_AV: Tensor) -> Tensor:
    """1.0 where student and teacher have the same most likely token, else 0.0; match_A, float32."""
    return (student_logits_AV.argmax(dim=-1) == teacher_logits_AV.argmax(dim=-1)).float()


def accept_chance(
    student_logits_AV: Tensor,
    teacher_logits_AV: Tensor,
    token_ids_A: Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
) -> Tensor:
    """Chance that each token of the answer comes from the draft where a round proposes there, as in exact replay.

    Args:
        student_logits_AV: Any float dtype; computed in float32.
        teacher_logits_AV: Same shape.
        token_ids_A: The answers' tokens.
        temperature: The answers were decoded at; 0 is greedy.
        top_p: And the mass they were drawn from, of both models here.

    Returns:
        accept_A, float32: at temperature 0 whether the token is the student's argmax, else min(1, q / p) of the token.
    """
    if temperature == 0:
        return (student_logits_AV.argmax(dim=-1) == token_ids_A).float()
    student_logp_A = logp_of(token_ids_A, student_logits_AV, temperature, top_p)
    teacher_logp_A = logp_of(token_ids_A, teacher_logits_AV, temperature, top_p)
    # -inf - -inf: a token that rounding pushed out of the teacher's nucleus, and that the student does not propose
    return (student_logp_A - teacher_logp_A).clamp(max=0).exp().nan_to_num(nan=0.0)


def logp_of(token_ids_A: Tensor, logits_AV: Tensor, temperature: float, top_p: float) -> Tensor:
    """logp_A of some tokens under a temperature and a nucleus, float32."""
    logits_AV = logits_AV.float() / temperature
    if top_p < 1:
        logits_AV = TopPLogitsWarper(top_p)(token_ids_A[:, None], logits_AV)  # pyright: ignore[reportArgumentType]
    return logits_AV.log_softmax(dim=-1).gather(-1, token_ids_A[:, None])[:, 0]


@dataclass(frozen=True)
class Answer:
    """What the models make of one answer; every array is [T].

    Attributes:
        alpha: expected_acceptance; None where no teacher was asked.
        match: greedy_match; without a teacher with the answer's own tokens, if they are greedy, and else None.
        accept: accept_chance, or accept_chance_alone.
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
    """values_AQ of every token, one column for each attribute of Answer, in its order; arguments of accept_chance."""
    return torch.stack(
        [
            expected_acceptance(student_logits_AV, teacher_logits_AV),
            greedy_match(student_logits_AV, teacher_logits_AV),
            accept_chance(student_logits_AV, teacher_logits_AV, token_ids_A, temperature=temperature, top_p=top_p),
        ],
        dim=1,
    )


def answers_of(values_AQ: Tensor, num_tokens_B: Sequence[int]) -> list[Answer]:
    """The quantities of each answer of a batch, on the host."""
    return [Answer(*as_array(values_TQ).T) for values_TQ in values_AQ.split(list(num_tokens_B))]


def accept_chance_alone(
    student_logits_AV: Tensor, token_ids_A: Tensor, *, temperature: float, top_p: float = 1.0
) -> Tensor:
    """accept_A where no teacher is asked, by the rule of eval.replay that needs none: an equal token.

    Returns:
        float32: at temperature 0 whether the token is the student's argmax, as accept_chance has it; else q(token), the
        chance that a sample of the student is the token that the target drew. min(1, q / p) is never less.
    """
    if temperature == 0:
        return (student_logits_AV.argmax(dim=-1) == token_ids_A).float()
    return logp_of(token_ids_A, student_logits_AV, temperature, top_p).exp()


def answers_alone(accept_A: Tensor, num_tokens_B: Sequence[int], *, temperature: float) -> list[Answer]:
    """What accept_chance_alone tells of each answer of a batch, on the host."""
    accepts = [as_array(accept_T) for accept_T in accept_A.split(list(num_tokens_B))]
    return [Answer(alpha=None, match=accept_T if temperature == 0 else None, accept=accept_T) for accept_T in accepts]


Terms = Callable[[Answer], tuple[float, float]]  # one answer's part of a numerator and of a denominator


def alpha_terms(answer: Answer) -> tuple[float, float]:
    """Of the mean chance of acceptance over tokens."""
    assert answer.alpha is not None, "only where a teacher is asked"
    return float(answer.alpha.sum()), len(answer.alpha)


def match_terms(answer: Answer) -> tuple[float, float]:
    """Of the mean greedy match over tokens."""
    assert answer.match is not None, "only where a teacher is asked, or answers are greedy"
    return float(answer.match.sum()), len(answer.match)


def tau_terms(answer: Answer, *, lookahead: int) -> tuple[float, float]:
    """Of tau: tokens emitted and rounds, by exact replay."""
    counts = replay_counts(answer.accept, lookahead=lookahead)
    return counts.emitted_tokens, counts.rounds


class PooledOverAnswers(Metric):
    """A sum over answers divided by another, with its interval by bootstrap over answers.

    Args:
        terms: One answer's part of both sums.
        task: Only answers to this task's prompts count, by its index among the tasks; None for all.
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

    def update(self, answers: Sequence[Answer], tasks: Sequence[int]) -> None:
        """Count the answers of one batch, each to a prompt of some task."""
        terms = [self.terms(answer) for answer, task in zip(answers, tasks, strict=True) if self.task in (None, task)]
        assert isinstance(self.numerators, list)
        assert isinstance(self.denominators, list)
        sums = torch.tensor(terms, device=self.device).reshape(-1, 2)
        self.numerators.append(sums[:, 0])
        self.denominators.append(sums[:, 1])

    def compute(self) -> Tensor:
        """The ratio over the answers of all ranks; with its interval it stays in `estimate`."""
        numerators, denominators = (
            as_array(dim_zero_cat(parts)).tolist() for parts in (self.numerators, self.denominators)
        )
        estimate = pooled_ratio(numerators, denominators, RESAMPLING)
        self.estimate = estimate
        return torch.tensor(estimate.value)


@dataclass(frozen=True)
class Known:
    """What an evaluation can know: it decides which metrics there are, and the rule behind tau.

    Attributes:
        teacher: Whether a teacher is asked, or the answers' tokens are all there is.
        temperature: The answers were decoded at; 0 is greedy.
    """

    teacher: bool = True
    temperature: float = 0.0

    def tau_name(self, lookahead: int) -> str:
        """Of tau at a lookahead; where it follows another rule than a scorecard leads with, the name says which."""
        sampled_alone = not self.teacher and self.temperature > 0
        return f"{EXACT_SAMPLED_DRAFT}_tau_{lookahead}" if sampled_alone else f"tau_{lookahead}"

    @property
    def best_by(self) -> str:
        """The metric whose highest value makes a checkpoint the best."""
        return self.tau_name(BEST_LOOKAHEAD)

    @property
    def terms(self) -> dict[str, Terms]:
        """Of every metric, by its name."""
        terms: dict[str, Terms] = {"alpha": alpha_terms} if self.teacher else {}
        if self.teacher or self.temperature == 0:
            terms["greedy_match"] = match_terms
        return terms | {self.tau_name(each): partial(tau_terms, lookahead=each) for each in LOOKAHEADS}


def eval_metrics(tasks: Sequence[str] = (), known: Known = Known()) -> dict[str, PooledOverAnswers]:
    """The metrics of a held-out evaluation, under the names they are logged as after "metrics/eval/".

    Args:
        tasks: Names of the tasks the held-out prompts are of; where there are several, each has metrics of its own,
            under "task/name".
        known: Decides which there are.
    """
    terms = known.terms
    metrics = {name: PooledOverAnswers(of_answer) for name, of_answer in terms.items()}
    if len(tasks) > 1:
        metrics |= {
            f"{task}/{name}": PooledOverAnswers(of_answer, task=index)
            for index, task in enumerate(tasks)
            for name, of_answer in terms.items()
        }
    return metrics


def estimates(metrics: Mapping[str, Metric]) -> dict[str, Estimate]:
    """The last computed value of every metric of eval_metrics, with its interval."""
    return {
        name: metric.estimate
        for name, metric in metrics.items()
        if isinstance(metric, PooledOverAnswers) and metric.estimate is not None
    }
