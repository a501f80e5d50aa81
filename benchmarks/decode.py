"""Our decoding loop beside transformers' own: tokens per second, plain and speculative, alone and in a batch.

    python benchmarks/decode.py --target models/SmolLM2-135M-Instruct --draft runs/quickstart/draft --prompts FILE \
        --out FILE

Everything runs in turns in one process, each round in another order, greedily and without stop tokens, so that all
write as many:

    plain               ours against `generate`, batch 1
    speculative         ours against `generate(assistant_model=...)` at the same num_speculative_tokens, batch 1
    batch               ours, plain and speculative, all prompts at once, against batch 1 of each

transformers' assistant always proposes `num_speculative_tokens` tokens. Reports seconds per token of each method and
repeat, and ratios of medians.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from architectures.manifest import git_commit, hardware
from eval.decoding.kv_cache import Opener, open_sequencer
from eval.decoding.sampling import Limits, Speculation
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.pair import load_pair, prompts_of

Way = Callable[[], int]  # decodes everything, and returns the tokens written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", help="JSON lines; built-in prompts if left out")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds, named = measure(options), {key: value for key, value in vars(options).items() if key != "out"}
    result = {
        "seconds_per_token": seconds,
        "ratios": ratios({name: median(values) for name, values in seconds.items()}),
        "settings": {key: Path(value).name if isinstance(value, str) else value for key, value in named.items()},
        "commit": git_commit(),
        "hardware": hardware(),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, value in result["ratios"].items():
        print(f"{name}: {value:.2f}x")


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a token of every way, of each round after one to warm up."""
    pair = load_pair(options.target, options.draft, dtype=options.dtype)
    words = None if options.prompts is None else [options.prompts]
    prompts = [pair.rendered(prompt) for prompt in prompts_of(words, options.num_prompts)]
    ways = ways_to_decode(pair.target, pair.draft, prompts, options)
    rng, seconds = np.random.default_rng(options.seed), {name: [] for name in ways}
    for turn in range(options.steps + 1):
        for index in rng.permutation(len(ways)):
            name = list(ways)[index]
            start_s = time.perf_counter()
            tokens = ways[name]()
            each_s = (time.perf_counter() - start_s) / tokens
            if turn > 0:
                seconds[name].append(each_s)
            print(f"round {turn}: {name} {each_s * 1e3:.2f} ms a token", flush=True)
    return seconds


def ways_to_decode(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Sequence[list[int]], options: argparse.Namespace
) -> dict[str, Way]:
    limits, speculation = Limits(options.new_tokens), Speculation(options.num_speculative_tokens)
    configure(target, draft, options.num_speculative_tokens)

    def ours(groups: Sequence[Sequence[list[int]]], *, speculative: bool, opener: Opener = open_sequencer) -> int:
        texts: list[Any] = []
        for group in groups:
            how: dict[str, Any] = {"limits": limits, "opener": opener}
            if speculative:
                texts += speculative_decode(target, draft, group, speculation=speculation, **how)
            else:
                texts += plain_decode(target, group, **how)
        return sum(len(text.token_ids) for text in texts)

    def theirs(**assistance: Any) -> int:
        return sum(generated(target, ids, options.new_tokens, **assistance) for ids in prompts)

    alone = [[ids] for ids in prompts]
    return {
        "plain, ours": lambda: ours(alone, speculative=False),
        "plain, transformers": theirs,
        "speculative, ours": lambda: ours(alone, speculative=True),
        "speculative, transformers": lambda: theirs(assistant_model=draft),
        "plain batch, ours": lambda: ours([prompts], speculative=False),
        "speculative batch, ours": lambda: ours([prompts], speculative=True),
    }


def configure(target: PreTrainedModel, draft: PreTrainedModel, num_speculative_tokens: int) -> None:
    """Have transformers stop at no token, and propose so many tokens a round, always."""
    for model in (target, draft):
        assert model.generation_config is not None
        model.generation_config.eos_token_id = None
    config = draft.generation_config
    assert config is not None
    config.num_assistant_tokens = num_speculative_tokens
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0


def generated(target: PreTrainedModel, ids: Sequence[int], new_tokens: int, **assistance: Any) -> int:
    """Tokens that `generate` writes."""
    ids_1T = torch.tensor([list(ids)])
    output = target.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        **assistance,
    )
    return output.shape[1] - ids_1T.shape[1]


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    return {
        "plain, ours over transformers": seconds["plain, transformers"] / seconds["plain, ours"],
        "speculative, ours over transformers": seconds["speculative, transformers"] / seconds["speculative, ours"],
        "ours, speculative over plain": seconds["plain, ours"] / seconds["speculative, ours"],
        "plain, batch over batch 1": seconds["plain, ours"] / seconds["plain batch, ours"],
        "speculative, batch over batch 1": seconds["speculative, ours"] / seconds["speculative batch, ours"],
    }


if __name__ == "__main__":
    main()
