"""Run engines on a request and record their counters; engines in other environments run a worker script there.

transformers    runs in this process, and counts by step (below).
vLLM            counts drafts, and accepted tokens by position.
llama.cpp       counts proposed and accepted tokens, not by position. The prompt gives one token, and a verification
                step its accepted tokens and one more: steps are the tokens after the first, minus the accepted ones.
OpenVINO GenAI  reports the tokens of every run of the target: the prompt's one, then per verification step its
                accepted tokens and one more. Its sum of accepted tokens omits the last step (2026.4.1).

    files       the draft's tokenizer and chat template equal the target's, byte for byte
    prompts     the engine reads the same prompt tokens as widedraft: same tokenizer, same chat template
    own draft   the target as its own draft accepts all proposals
    same text   the engine generates the same text with and without the draft, except near-ties below 32 bits
    counts      tokens accepted by position equal exact replay on the same texts

Engines count differently near the end of a text. Here a step proposes at most the remaining tokens, and the last token
is always the target's. vLLM and llama.cpp propose past a stop token, and count the tokens accepted there: at most one
step per text, which TOLERANCE allows for.
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from architectures.errors import UserError
from architectures.hub import read_config
from architectures.vocabulary import CONFIG_KEY
from eval.engines.certificate import Counted, Engine, EngineRun, Finding, TextPair, TextRun, pooled
from eval.engines.worker_process import WorkerProcess
from eval.lossless import MIN_OWN_ACCEPTANCE, TIE_STEPS
from eval.models import load_tokenizer
from eval.replay import replay_counts, response_logits


def command_of(engine: Engine, request: dict[str, Any]) -> str:
    k, threads, slots = request["num_speculative_tokens"], request.get("threads"), request.get("batch_size", 1)
    if engine == "transformers":
        return f"generate(assistant_model=DRAFT, num_assistant_tokens={k}, do_sample=False)"
    if engine == "vllm":
        config = {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": k}
        eager = "" if request.get("as_served") else "enforce_eager=True, "
        return (
            f"LLM(TARGET, dtype={request['dtype']!r}, max_model_len={request['max_model_len']}, max_num_seqs={slots}, "
            f"{eager}speculative_config={json.dumps(config | request['draft_settings'])})"
        )
    if engine == "llama.cpp":
        target, draft = Path(request["target"]).name, Path(request["draft"]).name
        unified = f" --kv-unified -c {request['cache_tokens']}" if request.get("as_served") else ""
        return (
            f"llama-server -m {target} -md {draft} --spec-type draft-simple --spec-draft-n-max {k} "
            f"--spec-draft-n-min 0 --spec-draft-p-min 0 -np {slots} -t {threads}{unified}"
        )
    return (
        "LLMPipeline(TARGET, 'CPU', draft_model=draft_model(DRAFT, 'CPU'), scheduler_config=...), "
        f"num_assistant_tokens={k}, assistant_confidence_threshold=0, INFERENCE_NUM_THREADS={threads}"
    )


def counts_of(engine: Engine, text: dict[str, Any], num_speculative_tokens: int) -> Counted:
    if engine == "vllm":
        counters = text["counters"]
        return Counted(
            steps=counters["drafts"],
            proposed=counters["draft_tokens"],
            accepted=counters["accepted_tokens"],
            by_position=tuple(counters["accepted_tokens_per_pos"]),
        )
    if engine == "llama.cpp":
        steps = len(text["ids"]) - 1 - text["accepted"]
        return Counted(steps=steps, proposed=text["proposed"], accepted=text["accepted"])
    if engine == "openvino":  # each step proposes k tokens, or those left before the text's last one
        given = text["given"]
        accepted = [tokens - 1 for tokens in given[1:]]
        proposed = sum(min(num_speculative_tokens, sum(given[position:]) - 1) for position in range(1, len(given)))
    else:
        accepted, proposed = text["accepted"], sum(text["proposed"])
    return Counted(
        steps=len(accepted),
        proposed=proposed,
        accepted=sum(accepted),
        by_position=tuple(sum(each > position for each in accepted) for position in range(num_speculative_tokens)),
    )


def engine_run(engine: Engine, request: dict[str, Any], response: dict[str, Any]) -> EngineRun:
    files = f"{Path(request['target']).stem} with {Path(request['draft']).stem}"  # llama.cpp's are in the files
    k, kwargs = request["num_speculative_tokens"], request.get("chat_template_kwargs")
    return EngineRun(
        engine=engine,
        version=response["version"],
        command=command_of(engine, request) + (f", chat_template_kwargs={kwargs}" if kwargs else ""),
        dtype=files if engine == "llama.cpp" else request["dtype"],
        num_speculative_tokens=k,
        max_new_tokens=request["max_new_tokens"],
        own=pooled([counts_of(engine, text, k) for text in response["own"]]),
        texts=tuple(
            TextRun(
                prompt_ids=tuple(text["plain"]["prompt_ids"]),
                plain_ids=tuple(text["plain"]["ids"]),
                drafted_ids=tuple(text["drafted"]["ids"]),
                plain_s=text["plain"]["elapsed_s"],
                drafted_s=text["drafted"]["elapsed_s"],
                counted=counts_of(engine, text["drafted"], k),
            )
            for text in response["texts"]
        ),
    )


def run_external(engine: Engine, python: Path, request: dict[str, Any]) -> EngineRun:
    """Decode every prompt in the engine's own environment, as eval.engines.worker.decode_all does.

    Raises:
        UserError: If there is no such Python, it lacks the engine, or the engine fails; with its last output.
    """
    with closing(WorkerProcess(python, "certify", engine, flag="--python")) as worker:
        return engine_run(engine, request, worker.exchange(request))


class AssistedGeneration:
    """Assisted generation of transformers as an Engine of eval.engines.worker; prompts are token ids.

    Args:
        models: By the request's names of target and draft.
        draft: Its name; None for plain decoding.
    """

    def __init__(self, models: Mapping[str, PreTrainedModel], request: dict[str, Any], draft: str | None) -> None:
        self.request, self.target = request, models[request["target"]]
        self.draft = None if draft is None else models[draft]

    def decode(self, prompt_ids: list[int]) -> dict[str, Any]:
        """Generate one greedy text; returns its seconds, and proposed and accepted tokens per verification step."""
        ids_BT = torch.tensor([prompt_ids], device=self.target.device)
        target: Any = self.target
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.request["max_new_tokens"]}
        if self.draft is not None:
            config: Any = self.draft.generation_config
            config.num_assistant_tokens, config.num_assistant_tokens_schedule = (
                self.request["num_speculative_tokens"],
                "constant",
            )
            config.assistant_confidence_threshold = 0.0
            settings["assistant_model"] = self.draft
        with counted_steps() as (proposed, accepted):
            start_s = time.perf_counter()
            text_BT: Tensor = target.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), **settings)
            elapsed_s = time.perf_counter() - start_s
        ids = text_BT[0, len(prompt_ids) :].tolist()
        return {
            "prompt_ids": prompt_ids,
            "ids": ids,
            "elapsed_s": elapsed_s,
            "proposed": proposed,
            "accepted": accepted,
        }

    def close(self) -> None:
        """Do nothing: the models belong to the caller."""


@contextmanager
def counted_steps() -> Iterator[tuple[list[int], list[int]]]:
    """Record proposed and accepted tokens per step of transformers' candidate generator, by patching its class."""
    proposed: list[int] = []
    accepted: list[int] = []
    kind: Any = AssistedCandidateGenerator
    propose, update = kind.get_candidates, kind.update_candidate_strategy

    def get_candidates(self: Any, input_ids: Tensor, **others: Any) -> Any:
        candidates = propose(self, input_ids, **others)
        proposed.append(candidates[0].shape[1] - input_ids.shape[1])
        return candidates

    def update_candidate_strategy(self: Any, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        accepted.append(int(num_matches))
        update(self, input_ids, scores, num_matches)

    kind.get_candidates, kind.update_candidate_strategy = get_candidates, update_candidate_strategy
    try:
        yield proposed, accepted
    finally:
        kind.get_candidates, kind.update_candidate_strategy = propose, update


TOLERANCE = 0.02  # of a rate by position
MIN_PROMPTS, MIN_TOKENS = 24, 64
NONE = -1  # instead of a token that is not an output id of the draft
PROPOSES_AT_ONCE = ("transformers",)  # other engines prefill first, which gives the first token
EIGHT_BITS = 2.0**-7  # llama.cpp rounds inputs of products with quantised weights to 8 bits, one of them the sign
ROUNDING = {"float32": 0.0, "bfloat16": torch.finfo(torch.bfloat16).eps, "float16": torch.finfo(torch.float16).eps}


def find(
    run: EngineRun,
    prompts: Sequence[Sequence[int]],
    replay: Counted,
    *,
    differing: Sequence[str] = (),
    ties: Collection[int] = (),
) -> list[Finding]:
    """Check every law.

    Args:
        prompts: As rendered by the target's own tokenizer and template.
        replay: Exact counts over the engine's plain texts.
        differing: Files that differ between draft and target: "tokenizer", "chat template".
        ties: Numbers of the prompts, from 1, whose texts first differ at a near-tie explained by rounding.
    """
    num_texts, own = len(run.texts), run.own
    misread = [
        f"prompt {number} from token {index + 1}"
        for number, (text, ours) in enumerate(zip(run.texts, prompts, strict=True), start=1)
        if (index := first_difference(text.prompt_ids, ours)) is not None
    ]
    parted = [number for number, text in enumerate(run.texts, start=1) if differs(text)]
    changed = [number for number in parted if number not in ties]
    counted = pooled([text.counted for text in run.texts])
    worst = max(abs(a - b) for a, b in zip(rates(replay, counted), rates(counted, counted), strict=True))
    positions = run.num_speculative_tokens if counted.by_position is None else 1  # positions covered by that one rate
    return [
        enough(num_texts, run.max_new_tokens),
        Finding(
            law="files", holds=not differing, detail=f"different from the target's: {', '.join(differing) or 'none'}"
        ),
        Finding(law="prompts", holds=not misread, detail=f"tokenized differently: {'; '.join(misread[:1]) or 'none'}"),
        Finding(
            law="own draft",
            holds=own.accepted >= MIN_OWN_ACCEPTANCE * own.proposed > 0,
            detail=f"accepted {own.accepted} of {own.proposed} proposed tokens (required: {MIN_OWN_ACCEPTANCE:.0%})",
        ),
        Finding(
            law="same text",
            holds=not changed,
            detail=f"equal {num_texts - len(parted)} of {num_texts}, near-ties {len(parted) - len(changed)}, "
            f"changed {len(changed)}" + (f", the first at prompt {changed[0]}" if changed else ""),
        ),
        Finding(
            law="counts",
            holds=worst <= TOLERANCE * positions,
            detail=f"accepted {shown(counted)} in {counted.steps} steps, replay {shown(replay, like=counted)} in "
            f"{replay.steps}; largest difference of a rate {worst:.3f} (allowed: {TOLERANCE * positions:g})",
        ),
    ]


def enough(num_prompts: int, max_new_tokens: int) -> Finding:
    return Finding(
        law="enough",
        holds=num_prompts >= MIN_PROMPTS and max_new_tokens >= MIN_TOKENS,
        detail=f"{num_prompts} prompts, {max_new_tokens} tokens (required: {MIN_PROMPTS}, {MIN_TOKENS})",
    )


def rates(counted: Counted, like: Counted) -> list[float]:
    """Return accepted tokens per step: by position if the engine reports them, otherwise in total."""
    steps = max(counted.steps, 1)
    if like.by_position is None or counted.by_position is None:
        return [counted.accepted / steps]
    return [accepted / steps for accepted in counted.by_position]


def shown(counted: Counted, like: Counted | None = None) -> str:
    if counted.by_position is None or (like is not None and like.by_position is None):
        return str(counted.accepted)
    return ", ".join(map(str, counted.by_position))


def differs(text: TextPair) -> bool:
    return text.plain_ids != text.drafted_ids


def first_difference(some: Sequence[int], others: Sequence[int]) -> int | None:
    pairs = zip_longest(some, others)
    return next((index for index, (token, other) in enumerate(pairs) if token != other), None)


def find_ties(target: PreTrainedModel, texts: Sequence[TextPair], dtype: str, stop_id: int) -> list[int]:
    """Return numbers of the prompts, from 1, whose texts first differ at a near-tie explained by rounding.

    One token and several at once are computed by different kernels, so below 32 bits honest engines may generate
    either of two tokens that nearly tie. The target reads the common text once, in float32: the worse of the two may
    lie TIE_STEPS roundings of the largest logit below the best.

    Args:
        target: In float32.
        dtype: Of the engine, or its files.
        stop_id: Stands for the end of a text, which engines leave out.
    """
    is_f16 = "F16" in dtype.upper() and "BF16" not in dtype.upper()  # of GGUF files
    rounding = ROUNDING["float16"] if is_f16 else ROUNDING.get(dtype, EIGHT_BITS)
    ties = []
    for number, text in enumerate(texts, start=1):
        index = first_difference(text.plain_ids, text.drafted_ids)
        if index is None:
            continue
        both = [ids[index] if index < len(ids) else stop_id for ids in (text.plain_ids, text.drafted_ids)]
        logits_V = response_logits(target, text.prompt_ids, [*text.plain_ids[:index], both[0]])[-1]
        short = float(logits_V.max() - logits_V[both].min())
        if short <= TIE_STEPS * rounding * float(logits_V.abs().max()):
            ties.append(number)
    return ties


@dataclass(frozen=True)
class OwnTokens:
    """Token mapping of a draft with its own tokenizer, by token text as in vLLM (arXiv 2502.05202).

    Attributes:
        ids: Target id -> draft id, for tokens that both have.
        unknown: The draft's id for all other tokens.
    """

    ids: Mapping[int, int]
    unknown: int

    def read(self, target_ids: Sequence[int]) -> list[int]:
        return [self.ids.get(token, self.unknown) for token in target_ids]

    def expected(self, target_ids: Sequence[int]) -> list[int]:
        """Return the draft ids that would be accepted; NONE if it has none."""
        return [self.ids.get(token, NONE) for token in target_ids]


def require_engine_form(draft: Path) -> None:
    """Raise UserError if a draft outputs a reduced vocabulary."""
    if CONFIG_KEY in read_config(draft):
        raise UserError(
            f"{draft}: outputs a reduced vocabulary, which no engine loads. Use an exported form: widedraft export "
            f"{draft} --form whole --to DIR, or --form own-tokenizer for vLLM."
        )


def own_tokens(target: Path, draft: Path) -> OwnTokens | None:
    """Return the token mapping of a draft with its own tokenizer; None if it shares the target's.

    Such a tokenizer lacks some of the target's tokens, as `export --form own-tokenizer` writes it.
    """
    ours, theirs = (load_tokenizer(folder) for folder in (draft, target))
    own, of_target = ours.get_vocab(), theirs.get_vocab()
    unknown = ours.unk_token_id
    if len(own) >= len(of_target) or not isinstance(unknown, int):
        return None
    return OwnTokens({id_: own[text] for text, id_ in of_target.items() if text in own}, unknown)


def replay_run(draft: PreTrainedModel, run: EngineRun, own: OwnTokens | None = None) -> list[Counted]:
    """Compute exact counts over every text that an engine generated without the draft.

    In greedy decoding a draft's token is accepted if it equals the text's, so the target is not needed: the text is
    the engine's, quantised or not.
    """
    alone = int(run.engine not in PROPOSES_AT_ONCE)
    return [
        replay_text(
            draft,
            (*text.prompt_ids, *text.plain_ids[:alone]),
            text.plain_ids[alone:],
            run.num_speculative_tokens,
            own,
        )
        for text in run.texts
    ]


def replay_text(
    draft: PreTrainedModel,
    prompt: Sequence[int],
    response: Sequence[int],
    num_speculative_tokens: int,
    own: OwnTokens | None,
) -> Counted:
    """Compute counts of one text, which may be empty; integers, since every probability is 0 or 1."""
    if not response:
        return Counted(steps=0, proposed=0, accepted=0, by_position=(0,) * num_speculative_tokens)
    wanted = response
    if own is not None:
        prompt, response, wanted = own.read(prompt), own.read(response), own.expected(response)
    proposed_T = response_logits(draft, prompt, response).argmax(dim=-1).cpu().numpy()
    counts = replay_counts(
        (proposed_T == np.array(wanted)).astype(np.float64), num_speculative_tokens=num_speculative_tokens
    )
    positions = tuple(round(value) for value in counts.accepted)
    return Counted(
        steps=round(counts.steps),
        proposed=round(counts.proposed_tokens),
        accepted=sum(positions),
        by_position=positions,
    )
