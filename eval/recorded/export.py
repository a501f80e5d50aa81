"""Greedy traces as the two text files that "Decoding Speculative Decoding" replays (arXiv 2402.01528)."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from architectures.checkpoints.fingerprint import fingerprint_file
from architectures.checkpoints.manifest import MANIFEST_NAME, read_manifest, write_manifest
from architectures.errors import UserError
from architectures.files.atomic import write_text
from eval.answers.shards import SETTINGS_NAME
from eval.models.loading import load_tokenizer
from eval.recorded.answers import RecordedAnswer, read_recorded_traces
from eval.recorded.ground_truth import write_ground_truth

ANSWERS_FILE, PROMPTS_FILE = "ground_truth.txt", "prompts.jsonl"
STAGE = "export-recorded"


def export_recorded(traces: Path, tokenizer_folder: Path, out: Path) -> int:
    """Write out/ground_truth.txt and out/prompts.jsonl, one block and one row an answer; returns how many.

    A prompt is written as the text that the tokenizer makes the recorded tokens of, chat template and all, so a reader
    that knows no template asks the same.

    Args:
        traces: Folder of held-out greedy answers.
        tokenizer_folder: A model with their tokenizer.
        out: Folder to write.

    Raises:
        UserError: If the answers were sampled, are of another tokenizer, a prompt is not the tokens of any text, or
            files of these names are in out that were not written so.
    """
    require_own_files(out)
    recording = read_recorded_traces(traces, tokenizer_folder)
    if recording.temperature > 0 or recording.sampling.repetition_penalty != 1:
        raise UserError(
            f"{traces}: its answers were written at {recording.words}, and the text form does not "
            "say so: its readers take answers for greedy. Export greedy answers."
        )
    tokenizer = load_tokenizer(tokenizer_folder)
    rows = [{"prompt": prompt_as_text(tokenizer, answer)} for answer in recording.answers]
    write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), out / PROMPTS_FILE)
    write_ground_truth([answer.answer_ids for answer in recording.answers], out / ANSWERS_FILE)
    inputs = {"answers": fingerprint_file(traces / SETTINGS_NAME)}
    write_manifest(out, stage=STAGE, inputs=inputs, target=recording.target)
    return len(rows)


def require_own_files(out: Path) -> None:
    """Raise UserError where files of somebody else, or of another stage, would be written over."""
    for name in (PROMPTS_FILE, ANSWERS_FILE, MANIFEST_NAME):
        if (out / name).exists() and (read_manifest(out) or {}).get("stage") != STAGE:
            raise UserError(f"{out / name}: is there, and was not written by export-recorded. Choose another folder.")


def prompt_as_text(tokenizer: PreTrainedTokenizerBase, answer: RecordedAnswer) -> str:
    """A text that becomes the prompt's tokens, without those in front that the tokenizer adds itself."""
    for num_added in range(len(answer.prompt_ids)):
        text = tokenizer.decode(list(answer.prompt_ids[num_added:]), clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        if text.strip() and tuple(tokenizer(text)["input_ids"]) == answer.prompt_ids:
            return text
    raise UserError(
        f"{answer.source}: the tokens of this prompt are those of no text, so the text form cannot hold it. Leave its "
        "row out of the prompts, and answer them again."
    )
