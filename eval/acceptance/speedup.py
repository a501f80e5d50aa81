"""What acceptance and step times are worth: speed-up, best lookahead, break-even alpha. Pure; no torch.

One round at lookahead g emits tau(g) tokens. It costs g draft steps and one verification of g + 1 tokens by the
target; plain decoding costs one target step a token. After a round that kept all g tokens the draft must catch up on
the last of them, so the first draft step of the next round takes two tokens:

    S(g) = tau(g) T_target / (g T_draft + f(g) (T_draft_two - T_draft) + T_verify(g))

with f(g) the share of rounds that kept all g tokens.

Source: Sadhukhan et al. 2024, "MagicDec", eq. 1 (arXiv 2408.11049), with the catch-up step added. With T_verify =
T_target and T_draft_two = T_draft it is theorem 3.8 of Leviathan et al. 2023 (arXiv 2211.17192).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scipy.optimize import root_scalar


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step; any unit will do, for only ratios count.

    Attributes:
        target_s: The target, one token.
        draft_s: The draft, one token, within a chain of such steps.
        draft_two_s: The draft, two tokens at once.
        verify_s: The target, lookahead + 1 tokens at once, for each lookahead.
    """

    target_s: float
    draft_s: float
    draft_two_s: float
    verify_s: Mapping[int, float]

    @property
    def cost_ratio(self) -> float:
        """Draft step over target step: Leviathan's c."""
        return self.draft_s / self.target_s


def ideal_times(cost_ratio: float, lookahead: int) -> StepTimes:
    """Times under Leviathan's assumptions: verifying many tokens costs as much as one step, and so does catching up."""
    return StepTimes(target_s=1.0, draft_s=cost_ratio, draft_two_s=cost_ratio, verify_s={lookahead: 1.0})


def iid_tau(alpha: float, lookahead: int) -> float:
    """Tokens per round if every proposal is kept with chance alpha, independently.

    Source: Leviathan et al. 2023, eq. 1 (arXiv 2211.17192), as a sum that also holds at alpha = 1.
    """
    return sum(alpha**k for k in range(lookahead + 1))


def iid_utilisation(alpha: float, lookahead: int) -> float:
    """Share of the proposed tokens that is kept, under the same model."""
    return (iid_tau(alpha, lookahead) - 1) / lookahead


def predicted_speedup(tau: float, full_rate: float, lookahead: int, times: StepTimes) -> float:
    """Plain decoding time over speculative decoding time, from measured acceptance and step times.

    Args:
        tau: Tokens per round at this lookahead, the target's own included; of a batch, the steps of the target alone
            that a round stands for.
        full_rate: Share of the rounds that kept all proposals; of a batch, in any of its rows.
        lookahead: Tokens proposed per round.
        times: Measured steps; must hold verify_s for this lookahead.
    """
    catch_up_s = full_rate * (times.draft_two_s - times.draft_s)
    round_s = lookahead * times.draft_s + catch_up_s + times.verify_s[lookahead]
    return tau * times.target_s / round_s


def iid_speedup(alpha: float, lookahead: int, times: StepTimes, batch: int = 1) -> float:
    """Speed-up if every proposal is kept with chance alpha, independently, in each row of a batch.

    Source: theorem 3.8 of Leviathan et al. 2023 (arXiv 2211.17192) when times are the ideal ones.
    """
    full_rate = 1 - (1 - alpha**lookahead) ** batch
    return predicted_speedup(iid_tau(alpha, lookahead), full_rate, lookahead, times)


def memory_bound_speedup(tau: float, lookahead: int, byte_ratio: float) -> float:
    """Speed-up where a step costs what it reads from memory, however many tokens it is fed: no machine is asked.

    Args:
        tau: Tokens per round.
        lookahead: Draft tokens per round.
        byte_ratio: What a step of the draft reads over what one of the target reads.

    Source: MBSU of Goel et al. 2024 (arXiv 2403.00858), there with parameter counts in place of bytes.
    """
    return tau / (lookahead * byte_ratio + 1)


def best_lookahead(speedups: Mapping[int, float]) -> int:
    """The lookahead with the largest speed-up, the smallest of several."""
    return max(sorted(speedups), key=lambda lookahead: speedups[lookahead])


def break_even_alpha(lookahead: int, times: StepTimes, batch: int = 1) -> float | None:
    """The alpha at which drafting neither gains nor loses time, if proposals are kept independently.

    Returns:
        A number in [0, 1]; None if no alpha pays, not even one.
    """
    return root_in_unit(lambda alpha: iid_speedup(alpha, lookahead, times, batch) - 1)


def root_in_unit(gain: Callable[[float], float]) -> float | None:
    """Where a gain that grows from 0 to 1 is nothing: 0 if it is none nowhere, None if there is no gain at 1 either."""
    if gain(1.0) <= 0:
        return None
    return 0.0 if gain(0.0) >= 0 else float(root_scalar(gain, bracket=(0.0, 1.0)).root)
