"""A card names the engines that decoded what a draft learned from."""

from distill.hub.card.card import engine_words

ROW = {
    "engine": "vllm 0.32.0",
    "of": "train",
    "answers": 90,
    "checked": 5,
    "differing": 2,
    "largest_gap": 0.1,
    "sigmas": 0,
}


def test_engines_of_answers_to_train_on_are_named():
    held_out = {**ROW, "of": "eval"}
    words = ", decoded by vllm 0.32.0 (2 of 5 checked ones part at a near tie)"
    assert engine_words([held_out, ROW]) == words
    assert engine_words([held_out]) == engine_words([]) == ""


def test_what_a_server_calls_its_version_is_no_markup():
    assert "<b>" not in engine_words([{**ROW, "engine": "vllm <b>1</b>"}])
