"""A stand-in of the hub for each test, and a folder to push to it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub.clients import served
from tests.hub.server import HubStandIn

DRAFT = {
    "config.json": b'{"model_type": "llama"}\n',
    "README.md": b"---\nlicense: apache-2.0\n---\n# A draft\n",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 1000,
    "model-00002-of-00002.safetensors": b"a little",
    "plots/acceptance.png": b"\x89PNG",
    "empty.txt": b"",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    with served(monkeypatch, tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """write_folder(name, {path: content}) -> the folder."""

    def write(name: str, contents: dict[str, bytes]) -> Path:
        for path, content in contents.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return tmp_path / name

    return write


@pytest.fixture
def draft(write_folder: Callable[..., Path]) -> Path:
    """A draft's folder as it is pushed."""
    return write_folder("draft", DRAFT)
