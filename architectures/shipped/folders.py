"""Folders that came with this installation."""

import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shipped_folders(name: str, in_checkout: str) -> tuple[Path, ...]:
    """Where a folder may be: of a checkout; of a wheel, beside its packages, in an environment, or in a user's home.

    An environment may hold another copy's, so a checkout comes first.

    Args:
        name: The folder below share/widedraft of a wheel.
        in_checkout: The same folder of a checkout.
    """
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    data = [Path(sysconfig.get_path("data", scheme)) for scheme in schemes]
    return (ROOT / in_checkout, *(folder / "share" / "widedraft" / name for folder in (ROOT, *data)))
