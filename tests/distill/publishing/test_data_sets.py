"""Which data sets of the hub a card names."""

import pytest

from distill.hub.files.data_sets import data_sets_of
from eval.tasks import PromptSource


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ([{"name": "openai/gsm8k"}, {"task": "gsm8k", "path": "rows.jsonl"}], ["openai/gsm8k"]),
        (
            [{"task": "mt_bench"}, {"task": "alpaca", "path": "x.jsonl"}],
            ["HuggingFaceH4/mt_bench_prompts", "tatsu-lab/alpaca"],
        ),
        ([{"path": "mine.jsonl"}, {"name": "./rows/mine"}, {"name": "/rows/mine"}, {"name": "rows"}], []),
        ([{"task": "spec_bench"}], []),  # rows of a file on the web, that `datasets` opens as "json"
    ],
)
def test_data_sets_are_those_of_sources_and_of_tasks(sources, named):
    assert data_sets_of(PromptSource(**each) for each in sources) == named


def test_a_folder_here_is_no_data_set_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "rows" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert data_sets_of([PromptSource(name="rows/mine"), PromptSource(name="rows/theirs")]) == ["rows/theirs"]
