"""Any text of a scorecard may be anybody's: markup in it is refused, or stays words on the card and on the page."""

import json
import random
import re
import shutil
from contextlib import suppress

import pytest

from architectures.errors import UserError
from tests.distill.publishing.conftest import write_dry

HOSTILE = (
    "</td></table><script>x()</script>",
    "<img src=x onerror=x()>",
    "[here](http://bad.example)",
    "|\n\n# Title\n\n```\nrm\n```",
    "\n---\nlicense: mit\n---\n",
    '"><svg onload=x()>',
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
)


def texts(value, path=()):
    """The place of every text in a JSON value."""
    if isinstance(value, str):
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(inner, (*path, key))


@pytest.fixture(scope="module")
def scored(finished, tmp_path_factory):
    """A run of its own, and its scorecard as it was written."""
    run = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(finished["whole"], run)
    return run, (run / "eval" / "scorecard.json").read_text()


def require_words(card, page):
    """No markup of HOSTILE is any on the card, nor on the page; a template that is evaluated fails by itself."""
    assert "<script>x()" not in card + page
    assert "onerror=x()" not in re.sub(r"&lt;.*?&gt;", "", card + page)
    assert "<svg onload" not in card + page
    body = card.split("\n---\n", 2)[-1]
    assert "](http://bad" not in body
    assert not re.search(r"^# Title|^license: mit", card, re.MULTILINE)


@pytest.mark.parametrize("seed", range(16))
def test_markup_anywhere_in_a_scorecard_is_refused_or_stays_words(scored, tmp_path, seed):
    run, text = scored
    record, drawn = json.loads(text), random.Random(seed)
    *way, last = drawn.choice(sorted(texts(record), key=str))
    found = record
    for key in way:
        found = found[key]
    found[last] = drawn.choice(HOSTILE)
    (run / "eval" / "scorecard.json").write_text(json.dumps(record))
    with suppress(UserError):
        write_dry(run, tmp_path / "out")
        require_words((tmp_path / "out" / "README.md").read_text(), (tmp_path / "out" / "report.html").read_text())
