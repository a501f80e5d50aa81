"""What a draft has from its target: byte for byte, of every family, whatever the draft was cut out of."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures.hub import read_config
from architectures.pruning.prune import prune_checkpoint
from architectures.target_files import CARRIED_FILES, with_special_ids
from tests.architectures.cuts import logits, plan_for, pruned
from tests.families import DECODER_ONLY

SETTINGS = '{"eos_token_id": [2, 7],\n  "temperature": 0.60,  "odd":  "spacing"}'


@pytest.fixture
def dressed(family_checkpoint, tmp_path):
    """dressed(name, words, vocab_size): a target of a family's own, with every file that a draft takes from it."""

    def of(family: str, name: str, words: str, settings: str | None, **entries: Any) -> Path:
        folder = Path(shutil.copytree(family_checkpoint(family), tmp_path / name))
        for file in ("tokenizer.model", "merges.txt", "vocab.json", "special_tokens_map.json", "added_tokens.json"):
            (folder / file).write_text(f"{file} of {words}")
        (folder / "chat_template.jinja").write_text(f"{words} {{{{ messages }}}}")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(words)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if settings is not None:
            (folder / "generation_config.json").write_text(settings)
        (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | entries))
        return folder

    return of


def carried(folder: Path) -> dict[str, bytes]:
    """Every file of a folder that a target gives its drafts, by its path."""
    paths = [path for name in CARRIED_FILES for path in (folder / name, *(folder / name).glob("*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.parametrize("settings", [SETTINGS, None], ids=["settings", "no settings"])
@pytest.mark.parametrize("with_source", [False, True], ids=["of the target", "of a source"])
@pytest.mark.parametrize("family", DECODER_ONLY)
def test_all_that_a_target_gives_its_draft_is_the_targets(dressed, tmp_path, family, with_source, settings):
    target = dressed(family, "target", "the target's", settings, eos_token_id=[2, 7], bos_token_id=5, pad_token_id=7)
    source = target
    if with_source:
        source = dressed(family, "source", "the source's", '{"eos_token_id": 2}', eos_token_id=2, bos_token_id=1)

    prune_checkpoint(source, plan_for(source, layers=2), tmp_path / "draft", target=target)

    assert carried(tmp_path / "draft") == carried(target)
    assert len(carried(target)) == 9 + (settings is not None)
    config = read_config(tmp_path / "draft")
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (5, [2, 7], 7)


@pytest.mark.parametrize("vocab_size", [259, 264, 272])
@pytest.mark.parametrize("family", DECODER_ONLY)
def test_the_draft_has_the_targets_vocabulary_and_says_what_its_source_says(
    family_checkpoint, tmp_path, family, vocab_size
):
    source = family_checkpoint(family)
    plan = plan_for(source, layers=2)
    plain, draft = (
        pruned(source, each, tmp_path / name)
        for name, each in (("plain", plan), ("draft", plan.with_vocab(vocab_size)))
    )

    assert draft.config.vocab_size == vocab_size
    found_TV, expected_TV = logits(draft)[0], logits(plain)[0]
    rows = min(vocab_size, 264)
    torch.testing.assert_close(found_TV[:, :rows], expected_TV[:, :rows], rtol=1e-4, atol=1e-4)
    assert int(found_TV.argmax(dim=-1).max()) < 264


def test_an_id_that_the_target_does_not_name_is_not_named():
    given = {"eos_token_id": [2, 7], "bos_token_id": None}
    source = {"eos_token_id": 2, "pad_token_id": 0, "vocab_size": 9}
    assert with_special_ids(source, given) == {"vocab_size": 9, **given}
