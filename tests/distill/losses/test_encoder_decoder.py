"""Encoder-decoder models read at their responses: as transformers reads them, whatever else is in the batch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.chunked_loss import ResponseLogits, chunked_sum, head_of, logits_of, plain_sum
from distill.data.batches import Example, collate
from distill.teacher import load_teacher
from eval.models import load_model
from tests.rejections import rejects

KINDS = [(tied, gated) for tied in (True, False) for gated in (True, False)]
PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15])
RESPONSES = ([20, 21, 22], [23, 24, 25, 26, 2], [27])
SAME_TO_ROUNDING = {"rtol": 1e-5, "atol": 1e-5}  # float32: a product of more rows may sum in another order


def example(prompt: list[int], response: list[int]) -> Example:
    *ids, last = [*prompt, *response]
    return Example(tuple(ids), last, ((len(prompt) - 1, len(ids)),))


EXAMPLES = [example(prompt, response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def lm(request, make_translator) -> PreTrainedModel:
    tied, gated = request.param
    # trained: on CPUs with AVX2 only, weights are packed otherwise, and rows of a batch take other kernels than one row
    return load_model(make_translator(tied=tied, gated=gated), dtype="float32", device="cpu", trained=True)


def read(lm: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Logits_AV at the kept positions."""
    with torch.inference_mode():
        return ResponseLogits(lm)(batch["input_ids"], batch["keep"], logits_of, prompt_len_B1=batch["prompt_len"])


def of_transformers(lm: PreTrainedModel, prompt: list[int], response: list[int]) -> Tensor:
    """logits_TV of one response, by the model's own forward pass and its own way to shift labels."""
    with torch.inference_mode():
        return lm(input_ids=torch.tensor([prompt]), labels=torch.tensor([response])).logits[0]


@pytest.mark.parametrize("index", range(3))
def test_a_text_alone_has_the_logits_of_transformers_bit_for_bit(lm, index):
    found = read(lm, collate([EXAMPLES[index]]))
    assert torch.equal(found, of_transformers(lm, PROMPTS[index], RESPONSES[index]))


def test_rows_of_a_batch_do_not_feel_each_other(lm):
    """Prompts and responses of different lengths: padding of the encoder or the decoder changes nothing."""
    found = read(lm, collate(EXAMPLES)).split([len(response) for response in RESPONSES])
    for logits, prompt, response in zip(found, PROMPTS, RESPONSES, strict=True):
        torch.testing.assert_close(logits, of_transformers(lm, prompt, response), **SAME_TO_ROUNDING)


def test_what_stands_in_padding_is_never_read(lm):
    batch = collate(EXAMPLES)
    other = {**batch, "input_ids": batch["input_ids"].masked_fill(~batch["attention_mask"], 99)}
    assert torch.equal(read(lm, other), read(lm, batch))


def test_each_position_says_the_token_that_its_batch_says_follows(lm):
    """By hand: a decoder that has read its start token says the response's first token, not the one behind it."""
    batch = collate([EXAMPLES[1]])
    assert batch["next_ids"][batch["keep"]].tolist() == RESPONSES[1]
    start = lm.config.decoder_start_token_id
    with torch.inference_mode():
        first = lm(input_ids=torch.tensor([PROMPTS[1]]), decoder_input_ids=torch.tensor([[start]])).logits[0, 0]
    torch.testing.assert_close(read(lm, batch)[0], first, **SAME_TO_ROUNDING)


def test_some_positions_are_those_of_all(lm):
    """What is rejected in a step of decoding is some positions of a response, and may be none of its first."""
    batch = collate(EXAMPLES)
    everything = read(lm, batch)
    chosen_A = torch.arange(len(everything)) % 2 == 1
    keep_BT = batch["keep"].clone()
    keep_BT[batch["keep"]] = chosen_A
    torch.testing.assert_close(read(lm, {**batch, "keep": keep_BT}), everything[chosen_A], **SAME_TO_ROUNDING)


def test_a_sequence_of_which_some_positions_count_still_begins_where_its_prompt_ends(lm):
    """Of a response that was served, mistakes alone may be learned, or none."""
    ids, last = EXAMPLES[1].input_ids, EXAMPLES[1].last_id
    mistakes = replace(EXAMPLES[1], spans=((2, 3), (4, 5)), begins=len(PROMPTS[1]))
    found = read(lm, collate([mistakes]))
    torch.testing.assert_close(found, read(lm, collate([EXAMPLES[1]]))[[2, 4]], **SAME_TO_ROUNDING)
    assert read(lm, collate([Example(ids, last, ())])).shape == (0, 264)


def test_a_batch_that_does_not_say_where_prompts_end_is_refused(lm):
    batch = collate(EXAMPLES)
    with rejects("prompt_len", error=ValueError):
        ResponseLogits(lm)(batch["input_ids"], batch["keep"], logits_of)


def test_chunks_sum_to_the_whole(lm):
    batch = collate(EXAMPLES)
    tokens_A = batch["next_ids"][batch["keep"]]

    def summed(method, **chunks) -> tuple[Tensor, Tensor]:
        lm.zero_grad()
        hidden = ResponseLogits(lm).hidden(batch["input_ids"], batch["keep"], prompt_len_B1=batch["prompt_len"])
        loss = method(
            hidden,
            head_of(lm),
            lambda logits, rows: torch.nn.functional.cross_entropy(logits.float(), tokens_A[rows], reduction="none"),
            **chunks,
        )
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in lm.parameters() if parameter.grad is not None]
        return loss.detach(), torch.cat(gradients)

    whole, chunked = summed(plain_sum), summed(chunked_sum, chunk_tokens=2)
    torch.testing.assert_close(chunked[0], whole[0], **SAME_TO_ROUNDING)
    torch.testing.assert_close(chunked[1], whole[1], rtol=1e-4, atol=1e-4)


def test_the_teachers_rows_are_its_logits(make_translator):
    teacher = load_teacher(make_translator(), dtype="float32", device="cpu")
    batch = collate(EXAMPLES)
    rows = teacher.rows(batch, vocab_size=264)
    whole = teacher.logits(batch["input_ids"], batch["keep"], batch["prompt_len"])
    assert torch.equal(rows.logits(slice(None)), whole)
    assert teacher.rows(batch, vocab_size=200).logits(slice(1, 3)).shape == (2, 200)


def test_an_response_behind_an_earlier_turn_belongs_to_its_own_prompt():
    first = EXAMPLES[0]
    assert collate([replace(first, spans=((2, 9),))])["prompt_len"].tolist() == [[3]]
