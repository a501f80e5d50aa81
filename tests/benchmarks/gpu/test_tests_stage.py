"""What pytest says of each module is said in its row, as soon as it ends and when it never does."""

import ast
import time
from dataclasses import replace

import pytest

from benchmarks.gpu.tests_stage import LOG_NAME, MODULES, ROOT, run_tests

GOOD = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no such thing')\n"
BAD = """
import pytest
@pytest.fixture
def broken():
    yield
    raise ValueError('left open')
def test_a(broken): pass
def test_b(): assert 1 == 2, 'numbers differ'
def test_c(): pass
"""


@pytest.fixture
def folder(tmp_path):
    """A folder of tests, with an ini file of its own."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "pytest.ini").write_text("[pytest]\n")
    (made / "test_good.py").write_text(GOOD)
    (made / "test_bad.py").write_text(BAD)
    return made


def by_module(found):
    """The rows of a run by module, and the error raised after the last of them."""
    rows, raised = {}, None
    try:
        for row in found:
            rows[row["module"]] = {name: value for name, value in row.items() if name != "module"}
    except RuntimeError as error:
        raised = str(error)
    return rows, raised


def test_every_module_has_a_row(setting, folder):
    (folder / "conftest.py").write_text("print('a warning before the first line of pytest')\n")
    found, raised = by_module(run_tests(["--numprocesses", "2"], setting, cwd=folder))
    assert found["test_good.py"] == {"tests_passed": 1, "tests_skipped": 1}
    assert found["test_bad.py"] == {"tests_passed": 1, "tests_failed": 2}
    assert "assert 1 == 2" in (setting.out / LOG_NAME).read_text()
    assert "code 1" in raised


def test_a_run_is_cut_off_at_the_deadline(setting, folder):
    (folder / "test_bad.py").write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\n")
    short = replace(setting, deadline_s=time.monotonic() + 15)
    found, raised = by_module(run_tests(["test_good.py", "test_bad.py"], short, cwd=folder))
    assert found["test_bad.py"] == {"tests_passed": 1}
    assert short.left_s > -3
    assert "deadline" in raised


def test_the_modules_are_those_with_tests_for_a_gpu():
    """They ask for one of the fixtures of tests/conftest.py."""

    def asks(path):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        own = {node.name for node in functions}
        asked = {argument.arg for node in functions if is_pytests(node) for argument in node.args.args}
        return bool(asked & {"device", "gpu"} - own)

    def is_pytests(node):
        return node.name.startswith("test_") or any("fixture" in ast.unparse(each) for each in node.decorator_list)

    found = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if asks(path)}
    assert found == set(MODULES)
