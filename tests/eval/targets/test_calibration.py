"""Scores of a target's parts, and scorecards of it, are those of the whole target wherever its weights are."""

import numpy as np
import pytest
import torch

from architectures.families import FAMILIES
from architectures.pruning.importance import activation_scores, removal_order
from architectures.settings import Holding
from eval import large_targets
from eval.chat import user_turn
from eval.config import EvalConfig
from eval.large_targets import access_to, cut_into_blocks, load_target
from eval.models import load_model
from eval.prompts import Prompt
from eval.scorecard import score_drafts
from eval.scorecard_tables import models
from tests.eval.targets.conftest import LAYERS
from tests.rejections import rejects

pytestmark = pytest.mark.usefixtures("no_gpu")
IDS_ST = torch.randint(3, 260, (5, 20), generator=torch.Generator().manual_seed(7))
HALF = Holding("spread", device_memory_gib=0.00045)  # two of four layers, and the embedding


def whole_scores(folder, **how):
    model = load_model(folder, dtype="float32")
    assert access_to(model, folder) is None
    return activation_scores(model, IDS_ST, **how)


def held_scores(folder, holding, **how):
    model = load_target(folder, dtype="float32", holding=holding)
    return activation_scores(model, IDS_ST, access=access_to(model, folder), **how)


def same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_layers_on_the_disk_have_the_scores_of_the_whole_target(held_family, family, batch_size):
    folder = held_family(family)
    same_bits(held_scores(folder, LAYERS, batch_size=batch_size), whole_scores(folder, batch_size=batch_size))


def test_texts_in_several_blocks_are_added_up_in_their_order(target_folder, monkeypatch):
    blocks = []

    def noting(*args):
        made = cut_into_blocks(*args)
        blocks.append(len(made))
        return made

    monkeypatch.setattr("eval.large_targets.cut_into_blocks", noting)
    expected = whole_scores(target_folder)
    same_bits(held_scores(target_folder, Holding("layers", device_memory_gib=0.00033)), expected)
    same_bits(held_scores(target_folder, LAYERS), expected)
    [several, one] = blocks
    assert (several > 1, one) == (True, 1)


def test_what_the_sums_take_counts_in_the_cap(target_folder, monkeypatch):
    tight = Holding("layers", device_memory_gib=0.0006)
    monkeypatch.setattr(large_targets, "watching_bytes", lambda _: 2**20)
    with rejects("target.device_memory_gib", 0.0006):
        held_scores(target_folder, tight)


def test_experts_half_on_the_disk_have_the_scores_of_those_in_memory(held_family):
    folder = held_family("qwen3_moe")
    assert "disk" in load_target(folder, dtype="float32", holding=HALF).hf_device_map.values()
    same_bits(held_scores(folder, HALF), whole_scores(folder))


def test_a_target_half_on_the_disk_has_the_scores_and_the_order_of_one_in_memory(target_folder):
    same_bits(held_scores(target_folder, HALF), whole_scores(target_folder))
    whole, half = load_model(target_folder, dtype="float32"), load_target(target_folder, dtype="float32", holding=HALF)
    assert "disk" in half.hf_device_map.values()
    assert removal_order(half, IDS_ST) == removal_order(whole, IDS_ST)


PROMPTS = [Prompt(f"p.jsonl:{number}", (user_turn(f"what is {number}?"),)) for number in range(4)]
CONFIG = EvalConfig(
    num_prompts=4,
    max_new_tokens=8,
    dtype="float32",
    temperatures=(0.0,),
    num_speculative_tokens=(2,),
    latency_repeats=6,
    latency_batch_sizes=(),
    wall_clock_prompts=1,
)


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tmp_path_factory):
    def score(holding):
        out = tmp_path_factory.mktemp("scored")
        return out, score_drafts(target_folder, {"draft": noisy_folder}, PROMPTS, CONFIG, out, seed=17, holding=holding)

    return score


def test_acceptance_is_that_of_the_whole_target_and_the_card_says_whose_times_it_has(scored):
    _, whole = scored(Holding())
    _, card = scored(LAYERS)
    assert card.acceptance == whole.acceptance
    assert card.prompts.responses == whole.prompts.responses
    assert (whole.target.placement, card.target.placement) == (None, "layers")
    assert "layers" in str(models({"card": card}).rows[0][6])


def test_a_draft_is_judged_against_the_packed_target_and_the_card_says_so(scored):
    pytest.importorskip("bitsandbytes")
    _, card = scored(Holding(bits=8))
    assert card.target.bits == 8
    assert "8-bit" in str(models({"card": card}).rows[0][6])
