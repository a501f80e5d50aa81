"""Files and folders: written whole or not at all, read whole or rejected with the fix, sizes and free space.

What is being written stands beside its place under a name that nobody can guess, and is always made anew: a link that
somebody put there is never written through, and two processes that write the same file do not meet.

Whatever stands in such a file, a reader gets a value or a UserError, in bounded time and memory: a pipe is not waited
on, a file too large for its kind is not read, nesting that would exhaust the stack and numbers that Python refuses to
convert are named.
"""

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import TypeAdapter, ValidationError

from architectures.errors import UserError
from architectures.shipped import shipped_words

PARTIAL_NAME = re.compile(r".+\.[0-9a-f]{16}\.partial")


def write_text(text: str, path: Path) -> None:
    """Write text to path as UTF-8, whole or not at all."""
    write_bytes(text.encode("utf-8"), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file through a neighbouring one and a rename, so that no reader sees half of it."""
    with replacing(path) as file:
        file.write(content)


def write_json(value: Any, path: Path) -> None:
    """Write value as indented JSON, whole or not at all."""
    write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", path)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of path when the block succeeds, and vanishes when it fails."""
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
    """Yield an empty folder that takes the place of path when the block succeeds, and vanishes when it fails."""
    partial = partial_path(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_path(path: Path) -> Path:
    """A new path in the same folder for what will replace path."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")


def remove_partials(folder: Path, *, mark: str) -> None:
    """Remove what killed processes left half-written below a folder; subfolders that hold the mark are passed over.

    Call where nobody else is writing.
    """
    for path in list(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if PARTIAL_NAME.fullmatch(path.name):
            shutil.rmtree(path) if is_folder else path.unlink(missing_ok=True)
        elif is_folder and not (path / mark).exists():
            remove_partials(path, mark=mark)


def size(count: int) -> str:
    """Bytes for people, as wide as any other: 538060032 is " 513.1 MiB"."""
    mebibytes = count / 2**20
    return f"{mebibytes / 1024:6.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:6.1f} MiB"


def free_bytes(folder: Path) -> int:
    """Free space where a folder is or will be."""
    return shutil.disk_usage(
        next(ancestor for ancestor in (folder.absolute(), *folder.absolute().parents) if ancestor.exists())
    ).free


Value = TypeVar("Value")
WITHOUT_VALUE = ("missing", "json_invalid")  # mistakes of which the value is all that is around them
MIB = 1 << 20
MAX_CHARS_SHOWN = 60
JSON_MIB = 64  # config, index, manifest, scorecard: the largest index of a sharded checkpoint has some 5 MB


def read_text(path: Path, *, remedy: str = "Check the path.", most_mib: float | None = None) -> str:
    """A file as text; a byte-order mark at its beginning is passed over.

    Args:
        path: A file.
        remedy: The sentence that ends the message if it cannot be read.
        most_mib: MiB above which it is no file of the kind that is read; None takes any size.

    Raises:
        UserError: If it is no regular file, cannot be read, is too large, or is not UTF-8.
    """
    try:
        require_regular(path, remedy=remedy, most_mib=most_mib)
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(unreadable(path, error, remedy)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except UserError:
        raise
    except ValueError as error:  # a NUL in a path
        raise UserError(f"{str(path)!r}: is no path ({error}). {remedy}") from error


def unreadable(path: Path, error: OSError, remedy: str) -> str:
    """What is told of a file that cannot be read; of one that is not there also where it was looked for.

    Args:
        path: The file, as it was named.
        error: What the system says.
        remedy: The last sentence, where widedraft does not bring the file itself.
    """
    words = f"{path}: cannot be read ({error.strerror})."
    if not isinstance(error, FileNotFoundError):
        return f"{words} {remedy}"
    return f"{words}{looked_for(path)} {shipped_words(path) or remedy}"


def looked_for(path: Path) -> str:
    """The sentence, behind a space, that tells where a relative path led; empty of an absolute one."""
    return "" if path.is_absolute() else f" Looked for {path.absolute()}: relative paths start at the working folder."


def require_regular(path: Path, *, remedy: str, most_mib: float | None = None) -> None:
    """Raise UserError for a folder, a pipe or a device, which would be waited on for ever, or a file that is too large.

    Raises:
        OSError: If there is nothing of this name.
    """
    status = os.stat(path)  # noqa: PTH116  # Path.stat says less of a path with a NUL in it
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: is {kind_of(status.st_mode)}, not a file. {remedy}")
    if most_mib is not None and status.st_size > most_mib * MIB:
        raise UserError(f"{path}: has {status.st_size / MIB:,.1f} MiB, and at most {most_mib:g} are read. {remedy}")


def kind_of(mode: int) -> str:
    """What a path names that is not a regular file."""
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"


def parse_json(text: str | bytes, where: str, remedy: str) -> Any:
    """The JSON value of a text.

    Args:
        text: JSON.
        where: File, or file and line; begins the message.
        remedy: The sentence that ends it.

    Raises:
        UserError: If it is not JSON, is nested too deeply, or holds a number of more digits than Python converts.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where}: is nested too deeply to be read. {remedy}") from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors too
        raise UserError(f"{where}: is not valid JSON ({str(error).splitlines()[0]}). {remedy}") from error


def read_json(path: Path, remedy: str, *, most_mib: float | None = JSON_MIB) -> Any:
    """The JSON value of a file; errors as for `read_text` and `parse_json`."""
    return parse_json(read_text(path, remedy=remedy, most_mib=most_mib), str(path), remedy)


def read_json_object(path: Path, remedy: str, *, most_mib: float | None = JSON_MIB) -> dict[str, Any]:
    """The JSON object of a file; errors as for `read_json`, and if it holds another value."""
    value = read_json(path, remedy, most_mib=most_mib)
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no JSON object. {remedy}")
    return value


def read_typed(path: Path, form: TypeAdapter[Value], remedy: str) -> Value:
    """What a file holds.

    Args:
        path: The file.
        form: Of its content; nothing is converted to fit it.
        remedy: The sentence that ends the message.

    Raises:
        UserError: If it is no such file; the message names it, the field and its value.
    """
    return parsed(form, read_text(path, most_mib=JSON_MIB), str(path), remedy)


def parsed(form: TypeAdapter[Value], text: str | bytes, where: str, remedy: str) -> Value:
    """What a JSON text holds, read as `read_typed` reads a file; `where` begins the message."""
    try:
        return form.validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_mistake(error)}. {remedy}") from error


def checked(form: TypeAdapter[Value], value: Any, where: str, remedy: str) -> Value:
    """What a JSON value that was read already holds; errors as for `parsed`."""
    return parsed(form, json.dumps(value), where, remedy)


def shown(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= MAX_CHARS_SHOWN else f"{text[:MAX_CHARS_SHOWN]}…"


def first_mistake(error: ValidationError) -> str:
    """The first field that does not fit, why, and what it is."""
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
    """A word with the values of keys such as api_key, token and password masked; a ${reference} stays.

    Whole words are told: data.max_new_tokens and tokenizer are no secrets.
    """
    if WHOLE.fullmatch(word):
        return WHOLE.sub(rf"\1{MASK}", word)
    return IN_A_URL.sub(rf"\1{MASK}@", WITHIN.sub(rf"\1{MASK}", word))
