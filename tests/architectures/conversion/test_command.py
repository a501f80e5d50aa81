"""`widedraft export DRAFT --form FORM` as it is typed."""

import pytest

import widedraft
from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.checkpoints.manifest import read_manifest


@pytest.mark.parametrize("form", ["whole", "own-tokenizer"])
def test_a_draft_folder_is_written_in_a_form(small_draft, tmp_path, form):
    draft, out = small_draft("llama"), tmp_path / "out"
    assert widedraft.main(["export", str(draft), "--to", str(out), "--form", form]) == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["inputs"] == {"draft": fingerprint_checkpoint(draft)}


def test_a_folder_whose_head_outputs_all_ids_has_no_other_form(tiny_draft, tmp_path, capsys):
    assert widedraft.main(["export", str(tiny_draft), "--to", str(tmp_path / "out"), "--form", "whole"]) == 2
    assert capsys.readouterr().err.startswith(f"{tiny_draft}: config.json has no head_vocab_size")
