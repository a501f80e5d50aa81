"""A draft's policies are read as they were written, and of no other draft, target, temperature or prompt."""

import json
import shutil
from dataclasses import replace

import pytest

import eval.commands.lookup as lookup_command
import eval.commands.speed as speed_command
import widedraft
from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from eval.config import SamplingConfig
from eval.policies.policy_file import (
    FILE_NAME,
    SCHEMA,
    PolicyFile,
    TunedPolicy,
    prompt_fingerprint,
    read_policies,
    refuse_tuned_on,
    write_policies,
)
from eval.proposing.policy import ProposalPolicy

PLAIN = SamplingConfig()


@pytest.fixture
def folders(target_folder, noisy_folder, tmp_path):
    return target_folder, shutil.copytree(noisy_folder, tmp_path / "draft")


def policies(target, draft):
    policy = ProposalPolicy(3, 0.5, (0.2, 0.6), 2.0)
    tuned = TunedPolicy(temperature=0.0, policy=policy, lookahead=2, speedup=1.2, draft_alone=1.1, answers=9)
    return PolicyFile(
        schema=SCHEMA,
        target=fingerprint_checkpoint(target),
        draft=fingerprint_checkpoint(draft),
        policies=(tuned,),
        prompts=(prompt_fingerprint([1, 2, 3]),),
        processor="any",
        threads=2,
        dtype="float32",
    )


def test_what_is_written_is_read(folders):
    found = policies(*folders)
    write_policies(found, folders[1])
    assert read_policies(*folders) == found
    assert found.at(0.0, PLAIN, folders[1]).lookahead == 2


def test_other_sampling_is_refused_where_it_decides_and_kept_in_the_file(folders):
    chosen = SamplingConfig(top_p=0.9)
    write_policies(PolicyFile(**{**vars(policies(*folders)), "sampling": chosen}), folders[1])
    found = read_policies(*folders)
    assert found.sampling == chosen
    assert found.at(0.0, PLAIN, folders[1]).lookahead == 2  # greedy texts know no top-p
    [tuned] = found.policies
    warm = PolicyFile(**{**vars(found), "policies": (replace(tuned, temperature=1.0),)})
    with pytest.raises(UserError, match=r"are for temperature 1, top-p 0\.9, not for temperature 1\. Make others"):
        warm.at(1.0, PLAIN, folders[1])
    assert warm.at(1.0, chosen, folders[1]).lookahead == 2


def test_the_file_is_no_part_of_the_draft(folders):
    before = fingerprint_checkpoint(folders[1])
    write_policies(policies(*folders), folders[1])
    assert fingerprint_checkpoint(folders[1]) == before


def test_without_a_file_the_command_that_makes_it_is_named(folders):
    with pytest.raises(UserError, match=r"has no lookup_policy\.json\. Make it first: widedraft lookup --target"):
        read_policies(*folders)


@pytest.mark.parametrize("name", ["target", "draft"])
def test_another_model_is_refused(folders, name):
    found = policies(*folders)
    write_policies(PolicyFile(**{**vars(found), name: "other"}), folders[1])
    with pytest.raises(UserError, match=f"was tuned for another {name}"):
        read_policies(*folders)


def test_another_temperature_is_refused(folders):
    with pytest.raises(
        UserError, match=r"temperature 0, none for 0\.7\. Make one: widedraft lookup --temperatures 0\.7"
    ):
        policies(*folders).at(0.7, PLAIN, folders[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "schema"),
        ({"threads": 0}, "threads"),
        ({"extra": 1}, "extra"),
        ({"policies": [{"temperature": 0.0}]}, "policies"),
    ],
)
def test_a_damaged_file_is_refused(folders, change, message):
    path = write_policies(policies(*folders), folders[1])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=rf"{FILE_NAME}: {message}.*Make it again: widedraft lookup"):
        read_policies(*folders)


def test_a_policy_that_means_nothing_is_refused(folders):
    path = write_policies(policies(*folders), folders[1])
    path.write_text(path.read_text().replace('"weight": 2.0', '"weight": 0.0'))
    with pytest.raises(UserError, match="weight must be above 0"):
        read_policies(*folders)


def test_prompts_it_was_tuned_on_are_refused(folders):
    found = policies(*folders)
    refuse_tuned_on(found, [[1, 2], [3]], folders[1])
    with pytest.raises(UserError, match=r"was tuned on prompt 2 of these.*--prompts"):
        refuse_tuned_on(found, [[1, 2], [1, 2, 3]], folders[1])


def words(name, target, draft, *more):
    flag = "--drafts" if name == "speed" else "--draft"
    return [name, "--target", str(target), flag, str(draft), "--max-new-tokens", "12", *more]


def test_lookup_tunes_and_speed_measures_beside(folders, tmp_path, capsys, monkeypatch):
    target, draft = folders
    for module in (lookup_command, speed_command):
        monkeypatch.setattr(module, "STEP_REPEATS", 6)  # times of models so small say nothing
    few = ("--lookaheads", "1", "2", "--num-prompts")
    assert widedraft.main(words("lookup", target, draft, *few, "7", "--temperatures", "0", "1")) == 0
    assert "Tuned on 7 answers" in capsys.readouterr().out
    found = read_policies(target, draft)
    assert [one.temperature for one in found.policies] == [0.0, 1.0]
    for temperature in ("0", "1"):
        out = tmp_path / f"speed{temperature}.json"
        more = (*few, "6", "--beside", "--temperature", temperature, "--out", str(out))
        assert widedraft.main(words("speed", target, draft, *more)) == 0
        printed, record = capsys.readouterr().out, json.loads(out.read_text())
        assert "lookup beside, draft" in printed
        assert "Beside n-gram lookup alone" in printed
        [row] = [row for row in record["ways"] if row["way"] == "lookup beside"]
        assert row["lookahead"] == found.at(float(temperature), PLAIN, draft).lookahead
        assert row["predicted"]["value"] > 0
        assert {one["way"] for one in record["against_lookup"]} == {"draft", "lookup beside"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lookaheads", "0"], "--lookaheads must be a whole number >= 1 and <= 1000000, got 0."),
        (["--lookaheads", "2", "2"], "--lookaheads must name each value once, got [2, 2]."),
        (["--temperatures", "1", "1"], "--temperatures must name each value once, got [1.0, 1.0]."),
        (["--num-prompts", "0"], "--num-prompts"),
    ],
)
def test_numbers_nothing_can_be_tuned_with_are_refused(folders, more, message, capsys):
    assert widedraft.main(words("lookup", *folders, *more)) == 2
    assert message in capsys.readouterr().err


def test_a_draft_that_is_no_folder_is_refused(folders, capsys):
    assert widedraft.main(words("lookup", folders[0], "some/draft")) == 2
    assert "--draft some/draft: is no folder" in capsys.readouterr().err


def test_speed_without_policies_says_how_to_make_them(folders, capsys):
    assert widedraft.main(words("speed", *folders, "--beside")) == 2
    assert "Make it first: widedraft lookup" in capsys.readouterr().err
