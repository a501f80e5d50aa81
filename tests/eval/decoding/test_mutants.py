"""The tests have teeth: every classic fault of a speculative decoder, put in, breaks a law that stands without it.

Each mutant names the law; the fault is patched into the module that would have it. A mutant that no law notices fails
here, and so does a law that fails without a fault.
"""

from dataclasses import replace

import pytest

from eval.decoding import kv_cache, sampling, speculative
from eval.decoding.sampling import (
    Limits,
    Sampling,
    Verdict,
    acceptance_probs,
    at,
    draft_at,
    invert_cumulative,
    leading,
    residual,
    row_at,
)
from tests.eval.decoding.laws import (
    law_exact_rules_write_what_plain_sampling_writes,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    law_sampled_texts_are_the_targets,
    law_the_target_accepts_its_own_proposals,
)
from tests.eval.decoding.test_rules import law_texts_are_the_targets

COLD = Sampling(0.8, top_k=3)


def test_the_laws_hold_without_a_fault(laws):
    for law in laws.values():
        law()


def unwarped_q(patch):
    """transformers #47932: the ratio is taken with the draft's own softmax, the token drawn from the warped one."""
    pick = speculative.Batch.pick

    def mutant(self, logits_BV, seen_BV, draws_B, *, drafting=False):
        tokens_B, probs_BV = pick(self, logits_BV, seen_BV, draws_B, drafting=drafting)
        return tokens_B, probs_BV if probs_BV is None else logits_BV.float().softmax(dim=-1)

    patch(speculative.Batch, "pick", mutant)


def greedy_draft_with_softmax_q(patch):
    """transformers #32867: the draft proposes its argmax and is judged as if it had sampled."""
    pick = speculative.Batch.pick

    def mutant(self, logits_BV, seen_BV, draws_B, *, drafting=False):
        tokens_B, probs_BV = pick(self, logits_BV, seen_BV, draws_B, drafting=drafting)
        return logits_BV.argmax(dim=-1) if drafting else tokens_B, probs_BV

    patch(speculative.Batch, "pick", mutant)


def residual_from_p(patch):
    """After a rejection the token is drawn from p and not from (p - q)+."""
    patch(sampling, "residual", lambda target_BV, _draft_BS, _ids_S: target_BV)


def bonus_from_q(patch):
    """After a step that kept everything the token is drawn from the draft."""

    def mutant(target_BJV, proposal, draws):
        accepted_B = leading(draws.accept_BK < acceptance_probs(target_BJV, proposal), proposal.counts_B)
        rest_BV = residual(row_at(target_BJV, accepted_B), draft_at(proposal, accepted_B))
        if proposal.tokens_BK.shape[1]:
            full_B = accepted_B == proposal.counts_B
            rest_BV = proposal.probs_BKS[:, -1].where(full_B[:, None], rest_BV)
        return Verdict(accepted_B, invert_cumulative(rest_BV, at(draws.target_BJ, accepted_B)))

    patch(sampling.RULES, "rejection", mutant)


def accept_iff_p_at_least_q(patch):
    """A proposed token is kept exactly where the target finds it as likely as the draft does."""
    patch(sampling, "acceptance_probs", lambda target, proposal: (acceptance_probs(target, proposal) >= 1).float())


def shared_random_numbers(patch):
    """vLLM #47386: what decides whether a token is kept also draws the one in its place."""
    of = speculative.Streams.of

    def mutant(wanted, seeds, row_seeds, device):
        streams = of(wanted, seeds, row_seeds, device)
        return replace(streams, target_BD=streams.accept_BD)

    patch(speculative.Streams, "of", staticmethod(mutant))


def constant_acceptance_draw(patch):
    """LLMSpeculativeSampling with a seed: the same number decides at every position."""
    of = speculative.Streams.of

    def mutant(wanted, seeds, row_seeds, device):
        streams = of(wanted, seeds, row_seeds, device)
        return replace(streams, accept_BD=streams.accept_BD[:, :1].expand_as(streams.accept_BD))

    patch(speculative.Streams, "of", staticmethod(mutant))


def cache_one_short(patch):
    """The last accepted token is written over: every step begins one position early."""
    shift_positions(patch, -1)


def cache_one_long(patch):
    """A rejected token stays: every step begins one position late."""
    shift_positions(patch, 1)


def shift_positions(patch, by):
    feed = kv_cache.RowSequencer.feed

    def mutant(self, ids_BT, spans, *, whole):
        late = [(max(0, start + by) if start > 0 else start, count) for start, count in spans]
        return feed(self, ids_BT, late, whole=whole)

    patch(kv_cache.RowSequencer, "feed", mutant)


def draft_never_catches_up(patch):
    """vLLM #5765: after a step that kept everything, the draft never reads the last token it proposed."""
    patch(sampling.Text, "last", lambda self, count: [*self.context, *self.emitted][-1:] if count else [])
    emit = speculative.SpeculativeSteps.emit

    def mutant(self, text, *args, **more):
        emitted = emit(self, text, *args, **more)
        text.missing = 0
        return emitted

    patch(speculative.SpeculativeSteps, "emit", mutant)


def stop_token_ignored_inside_a_round(patch):
    """transformers #47912, llama.cpp #28049: only the last token of a step is compared with the stop tokens."""

    def mutant(self, token_ids, limits):
        self.emitted += token_ids
        self.stopped = token_ids[-1] in limits.stop_ids
        return len(token_ids)

    patch(sampling.Text, "extend", mutant)


def rows_wait_for_the_slowest(patch):
    """Every row keeps as many tokens as the row that keeps fewest, but emits as if it were its own count."""
    judged = speculative.SpeculativeSteps.judge

    def mutant(self, logits_BJV, turn, draws):
        verdict = judged(self, logits_BJV, turn, draws)
        return replace(verdict, accepted_B=verdict.accepted_B.min().expand_as(verdict.accepted_B))

    patch(speculative.SpeculativeSteps, "judge", mutant)


@pytest.fixture
def laws(target, noisy_draft, small_pair, prompts):
    """Every law, ready to be called."""
    return {
        "enumeration": lambda: law_texts_are_the_targets("rejection"),
        "distribution": lambda: law_sampled_texts_are_the_targets(*small_pair, sampling=COLD),
        "exact rules": lambda: law_exact_rules_write_what_plain_sampling_writes(
            target, noisy_draft, prompts, "exact_sampled_draft"
        ),
        "identity": lambda: law_the_target_accepts_its_own_proposals(target, prompts),
        "sampled identity": lambda: law_the_target_accepts_its_own_proposals(target, prompts, Sampling(0.9)),
        "greedy": lambda: law_greedy_text_is_the_targets(target, noisy_draft, prompts, Limits(24, frozenset({2}))),
        "stop": lambda: law_greedy_text_is_the_targets(target, target, prompts, Limits(24, frozenset(range(3, 90)))),
        "rows": lambda: law_rows_do_not_feel_each_other(target, noisy_draft, prompts, Sampling(0.8)),
    }


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (unwarped_q, "distribution"),
        (unwarped_q, "sampled identity"),
        (greedy_draft_with_softmax_q, "distribution"),
        (residual_from_p, "enumeration"),
        (residual_from_p, "distribution"),
        (bonus_from_q, "enumeration"),
        (bonus_from_q, "distribution"),
        (accept_iff_p_at_least_q, "enumeration"),
        (accept_iff_p_at_least_q, "distribution"),
        (shared_random_numbers, "distribution"),
        (constant_acceptance_draw, "distribution"),
        (cache_one_short, "greedy"),
        (cache_one_long, "greedy"),
        (draft_never_catches_up, "identity"),
        (stop_token_ignored_inside_a_round, "stop"),
        (rows_wait_for_the_slowest, "rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_fault_breaks_its_law(monkeypatch, laws, fault, law):
    def patch(place, name, value):
        (monkeypatch.setitem if isinstance(place, dict) else monkeypatch.setattr)(place, name, value)

    fault(patch)
    with pytest.raises(AssertionError):
        laws[law]()
