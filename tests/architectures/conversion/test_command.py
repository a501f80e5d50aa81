"""`widedraft convert` as it is typed."""

import pytest

import widedraft
from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.checkpoints.manifest import read_manifest


@pytest.mark.parametrize("form", ["whole", "own-tokenizer"])
def test_it_writes_the_form_and_says_where(small_draft, tmp_path, capsys, form):
    draft, out = small_draft("llama"), tmp_path / "out"
    assert widedraft.main(["convert", str(draft), "--to", str(out), "--form", form]) == 0
    assert f"{out}: form {form} of {draft}" in capsys.readouterr().out
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["inputs"] == {"draft": fingerprint_checkpoint(draft)}


def test_a_draft_that_engines_load_is_told_so(tiny_draft, tmp_path, capsys):
    assert widedraft.main(["convert", str(tiny_draft), "--to", str(tmp_path / "out"), "--form", "whole"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"{tiny_draft}: config.json has no head_vocab_size")
    assert message.count("\n") == 1


def test_the_form_is_one_of_two(small_draft, tmp_path, capsys):
    words = ["convert", str(small_draft("llama")), "--to", str(tmp_path / "out")]
    assert widedraft.main([*words, "--form", "half"]) == 2
    assert capsys.readouterr().err == "--form must be whole or own-tokenizer, got half.\n"
    with pytest.raises(SystemExit, match="2"):
        widedraft.main(words)
    assert "--form" in capsys.readouterr().err
