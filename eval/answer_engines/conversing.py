"""Conversations with an engine, each turn asked once the one before is answered; safe for threads."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from eval.answer_engines.clients.exchange import Asked, Server, Words, refuse_impossible
from eval.answer_engines.clients.servers import Servers
from eval.answer_engines.window import Answered, Open
from eval.answers.asked_turns import Turn
from eval.answers.traces import Trace
from eval.decoding.answering import Answerer, derive_seed, sampling_of
from eval.decoding.texts import Decoded

SEED_BITS = 63  # of what engines take


@dataclass
class Conversing:
    """What conversations are led with.

    Attributes:
        here: Renders, takes earlier answers, and says how they are wanted.
        servers: That answer.
        words: What ids mean.
        stop_ids: That end an answer.
    """

    here: Answerer
    servers: Servers
    words: Words
    stop_ids: tuple[int, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)  # tokenizers are not made for threads

    def converse(self, shard: Open, turn: Turn) -> Answered:
        """Every turn of a conversation, up to one that is too long."""
        traces, asked, servers = [], set[int](), set[str]()
        following: Turn | None = turn
        while following is not None:
            turn = following
            with self.lock:
                ids = self.here.render(turn)
            if len(ids) > self.here.settings.max_prompt_len:
                break
            if tuple(ids) in self.here.earlier:
                trace = self.here.take(ids, turn)
            else:
                trace, server = self.ask(ids, turn)
                asked.add(trace.id)
                servers.add(server.where)
            traces.append(trace)
            following = turn.following(trace.answer) if turn.later_turns else None
        return Answered(shard, tuple(traces), frozenset(asked), frozenset(servers))

    def ask(self, ids: Sequence[int], turn: Turn) -> tuple[Trace, Server]:
        """One answer of the engine, and whose it is.

        Raises:
            EngineLostError: If no server is left.
            UserError: If the target cannot have written it.
        """
        settings = self.here.settings
        seed = derive_seed(settings.seed, self.here.name, turn.id) % 2**SEED_BITS
        asked = Asked(tuple(ids), settings.max_new_tokens, sampling_of(settings), self.stop_ids, seed)
        reply, server = self.servers.ask(asked)
        with self.lock:
            refuse_impossible(reply, asked, self.words, f"{server.where}: {turn.source}")
            decoded = Decoded(reply.token_ids, rounds=(), prefill_s=0.0, decode_s=0.0, stopped=reply.stopped)
            return self.here.trace(turn, ids, decoded), server
