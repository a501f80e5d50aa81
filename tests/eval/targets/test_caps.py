"""How much memory a target may take where nobody says."""

import torch

from eval.targets import caps


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    """What a limit leaves is each one's own."""
    for name, left in (("available_bytes", 8000), ("left_by_cgroup", 6000)):
        monkeypatch.setattr(caps, name, lambda left=left: left)
    monkeypatch.setattr(caps, "left_by_limit", lambda *_: 2500)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert caps.free_bytes(torch.device("cpu")) == 2500
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert caps.free_bytes(torch.device("cpu")) == 2000
