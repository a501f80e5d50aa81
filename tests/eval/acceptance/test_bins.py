"""Bins hold every token once, and say which."""

from dataclasses import replace

import numpy as np
import pytest

from eval.replay import (
    NO_CATEGORY,
    NO_TASK,
    POSITION_EDGES,
    Replay,
    ReplayedResponse,
    part_tokens,
    position_bins,
    token_labels,
)


def replayed(num_tokens, *, entropy=0.0, category=None):
    ones = np.ones(num_tokens)
    return ReplayedResponse(0, category, Replay({}, ones, ones, ones, np.full(num_tokens, entropy), ones))


def bin_labels(responses, by):
    """Of each response the label of every token."""
    labels, bins = part_tokens(responses)[by]
    return [[labels[number] for number in bin_T] for bin_T in bins]


@pytest.mark.parametrize(
    ("position", "label"),
    [(0, "0-15"), (15, "0-15"), (16, "16-31"), (4095, "2048-4095"), (4096, "4096 and more"), (4999, "4096 and more")],
)
def test_positions_and_their_labels(position, label):
    assert token_labels(POSITION_EDGES)[position_bins(5000)[position]] == label
    assert bin_labels([replayed(5000)], "output_position")[0][position] == label


def test_the_context_length_counts_prompt_and_response():
    [labels] = bin_labels([replace(replayed(600), prompt_len=500)], "context_length")
    assert labels == ["0-511"] * 12 + ["512-1023"] * 512 + ["1024-2047"] * 76
    [labels] = bin_labels([replace(replayed(1), prompt_len=131_071)], "context_length")
    assert labels == ["65536-131071"]


def test_no_category_overwrites_the_one_before():
    """Of languages that take turns every response stays with its own."""
    languages = ("fr", "de", "fr", "en", "de", "fr")
    responses = [replayed(1, category=language) for language in languages]
    assert bin_labels(responses, "category") == [[language] for language in languages]


def test_categories_stand_in_their_order_and_the_rest_last():
    responses = [replayed(2), replayed(3, category="talk"), replayed(1, category="code")]
    assert part_tokens(responses)["category"][0] == ["code", "talk", NO_CATEGORY]
    assert bin_labels(responses, "category") == [[NO_CATEGORY] * 2, ["talk"] * 3, ["code"]]


def test_tasks_part_responses_as_categories_do():
    responses = [replace(replayed(2, category="math"), task=task) for task in ("mt_bench/1", None, "gsm8k/1")]
    assert part_tokens(responses)["task"][0] == ["gsm8k/1", "mt_bench/1", NO_TASK]
    assert [first for first, _ in bin_labels(responses, "task")] == ["mt_bench/1", NO_TASK, "gsm8k/1"]
    assert bin_labels(responses, "category")[0] == ["math"] * 2
