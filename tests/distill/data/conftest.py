"""Files of rows to train on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def row_file(tmp_path: Path) -> Callable[..., str]:
    """row_file(*rows, name=...) -> the path of a JSON-lines file of them."""

    def write(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write
