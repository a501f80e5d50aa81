"""Score a draft on recorded responses of a target that is not available: `widedraft eval --recorded PATH --draft B`.

PATH is a directory of responses as `generate` and `eval` write them, or a text file of tensors (read_text_responses).
`widedraft eval --endpoint URL` records the greedy responses of a server first, whose model may be the quantised target.
The responses fix every context in which the draft proposes, and the token it must propose. That decides exact match
for every number of speculative tokens from one pass of the draft; and, if log p(y_t) was recorded, rejection sampling:
min(1, q / p)(y_t). Everything else needs the target and is left out: argmax agreement, alpha as the sum of min(p, q),
other temperatures, step times and speedups.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor
from transformers import PreTrainedModel

from architectures.console import markdown, track
from architectures.errors import UserError
from architectures.files import checked, read_text, write_text
from architectures.manifest import fingerprint_value
from architectures.settings import MinP, RepetitionPenalty, Temperature, TopK, TopP
from architectures.vocabulary_head import head_ids
from eval import scorecard_schema as schema
from eval.acceptance_rates import mean, prompt_limit, responses_folder, steps_at
from eval.chat import checked_text
from eval.config import EvalConfig, GenerateConfig, requested_sampling
from eval.decoding.generate import write_traces
from eval.decoding.sampling import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    REJECTION,
    Sampling,
    at,
    log_distribution,
    penalised,
    seen_along,
)
from eval.decoding.speculative import first_tokens
from eval.engines.external_generate import EngineServer, responses_by
from eval.intervals import CONFIDENCE, NUM_RESAMPLES, Resampling
from eval.machine import torch_threads
from eval.models import (
    load_model,
    load_tokenizer,
    model_facts,
    require_positions,
    require_rows,
    require_same_tokenizer,
    text_config,
    tokenizer_identity,
)
from eval.prompts import Prompt, first_field, load_rows
from eval.replay import (
    Array,
    DraftScore,
    ResponseScore,
    as_array,
    rejection_accepts,
    replay_counts,
    response_logits,
)
from eval.responses import SETTINGS_NAME, DecodingSettings, Trace, read_claims, read_traces, require_known_ids
from eval.scorecard_tables import scorecard_page
from eval.tasks import PromptSource

TRACES_NAME = "eval"  # held out of training
LATER_TURN = re.compile(r"#[0-9]+$")
BLOCK = re.compile(r"\s*tensor\(\[\[([^\[\]()]*)\]\](?:,\s*\w+=[^\s,()\[\]]+)*\)")  # torch adds device and dtype
USED_KEYS = {"num_prompts", "num_speculative_tokens", "dtype"}
ENDPOINT_KEYS = {*USED_KEYS, "max_new_tokens", "max_prompt_len", "temperatures", "sampling"}


@dataclass(frozen=True)
class Recording:
    """Recorded responses, each with the number of its prompt.

    Of a text file, which has only tokens, `target` is None and `unanswered` counts prompts without a response.
    """

    path: Path
    sampling: Sampling
    target: str | None
    responses: tuple[tuple[int, Trace], ...]
    unanswered: int = 0
    served: schema.ServedModel | None = None

    @property
    def num_prompts(self) -> int:
        return self.responses[-1][0] + 1


@dataclass(frozen=True)
class RecordedSettings:
    """Decoding settings of recorded responses, from their settings.json."""

    temperature: Temperature
    top_p: TopP
    target: str
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    served_model: str | None = None


def record_endpoint(
    target: Path, draft: Path, prompts: Sequence[Prompt], out: Path, *, config: EvalConfig, generate: GenerateConfig
) -> Recording:
    """Record the greedy responses of a server's model to prompts rendered as for the target, into out/responses.

    Responses that exist are kept. The target's weights are not loaded.

    Raises:
        UserError: If the tokenizer of the draft differs, the server fails, or the responses are of another model.
    """
    require_same_tokenizer(target, draft)
    [url] = generate.urls
    server = EngineServer.find(url, generate, max_model_len=1)
    server.client.close()
    used = prompts[: config.num_prompts]
    settings = DecodingSettings(
        max_new_tokens=config.max_new_tokens,
        temperature=0.0,
        top_p=1.0,
        batch_size=config.batch_size,
        shard_size=config.batch_size,
        max_prompt_len=prompt_limit(config, [target, draft], used),
        seed=0,
        dtype="the server's",
        repetition_penalty=config.sampling.repetition_penalty,
        served_model=server.model,
    )
    folder = responses_folder(out, 0.0, config.sampling)
    with responses_by(generate) as kind:
        write_traces(target, used, folder, settings, name=TRACES_NAME, generated_by=kind)
    served = schema.ServedModel(name=server.model, url=url, target=str(target))
    return replace(read_recorded_traces(folder, draft), served=served)


def read_recorded_traces(folder: Path, draft: Path) -> Recording:
    """Read the held-out responses in a directory, generated with the tokenizer of the draft.

    Raises:
        UserError: If there are none, or they were generated with another tokenizer.
    """
    claims = read_claims(folder)
    traces = read_traces(folder, TRACES_NAME) if TRACES_NAME in claims else []
    if not traces:
        raise UserError(
            f"{folder}: contains no {TRACES_NAME} responses, which are held out of training. Pass the data directory "
            "of a run with data.num_eval_prompts > 0, or the directory responses/T0 of a scorecard."
        )
    claim = claims[TRACES_NAME]

    # Token ids are meaningful only with the tokenizer that made them.
    tokenizer, recorded = load_tokenizer(draft), claim.get("tokenizer") or {}
    changed = [name for name, value in tokenizer_identity(tokenizer).items() if recorded.get(name) != value]
    if changed:
        raise UserError(
            f"{draft}: its tokenizer differs from that of the responses in {folder} in {', '.join(changed)}. "
            "Use a draft of the target that generated them."
        )
    require_rows(draft, last_id=max(tokenizer.get_vocab().values()))
    known = {draft: text_config(draft).vocab_size}
    require_known_ids((trace.token_ids for trace in traces), folder, TRACES_NAME, known)

    where, fix = f"{folder / SETTINGS_NAME}: {TRACES_NAME}.settings", "Pass the responses as they were written."
    settings = checked(TypeAdapter(RecordedSettings), claim["settings"], where, fix)
    responses: list[tuple[int, Trace]] = []
    number, row = -1, ""
    for trace in traces:
        of_row = LATER_TURN.sub("", trace.source)
        number += not (of_row == row != trace.source)  # a later turn follows another turn of its row
        row = of_row
        responses.append((number, trace))
    sampling = Sampling.of(settings.temperature, requested_sampling(settings))
    served = None if settings.served_model is None else schema.ServedModel(name=settings.served_model)
    return Recording(folder, sampling, settings.target, tuple(responses), served=served)


def read_recorded_text(path: Path, prompts: str, draft: Path) -> Recording:
    """Read greedy responses in a text file, to the prompts {"prompt": text} of a JSONL file in the same order.

    Prompts are tokenized with the draft's special tokens and without a chat template, exactly as given to the target.
    Further prompts are left out, as for the published file with 145 responses and 10,003 prompts.

    Raises:
        UserError: If prompts are missing, one has no token, or an id exceeds the draft's vocabulary.
    """
    recorded = read_text_responses(path, vocab_size=text_config(draft).vocab_size)
    rows = load_rows(PromptSource(path=prompts), lambda row, where: (where, prompt_text(row, where)))
    if len(recorded) > len(rows):
        raise UserError(
            f"{path}: contains {len(recorded)} responses, but {prompts} {len(rows)} prompts. Pass as many prompts."
        )
    tokenizer, responses = load_tokenizer(draft), []
    for number, ((where, text), response_ids) in enumerate(zip(rows, recorded, strict=False)):
        prompt_ids = tuple(tokenizer(text)["input_ids"])
        if not prompt_ids:
            raise UserError(f"{where}: the tokenizer encodes this prompt to no tokens. Delete its row and response.")
        responses.append((number, Trace(number, where, (), prompt_ids, response_ids, "", "length")))
    return Recording(path, Sampling(), None, tuple(responses), unanswered=len(rows) - len(recorded))


def prompt_text(row: Any, where: str) -> str:
    field = first_field(row, ("prompt",), where, example='{"prompt": "Two girls are sailing on a lake. they"}')
    return checked_text(row[field], field, where)


def read_text_responses(path: Path, *, vocab_size: int) -> list[tuple[int, ...]]:
    """Return the token ids of every block `tensor([[ids]])` of a text file, which may span many lines.

    Source: the ground truth of the demonstration of Yan et al. 2024, "Decoding Speculative Decoding" (arXiv
    2402.01528): greedy responses, generated tokens only.

    Raises:
        UserError: If the file has other content; names the line and the block.
    """
    text, position, blocks = read_text(path), 0, []
    while text[position:].strip():
        match = BLOCK.match(text, position)
        start = position + len(text[position:]) - len(text[position:].lstrip())
        where = f"{path}:{1 + text.count(chr(10), 0, start)}: block {len(blocks) + 1}"
        if match is None:
            raise UserError(f"{where} is not of the form tensor([[518, 799, 2]]) or is incomplete. Rewrite it.")
        pieces = [piece.strip() for piece in match[1].split(",")]
        if "..." in pieces:
            raise UserError(f"{where} is elided ('...'). Print it after torch.set_printoptions(threshold=10**9).")
        for piece in pieces:
            if not re.fullmatch("[0-9]+", piece) or int(piece) >= vocab_size:
                raise UserError(
                    f"{where} contains {piece!r}: must be token ids below the draft's vocab_size {vocab_size}. Use a "
                    "draft of the target that generated them."
                )
        blocks.append(tuple(map(int, pieces)))
        position = match.end()
    if not blocks:
        raise UserError(f"{path}: contains no block. Write each as tensor([[518, 799, 2]]).")
    return blocks


def score_recording(
    recording: Recording, draft: Path, config: EvalConfig, out: Path, *, seed: int
) -> schema.RecordedScorecard:
    """Score one draft on recorded responses; write out/scorecard.json and out/scorecard.md.

    Args:
        config: How to score; only USED_KEYS matter.

    Raises:
        UserError: If a response exceeds the draft's context length.
    """
    numbered = [(number, response) for number, response in recording.responses if number < config.num_prompts]
    responses = [response for _, response in numbered]
    require_positions(draft, max(len(response.token_ids) for response in responses))
    with torch_threads(None) as num_threads:
        model = load_model(draft, dtype=config.dtype)
        scores = replay_recording(model, numbered, config.num_speculative_tokens, sampling=recording.sampling)
    resampling = Resampling(CONFIDENCE, NUM_RESAMPLES, seed)
    firsts = dict(reversed(numbered))
    card = schema.RecordedScorecard(
        warnings=find_warnings(recording, len(firsts)),
        drafts=(schema.DraftModel(draft="draft", **model_facts(draft, model)),),
        recording=schema.RecordedResponses(
            path=str(recording.path),
            form="text" if recording.target is None else "traces",
            target_fingerprint=recording.target,
            served=recording.served,
            temperature=recording.sampling.temperature,
            sampling=requested_sampling(recording.sampling),
            given=recording.num_prompts,
            unanswered=recording.unanswered,
            scored=len(firsts),
            responses=len(responses),
            tokens=sum(len(response.response_ids) for response in responses),
            sources=tuple(firsts[prompt].source for prompt in sorted(firsts)),
            prompt_ids_sha256=fingerprint_value([list(response.prompt_ids) for response in responses]),
            response_ids_sha256=fingerprint_value([list(response.response_ids) for response in responses]),
        ),
        settings=schema.Settings.of(config, resampling, threads=num_threads, device=str(model.device)),
        acceptance=tuple(
            schema.RecordedRow(
                draft="draft",
                temperature=score.temperature,
                rule=score.rule,
                prompts=len(firsts),
                responses=len(responses),
                accept_rate=mean(score.accept_columns(), resampling),
                coverage=mean(score.coverage_columns(), resampling) if score.has_small_head else None,
                by_k=tuple(steps_at(score, k, resampling) for k in score.ks),
            )
            for score in scores
        ),
        provenance=schema.Provenance.of_this_process(),
    )
    write_text(f"{markdown(scorecard_page(card))}\n", out / "scorecard.md")
    schema.write_record(card, out / schema.CARD_NAME)
    return card


def replay_recording(
    draft: PreTrainedModel, responses: Sequence[tuple[int, Trace]], ks: Sequence[int], *, sampling: Sampling
) -> list[DraftScore]:
    """Replay the draft along every response, by every acceptance method that does not need the target."""
    rules = [EXACT_GREEDY_DRAFT]
    if not sampling.is_greedy:
        has_probabilities = all(response.response_logp is not None for _, response in responses)
        rules = [*([REJECTION] if has_probabilities else []), EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT]
    scored: dict[str, list[ResponseScore]] = {rule: [] for rule in rules}
    for number, response in track(responses, description=f"replay at T={sampling.temperature:g}", total=len(responses)):
        logits_TV = response_logits(draft, response.prompt_ids, response.response_ids)
        response_T = torch.tensor(response.response_ids, device=logits_TV.device)
        covered_T = as_array(at(logits_TV, response_T) > -torch.inf)
        context = first_tokens(draft, response.prompt_ids)
        for rule, scores in scored.items():
            accept_T = accept_probabilities(logits_TV, response, rule=rule, sampling=sampling, context=context)
            scores.append(
                ResponseScore(
                    prompt=number,
                    matches=np.zeros(len(response_T)),  # the target's argmax is not known
                    alpha_sum=float(accept_T.sum()),
                    accept_sum=float(accept_T.sum()),
                    num_changed=0,
                    num_covered=int(covered_T.sum()),
                    counts={k: replay_counts(accept_T, num_speculative_tokens=k) for k in ks},
                )
            )
    has_small_head = head_ids(draft) is not None
    return [DraftScore("draft", sampling.temperature, rule, scores, has_small_head) for rule, scores in scored.items()]


def accept_probabilities(
    draft_logits_TV: Tensor, response: Trace, *, rule: str, sampling: Sampling, context: Sequence[int]
) -> Array:
    """Return [T], the probability that each response token comes from the draft.

    Args:
        rule: Exact match of the draft's argmax or sample, or rejection sampling.
        context: The decoder's tokens before the response.
    """
    seen_TV = seen_along(context, response.response_ids, sampling, draft_logits_TV)
    response_T = torch.tensor(response.response_ids, device=draft_logits_TV.device)
    if rule == EXACT_GREEDY_DRAFT:
        return as_array(penalised(draft_logits_TV, sampling, seen_TV).argmax(dim=-1) == response_T)
    draft_logp_T = at(log_distribution(draft_logits_TV, sampling, seen_TV), response_T)
    if rule == EXACT_SAMPLED_DRAFT:
        return as_array(draft_logp_T.exp())
    assert response.response_logp is not None  # replay_recording uses this method only then
    return as_array(rejection_accepts(torch.tensor(response.response_logp, device=draft_logp_T.device), draft_logp_T))


def find_warnings(recording: Recording, num_scored: int) -> tuple[str, ...]:
    warnings = []
    if recording.unanswered:
        warnings.append(f"{recording.unanswered:,} prompts after the last response of {recording.path} are ignored.")
    if recording.target is None:
        warnings.append("The file does not name the tokenizer of its ids; only their range was checked.")
    if num_scored < 2:
        warnings.append("Only one prompt was scored: there are no confidence intervals.")
    return tuple(warnings)
