"""Several jobs write one run's responses: each its files, the last joins them, in the bytes of one job."""

import json

import pytest

from distill import run
from tests.rejections import rejects
from widedraft import main

RECIPE = """
run_name: {name}
run_dir: {folder}/{name}
target: {{path: {target}, dtype: float32}}
architecture: {{layers: 2, method: first_last}}
data: {{prompts: [{{path: {folder}/p.jsonl}}], num_eval_prompts: 3, max_seq_len: 128, max_new_tokens: 6, batch_size: 1}}
"""


@pytest.fixture
def recipe(tiny_target, tmp_path):
    """recipe(name) is the file of a recipe of nine prompts: five files of responses."""
    rows = [{"prompt": f"say {i}"} for i in range(9)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(name):
        path = tmp_path / f"{name}.yaml"
        path.write_text(RECIPE.format(name=name, folder=tmp_path, target=tiny_target))
        return str(path)

    return write


def responses(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "data").glob("*.jsonl"))}


def test_the_last_of_several_jobs_joins_what_all_have_written(recipe, tmp_path, capsys):
    assert main(["generate", recipe("whole")]) == 0
    assert main(["generate", recipe("parts"), "--shard", "2/3"]) == 0
    assert "2 of 3" in capsys.readouterr().out
    assert sorted(responses(tmp_path / "parts")) == ["eval-00001.jsonl", "train-00001.jsonl"]
    assert not (tmp_path / "parts" / "data" / "manifest.json").exists()
    assert main(["generate", recipe("parts"), "--shard", "3/3"]) == 0
    assert main(["generate", recipe("parts"), "--shard", "1/3"]) == 0
    assert responses(tmp_path / "parts") == responses(tmp_path / "whole")
    counts = [
        json.loads((tmp_path / name / "data" / "manifest.json").read_text())["counts"] for name in ("parts", "whole")
    ]
    assert counts[0] == counts[1]


def test_jobs_with_parts_share_a_run_and_nobody_else_works_in_it(tmp_path):
    with run.open_lock(tmp_path) as first, run.open_lock(tmp_path) as second:
        shared, alone = run.fcntl.LOCK_SH, run.fcntl.LOCK_EX
        run.take_lock(first, tmp_path, shared)
        run.take_lock(second, tmp_path, shared)
        with run.open_lock(tmp_path) as third, rejects(tmp_path):
            run.take_lock(third, tmp_path, alone)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_what_is_no_part_is_refused(recipe, capsys, shard):
    assert main(["generate", recipe("none"), "--shard", shard]) == 2
    assert "--shard" in capsys.readouterr().err


def test_prompts_that_the_target_writes_are_one_jobs(recipe, capsys):
    assert main(["generate", recipe("own"), "data.self_written_prompts=3", "--shard", "1/2"]) == 2
    assert "--shard" in capsys.readouterr().err
