"""Text files of domains, and of calibration, that would hang, exhaust memory or end in a traceback."""

import gzip
import os

import pytest

from architectures.pruning.importance import read_calibration_text
from distill.recipe.sections import TextConfig, TextDomain
from distill.text_data import held_out_sequences, open_texts
from eval.models import load_tokenizer
from tests.rejections import rejects


def read(path, tokenizer, **settings):
    """As a training begins to read a domain."""
    domain = TextDomain(name="a", path=str(path), **settings)
    [text] = open_texts(TextConfig(domains=(domain,), max_seq_len=8), tokenizer).values()
    return held_out_sequences(text, count=1)


FILES = {
    "nested 100,000 deep": ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    "a number of 5,000 digits": ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n"),
    "an infinite number": ("a.jsonl", b'{"text": 1e400}\n'),
    "numbers": ("a.jsonl", b'{"text": 5}\n'),
    "texts and lists": ("a.jsonl", b'{"text": "a"}\n{"text": ["b"]}\n'),
    "no objects": ("a.jsonl", b'[1]\n"a"\n'),
    "half of a row": ("a.jsonl", b'{"text": "a"}\n{"te'),
    "not UTF-8": ("a.jsonl", b'{"text": "\xff"}\n'),
    "plain text that is not UTF-8": ("a.txt", b"\xff\xfe\n" * 100),
    "nothing": ("a.txt", b""),
    "no rows": ("a.jsonl", b"\n\n"),
    "not gzip": ("a.jsonl.gz", b"abc"),
    "half of gzip": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000)[:40]),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", FILES)
def test_a_hostile_text_is_refused(tmp_path, tiny_target, case):
    name, content = FILES[case]
    (tmp_path / name).write_bytes(content)
    with rejects(name):
        read(tmp_path / name, load_tokenizer(tiny_target))


@pytest.mark.timeout(30)
def test_a_pipe_is_no_text(tmp_path, tiny_target):
    os.mkfifo(tmp_path / "pipe.txt")
    with rejects("pipe.txt"):
        read(tmp_path / "pipe.txt", load_tokenizer(tiny_target))
    with rejects("pipe.txt"):
        next(read_calibration_text(tmp_path / "pipe.txt"))


def test_calibration_reads_a_line_without_end_in_pieces(tmp_path):
    with (tmp_path / "sparse.txt").open("wb") as file:
        file.truncate(8 << 30)
    assert len(next(read_calibration_text(tmp_path / "sparse.txt"))) < 1_000_000
    with rejects("x" * 5000):
        next(read_calibration_text(tmp_path / ("x" * 5000)))
