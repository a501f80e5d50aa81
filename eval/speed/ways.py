"""Ways to decode the same prompts: the target alone, a draft, no draft but the text itself, transformers' own loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids
from architectures.errors import UserError
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import GREEDY, SEEDS, plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Round, Seeds, Speculation, stream_seed
from eval.models.clock import clock_s
from eval.policies.policy_file import TunedPolicy
from eval.proposing.ngram import NgramLookup
from eval.proposing.policy import ProposalPolicy
from eval.steps.sequencer import Opener, open_sequencer

PLAIN, DRAFT, LOOKUP, TRANSFORMERS = "target alone", "draft", "n-gram lookup", "transformers"
BESIDE = "lookup beside"


class Way(NamedTuple):
    """One way to decode.

    Attributes:
        kind: PLAIN, DRAFT, LOOKUP, BESIDE, which is a draft with looking up beside it, or TRANSFORMERS, which is its
            assisted generation with a draft.
        lookahead: Tokens proposed a round, of BESIDE those of the draft; 0 for PLAIN.
        draft: Name of the draft; none for PLAIN and LOOKUP.
    """

    kind: str
    lookahead: int = 0
    draft: str = ""


@dataclass(frozen=True)
class Taken:
    """What decoding some prompts together took.

    Attributes:
        tokens: Written, over all rows.
        prefill_s: Seconds to read the prompts; None where it is not told apart.
        decode_s: Seconds from then to the last token of the last row; None likewise.
        whole_s: Seconds of everything.
        texts: The rounds of every row; empty where there are none to be seen.
        passes: Of the target behind the prompt; None where they are not told.
    """

    tokens: int
    prefill_s: float | None
    decode_s: float | None
    whole_s: float
    texts: tuple[tuple[Round, ...], ...] = ()
    passes: int | None = None


Run = Callable[[Sequence[Sequence[int]], Sequence[int]], Taken]  # prompts decoded together, and a row seed of each


@dataclass(frozen=True)
class Setup:
    """What all ways share.

    Attributes:
        target: Decides every token.
        drafts: Models that propose, by name.
        limits: When a text ends.
        sampling: How tokens are chosen.
        seeds: Of all draws.
        opener: How models are run, but by transformers.
        policies: By the name of a draft, when the text proposes in its place, and the draft's lookahead then.
        speculation: How drafts are used, but for their lookahead.
    """

    target: PreTrainedModel
    drafts: Mapping[str, PreTrainedModel]
    limits: Limits
    sampling: Sampling = GREEDY
    seeds: Seeds = SEEDS
    opener: Opener = open_sequencer
    policies: Mapping[str, TunedPolicy] = field(default_factory=dict)
    speculation: Speculation = Speculation()  # noqa: RUF009  # never changes


def ways_to_decode(setup: Setup, lookaheads: Sequence[int], *, assisted: bool = False) -> dict[Way, Run]:
    """Every way at every lookahead.

    Args:
        setup: What they share.
        lookaheads: Tokens proposed a round.
        assisted: Whether transformers' assisted generation is among them; it decodes one prompt at a time.

    Raises:
        UserError: If it is, and a draft has a small head.
    """
    if assisted:
        refuse_small_heads(setup.drafts)
    ways: dict[Way, Run] = {Way(PLAIN): partial(run_plain, setup)}
    for lookahead in lookaheads:
        for name, draft in setup.drafts.items():
            ways[Way(DRAFT, lookahead, name)] = partial(run_drafted, setup, draft, lookahead)
            if assisted:
                ways[Way(TRANSFORMERS, lookahead, name)] = partial(run_assisted, setup, draft, lookahead)
        ways[Way(LOOKUP, lookahead)] = partial(run_drafted, setup, NgramLookup(), lookahead)
    for name, tuned in setup.policies.items():
        run = partial(run_drafted, setup, setup.drafts[name], tuned.lookahead, lookup_policy=tuned.policy)
        ways[Way(BESIDE, tuned.lookahead, name)] = run
    return ways


def refuse_small_heads(drafts: Mapping[str, PreTrainedModel]) -> None:
    """Raise UserError naming the first draft whose columns transformers would take for the tokens of these numbers."""
    for draft in drafts.values():
        if head_ids(draft) is not None:
            raise UserError(
                f"--assisted: {draft.name_or_path} says some ids alone, and transformers takes column k of a draft's "
                "logits for token k. Leave out --assisted."
            )


def run_plain(setup: Setup, prompts: Sequence[Sequence[int]], row_seeds: Sequence[int]) -> Taken:
    return taken(
        plain_decode(
            setup.target,
            prompts,
            limits=setup.limits,
            sampling=setup.sampling,
            seeds=setup.seeds,
            row_seeds=row_seeds,
            opener=setup.opener,
        )
    )


def run_drafted(
    setup: Setup,
    draft: PreTrainedModel | NgramLookup,
    lookahead: int,
    prompts: Sequence[Sequence[int]],
    row_seeds: Sequence[int],
    *,
    lookup_policy: ProposalPolicy | None = None,
) -> Taken:
    """The target with something that proposes tokens."""
    return taken(
        speculative_decode(
            setup.target,
            draft,
            prompts,
            limits=setup.limits,
            speculation=speculation_with(setup, draft, lookahead),
            sampling=setup.sampling,
            seeds=setup.seeds,
            row_seeds=row_seeds,
            opener=setup.opener,
            lookup_policy=lookup_policy,
        )
    )


def speculation_with(setup: Setup, draft: PreTrainedModel | NgramLookup, lookahead: int) -> Speculation:
    """How something that proposes is used; what is looked up knows no doubt."""
    if isinstance(draft, NgramLookup):
        return Speculation(lookahead)
    return replace(setup.speculation, lookahead=lookahead)


def taken(texts: Sequence[Decoded]) -> Taken:
    """What texts of one batch took together."""
    prefill_s, decode_s = texts[0].prefill_s, max(text.decode_s for text in texts)
    tokens = sum(len(text.token_ids) for text in texts)
    passes = max(len(text.rounds) or len(text.token_ids) for text in texts)
    return Taken(tokens, prefill_s, decode_s, prefill_s + decode_s, tuple(text.rounds for text in texts), passes)


def run_assisted(
    setup: Setup,
    draft: PreTrainedModel,
    lookahead: int,
    prompts: Sequence[Sequence[int]],
    row_seeds: Sequence[int],
) -> Taken:
    """The loop of transformers with the same draft, which proposes as many tokens whatever it thinks of them."""
    [prompt], [row] = prompts, row_seeds
    ids_1T = torch.tensor([list(prompt)], device=setup.target.device)
    propose(draft, replace(setup.speculation, lookahead=lookahead))
    torch.manual_seed(stream_seed(setup.seeds.target, row))
    generate: Any = setup.target.generate  # its types know no assistant
    start_s = clock_s(ids_1T.device)
    output_1T = generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        assistant_model=draft,
        max_new_tokens=setup.limits.max_new_tokens,
        eos_token_id=sorted(setup.limits.stop_ids) or None,
        pad_token_id=0,
        **chosen_by(setup.sampling),
    )
    whole_s = clock_s(ids_1T.device) - start_s
    return Taken(output_1T.shape[1] - ids_1T.shape[1], None, None, whole_s)


def propose(draft: PreTrainedModel, speculation: Speculation) -> None:
    """Have transformers use a draft so, which it asks the draft."""
    config = draft.generation_config
    assert config is not None
    config.num_assistant_tokens = speculation.lookahead
    config.num_assistant_tokens_schedule = "heuristic" if speculation.adaptive else "constant"
    config.assistant_confidence_threshold = speculation.stopping.confidence


def chosen_by(sampling: Sampling) -> dict[str, Any]:
    """How transformers is told to choose tokens."""
    penalty = {"repetition_penalty": sampling.repetition_penalty}
    if sampling.is_greedy:
        return {"do_sample": False, **penalty}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p or None,
        **penalty,
    }
