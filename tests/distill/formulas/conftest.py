"""Logits of a student and a teacher: seven response tokens (A), eleven vocabulary entries (V)."""

import pytest
import torch


@pytest.fixture
def logits() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    student_AV, teacher_AV = (torch.randn(7, 11, generator=generator) * 3 for _ in range(2))
    return student_AV, teacher_AV
