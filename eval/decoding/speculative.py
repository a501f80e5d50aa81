"""Decoding by one model, and speculative decoding by two: any batch, greedy or sampled, by any acceptance rule.

Before each round the target has read all tokens of a text but the last, whose logits it has yet to give. So has the
draft, except after a round that kept everything it proposed: the last proposed token never went through it, and goes in
with the next one, two tokens at once. Rows of a batch keep as many tokens as they keep; none waits for another.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1 (arXiv
2211.17192); the rules are in eval/decoding/rules.py.
"""

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from eval.decoding.batch import Batch, Emitted
from eval.decoding.batch_rounds import Rounds
from eval.decoding.ngram import LookupFirst, NgramLookup
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation
from eval.decoding.wanted import Streams, Wanted
from eval.steps.sequencer import Opener, open_sequencer, takes_rows

GREEDY, LOOKAHEAD_4, SEEDS = Sampling(), Speculation(), Seeds()  # defaults


def speculative_decode(
    target: PreTrainedModel,
    draft: PreTrainedModel | NgramLookup,
    prompts: Sequence[Sequence[int]],
    *,
    limits: Limits,
    speculation: Speculation = LOOKAHEAD_4,
    sampling: Sampling = GREEDY,
    seeds: Seeds = SEEDS,
    row_seeds: Sequence[int] | None = None,
    opener: Opener = open_sequencer,
    lookup_first: LookupFirst | None = None,
) -> list[Decoded]:
    """Continuations as the target writes them, found with the help of a draft.

    Args:
        target: Decides every token.
        draft: Proposes tokens; a model shares the target's tokenizer and device.
        prompts: Token ids, each at least one; of an encoder-decoder model its inputs.
        limits: When a text ends.
        speculation: How the draft is used.
        sampling: How tokens are chosen, on both sides.
        seeds: Of the three streams of random numbers.
        row_seeds: One per prompt; its draws depend on this and the seeds alone. `eval.decoding.texts.row_seed` makes
            them. May be left out at temperature 0 only: prompts of two calls that both count from 0 would draw alike.
        opener: How the models are run: `open_sequencer`, or an eval.steps.fixed_steps.FixedSteps.
        lookup_first: Prompt lookup where it finds a match, in place of a draft that is a model.

    Returns:
        One for each prompt, in their order.
    """
    models, lookup = ([target], draft) if isinstance(draft, NgramLookup) else ([target, draft], None)
    wanted = Wanted(prompts, limits, sampling, speculation, lookup, lookup_first)
    steps = decode_steps(models, wanted, seeds=seeds, row_seeds=row_seeds, opener=opener)
    return collected(steps, len(prompts))


def plain_decode(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    limits: Limits,
    sampling: Sampling = GREEDY,
    seeds: Seeds = SEEDS,
    row_seeds: Sequence[int] | None = None,
    opener: Opener = open_sequencer,
) -> list[Decoded]:
    """The target's continuations, one token at a time, by the same machinery as with a draft; see there."""
    wanted = Wanted(prompts, limits, sampling)
    steps = decode_steps([target], wanted, seeds=seeds, row_seeds=row_seeds, opener=opener)
    return collected(steps, len(prompts))


def decode_steps(
    models: Sequence[PreTrainedModel],
    wanted: Wanted,
    *,
    seeds: Seeds = SEEDS,
    row_seeds: Sequence[int] | None = None,
    opener: Opener = open_sequencer,
) -> Iterator[Emitted | tuple[int, Decoded]]:
    """Decode, and tell what is added to every text as it happens; see speculative_decode.

    All prompts are one batch where every model takes them so (eval.steps.sequencer.takes_rows), else each is one.

    Args:
        models: The target, and a draft if one is wanted that is a model.
        wanted: What to decode.
        seeds: Of the three streams of random numbers.
        row_seeds: One per prompt.
        opener: How the models are run.

    Yields:
        What a step added to a text; after its last, (its index among the prompts, the text).

    Raises:
        ValueError: If texts are sampled and no row seeds given.
    """
    everything = range(len(wanted.prompts))
    if row_seeds is None and not wanted.sampling.is_greedy:
        raise ValueError("sampled texts need row_seeds, one per prompt that no prompt of another call has, got None.")
    draws = Streams.of(wanted, seeds, everything if row_seeds is None else row_seeds, models[0].device)
    together = all(takes_rows(model, goes_back=wanted.goes_back) for model in models)
    for indices in [everything] if together else [[index] for index in everything]:
        with torch.inference_mode():
            batch = Batch(models, wanted, draws, indices, opener)
            step = batch.plain_step if wanted.speculation is None else Rounds(batch).step
        while batch.texts:
            with torch.inference_mode():  # once a step: around what is yielded it would be entered for every text
                done = [*step(), *batch.retire()]
            yield from done


def collected(steps: Iterator[Emitted | tuple[int, Decoded]], count: int) -> list[Decoded]:
    """The texts in the order of their prompts."""
    texts = dict(finished(steps))
    return [texts[index] for index in range(count)]


def finished(steps: Iterator[Emitted | tuple[int, Decoded]]) -> Iterator[tuple[int, Decoded]]:
    """The texts with their indices among the prompts, as they end."""
    return (step for step in steps if isinstance(step, tuple))
