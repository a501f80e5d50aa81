"""How much memory a target may take where nobody says."""

import torch

from eval import large_targets


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(large_targets, "left_by_cgroup", lambda: 6000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert large_targets.free_bytes(torch.device("cpu")) == 6000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert large_targets.free_bytes(torch.device("cpu")) == 2000
