"""Texts beside a scorecard: whole, each token with its writer, of prompts that differ."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.chat import user_turn
from eval.config import EvalConfig
from eval.decoding.sampling import Limits, Sampling, Speculation
from eval.decoding.speculative import DecodingRequest, Emitted, decode_steps
from eval.prompts import Prompt
from eval.responses import read_traces
from eval.scorecard import score_drafts
from eval.side_by_side import chosen_indices, read_examples, writers_of, writers_of_steps
from tests.rejections import rejects

STOPS = frozenset(range(0, 264, 9))
CONFIG = EvalConfig(
    max_new_tokens=8,
    num_speculative_tokens=(2,),
    temperatures=(0.0,),
    latency_repeats=1,
    latency_batch_sizes=(),
    wall_clock_prompts=5,
)


@pytest.mark.parametrize("stops", [frozenset(), STOPS], ids=["never", "stops"])
@pytest.mark.parametrize("num_speculative_tokens", [1, 4])
def test_steps_tell_the_writers_that_decoding_told(target, noisy_draft, prompts, stops, num_speculative_tokens):
    wanted = DecodingRequest(prompts, Limits(24, stops), Sampling(), Speculation(num_speculative_tokens))
    told, texts = {}, {}
    for step in decode_steps([target, noisy_draft], wanted):
        if isinstance(step, Emitted):
            told.setdefault(step.index, []).extend(writers_of(step, drafts=True))
        else:
            texts[step[0]] = step[1]
    assert {writer for writers in told.values() for writer in writers} == {"accepted", "corrected", "bonus"}
    for place, text in texts.items():
        found = writers_of_steps(text)
        assert len(found) == len(text.token_ids)
        if text.stopped:
            assert found[-1] == "target"
            assert found[:-1] == told[place][:-1]
        else:
            assert found == told[place]


@given(st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=12), st.integers(0, 6))
def test_places_are_of_as_many_categories_as_there_are(categories, most):
    places = chosen_indices(categories, most)
    assert places == sorted(set(places))
    assert len(places) == min(most, len(categories))
    chosen = [categories[place] for place in places]
    assert len(set(chosen)) == min(most, len(set(categories)))
    for category in set(categories):  # no category has two more than another that has some left
        others = [c for c in set(categories) if chosen.count(c) < categories.count(c)]
        assert all(chosen.count(category) <= chosen.count(other) + 1 for other in others)


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("examples")
    asked = [Prompt(f"p:{n}", (user_turn(f"say {n}"),), category="ab"[n % 2]) for n in range(6)]
    return out, score_drafts(target_folder, {"draft": noisy_folder}, asked, CONFIG, out, seed=1)


def test_pieces_are_the_target_s_own_text(scored, target_tokenizer):
    out, scorecard = scored
    found = read_examples(out / "examples.json")
    assert (found.target, found.draft) == tuple(m.fingerprint for m in (scorecard.target, scorecard.drafts[0]))
    assert [(one.source, one.category, one.prompt) for one in found.examples] == [
        (f"p:{n}", "ab"[n % 2], f"say {n}") for n in range(4)
    ]
    responses = {trace.source: trace.response_ids for trace in read_traces(out / "responses" / "T0", "eval")}
    for one in found.examples:
        assert "".join(text for text, _ in one.pieces) == target_tokenizer.decode(
            list(responses[one.source]), clean_up_tokenization_spaces=False
        )


def test_a_damaged_file_is_rejected_by_its_field(tmp_path):
    example = {"source": "p:1", "category": None, "prompt": "why", "pieces": [["so", "me"]]}
    path = tmp_path / "examples.json"
    path.write_text(json.dumps({"format": "widedraft.examples/2", "target": "1", "draft": "2", "examples": [example]}))
    with rejects("examples.0.pieces.0.1"):
        read_examples(path)
