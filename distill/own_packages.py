"""A check that `eval` and `architectures` are ours, made before anything is imported from them."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def refuse_foreign_packages() -> None:
    """Exit with code 2 if a file of the working folder stands before one of our packages.

    `python -m` puts the working folder first on the import path, so an `eval.py` there would be imported as `eval`.
    Rank 0 alone says so.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in ("architectures", "eval"):
        spec = find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if found != ours / name / "__init__.py":
            if os.environ.get("RANK", "0") == "0":
                print(
                    f"{found}: hides widedraft's own package {name!r} at {ours / name}. "
                    "Rename it, start from another folder, or set PYTHONSAFEPATH=1.",
                    file=sys.stderr,
                )
            sys.exit(2)
