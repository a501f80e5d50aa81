"""Several texts in one row: none sees another, and nothing tells them from texts that have a row each."""

import itertools
import random
from pathlib import Path

import pytest
import torch

from architectures.hub import read_config
from architectures.shapes import Shape
from distill.chunked_loss import ResponseLogits, logits_of, packed_flops_per_token
from distill.data.batches import Example, balanced_layout, cheapest_layout, collate, lengths_read, packed, slots_of
from distill.losses import build_objective
from distill.model import DistillModel
from distill.response_batches import cut_padding, split_batch
from distill.teacher import load_teacher
from distill.train import train
from eval.models import load_model
from tests.families import DECODER_ONLY
from tests.rejections import rejects

LENGTHS, NUM_KEPT = (11, 30, 3, 1, 19, 24, 8), (4, 11, 3, 1, 1, 20, 2)
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}  # float32 hidden states of size 1 to 4: products of other heights
GRADIENT_RTOL = {"float32": 5e-6, "float64": 1e-8}  # of its norm: float32 sums in another order make 2e-6
WINDOW = {"sliding_window": 8}
WINDOW_FROM_THIRD = {**WINDOW, "use_sliding_window": True, "max_window_layers": 2}
SETTINGS = {
    "mistral": WINDOW,
    "qwen2": WINDOW_FROM_THIRD,
    "qwen3": WINDOW_FROM_THIRD,
    "gemma2": WINDOW,
    "gemma3_text": {**WINDOW, "sliding_window_pattern": 3},
    "phi3": WINDOW,
    "smollm3": {**WINDOW, "use_sliding_window": True},
    "olmo3": WINDOW,
    "exaone4": {**WINDOW, "sliding_window_pattern": 3},
    "granite": {"attention_multiplier": 0.25},  # 1 by default: scores so large that rounding shows
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}


def batch_of(lengths=LENGTHS, num_kept=NUM_KEPT):
    generator = random.Random(0)
    ids = [[generator.randrange(3, 259) for _ in range(length + 1)] for length in lengths]
    return collate(
        [
            Example(tuple(row[:-1]), row[-1], ((len(row) - 1 - kept, len(row) - 1),))
            for row, kept in zip(ids, num_kept, strict=True)
        ]
    )


def shape(folder: Path) -> Shape:
    return Shape.from_config(read_config(folder))


def as_one_row(model: ResponseLogits) -> ResponseLogits:
    """The model where attention costs nothing, so that the fewest slots are the cheapest."""
    model.flops_per_token = lambda context: 1
    return model


def rows_computed(lm, ask) -> list[tuple[int, int]]:
    """Shapes of the ids that the layers are given meanwhile."""
    seen = []
    hook = lm.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    ask()
    hook.remove()
    return seen


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("family", DECODER_ONLY)
def test_texts_whose_positions_begin_again_are_read_apart(make_checkpoint, family, eager):
    lm = load_model(make_checkpoint(model_type=family, **SETTINGS.get(family, {})), dtype="float32", device="cpu")
    if eager:
        lm.set_attn_implementation("eager")
    model, ids = ResponseLogits(lm), torch.arange(3, 31).view(2, 14)
    positions = torch.tensor([[*range(6), *range(1), *range(7)], [*range(14)]])
    everything = torch.ones_like(ids, dtype=torch.bool)
    together = model(ids, everything, logits_of, positions)
    texts = (0, slice(6)), (0, slice(6, 7)), (0, slice(7, 14)), (1, slice(14))
    alone = [model(ids[row, part][None], everything[row, part][None], logits_of) for row, part in texts]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("num_rows", range(1, len(LENGTHS) + 1))
def test_a_layout_gives_every_token_a_slot_of_its_own(num_rows):
    layout = balanced_layout(LENGTHS, num_rows)
    slots = slots_of(layout, max(LENGTHS), torch.device("cpu"))
    taken = slots[slots >= 0].tolist()
    assert sorted(set(taken)) == sorted(taken)
    assert len(taken) == sum(LENGTHS)
    ends = [start + length for start, length in zip(layout.starts, LENGTHS, strict=True)]
    assert layout.width == max(ends)
    assert set(layout.rows) == set(range(num_rows))
    for row, start, length in zip(slots, layout.starts, LENGTHS, strict=True):
        assert (row >= 0).tolist() == [True] * length + [False] * (max(LENGTHS) - length)
        assert row[0] % layout.width == start
        assert row[:length].tolist() == list(range(row[0], row[0] + length))


@pytest.mark.parametrize("num_rows", range(1, 5))
def test_the_fullest_row_is_within_a_third_of_the_best(num_rows):
    generator = random.Random(num_rows)
    for _ in range(10):
        lengths = [generator.randint(1, 30) for _ in range(6)]
        shared = itertools.product(range(num_rows), repeat=len(lengths))
        sums = (
            [sum(n for n, row in zip(lengths, rows, strict=True) if row == r) for r in range(num_rows)]
            for rows in shared
        )
        assert balanced_layout(lengths, num_rows).width <= 4 / 3 * min(map(max, sums))


def test_the_cheapest_layout_is_the_cheapest():
    width = max(LENGTHS)
    for attention in (0, 1, 3, 10, 30):

        def flops_per_token(context, attention=attention):
            return 100 + attention * context

        def cost(layout, flops_per_token=flops_per_token):
            if layout is None:
                return len(LENGTHS) * width * flops_per_token((width + 1) // 2)
            return layout.num_rows * layout.width * flops_per_token(layout.width)

        every = [None, *(balanced_layout(LENGTHS, num_rows) for num_rows in range(1, len(LENGTHS) + 1))]
        chosen = cheapest_layout(LENGTHS, width, flops_per_token=flops_per_token)
        assert cost(chosen) == min(map(cost, every))


@pytest.mark.parametrize("lengths", [[7, 7, 7], [7], [1, 1]])
def test_what_has_no_padding_is_left_as_it_is(lengths):
    assert cheapest_layout(lengths, max(lengths), flops_per_token=lambda context: 100 + context) is None


def test_a_sequence_ends_with_its_last_kept_token():
    keep = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    assert lengths_read(keep) == [3, 4, 1, 1]
    batch = batch_of()
    assert lengths_read(batch["keep"]) == batch["attention_mask"].sum(dim=1).tolist()


def test_values_come_to_their_slots_and_room_holds_zeros():
    layout = balanced_layout([3, 1, 2], 2)
    values = torch.tensor([[11, 12, 13], [21, 0, 0], [31, 32, 99]])
    assert packed(values, slots_of(layout, 3, torch.device("cpu")), layout).tolist() == [[11, 12, 13], [31, 32, 21]]
    layout = balanced_layout([3, 1], 2)
    assert packed(values[:2], slots_of(layout, 3, torch.device("cpu")), layout).tolist() == [[11, 12, 13], [21, 0, 0]]


@pytest.mark.parametrize("eager", [False, True])  # else what transformers chooses: sdpa, where a family has it
@pytest.mark.parametrize("family", DECODER_ONLY)
def test_a_packed_model_reads_what_it_reads_of_padded_rows(make_checkpoint, family, eager):
    lm = load_model(make_checkpoint(model_type=family, **SETTINGS.get(family, {})), dtype="float32", device="cpu")
    if eager:
        lm.set_attn_implementation("eager")
    batch = batch_of()
    inputs = batch["input_ids"], batch["keep"], None
    expected = ResponseLogits(lm).hidden(*inputs)
    model, found = ResponseLogits(lm, packing=True), []
    shapes = rows_computed(lm, lambda: found.append(model.hidden(*inputs)))
    as_one_row(model)
    shapes += rows_computed(lm, lambda: found.append(model.hidden(*inputs)))
    for hidden in found:
        torch.testing.assert_close(hidden, expected, **ROUNDING)
    assert 1 < shapes[0][0] < len(LENGTHS)
    assert shapes[1] == (1, sum(LENGTHS))


def test_attention_that_looks_at_positions_in_one_row_only_is_refused(tiny_draft):
    lm = load_model(tiny_draft, dtype="float32", device="cpu")
    lm.config._attn_implementation = "flash_attention_2"
    with rejects("attn_implementation", "flash_attention_2"):
        ResponseLogits(lm, packing=True)
    ids = torch.arange(3, 9)[None]
    with rejects("attn_implementation", "flash_attention_2"):
        ResponseLogits(lm)(ids, torch.ones_like(ids, dtype=torch.bool), logits_of, torch.tensor([[0, 1, 2, 0, 1, 2]]))


def test_texts_that_share_a_row_already_stay_apart_when_rows_are_packed(tiny_draft):
    lm = load_model(tiny_draft, dtype="float32", device="cpu")
    batch = batch_of((12, 7, 3), (12, 7, 3))
    positions = torch.tensor([[*range(5), *range(7)], [*range(7), *[0] * 5], [*range(2), *[0] * 10]])
    inputs = batch["input_ids"], batch["keep"], positions
    expected = ResponseLogits(lm).hidden(*inputs)
    model = as_one_row(ResponseLogits(lm, packing=True))
    torch.testing.assert_close(model.hidden(*inputs), expected, **ROUNDING)


def test_rows_with_nothing_kept_take_next_to_no_room(tiny_draft):
    lm = load_model(tiny_draft, dtype="float32", device="cpu")
    batch = batch_of((12, 12, 12), (4, 4, 4))
    model = as_one_row(ResponseLogits(lm, packing=True))
    for keep in (batch["keep"] & torch.tensor([[True], [False], [True]]), torch.zeros_like(batch["keep"])):
        expected = ResponseLogits(lm).hidden(batch["input_ids"], keep, None)
        torch.testing.assert_close(model.hidden(batch["input_ids"], keep, None), expected, **ROUNDING)


def build(draft, target, *, packing, dtype="float32", multiple=1):
    where, how = {"dtype": dtype, "device": "cpu"}, {"packing": packing, "multiple": multiple}
    student, teacher = ResponseLogits(load_model(draft, **where), **how), load_teacher(target, **where, **how)
    return DistillModel(student, teacher, objective=build_objective("forward_kl", temperature=1.0), cpu_bfloat16=False)


def loss_and_gradient(model, batch, microbatch_size, fit=cut_padding):
    """As the trainer accumulates them: micro-batches weigh as much as their response tokens."""
    total, all_tokens = 0.0, batch["keep"].sum()
    for piece in map(fit, split_batch(batch, microbatch_size)):
        loss = model.loss(model(piece), piece) * (piece["keep"].sum() / all_tokens)
        loss.backward()
        total += loss.item()
    return total, torch.cat([parameter.grad.flatten() for parameter in model.student.parameters()])


@pytest.mark.parametrize("dtype", GRADIENT_RTOL)
@pytest.mark.parametrize("microbatch_size", [2, 3, 7])
def test_packing_changes_neither_loss_nor_gradients(tiny_draft, tiny_target, microbatch_size, dtype):
    batch, found = batch_of(), []
    loss, gradient = loss_and_gradient(build(tiny_draft, tiny_target, packing=False, dtype=dtype), batch, 7)
    model = build(tiny_draft, tiny_target, packing=True, dtype=dtype)
    shapes = rows_computed(model.student.lm, lambda: found.extend(loss_and_gradient(model, batch, microbatch_size)))
    assert sum(rows * width for rows, width in shapes) < len(LENGTHS) * max(LENGTHS)
    assert found[0] == pytest.approx(loss, rel=1e-6)
    assert (found[1] - gradient).norm() < GRADIENT_RTOL[dtype] * gradient.norm()


def test_the_flops_of_a_slot_are_those_of_the_layers(tiny_draft):
    lm = load_model(tiny_draft, dtype="float32", device="cpu")
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    assert packed_flops_per_token(lm)(10) == 2 * 2 * (layer + 2 * 64 * 10)


def test_both_models_of_a_recipe_are_packed(make_run, monkeypatch):
    asked = []
    for name in ("distill.trainer.ResponseLogits", "distill.teacher.ResponseLogits"):
        monkeypatch.setattr(name, lambda lm, **how: asked.append(how) or ResponseLogits(lm, **how))
    train(make_run(max_duration="1ba", packing=True))
    assert asked == [{"packing": True, "multiple": 1}] * 2
