"""Answers that came since the last probe: kept back until the next one, and a sample of them, vouch for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.answer_engines import judge
from eval.answer_engines.clients.config import GenerateConfig
from eval.answer_engines.clients.exchange import EngineLostError, Server
from eval.answer_engines.clients.servers import Servers
from eval.answer_engines.probe import Prober
from eval.answers.engine_evidence import Evidence, evidence_path, write_evidence
from eval.answers.shards import write_shard
from eval.answers.traces import Trace, rows_of
from eval.decoding.sampling import Sampling


@dataclass
class Open:
    """A shard in the making.

    Attributes:
        path: Of it.
        missing: Conversations that are not answered yet.
        traces: Answers that are.
        asked: Ids of those that the engine wrote; the others were taken from earlier ones.
    """

    path: Path
    missing: int
    traces: list[Trace] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Answered:
    """A conversation of a shard, the ids of the answers that the engine wrote, and by which servers."""

    shard: Open
    traces: tuple[Trace, ...]
    asked: frozenset[int]
    servers: frozenset[str]


@dataclass
class Window:
    """Complete shards that wait, and what vouches for them.

    Attributes:
        prober: Asks the known prompt again.
        servers: Whom.
        sampling: How the answers were chosen.
        engine: And its version.
        config: How much is checked, and how often is probed.
        name: Of the answers.
    """

    prober: Prober
    servers: Servers
    sampling: Sampling
    engine: str
    config: GenerateConfig
    name: str
    complete: list[Open] = field(default_factory=list)
    num_since: int = 0
    used: set[str] = field(default_factory=set)
    num_written: int = 0
    found: list[Evidence] = field(default_factory=list)

    def add(self, answered: Answered) -> None:
        """Take a conversation in; vouch for what is complete where a probe is due."""
        shard = answered.shard
        shard.traces.extend(answered.traces)
        shard.asked |= answered.asked
        shard.missing -= 1
        if shard.missing == 0:
            self.complete.append(shard)
        self.num_since += len(answered.asked)
        self.used |= answered.servers
        if self.num_since >= self.config.probe_interval and self.complete:
            self.settle()

    def settle(self) -> None:
        """Write the complete shards, if whoever answered since the last probe is still the target.

        Raises:
            UserError: If somebody is not, or answers of the sample are not the target's; nothing is written then.
        """
        for server in self.servers.there:
            if server.where in self.used:
                self.require_unchanged(server)
        self.used.clear()
        self.num_since = 0
        self.keep()

    def require_unchanged(self, server: Server) -> None:
        """Refuse a server that no longer writes what the target does; one that is gone cannot be asked."""
        try:
            is_there = self.prober.is_still_there(server)
        except EngineLostError:
            return  # its answers are as good as the sample that the target reads
        if not is_there:
            raise UserError(
                f"{server.where}: no longer serves the target: the known prompt was answered as the target would, "
                f"and is not any more. {self.num_since} answers since the last good probe are dropped, those of shards "
                "before it are kept. Serve the target again and run the same command: it continues."
            )

    def keep(self) -> int:
        """Write the complete shards whose sample is the target's; how many were written in all.

        Raises:
            UserError: If an answer is not.
        """
        for shard in self.complete:
            evidence = self.check(shard)
            if evidence is not None:
                write_evidence(shard.path, evidence)
                self.found.append(evidence)
            else:
                evidence_path(shard.path).unlink(missing_ok=True)
            write_shard(shard.path, rows_of(shard.traces))
            self.num_written += 1
        self.complete.clear()
        return self.num_written

    def check(self, shard: Open) -> Evidence | None:
        """What the target says of a sample of a shard; None where every answer was taken from earlier ones.

        Raises:
            UserError: If it did not write them.
        """
        written = [trace for trace in shard.traces if trace.id in shard.asked]
        if not written:
            return None
        sample = self.sample(written)
        how = self.greedy if self.sampling.is_greedy else self.sampled
        return Evidence(
            engine=self.engine,
            answers=len(written),
            checked=len(sample),
            tokens=sum(len(trace.answer_ids) for trace in sample),
            **how(sample),
        )

    def sample(self, written: Sequence[Trace]) -> list[Trace]:
        """Some of the answers, drawn by a hash of their ids."""
        drawn = sorted(written, key=lambda trace: sha256(f"{self.name}/check/{trace.id}".encode()).digest())
        return drawn[: ceil(self.config.checked * len(written))]

    def greedy(self, sample: Sequence[Trace]) -> dict[str, Any]:
        """How many greedy answers differ from our own, and by how much where they begin to."""
        verdicts = {
            trace.source: judge.judge_greedy(self.prober.model, trace.prompt_ids, trace.answer_ids, self.sampling)
            for trace in sample
        }
        for source, verdict in verdicts.items():
            if not verdict.is_honest:
                raise UserError(
                    f"{self.engine}: its answer to {source} is not the target's: token {verdict.worst + 1} lies "
                    f"{verdict.excess:.1f} times as far below what the target here says as a near tie may. "
                    f"{REMEDY}"
                )
        if judge.has_too_many_ties(verdicts.values()):
            ties, tokens = (sum(getattr(one, name) for one in verdicts.values()) for name in ("ties", "tokens"))
            raise UserError(
                f"{self.engine}: the target here takes another token at {ties} of {tokens} places of its answers, far "
                f"more often than rounding explains. {REMEDY}"
            )
        gaps = [verdict.gap for verdict in verdicts.values() if verdict.first is not None]
        return {"differing": len(gaps), "largest_gap": max(gaps, default=0.0)}

    def sampled(self, sample: Sequence[Trace]) -> dict[str, Any]:
        """How far the surprise of sampled answers is from what the target expects."""
        found = judge.pooled(
            judge.judge_sampled(self.prober.model, trace.prompt_ids, trace.answer_ids, self.sampling)
            for trace in sample
        )
        if not found.is_honest:
            raise UserError(
                f"{self.engine}: its answers are not drawn from the target's distribution: {found.tokens} tokens "
                f"surprise by {found.sigmas:+.1f} standard deviations, {found.outside} are none that is ever drawn. "
                f"{REMEDY}"
            )
        return {"differing": 0, "largest_gap": 0.0, "sigmas": found.sigmas}


REMEDY = (
    "Serve the target's own folder in the number type of the recipe (target.dtype, eval.dtype); nothing of this shard "
    "was written."
)
