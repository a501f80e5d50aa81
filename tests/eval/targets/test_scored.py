"""A scorecard of a target that is not whole, or in fewer bits, says so; acceptance is the same wherever weights are."""

import pytest

from architectures.settings import Holding
from eval.chat import user_turn
from eval.config import EvalConfig
from eval.prompts import Prompt
from eval.scorecard import score_drafts
from eval.scorecard_tables import models
from tests.eval.targets.conftest import LAYERS

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
