"""Servers that return token ids: how each is asked, and what its replies mean.

vLLM 0.32: POST /v1/completions with a prompt of ids and return_token_ids (entrypoints/openai/completion/protocol.py).
SGLang 0.5.23: POST /generate with input_ids (srt/managers/io_struct.py); its output_ids hold the token that ended the
text, which is named under finish_reason.matched as well. Before 0.5.0 text came without ids; 0.5.3 was the first with
sampling_seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eval.answer_engines.clients.exchange import Asked, Reply
from eval.decoding.sampling import Sampling


class Interface(Protocol):
    """How one kind of server is asked."""

    @property
    def path(self) -> str: ...

    def body(self, asked: Asked, model: str) -> dict[str, Any]: ...

    def reply(self, answer: Mapping[str, Any]) -> Reply | None:
        """What an answer says; None where it holds no token ids."""
        ...


def sampling_words(sampling: Sampling, *, all_ids: int) -> dict[str, Any]:
    """Everything that decides a choice, said outright: servers take what is left out from the model's own settings."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": all_ids if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


@dataclass(frozen=True)
class VllmInterface:
    """vLLM's OpenAI-compatible completions."""

    path: str = "/v1/completions"

    def body(self, asked: Asked, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(asked.prompt_ids),
            "max_tokens": asked.max_new_tokens,
            "stop_token_ids": list(asked.stop_ids),
            "return_token_ids": True,
            **({} if asked.sampling.is_greedy else {"seed": asked.seed}),
            **sampling_words(asked.sampling, all_ids=0),
        }

    def reply(self, answer: Mapping[str, Any]) -> Reply | None:
        [choice] = answer["choices"]
        if choice.get("token_ids") is None:
            return None
        read = choice.get("prompt_token_ids")
        return Reply(
            tuple(choice["token_ids"]),
            stopped=choice["finish_reason"] == "stop",
            text=choice.get("text"),
            num_prompt_tokens=None if read is None else len(read),
        )


@dataclass(frozen=True)
class SglangInterface:
    """SGLang's own interface."""

    path: str = "/generate"

    def body(self, asked: Asked, model: str) -> dict[str, Any]:  # noqa: ARG002  # it serves one model
        chosen = {
            "max_new_tokens": asked.max_new_tokens,
            "stop_token_ids": list(asked.stop_ids),
            **({} if asked.sampling.is_greedy else {"sampling_seed": asked.seed}),
            **sampling_words(asked.sampling, all_ids=-1),
        }
        return {"input_ids": list(asked.prompt_ids), "sampling_params": chosen, "stream": False}

    def reply(self, answer: Mapping[str, Any]) -> Reply | None:
        ids, about = answer.get("output_ids"), answer["meta_info"]
        if ids is None:
            return None
        ended = about["finish_reason"]
        matched = ended.get("matched")
        stopped = ended["type"] == "stop"
        is_missing = stopped and isinstance(matched, int) and (not ids or ids[-1] != matched)
        return Reply(
            (*ids, matched) if is_missing else tuple(ids),
            stopped=stopped,
            text=answer.get("text"),
            num_prompt_tokens=about.get("prompt_tokens"),
        )
