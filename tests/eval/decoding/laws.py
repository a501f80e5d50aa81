"""Laws of speculative decoding as functions that raise AssertionError: tests call them, and mutants must break one."""

import itertools

import torch
from scipy.stats import chisquare

from eval.decoding.kv_cache import open_sequencer
from eval.decoding.sampling import Limits, Sampling, Seeds, Speculation, distribution
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.replay import response_logits

SMALL_VOCAB, TEXT = 4, 4  # 256 texts
ROWS = 3_000
FIRST = (1,)
GREEDY, WARM = Sampling(), Sampling(0.7)


def text_chances(model, sampling, first=FIRST):
    """The exact chance of every text of TEXT tokens after `first`, as the model says it."""
    texts = torch.tensor(list(itertools.product(range(SMALL_VOCAB), repeat=TEXT)))
    ids_NT = torch.cat([torch.tensor([first]).expand(len(texts), -1), texts], dim=1)
    chances = torch.ones(len(texts), dtype=torch.float64)
    with torch.inference_mode():
        logits_NTV = model(ids_NT.to(model.device), use_cache=False).logits.cpu()
    for step in range(TEXT):
        place = len(first) + step
        seen_NV = torch.zeros(len(texts), SMALL_VOCAB, dtype=torch.bool).scatter(1, ids_NT[:, :place], True)
        probs_NV = distribution(logits_NTV[:, place - 1], sampling, seen_NV)
        chances *= probs_NV.gather(1, ids_NT[:, place, None])[:, 0].double()
    return chances


def text_counts(texts):
    """How often each text occurs."""
    powers = SMALL_VOCAB ** torch.arange(TEXT - 1, -1, -1)
    numbers = (torch.tensor([list(text) for text in texts]) * powers).sum(dim=1)
    return torch.bincount(numbers, minlength=SMALL_VOCAB**TEXT)


def require_same_law(texts, chances):
    """A chi-square test of texts against exact chances; rare ones are taken together. p < 1e-4 fails."""
    counts = text_counts(texts)
    assert counts[chances == 0].sum() == 0, "a text that cannot be was written"
    expected = chances * len(texts)
    common = expected >= 5
    observed = torch.cat([counts[common].double(), counts[~common].sum(dtype=torch.float64)[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    kept = wanted > 0
    p_value = chisquare(
        observed[kept].numpy(), (wanted[kept] * observed[kept].sum() / wanted[kept].sum()).numpy()
    ).pvalue
    assert p_value > 1e-4, f"p = {p_value:.1e} that these texts are the target's"


def law_sampled_texts_are_the_targets(
    target, draft, rule="rejection", sampling=WARM, num_speculative_tokens=3, seed=0, beside=None
):
    """Many texts of four tokens, all in one batch, are distributed as the target's own."""
    decoded = speculative_decode(
        target,
        draft,
        [FIRST] * ROWS,
        limits=Limits(TEXT),
        speculation=Speculation(num_speculative_tokens, rule=rule),
        sampling=sampling,
        seeds=Seeds(3 * seed, 3 * seed + 1, 3 * seed + 2),
        row_seeds=range(ROWS),
        lookup_first=beside,
    )
    assert any(one.accepted for text in decoded for one in text.steps), "nothing was accepted: the test is empty"
    require_same_law([text.token_ids for text in decoded], text_chances(target, sampling))


def law_greedy_text_is_the_targets(
    target, draft, prompts, limits, num_speculative_tokens=4, opener=open_sequencer, beside=None
):
    """Each text is what a pass over all of it finds most likely, without a cache; it ends where it must."""
    speculation = Speculation(num_speculative_tokens)
    decoded = speculative_decode(
        target, draft, prompts, limits=limits, speculation=speculation, opener=opener, lookup_first=beside
    )
    for prompt, one in zip(prompts, decoded, strict=True):
        with torch.inference_mode():
            likeliest_T = response_logits(target, prompt, one.token_ids).argmax(dim=-1)
        assert list(one.token_ids) == likeliest_T.tolist()
        assert not limits.stop_ids & set(one.token_ids[:-1])
        assert one.stopped == (one.token_ids[-1] in limits.stop_ids)
        assert one.stopped or len(one.token_ids) == limits.max_new_tokens
        assert sum(step.accepted + 1 for step in one.steps) == len(one.token_ids)
        assert all(0 <= step.accepted <= step.proposed for step in one.steps)


def law_the_target_accepts_its_own_proposals(
    target, prompts, sampling=GREEDY, rule="rejection", num_speculative_tokens=3
):
    """Draft = target: everything proposed is kept, in every step of every row."""
    decoded = speculative_decode(
        target,
        target,
        prompts,
        limits=Limits(20),
        speculation=Speculation(num_speculative_tokens, rule=rule),
        sampling=sampling,
        row_seeds=range(len(prompts)),
    )
    for text in decoded:
        assert all(one.accepted == one.proposed for one in text.steps), [
            (one.proposed, one.accepted) for one in text.steps
        ]


def law_exact_rules_write_what_plain_sampling_writes(target, draft, prompts, rule, sampling=WARM, beside=None):
    """With the same stream of the target's draws, token for token."""
    how = {"limits": Limits(16), "sampling": sampling, "row_seeds": range(len(prompts))}
    plain = plain_decode(target, prompts, **how)
    decoded = speculative_decode(
        target, draft, prompts, speculation=Speculation(3, rule=rule), lookup_first=beside, **how
    )
    assert [text.token_ids for text in decoded] == [text.token_ids for text in plain]
    assert any(one.accepted for text in decoded for one in text.steps)


def law_rows_do_not_feel_each_other(
    target, draft, prompts, sampling, rule="rejection", opener=open_sequencer, beside=None
):
    """Every third row of a batch is what it is alone: same text, same steps."""
    arguments = {
        "limits": Limits(16, frozenset({2})),
        "speculation": Speculation(4, rule=rule),
        "sampling": sampling,
        "opener": opener,
        "lookup_first": beside,
    }
    together = speculative_decode(target, draft, prompts, row_seeds=range(len(prompts)), **arguments)
    for place in range(0, len(prompts), 3):
        row = together[place]
        [alone] = speculative_decode(target, draft, [prompts[place]], row_seeds=[place], **arguments)
        assert alone.token_ids == row.token_ids
        assert [(one.start, one.proposed, one.accepted) for one in alone.steps] == [
            (one.start, one.proposed, one.accepted) for one in row.steps
        ]
