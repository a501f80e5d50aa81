"""The real target with a noisy copy of it as draft, certified in vLLM and in llama.cpp: `make test-engines`.

Each needs a Python of its own environment, named by WIDEDRAFT_VLLM and WIDEDRAFT_LLAMA_CPP.
"""

import os
from pathlib import Path

import pytest
import torch

from architectures.convert import convert_draft
from architectures.gguf_export import export_gguf
from architectures.hub import read_config
from architectures.manifest import write_manifest
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape
from architectures.target_files import carry_files
from eval.engines.certify import CertifySettings, make_certificate
from eval.models import load_model

TARGET = Path(__file__).parents[3] / "models" / "SmolLM2-135M-Instruct"
NOISE, IDS = 0.15, 8192
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]


def python_of(variable):
    """The Python of an engine's environment; the test is skipped where none is named."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no Python: make test-engines")
    return Path(os.environ[variable])


@pytest.fixture(scope="module")
def vllm():
    return python_of("WIDEDRAFT_VLLM")


@pytest.fixture(scope="module")
def llama_cpp():
    return python_of("WIDEDRAFT_LLAMA_CPP")


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """The target with noise on its weights, right about half of the time, in every form that engines load."""
    if not TARGET.is_dir():
        pytest.skip("needs models/SmolLM2-135M-Instruct")
    place = tmp_path_factory.mktemp("drafts")
    model = load_model(TARGET, dtype="float32", device="cpu")
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * parameter.std(), alpha=NOISE)
    model.save_pretrained(place / "noisy")
    carry_files(TARGET, place / "noisy")
    shape = Shape.from_config(read_config(place / "noisy"))
    plan = plan_pruning(shape, ArchitectureConfig(layers=shape.layers, method="first_last"))
    prune_checkpoint(place / "noisy", plan.with_vocabulary(tuple(range(IDS))), place / "small")
    write_manifest(place / "small", stage="prune", inputs={})
    for form in ("whole", "own-tokenizer"):
        convert_draft(place / "small", place / form, form)
    return place


def certify_real(draft, engine, python, **files):
    settings = CertifySettings(
        draft=str(draft), target=str(TARGET), engine=engine, python=python, num_threads=2, **files
    )
    return make_certificate(settings, TARGET, draft, threads=2)


@pytest.mark.parametrize("form", ["noisy", "whole", "own-tokenizer"])
def test_vllm_does_with_every_form_what_replay_says(vllm, drafts, form):
    certificate = certify_real(drafts / form, "vllm", vllm)
    assert certificate.holds, certificate.findings


@pytest.mark.parametrize("form", ["noisy", "whole"])
def test_llama_cpp_does_with_a_gguf_file_what_replay_says(llama_cpp, drafts, form, tmp_path):
    files = tmp_path / "target-F16.gguf", tmp_path / "draft-F16.gguf"
    for folder, file in zip((TARGET, drafts / form), files, strict=True):
        export_gguf(folder, file, "f16", name=file.stem)
    named = {"target_file": files[0], "draft_file": files[1]}
    certificate = certify_real(drafts / form, "llama.cpp", llama_cpp, **named)
    assert certificate.holds, certificate.findings
