"""Check that `eval` and `architectures` are widedraft's packages, before anything is imported from them."""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

# Composer's launcher polls for failed processes ten times a second, then stops the remaining ones.
WAIT_FOR_RANK_0_S = 10


def reject_foreign_packages() -> None:
    """Exit with code 2 if a file of the working directory shadows one of widedraft's packages.

    `python -m` puts the working directory first on the import path, so an `eval.py` there would be imported as `eval`.
    Local rank 0 prints and exits first; other ranks wait to be stopped, since the launcher's exit code is that of the
    first failure.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in ("architectures", "eval"):
        spec = find_spec(name)
        imported = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if imported != ours / name / "__init__.py":
            if os.environ.get("LOCAL_RANK", "0") != "0":
                time.sleep(WAIT_FOR_RANK_0_S)
            print(
                f"{imported}: shadows widedraft's package {name!r} at {ours / name}. "
                "Rename it, start from another directory, or set PYTHONSAFEPATH=1.",
                file=sys.stderr,
                flush=True,
            )
            sys.exit(2)
