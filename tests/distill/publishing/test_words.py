"""Texts as everybody may read them: without secrets, folders of this machine, or markup."""

import pytest

from distill.hub.card import data_sets_of, licence_of_card, plain, terms_of
from distill.hub.publish import published
from eval.tasks import PromptSource


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/home/me/models/llama", "llama"),
        ("~/models/llama", "llama"),
        ("at /srv/data/x.jsonl:12, row", "at x.jsonl:12, row"),
        ("org/name", "org/name"),
        ("https://huggingface.co/org/name", "https://huggingface.co/org/name"),
        ("token=hf_abc", "token=***"),
        ({"api_key": "abc", "lr": 0.1}, {"api_key": "***", "lr": 0.1}),
        ({"token": "${oc.env:TOKEN}"}, {"token": "${oc.env:TOKEN}"}),
        (["/a/b", {"k": ("/c/d",)}], ["b", {"k": ["d"]}]),
    ],
)
def test_of_a_path_the_end_and_of_a_secret_nothing(value, shown):
    assert published(value) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](b)", "[a&#93;(b)"),
        ("a|b", "a&#124;b"),
        ("a\nb\u202ec", "a b c"),
        ("http://x", "http:&#47;&#47;x"),
        ("&#60;b", "&amp;#60;b"),
        ("a_b _c_", "a_b &#95;c&#95;"),
        ("www.bad.example", "www&#46;bad.example"),
    ],
)
def test_a_text_is_words_alone(text, shown):
    assert plain(text) == shown


def test_the_licence_is_the_named_one_else_that_of_the_targets_card(tmp_path):
    assert terms_of(tmp_path, None).licence is None
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    (tmp_path / "LICENSE").write_text("MIT")
    terms = terms_of(tmp_path, None)
    assert (terms.licence, [path.name for path in terms.files]) == ("mit", ["LICENSE"])
    assert terms_of(tmp_path, "gemma").licence == "gemma"
    (tmp_path / "README.md").write_text("# Model\n")
    assert licence_of_card(tmp_path) is None


@pytest.mark.parametrize(
    ("licence", "begins", "notice"),
    [
        ("llama2", "", "LLAMA 2 Community License"),
        ("llama3", "Llama 3", "Meta Llama 3 is licensed under the Meta Llama 3 Comm"),
        ("llama3.1", "Llama", "Llama 3.1 is licensed under the Llama 3.1 Community"),
        ("gemma", "", "Gemma Terms of Use"),
        ("apache-2.0", "", ""),
    ],
)
def test_what_a_licence_demands(tmp_path, licence, begins, notice):
    terms = terms_of(tmp_path, licence)
    assert terms.name_begins == begins
    assert notice in terms.notice
    assert bool(terms.notice) is bool(notice)


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
