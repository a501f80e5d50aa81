import pytest

import widedraft


@pytest.fixture
def run(tmp_path):
    """A run whose page cannot be written: a folder has its name."""
    (tmp_path / "eval" / "report.html").mkdir(parents=True)
    (tmp_path / "eval" / "scorecard.json").write_text("{}")
    return tmp_path


def test_a_folder_in_the_place_of_the_page_is_named(run, capsys):
    assert widedraft.main(["report", str(run)]) == 2
    folder = run / "eval" / "report.html"
    assert capsys.readouterr().err == f"{folder}: is a folder. Remove it, or name another page with --out.\n"


def test_a_page_that_is_a_folder_is_refused(run, capsys):
    assert widedraft.main(["report", str(run), "--out", str(run / "eval" / "report.html")]) == 2
    assert "must name a file that ends in .html" in capsys.readouterr().err
