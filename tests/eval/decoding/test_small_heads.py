"""A draft that says some ids alone decodes as the same draft with -inf for all others, and never makes these."""

from functools import cache

import pytest
import torch

from eval.decoding import sampling, speculative
from eval.decoding.kv_cache import open_sequencer
from eval.decoding.sampling import Limits, Sampling, Speculation, distribution, invert_cumulative, residual
from eval.decoding.speculative import plain_decode, speculative_decode
from tests.eval.decoding.laws import law_greedy_text_is_the_targets
from tests.eval.decoding.small_heads import model_of, noisy, sizes_of_drafting, spread_out, with_head_of
from tests.eval.decoding.stand_ins import watched_maker
from tests.rejections import rejects

VOCAB = 264
KEPT = tuple(id_ for id_ in range(VOCAB) if id_ % 7)  # 226 of them; the target says others too
SAMPLINGS = {
    "greedy": Sampling(),
    "greedy, penalty": Sampling(repetition_penalty=1.4),
    "temperature": Sampling(0.3),
    "top_k": Sampling(0.4, top_k=5),
    "top_k beyond the head": Sampling(0.3, top_k=250),
    "top_p": Sampling(0.4, top_p=0.8),
    "min_p": Sampling(0.4, min_p=0.2),
    "penalty": Sampling(0.3, repetition_penalty=1.3),
    "all": Sampling(0.4, top_p=0.9, top_k=30, min_p=0.02, repetition_penalty=1.2),
}
FAMILIES = ("llama", "gemma2", "granite", "gpt_neox", "gpt2", "bloom", "opt")  # one a way to a head and its logits
PROMPTS = ([5], [7, 14, 21, 0, 9, 30], [100] * 9)


@cache
def trio(family, **changes):
    """A target, a draft that says KEPT, and the draft's plain reference."""
    target = model_of(family)
    draft = with_head_of(noisy(model_of(family, **changes)), KEPT)
    return target, draft, spread_out(draft)


def trace(decoded):
    """All that can be compared of decoded texts."""
    return [(one.token_ids, [(r.start, r.proposed, r.accepted) for r in one.steps]) for one in decoded]


def decoded_by(target, draft, rule, sampling, prompts, **how):
    return speculative_decode(
        target,
        draft,
        prompts,
        limits=Limits(10, frozenset({2})),
        speculation=Speculation(3, rule=rule),
        sampling=sampling,
        row_seeds=range(len(prompts)),
        **how,
    )


def law_a_small_head_decodes_as_its_reference(models, rule, sampling, prompts, **how):
    """Texts and steps are the same; returns proposed tokens that were kept."""
    target, draft, reference = models
    found = decoded_by(target, draft, rule, sampling, prompts, **how)
    assert trace(found) == trace(decoded_by(target, reference, rule, sampling, prompts))
    return sum(one.accepted for text in found for one in text.steps)


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("rejection", "greedy"),
        ("rejection", "greedy, penalty"),
        ("rejection", "top_k beyond the head"),
        ("rejection", "all"),
        ("exact_sampled_draft", "all"),
        ("exact_greedy_draft", "penalty"),
    ],
)
def test_every_rule_decodes_as_the_reference(rule, sampling):
    """In batches and alone; what each setting makes of logits is below."""
    kept = [
        law_a_small_head_decodes_as_its_reference(trio("llama"), rule, SAMPLINGS[sampling], prompts)
        for prompts in (PROMPTS, PROMPTS[1:2])
    ]
    assert sum(kept) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_decodes_as_the_reference(family):
    law_a_small_head_decodes_as_its_reference(trio(family), "rejection", SAMPLINGS["all"], PROMPTS)


@pytest.mark.parametrize(("family", "kind"), [("gemma2", "traced"), ("gpt2", "captured")])
def test_steps_of_fixed_shapes_decode_as_the_reference(family, kind):
    maker = watched_maker(kind)
    law_a_small_head_decodes_as_its_reference(
        trio(family), "rejection", SAMPLINGS["all"], PROMPTS, opener=maker.opener()
    )
    assert maker.fed


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_the_targets(family):
    target, draft, _ = trio(family)
    law_greedy_text_is_the_targets(target, draft, PROMPTS, Limits(12, frozenset({2})), num_speculative_tokens=3)
    said = {id_ for one in plain_decode(target, PROMPTS, limits=Limits(12)) for id_ in one.token_ids}
    assert said - set(KEPT)


@pytest.mark.parametrize(("rule", "sampling"), [("rejection", "greedy"), ("exact_sampled_draft", "all")])
def test_a_draft_of_more_ids_than_its_target_says_the_shared_ones(rule, sampling):
    """Rows of ids that only pad the draft's vocabulary are the last ones, and left out."""
    target, larger = model_of("llama"), noisy(model_of("llama", vocab_size=300))
    draft = with_head_of(larger, [*KEPT, *range(270, 300, 3)])
    models = target, draft, spread_out(draft)
    law_a_small_head_decodes_as_its_reference(models, rule, SAMPLINGS[sampling], PROMPTS)
    assert open_sequencer(draft, [[5]], capacity=4, vocab_size=VOCAB).columns == len(KEPT)


def test_a_draft_that_says_nothing_its_target_can_is_refused():
    target, draft = model_of("llama"), with_head_of(model_of("llama", vocab_size=300), [280, 290])
    with rejects(280):
        decoded_by(target, draft, "rejection", Sampling(), PROMPTS)


def test_a_target_of_some_ids_is_refused():
    _, draft, _ = trio("llama")
    for decode in (
        lambda: plain_decode(draft, PROMPTS, limits=Limits(2)),
        lambda: decoded_by(draft, draft, "rejection", Sampling(), PROMPTS),
    ):
        with rejects("target", error=ValueError):
            decode()


@pytest.mark.parametrize("sampling", [one for one in SAMPLINGS.values() if not one.is_greedy])
def test_a_distribution_over_kept_ids_is_the_one_over_all_with_minus_infinity_elsewhere(sampling):
    """And the same draw falls on the same token; logits in quarters, so that many tie."""
    generator = torch.Generator().manual_seed(3)
    ids_S = torch.tensor(KEPT)
    logits_NS = (8 * torch.randn(400, len(KEPT), generator=generator)).round() / 4
    seen_NV = torch.rand(400, VOCAB, generator=generator) < 0.3
    whole_NV = torch.full((400, VOCAB), -torch.inf).index_copy(1, ids_S, logits_NS)
    small_NS = distribution(logits_NS, sampling, seen_NV[:, ids_S])
    expected_NV = distribution(whole_NV, sampling, seen_NV)
    assert expected_NV.sum(dim=1).allclose(expected_NV[:, ids_S].sum(dim=1))  # nothing elsewhere
    if sampling.top_p == 1:  # which of equal tokens top-p keeps is the sort's choice
        torch.testing.assert_close(small_NS, expected_NV[:, ids_S], rtol=1e-6, atol=0)
        draws_N = torch.rand(400, generator=generator)
        assert torch.equal(ids_S[invert_cumulative(small_NS, draws_N)], invert_cumulative(expected_NV, draws_N))
    torch.testing.assert_close(small_NS.sort(dim=1).values, expected_NV[:, ids_S].sort(dim=1).values, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("family", "kind", "rule", "sampling"),
    [
        ("llama", None, "exact_sampled_draft", "all"),
        ("gemma2", None, "rejection", "temperature"),
        ("bloom", None, "exact_greedy_draft", "greedy, penalty"),
        ("llama", "captured", "rejection", "all"),
    ],
)
def test_nothing_as_wide_as_the_vocabulary_and_no_copy_of_the_head_is_made_while_drafting(
    family, kind, rule, sampling, monkeypatch
):
    """Not by the model, and not around it; by the plain reference, both are."""
    target, draft, reference = trio(family)
    opener = {} if kind is None else {"opener": watched_maker(kind).opener()}
    sizes = sizes_of_drafting(monkeypatch)
    decoded_by(target, draft, rule, SAMPLINGS[sampling], PROMPTS, **opener)
    assert len(sizes) > 300
    assert any(size[-1:] == (len(KEPT),) for size in sizes)
    assert not [size for size in sizes if VOCAB in size]
    assert not [size for size in sizes if {len(KEPT), 64} <= set(size)]
    sizes.clear()
    decoded_by(target, reference, "rejection", SAMPLINGS[sampling], PROMPTS)
    assert [size for size in sizes if VOCAB in size]


def columns_taken_for_tokens(patch):
    patch(speculative, "tokens_of", lambda columns_B, _ids_S: columns_B)


def q_taken_from_the_first_ids(patch):
    def mutant(target_BV, draft_BS, ids_S=None):
        return residual(target_BV, draft_BS, None if ids_S is None else torch.arange(len(ids_S)))

    patch(sampling, "residual", mutant)


def q_of_another_token(patch):
    def mutant(tokens_BK, ids_S):
        return tokens_BK if ids_S is None else tokens_BK.clamp(max=len(ids_S) - 1)

    patch(sampling, "columns_of", mutant)


def penalty_on_the_first_ids(patch):
    def mutant(self):
        return self.seen_BV if self.output_ids_S is None else self.seen_BV[:, : len(self.output_ids_S)]

    patch(speculative.Batch, "seen_by_writer", mutant)


@pytest.mark.parametrize(
    ("fault", "sampling"),
    [
        (columns_taken_for_tokens, "greedy"),
        (columns_taken_for_tokens, "all"),
        (q_taken_from_the_first_ids, "temperature"),
        (q_of_another_token, "temperature"),
        (penalty_on_the_first_ids, "greedy, penalty"),
        (penalty_on_the_first_ids, "penalty"),
    ],
)
def test_a_fault_breaks_the_law(monkeypatch, fault, sampling):
    """The reference has no column but its tokens', and so no such fault."""
    fault(monkeypatch.setattr)
    prompts = [*PROMPTS, *([place] for place in range(40))]
    with pytest.raises(AssertionError):
        law_a_small_head_decodes_as_its_reference(trio("llama"), "rejection", SAMPLINGS[sampling], prompts)
