"""`widedraft export DRAFT --form FORM` as it is typed."""

import pytest

import widedraft
from architectures.manifest import fingerprint_checkpoint, read_manifest, write_manifest


@pytest.mark.parametrize("form", ["whole", "own-tokenizer"])
def test_a_draft_folder_is_written_in_a_form(small_draft, tmp_path, form):
    draft, out = small_draft("llama"), tmp_path / "out"
    write_manifest(draft, stage="export", inputs={}, chat_template_kwargs=[{"enable_thinking": False}])
    assert widedraft.main(["export", str(draft), "--to", str(out), "--form", form]) == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["inputs"] == {"draft": fingerprint_checkpoint(draft)}
    assert manifest["chat_template_kwargs"] == [{"enable_thinking": False}]
