"""Shards of one name are all made the same way, and hold what was put in."""

from eval.responses import claim_shards, read_shard, write_shard
from tests.rejections import rejects


def test_a_setting_that_only_one_of_two_runs_has_is_a_change(tmp_path):
    claim_shards(tmp_path, "train", {"same": 1, "gone": 2}, num_shards=1)
    with rejects("come", 3, "gone", 2):
        claim_shards(tmp_path, "train", {"same": 1, "come": 3}, num_shards=1)


def test_text_of_any_language_stays_legible_and_comes_back(tmp_path):
    rows = [{"answer": "schöne Grüße\u2028"}, {"answer": "日本語\n"}]
    [path] = claim_shards(tmp_path, "train", {}, num_shards=1)
    write_shard(path, rows)
    assert "schöne Grüße" in path.read_text(encoding="utf-8")
    assert list(read_shard(path)) == rows
