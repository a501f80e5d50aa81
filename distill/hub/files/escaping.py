"""Texts from files as plain words of a Markdown page, whatever they hold."""

import html
import re

MARKS = re.compile(r"[\\`*{}|~]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|(?<=:)//|(?<=www)\.")
NOT_PRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
LONGEST = 1000  # characters of one text


def plain(text: str) -> str:
    """A text that neither HTML nor Markdown takes for anything but words on one line.

    Marks are written as character references, which mean nothing to tables, links and emphasis. A bracket is one only
    where a link could follow, so that intervals stay readable.
    """
    words = html.escape(NOT_PRINTED.sub(" ", text)[:LONGEST], quote=False)
    return MARKS.sub(lambda match: "".join(f"&#{ord(mark)};" for mark in match.group()), words).strip()
