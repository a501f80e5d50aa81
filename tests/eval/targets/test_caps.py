"""How much memory a target may take where nobody says."""

import torch

from eval.targets import caps


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(caps, "left_by_cgroup", lambda: 6000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert caps.free_bytes(torch.device("cpu")) == 6000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert caps.free_bytes(torch.device("cpu")) == 2000
