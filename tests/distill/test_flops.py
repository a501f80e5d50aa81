"""FLOPs of a step, counted as torch counts them."""

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from architectures.shapes import Shape
from architectures.vocabulary_head import cut_head
from distill.estimate import forward_flops, training_flops

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_implementation="eager",
)
SHAPE = Shape.from_config(CONFIG.to_dict())


def test_a_forward_pass_is_counted_as_torch_counts_it():
    lm = LlamaForCausalLM(CONFIG)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        lm(input_ids=torch.zeros(1, 15, dtype=torch.long), logits_to_keep=5)
    counted = counter.get_total_flops()
    scores = 2 * 2 * 2 * 4 * 8 * 15 * 15  # layers, scores and values, multiply and add: torch computes the whole square
    ours = forward_flops(SHAPE, [(15, 5)])
    rotary = counted - ours - scores // 2 * 14 // 15
    assert 0 <= rotary <= 2 * 2 * 8 * 15  # an outer product of positions and frequencies


def test_a_small_head_counts_its_rows_as_torch_does():
    counts = []
    for rows in (96, 10):
        lm = LlamaForCausalLM(CONFIG)
        if rows < 96:
            cut_head(lm, torch.arange(rows))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            lm(input_ids=torch.zeros(1, 15, dtype=torch.long), logits_to_keep=5)
        counts.append(counter.get_total_flops())
    small = Shape.from_config(lm.config.to_dict())
    assert small == replace(SHAPE, head_vocab=10)
    assert forward_flops(SHAPE, [(15, 5)]) - forward_flops(small, [(15, 5)]) == counts[0] - counts[1]


def test_the_head_counts_where_it_runs():
    assert forward_flops(SHAPE, [(10, 4)]) - forward_flops(SHAPE, [(10, 3)]) == 2 * 96 * 32


def test_a_step_is_three_passes_of_the_student_and_what_the_teacher_does():
    responses = [(10, 4), (7, 7)]
    forward = forward_flops(SHAPE, responses)
    assert training_flops(SHAPE, iter(responses), teacher=5) == 3 * forward + 5
