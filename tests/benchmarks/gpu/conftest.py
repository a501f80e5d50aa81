"""The setting of a stage at size tiny on a processor, all of its folders in one place."""

import time

import pytest
import torch

from benchmarks.gpu.stage import Setting


@pytest.fixture
def setting(tmp_path):
    folders = dict.fromkeys(("target", "prompts", "work", "out"), tmp_path)
    return Setting(torch.device("cpu"), "tiny", **folders, deadline_s=time.monotonic() + 600)
