"""What an import takes of signals is given back."""

import signal

import pytest

from distill.process import Process, interrupt, signals_kept


@pytest.mark.parametrize("ours", [True, False])
def test_signals_are_answered_behind_an_import_as_before_it(monkeypatch, ours):
    """The cache's stage imports Composer, which answers SIGTERM as a training does; other stages come behind it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(Process, "is_ours", ours)

    def own(*_: object) -> None: ...

    try:
        signal.signal(signal.SIGTERM, own)
        with signals_kept():
            for number in before:
                signal.signal(number, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is (interrupt if ours else signal.default_int_handler)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
