"""Checkpoints of a training as models: the start first, then every intact one, rounded as an export rounds them."""

import torch

from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.export import saved_models
from distill.run import Run
from distill.train import train
from eval.models import load_model


def test_the_start_comes_first_and_every_checkpoint_with_what_it_had_read(make_run, capsys):
    recipe = make_run(max_duration="2ba")
    train(recipe)
    run = Run.of(recipe)
    first, *saved = saved_models(run)
    assert (first.name, first.batches, first.tokens) == ("undistilled", 0, 0)
    assert [each.batches for each in saved] == [1, 2]
    assert 0 < saved[0].tokens < saved[1].tokens
    begun, ended = first.open(), saved[-1].open()
    init = load_model(run.init.path, dtype=recipe.eval.dtype)
    assert torch.equal(begun.lm_head.weight, init.lm_head.weight)
    draft = load_model(run.draft.path, dtype=recipe.eval.dtype)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(ended.parameters(), draft.parameters(), strict=True))

    find_checkpoints(run.checkpoints.path)[0].write_bytes(b"cut short")
    assert [each.name for each in saved_models(run)] == ["undistilled", saved[-1].name]
    assert saved[0].name in capsys.readouterr().err
