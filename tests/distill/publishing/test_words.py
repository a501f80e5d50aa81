"""Texts as everybody may read them: without secrets, folders of this machine, or markup."""

import pytest

from distill.hub.card import data_sets_of, plain
from distill.hub.licences import licence_of_card, terms_of
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


def test_the_targets_own_card_goes_before_what_is_known(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    (tmp_path / "LICENSE").write_text("MIT")
    terms = terms_of(tmp_path, "HuggingFaceTB/SmolLM2-135M", None)
    assert (terms.licence, [path.name for path in terms.files]) == ("mit", ["LICENSE"])
    assert terms_of(tmp_path, None, "gemma").licence == "gemma"


def test_a_card_without_front_matter_names_no_licence(tmp_path):
    (tmp_path / "README.md").write_text("# Model\n")
    assert licence_of_card(tmp_path) is None
    assert terms_of(tmp_path, "Qwen/Qwen2.5-7B-Instruct", None).licence == "apache-2.0"
    assert terms_of(tmp_path, "org/unknown", None).licence is None


@pytest.mark.parametrize(
    ("base_model", "licence", "begins", "notice"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2", "", "LLAMA 2 Community License"),
        ("meta-llama/Meta-Llama-3-8B", "llama3", "Llama 3", "Meta Llama 3 is licensed under the Meta Llama 3 Comm"),
        ("meta-llama/Llama-3.1-8B", "llama3.1", "Llama", "Llama 3.1 is licensed under the Llama 3.1 Community"),
        ("google/gemma-2-2b", "gemma", "", "Gemma Terms of Use"),
        ("mistralai/Mistral-7B-v0.3", "apache-2.0", "", ""),
    ],
)
def test_what_the_licence_of_a_published_target_asks(tmp_path, base_model, licence, begins, notice):
    terms = terms_of(tmp_path, base_model, None)
    assert (terms.licence, terms.demand.name_begins) == (licence, begins)
    assert notice in terms.demand.notice
    assert bool(terms.demand.notice) is bool(notice)


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
