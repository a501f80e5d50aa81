"""A known prompt, asked before anything else and every so often: whether the target itself is at the other end, still.

The engine writes a greedy text to it, and the target here reads that text. Other weights write another one: the prompt
asks for what no two models tell alike.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from transformers import PreTrainedModel

from architectures.errors import UserError
from eval.answer_engines.clients.exchange import Asked, Reply, Server, Words, named, refuse_impossible
from eval.answer_engines.judge import Verdict, judge_greedy
from eval.decoding.sampling import Sampling
from eval.prompts.rendering import render_prompt

QUESTION = "Tell the story of a lighthouse keeper who finds a letter in a bottle. Begin in the middle of it."
PROBE_TOKENS = 48


@dataclass
class Prober:
    """What is asked, and whose text was found to be the target's.

    Attributes:
        model: The target here.
        words: What its ids mean.
        stop_ids: That end its texts.
        known: Texts that it could have written.
    """

    model: PreTrainedModel
    words: Words
    stop_ids: Sequence[int]
    known: set[tuple[int, ...]] = field(default_factory=set)

    def begin(self, server: Server, *, longest: int) -> None:
        """Refuse a server that is not the target's, and say what it is.

        Raises:
            UserError: If its context is too short, it has another template or other token ids, or writes what the
                target does not.
        """
        refuse_short_context(server, longest)
        template = self.template_words(server)
        verdict = self.judge(server)
        ties = "as the target here" if verdict.first is None else f"with a near tie at token {verdict.first + 1}"
        print(
            f"{server.where}: {server.served.words}; the probe's {verdict.tokens} tokens are {ties}; vocabulary "
            f"{self.words.vocab_size}, ends at {named(frozenset(self.stop_ids))}, {template}",
            file=sys.stderr,
            flush=True,
        )

    def judge(self, server: Server) -> Verdict:
        """What the target says of a server's text now.

        Raises:
            EngineLostError: If the server is gone.
            UserError: If it is another model's.
        """
        asked = self.asked(server)
        reply = server.ask(asked)
        refuse_impossible(reply, asked, self.words, server.where)
        verdict = judge_greedy(self.model, asked.prompt_ids, reply.token_ids, asked.sampling)
        if not verdict.is_honest:
            raise UserError(self.refusal(server, reply, verdict))
        self.known.add(reply.token_ids)
        return verdict

    def is_still_there(self, server: Server) -> bool:
        """Whether a server writes what it wrote, or what the target could have written.

        Raises:
            EngineLostError: If it is gone.
        """
        asked = self.asked(server)
        reply = server.ask(asked)
        if reply.token_ids in self.known:
            return True
        return judge_greedy(self.model, asked.prompt_ids, reply.token_ids, asked.sampling).is_honest

    def asked(self, server: Server) -> Asked:
        """The known prompt, and as long an answer as a server has room for.

        Raises:
            UserError: If it has none.
        """
        context = server.served.context
        most = PROBE_TOKENS if context is None else min(PROBE_TOKENS, context - len(self.prompt))
        if most < 1:
            raise UserError(
                f"{server.where}: serves texts of {context} tokens at most, and the known prompt alone has "
                f"{len(self.prompt)}. Start it with a larger --max-model-len (SGLang: --context-length)."
            )
        return Asked(self.prompt, most, Sampling(), tuple(self.stop_ids), seed=0)

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        return tuple(render_prompt(self.words.tokenizer, self.messages))

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": QUESTION}]

    def template_words(self, server: Server) -> str:
        """Whether the server frames a conversation alike, in words; a different frame is another model's.

        Raises:
            UserError: If it frames it otherwise.
        """
        if not self.words.tokenizer.chat_template:
            return "no chat template"
        theirs, ours = server.rendered(self.messages), self.prompt
        if theirs is None:
            return "whose template was not asked for: prompts go there as token ids"
        if theirs != ours:
            place = next((i for i, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
            where = f"at token {place + 1}" if place is not None else "in length"
            raise UserError(
                f"{server.where}: frames the same conversation by another tokenizer or chat template: {len(theirs)} "
                f"tokens where the target's has {len(ours)}, different {where}. Serve the target's own folder, without "
                "--chat-template and --tokenizer."
            )
        return "the same chat template"

    def refusal(self, server: Server, reply: Reply, verdict: Verdict) -> str:
        """Why a text is not the target's."""
        text = self.words.tokenizer.decode(list(reply.token_ids), skip_special_tokens=True)
        return (
            f"{server.where}: does not serve the target, or in a coarser number type: token {verdict.worst + 1} of its "
            f"answer to a known prompt lies {verdict.excess:.1f} times as far below what the target here says as a "
            f"near tie in {str(self.model.dtype).removeprefix('torch.')} may. It wrote: {text[:120]!r}. Serve the "
            "target's own folder in the number type that the recipe names (target.dtype, eval.dtype)."
        )


def refuse_short_context(server: Server, longest: int) -> None:
    """Raise UserError if an answer may be cut off by the server's own limit."""
    context = server.served.context
    if context is not None and context < longest:
        raise UserError(
            f"{server.where}: serves texts of {context} tokens at most, prompts and answers may have {longest}. Start "
            "it with a larger --max-model-len (SGLang: --context-length), or lower max_seq_len or max_new_tokens."
        )
