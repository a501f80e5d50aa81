"""Scorecards of tiny drafts of one target, as `widedraft eval` writes them, and a page that is read back."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from eval.config import EvalConfig
from eval.pages import verdict
from eval.pages.drawing import Drawing
from eval.prompts.forms import Prompt
from eval.report.page import page_figures, report_opening, report_page, report_sections
from eval.report_inputs.cards import read_cards
from eval.report_opening import next_step, sentence
from eval.scorecard import score_drafts

CONFIG = EvalConfig(
    max_new_tokens=24,
    lookaheads=(1, 2, 3),
    batch_size=4,
    num_resamples=100,
    confidence=0.75,  # three prompts are enough for an interval
    num_threads=1,
    latency_repeats=3,
    latency_batch_sizes=(),
    live_prompts=4,
)
ASKED = (
    ("p.jsonl:1", "<script>alert('why')</script>", "odd"),
    ("p.jsonl:2", "how many", None),
    ("q.jsonl:1", "say hello", "odd"),
    ("q.jsonl:2", "2+2?", "arithmetic"),
    ("q.jsonl:3", "x & y", None),
)
PROMPTS = [Prompt(source, ({"role": "user", "content": text},), category=category) for source, text, category in ASKED]
TUNED_ON = [*PROMPTS, *(Prompt(f"r.jsonl:{n}", ({"role": "user", "content": n * "so "},)) for n in (1, 2))]
WITH_POLICY = CONFIG.model_copy(update={"num_prompts": len(PROMPTS), "policy_prompts": 2})


@pytest.fixture(scope="session")
def scored(target_folder, noisy_folder, tiny_draft, small_head_folder, with_small_head, tmp_path_factory):
    """Folders of runs: `deep`, with a baseline, `shallow`, of the baseline alone, `small`, as deep with small heads
    and policies."""
    runs = tmp_path_factory.mktemp("runs")
    drafts = {
        "deep": {"undistilled": tiny_draft, "draft": noisy_folder},
        "shallow": {"draft": tiny_draft},
        "small": {"undistilled": with_small_head(tiny_draft), "draft": small_head_folder},
    }
    for name, models in drafts.items():
        prompts, config = (TUNED_ON, WITH_POLICY) if name == "small" else (PROMPTS, CONFIG)
        score_drafts(target_folder, models, prompts, config, runs / name / "eval", seed=17)
    return runs


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """Step times are believed, whatever else runs beside the tests."""
    for module in (verdict, sentence, next_step):
        monkeypatch.setattr(module, "is_unbelievable", lambda record: False)


@pytest.fixture
def runs(scored, tmp_path):
    """Copies of both, to be changed."""
    return Path(shutil.copytree(scored, tmp_path / "runs"))


@pytest.fixture
def rewrite(runs):
    """Change the scorecard of a run."""

    def change(name, edit):
        path = runs / name / "eval" / "scorecard.json"
        record = json.loads(path.read_text())
        edit(record)
        path.write_text(json.dumps(record))
        return record

    return change


@pytest.fixture(scope="session")
def read_back():
    """What a file holds; as it is, for decoded texts may hold any character."""
    return lambda path: Page(path.read_bytes().decode())


@pytest.fixture
def page_of(runs):
    """The page about some runs, read back; without its plots, which take seconds."""

    def read(*names):
        cards = read_cards([runs / name for name in names])
        opening, sections = report_opening(cards, {}), report_sections(cards, {})
        figures = page_figures(opening, sections)
        return Page(report_page(cards, opening, sections, {each.name: Drawing("0 0 1 1", "", b"") for each in figures}))

    return read


class Page(HTMLParser):
    """What a page holds.

    Attributes:
        text: The file.
        elements: (name, attributes) of every element, in order.
        tables: Rows of cells by the table's name.
        words: Text of elements by each class they are of, what stands within included.
        shown: All text a reader sees.
    """

    def __init__(self, text):
        super().__init__()
        self.text, self.elements, self.tables, self.words, self.shown = text, [], {}, {}, []
        self.open, self.rows = [], []
        self.feed(text)
        assert not self.open, f"unclosed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, attributes))
        if tag == "meta":
            return
        classes = (attributes.get("class") or "").split()
        self.open.append((tag, classes))
        for name in classes:
            self.words.setdefault(name, []).append("")
        if tag == "table":
            assert attributes["aria-label"] not in self.tables
            self.rows = self.tables[attributes["aria-label"]] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        opened, _ = self.open.pop()
        assert opened == tag, f"{opened} is closed by {tag}"

    def handle_data(self, data):
        if not self.open or self.open[-1][0] == "style":
            return
        tag, _ = self.open[-1]
        self.shown.append(data)
        for _, classes in self.open:
            for name in classes:
                self.words[name][-1] += data
        if tag in ("th", "td"):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def cells(self, caption):
        """Rows of a table by their first cells' columns: one dict a row."""
        columns, *rows = self.tables[caption]
        return [dict(zip(columns, row, strict=True)) for row in rows]
