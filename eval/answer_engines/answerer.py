"""Answers by an engine in the shards of a run: asked many at a time, kept once they are found to be the target's.

A shard is written when all its conversations are answered, a probe after the last of them was answered as the target
would, and a sample of the answers is what the target could have written. So what stands on the disk was vouched for.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from architectures.errors import UserError
from architectures.progress.track import Advance, no_progress
from architectures.sharing import ALONE, Share
from eval.answer_engines.abreast import in_any_order
from eval.answer_engines.clients.config import Asker, GenerateConfig
from eval.answer_engines.clients.endpoint import found
from eval.answer_engines.clients.exchange import EngineLostError, Server, Words
from eval.answer_engines.clients.offline import offline_vllm
from eval.answer_engines.clients.servers import Servers
from eval.answer_engines.conversing import Conversing
from eval.answer_engines.probe import Prober
from eval.answer_engines.window import Open, Window
from eval.answers.asked_turns import num_turns
from eval.answers.earlier_answers import Earlier
from eval.answers.engine_evidence import Evidence, pooled
from eval.answers.traces import DecodingSettings, Trace
from eval.answers.writing import Kind, Missing, tell_writers
from eval.decoding.answering import Answerer, sampling_of
from eval.models.loading import context_length_of, stop_token_ids

PROBE_ROOM = 256  # tokens for the probe and its answer in an engine that is loaded for short texts


@contextmanager
def engine_asked(config: GenerateConfig) -> Iterator[Kind]:
    """What writes answers where a recipe says so, for as long as the block lasts."""
    if config.is_local:
        yield Answerer
        return
    with EngineAnswers(config) as engines:
        yield engines


class EngineAnswers:
    """An engine for all the answers of a stage; opened for the first that are missing, closed at the end of a block."""

    def __init__(self, config: GenerateConfig) -> None:
        self.config = config
        self.stack = ExitStack()
        self.opened: dict[tuple[Path, str, int], Servers] = {}

    def __enter__(self) -> "EngineAnswers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        self.opened.clear()

    @property
    def keeps_states(self) -> bool:
        """Engines tell tokens alone."""
        return False

    @property
    def draws(self) -> str:
        """How random numbers follow from seeds, as a folder of sampled answers claims it."""
        return f"{self.config.engine}: the engine's own, seeded by answer"

    def __call__(
        self,
        target: Path,
        tokenizer: PreTrainedTokenizerBase,
        settings: DecodingSettings,
        *,
        name: str,
        earlier: Mapping[tuple[int, ...], Earlier] | None = None,
        share: Share = ALONE,
    ) -> "EngineAnswerer":
        return EngineAnswerer(Answerer(target, tokenizer, settings, name=name, earlier=earlier, share=share), self)

    def servers(self, here: Answerer) -> Servers:
        """The engine with the target of some answers, and nothing else loaded in it."""
        settings = here.settings
        longest = settings.max_prompt_len + settings.max_new_tokens
        key = (here.target, settings.dtype, longest)
        if key not in self.opened:
            self.stack.close()
            self.opened = {key: self.open(here.target, here.share, dtype=settings.dtype, longest=longest)}
        return self.opened[key]

    def open(self, target: Path, share: Share, *, dtype: str, longest: int) -> Servers:
        """Servers that were found, or a worker with the target loaded."""
        if self.config.engine == "endpoint":
            return Servers.of([found(url, self.config) for url in self.config.urls])
        limit = context_length_of(target)
        room = PROBE_ROOM if limit is None else min(PROBE_ROOM, limit.tokens)
        worker = offline_vllm(target, self.config, share, dtype=dtype, longest=max(longest, room))
        return Servers.of([self.stack.enter_context(worker)])


@dataclass(frozen=True)
class Outcome:
    """What one of several processes has come to.

    Attributes:
        missing: Shards that it was to write.
        kept: That it wrote.
        found: Of them.
        lost: Why its engine answers no more; None where it does.
        folder: Of the shards, where it does not.
    """

    missing: int
    kept: int = 0
    found: tuple[Evidence, ...] = ()
    lost: str | None = None
    folder: Path | None = None


class EngineAnswerer:
    """The shards of one name, answered by an engine.

    Args:
        here: Renders, takes earlier answers, and has the target that checks.
        engines: Whose engine is asked.
    """

    def __init__(self, here: Answerer, engines: EngineAnswers) -> None:
        self.here = here
        self.engines = engines
        self.config = engines.config
        self.advance: Advance = no_progress

    @property
    def taken(self) -> dict[int, Earlier]:
        return self.here.taken

    @property
    def asker(self) -> Asker:
        return self.config.asker(self.here.share, gpus=torch.cuda.device_count())

    @cached_property
    def words(self) -> Words:
        return Words(self.here.tokenizer, self.here.vocab_size)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(sorted(stop_token_ids(self.here.model)))

    def is_written(self, path: Path) -> bool:
        return self.here.is_written(path)

    def mine(self, missing: Sequence[Path]) -> Sequence[Path]:
        return self.asker.mine(missing)

    def work_of(self, missing: Missing) -> float:
        """Every answer counts alike: an engine batches them as they come."""
        return sum(num_turns(turns) for _, turns in missing)

    def write_all(self, missing: Missing) -> Iterator[Trace]:
        """Yield answers as they come; shards are written as they are vouched for.

        Raises:
            EngineLostError: If the engine of any process is gone, once all have written what was answered till then.
            UserError: If it is not the target's, or no longer.
        """
        outcome = Outcome(missing=len(missing))
        if missing:
            servers, folder = self.engines.servers(self.here), missing[0][0].parent
            tell_writers(folder, self.here.name, servers.there[0].served.words)
            window = self.window(servers)
            try:
                yield from self.answers(missing, window)
                window.settle()
            except EngineLostError as error:
                window.keep()
                outcome = replace(outcome, lost=str(error), folder=folder)
            outcome = replace(outcome, kept=window.num_written, found=tuple(window.found))
        self.conclude(self.here.share.exchange(outcome))

    def window(self, servers: Servers) -> Window:
        """What vouches for answers of some servers, each of which has answered a probe as the target does.

        Raises:
            UserError: If one has not.
        """
        here = self.here
        prober = Prober(here.model, self.words, self.stop_ids)
        return Window(
            self.probed(servers.there, prober),
            servers,
            sampling_of(here.settings),
            servers.there[0].served.words,
            self.config,
            name=here.name,
        )

    def answers(self, missing: Missing, window: Window) -> Iterator[Trace]:
        """Answers in whatever order they come; complete shards are written wherever a probe is due."""
        conversing = Conversing(self.here, window.servers, self.words, self.stop_ids)
        shards = [(Open(path, len(turns)), turns) for path, turns in missing]
        pieces = (partial(conversing.converse, shard, turn) for shard, turns in shards for turn in turns)
        for answered in in_any_order(pieces, at_once=self.asker.at_once):
            self.advance(len(answered.asked), items=0)
            yield from answered.traces
            window.add(answered)

    def conclude(self, outcomes: Sequence[Outcome]) -> None:
        """Say what was found of the answers of all processes.

        Raises:
            EngineLostError: If one of them lost its engine.
        """
        lost = next((one for one in outcomes if one.lost), None)
        if lost is not None:
            kept, missing = sum(one.kept for one in outcomes), sum(one.missing for one in outcomes)
            raise EngineLostError(
                f"{lost.lost}\n{kept} of the {missing} shards of {self.here.name} answers that were missing are kept "
                f"in {lost.folder}. Run the same command again: it continues."
            )
        tell([found for one in outcomes for found in one.found], self.here.name)

    def probed(self, servers: Sequence[Server], prober: Prober) -> Prober:
        """The prober, to which every server has answered as the target does.

        Raises:
            UserError: If one has not, or cannot draw as is asked.
        """
        settings = self.here.settings
        for server in servers:
            if settings.temperature > 0 and not server.served.is_seeded:
                raise UserError(
                    f"{server.where}: draws without regard to seeds, so no answer could be made again. Start SGLang "
                    "with --enable-deterministic-inference, or set the temperature to 0."
                )
            prober.begin(server, longest=settings.max_prompt_len + settings.max_new_tokens)
        return prober


def tell(found: Sequence[Evidence], name: str) -> None:
    """Say how many answers were checked, and how many differ from our own."""
    for one in pooled(found):
        told = f"{name}: {one.answers} answers by {one.engine}, {one.checked} of them read by the target here"
        print(f"{told}: {found_words(one)}", file=sys.stderr, flush=True)


def found_words(one: Evidence) -> str:
    """What was found of the answers that were read."""
    if one.sigmas:
        return f"their tokens surprise by {one.sigmas:+.1f} standard deviations of what the target expects"
    if not one.differing:
        return "none of these differs from its own greedy decoding"
    return (
        f"{one.differing} of these ({one.differing / one.checked:.1%}) differ from its own greedy decoding, from a "
        f"near tie on of at most {one.largest_gap:.3g} logits"
    )
