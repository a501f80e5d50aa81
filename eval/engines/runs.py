"""Run an engine on a pair and check the laws of a certificate; most engines run in a worker's environment.

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
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from architectures.compatibility import read_model
from architectures.errors import UserError
from architectures.hub import read_config
from architectures.manifest import processor_name
from architectures.vocabulary import CONFIG_KEY
from eval.chat import TEXT, render_prompt
from eval.engines import worker
from eval.engines.certificate import (
    CertifySettings,
    Counted,
    Engine,
    EngineRun,
    Finding,
    RunFacts,
    TextPair,
    TextRun,
    pooled,
)
from eval.engines.worker import EngineRequest, Reply
from eval.lossless import MIN_OWN_ACCEPTANCE, TIE_STEPS
from eval.models import load_model, load_tokenizer, stop_token_ids
from eval.pair import prompts_of
from eval.prompts import Prompt
from eval.replay import replay_counts, response_logits


def facts_of(engine: Engine, version: str, request: EngineRequest, max_new_tokens: int) -> RunFacts:
    files = f"{Path(request.target).stem} with {Path(str(request.draft)).stem}"  # llama.cpp's are in the files
    return RunFacts(
        engine=engine,
        version=version,
        command=command_of(engine, request),
        dtype=files if engine == "llama.cpp" else request.dtype,
        num_speculative_tokens=request.num_speculative_tokens,
        max_new_tokens=max_new_tokens,
    )


def command_of(engine: Engine, request: EngineRequest) -> str:
    k, slots, kwargs = request.num_speculative_tokens, request.concurrency, request.chat_template_kwargs
    template = f", chat_template_kwargs={kwargs}" if kwargs else ""
    if engine == "transformers":
        return f"generate(assistant_model=DRAFT, num_assistant_tokens={k}, do_sample=False){template}"
    if engine == "vllm":
        config: dict[str, Any] = {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": k}
        own = {"use_heterogeneous_vocab": True} if request.has_own_tokenizer else {}
        eager = "" if request.as_served else "enforce_eager=True, "
        return (
            f"LLM(TARGET, dtype={request.dtype!r}, max_model_len={request.max_model_len}, max_num_seqs={slots}, "
            f"{eager}speculative_config={json.dumps(config | own)}){template}"
        )
    if engine == "llama.cpp":
        target, draft = Path(request.target).name, Path(str(request.draft)).name
        unified = f" --kv-unified -c {request.cache_tokens}" if request.as_served else ""
        return (
            f"llama-server -m {target} -md {draft} --spec-type draft-simple --spec-draft-n-max {k} "
            f"--spec-draft-n-min 0 --spec-draft-p-min 0 -np {slots} -t {request.threads}{unified}{template}"
        )
    return (
        "LLMPipeline(TARGET, 'CPU', draft_model=draft_model(DRAFT, 'CPU'), scheduler_config=...), "
        f"num_assistant_tokens={k}, assistant_confidence_threshold=0, INFERENCE_NUM_THREADS={request.threads}{template}"
    )


def counted_by(reply: Reply) -> Counted:
    positions = reply["by_position"]
    return Counted(
        steps=reply["steps"],
        proposed=reply["proposed"],
        accepted=reply["accepted"],
        by_position=None if positions is None else tuple(positions),
    )


class VersionedEngine(worker.Engine, Protocol):
    """An engine, opened in this process or a worker."""

    @property
    def version(self) -> str: ...


def run_pair(
    engine: Engine,
    open_engine: Callable[[EngineRequest], VersionedEngine],
    request: EngineRequest,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    seed: int,
) -> EngineRun:
    """Decode each prompt greedily with and without the draft, after one untimed, and with the target as its own draft.

    Args:
        prompts: Conversations, or token ids for transformers.
        seed: Of the order in which the two decode each prompt.

    Raises:
        UserError: If the engine fails; with its last output.
    """
    sampling = [{"temperature": 0.0, "max_tokens": max_new_tokens}]
    plain, drafted = engines = open_engine(replace(request, draft=None)), open_engine(request)
    for each in engines:
        each.decode(prompts[:1], sampling)
    order, texts = random.Random(seed), list[TextRun]()  # noqa: S311  # not for security
    for prompt in prompts:
        replies = {each: each.decode([prompt], sampling) for each in order.sample(engines, 2)}
        without, with_draft = replies[plain], replies[drafted]
        texts.append(
            TextRun(
                prompt_ids=tuple(without["prompt_ids"][0]),
                plain_ids=tuple(without["ids"][0]),
                drafted_ids=tuple(with_draft["ids"][0]),
                plain_s=without["elapsed_s"],
                drafted_s=with_draft["elapsed_s"],
                counted=counted_by(with_draft),
            )
        )
        print(f"without and with the draft: {len(texts)} of {len(prompts)}", file=sys.stderr, flush=True)
    for each in engines:
        each.close()
    itself = open_engine(replace(request, draft=request.target, has_own_tokenizer=False))
    own = list[Counted]()
    for prompt in prompts:
        own.append(counted_by(itself.decode([prompt], sampling)))
        print(f"with the target as draft: {len(own)} of {len(prompts)}", file=sys.stderr, flush=True)
    itself.close()
    facts = facts_of(engine, plain.version, request, max_new_tokens)
    return EngineRun(**vars(facts), own=pooled(own), texts=tuple(texts))


class AssistedGeneration:
    """Assisted generation of transformers as an Engine of eval.engines.worker; prompts are token ids.

    Args:
        models: By the request's names of target and draft.
    """

    version = transformers.__version__

    def __init__(self, models: Mapping[str, PreTrainedModel], request: EngineRequest) -> None:
        self.k, self.target = request.num_speculative_tokens, models[request.target]
        self.draft = None if request.draft is None else models[request.draft]

    def decode(self, prompts: Sequence[list[int]], sampling: Sequence[Mapping[str, Any]]) -> Reply:
        """Decode one prompt greedily."""
        [prompt_ids], [limits] = prompts, sampling
        ids_BT = torch.tensor([prompt_ids], device=self.target.device)
        target: Any = self.target
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": limits["max_tokens"]}
        if self.draft is not None:
            config: Any = self.draft.generation_config
            config.num_assistant_tokens, config.num_assistant_tokens_schedule = self.k, "constant"
            config.assistant_confidence_threshold = 0.0
            settings["assistant_model"] = self.draft
        with counted_steps() as (proposed, accepted):
            start_s = time.perf_counter()
            text_BT: Tensor = target.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), **settings)
            elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": [prompt_ids],
            "ids": [text_BT[0, len(prompt_ids) :].tolist()],
            "first_s": [],
            "last_s": [elapsed_s],
            "elapsed_s": elapsed_s,
            "steps": len(accepted),
            "proposed": sum(proposed),
            "accepted": sum(accepted),
            "by_position": [sum(each > position for each in accepted) for position in range(self.k)],
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
    own = run.own
    misread = [
        f"prompt {number} from token {index + 1}"
        for number, (text, ours) in enumerate(zip(run.texts, prompts, strict=True), start=1)
        if (index := first_difference(text.prompt_ids, ours)) is not None
    ]
    return [
        enough(len(run.texts), run.max_new_tokens),
        Finding(
            law="files", holds=not differing, detail=f"different from the target's: {', '.join(differing) or 'none'}"
        ),
        Finding(law="prompts", holds=not misread, detail=f"tokenized differently: {'; '.join(misread[:1]) or 'none'}"),
        Finding(
            law="own draft",
            holds=own.accepted >= MIN_OWN_ACCEPTANCE * own.proposed > 0,
            detail=f"accepted {own.accepted} of {own.proposed} proposed tokens (required: {MIN_OWN_ACCEPTANCE:.0%})",
        ),
        same_text("same text", run.texts, ties),
        same_counts("counts", pooled([text.counted for text in run.texts]), replay),
    ]


def enough(num_prompts: int, max_new_tokens: int) -> Finding:
    return Finding(
        law="enough",
        holds=num_prompts >= MIN_PROMPTS and max_new_tokens >= MIN_TOKENS,
        detail=f"{num_prompts} prompts, {max_new_tokens} tokens (required: {MIN_PROMPTS}, {MIN_TOKENS})",
    )


def same_text(law: str, texts: Sequence[TextPair], ties: Collection[int]) -> Finding:
    parted = [number for number, text in enumerate(texts, start=1) if differs(text)]
    changed = [number for number in parted if number not in ties]
    return Finding(
        law=law,
        holds=not changed,
        detail=f"equal {len(texts) - len(parted)} of {len(texts)}, near-ties {len(parted) - len(changed)}, "
        f"changed {len(changed)}" + (f", the first at prompt {changed[0]}" if changed else ""),
    )


def same_counts(law: str, counted: Counted, replay: Counted, tolerance: float = TOLERANCE) -> Finding:
    """Compare accepted tokens per step: by position if the engine reports them, otherwise in total.

    Args:
        tolerance: Of the rate of each position.
    """
    positions, allowed = replay.by_position or (), tolerance
    theirs, ours = [counted.accepted], [replay.accepted]
    if counted.by_position is None:
        allowed *= len(positions)
    else:
        theirs, ours = counted.by_position, positions
    rates = (
        (engine / max(counted.steps, 1), exact / max(replay.steps, 1))
        for engine, exact in zip(theirs, ours, strict=True)
    )
    worst = max(abs(engine - exact) for engine, exact in rates)
    return Finding(
        law=law,
        holds=worst <= allowed,
        detail=f"accepted {', '.join(map(str, theirs))} in {counted.steps} steps, "
        f"replay {', '.join(map(str, ours))} in {replay.steps}; largest difference of a rate {worst:.3f} "
        f"(allowed: {allowed:.3g})",
    )


def differs(text: TextPair) -> bool:
    return text.plain_ids != text.drafted_ids


def first_difference(some: Sequence[int], others: Sequence[int]) -> int | None:
    pairs = zip_longest(some, others)
    return next((index for index, (token, other) in enumerate(pairs) if token != other), None)


def near_ties(target: Path, groups: Sequence[Sequence[TextPair]], dtype: str) -> list[list[int]]:
    """Return find_ties of each group; the target is loaded only if any texts differ."""
    if not any(differs(text) for texts in groups for text in texts):
        return [[] for _ in groups]
    model = load_model(target, dtype="float32")
    stop_id = next(iter(sorted(stop_token_ids(model))), 0)
    return [find_ties(model, texts, dtype, stop_id) for texts in groups]


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


@dataclass(frozen=True)
class Prepared:
    """A pair to certify, with prompts, all raw text or none.

    Attributes:
        target: Its checkpoint directory, as of the draft.
        ids: Of every prompt, rendered by the target's own tokenizer and template.
        own: Token mapping of a draft with its own tokenizer.
    """

    settings: CertifySettings
    target: Path
    draft: Path
    threads: int
    prompts: list[Prompt]
    ids: list[list[int]]
    tokenizer: PreTrainedTokenizerBase
    own: OwnTokens | None
    chat_template_kwargs: dict[str, Any]
    is_chat: bool

    def request(self, max_model_len: int, **more: Any) -> EngineRequest:
        return EngineRequest(
            target=str((self.settings.target_file or self.target).absolute()),
            draft=str((self.settings.draft_file or self.draft).absolute()),
            has_own_tokenizer=self.own is not None,
            num_speculative_tokens=self.settings.num_speculative_tokens,
            max_model_len=max_model_len,
            dtype=self.settings.dtype,
            threads=self.threads,
            **more,
        )

    def load_draft(self) -> PreTrainedModel:
        """Load the draft for replay, in the engine's dtype; in float32 for llama.cpp, whose files have their own."""
        return load_model(self.draft, dtype="float32" if self.settings.engine == "llama.cpp" else self.settings.dtype)

    @property
    def made(self) -> dict[str, Any]:
        hardware = f"{processor_name()}, {self.threads} threads"
        return {"hardware": hardware, "created": datetime.now(UTC).isoformat(timespec="seconds")}


def prepared(settings: CertifySettings, target: Path, draft: Path, *, threads: int) -> Prepared:
    """Raises UserError if the draft has a reduced vocabulary, or there are too few prompts."""
    require_engine_form(draft)
    kwargs = settings.chat_template_kwargs
    if "chat_template_kwargs" not in settings.model_fields_set:
        kwargs = read_model(str(draft)).chat_template_kwargs
    prompts = prompts_of(settings.prompts, settings.num_prompts, kwargs)
    raw = {prompt.messages[0]["role"] == TEXT for prompt in prompts}
    if len(prompts) < MIN_PROMPTS or len(raw) > 1:
        raise UserError(
            f"--prompts: {MIN_PROMPTS} prompts are needed, either all or none raw text, got {len(prompts)}. Use others."
        )
    if any(prompt.tools for prompt in prompts):
        raise UserError("--prompts: rows with tools are not supported by certify. Use others.")
    if settings.max_new_tokens < MIN_TOKENS:
        print(
            f"--max-new-tokens {settings.max_new_tokens}: the certificate will fail, at least {MIN_TOKENS} are needed.",
            file=sys.stderr,
        )
    tokenizer = load_tokenizer(target)
    return Prepared(
        settings=settings,
        target=target,
        draft=draft,
        threads=threads,
        prompts=prompts,
        ids=[render_prompt(tokenizer, prompt) for prompt in prompts],
        tokenizer=tokenizer,
        own=own_tokens(target, draft),
        chat_template_kwargs=dict(kwargs),
        is_chat=bool(tokenizer.chat_template) and raw == {False},
    )


def replay_run(draft: PreTrainedModel, run: EngineRun, own: OwnTokens | None = None) -> list[Counted]:
    """Compute exact counts over every text that an engine generated without the draft.

    In greedy decoding a draft's token is accepted if it equals the text's, so the target is not needed: the text is
    the engine's, quantised or not.
    """
    prefilled = int(run.engine not in PROPOSES_AT_ONCE)
    return [
        replay_text(draft, text.prompt_ids, text.plain_ids, run.num_speculative_tokens, own, prefilled=prefilled)
        for text in run.texts
    ]


def replay_text(
    draft: PreTrainedModel,
    prompt: Sequence[int],
    response: Sequence[int],
    num_speculative_tokens: int,
    own: OwnTokens | None,
    *,
    prefilled: int = 1,
) -> Counted:
    """Compute counts of one text, which may be empty; integers, since every probability is 0 or 1.

    Args:
        prefilled: First tokens of the text that prefill gave, without a step.
    """
    prompt, response = [*prompt, *response[:prefilled]], response[prefilled:]
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
