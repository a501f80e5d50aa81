"""A policy in words: cells of a table, and the settings of engines that come nearest. Pure text."""

from eval.proposing.policy import ProposalPolicy

POLICY_COLUMNS = (
    "draft proposes",
    "where it is sure of",
    "looked up",
    "from a rate of",
    "rates of runs of 1, 2, ... tokens",
)


def engine_words(lookahead: int, policy: ProposalPolicy) -> str:
    """The settings of engines that come nearest to a policy, which none of them has as it is."""
    words = [f"--draft-max {lookahead}", f"--draft-p-min {policy.confidence:g}"]
    words += ["--spec-type ngram-mod,draft-simple"] if policy.least <= 1 else []
    return f"llama.cpp {' '.join(words)}; transformers assistant_confidence_threshold {policy.confidence:g}"


def policy_words(lookahead: int, policy: ProposalPolicy) -> tuple[str, ...]:
    """A policy, and the draft's own lookahead, in the order of POLICY_COLUMNS."""
    looks_up = policy.least <= 1
    return (
        str(lookahead),
        f"{policy.confidence:g}" if policy.confidence else "anything",
        str(policy.lookahead) if looks_up else "never",
        f"{policy.least:g}" if looks_up else "",
        ", ".join(f"{rate:.2f}" for rate in policy.prior),
    )
