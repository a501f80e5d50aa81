"""Headers of GGUF and safetensors files with changed bytes: a UserError or a right read, never another exception.

In bounded time and memory, too: what a header claims decides neither.
"""

import json
import re
import resource
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from architectures.checkpoint import open_weights, require_tensors
from architectures.errors import UserError
from architectures.gguf_format import gguf_config, read_gguf_header
from architectures.gguf_import import gguf_names, read_tensor, require_gguf_tensors, rope_entries
from architectures.hub import read_config
from architectures.shapes import Shape, checkpoint_tensors

FUZZED = settings(max_examples=150, deadline=3000, suppress_health_check=list(HealthCheck), derandomize=True)
MOST_KIB = 512 * 1024  # beyond what the process has had so far
NUMBERS = st.sampled_from([0, 1, 7, 8, 2**31 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)
BYTES = st.binary(min_size=1, max_size=8) | NUMBERS.map(struct.Struct("<Q").pack)
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), BYTES), min_size=1, max_size=3)


def changed(data: bytes, end: int, changes) -> bytes:
    """Some bytes before `end` replaced."""
    new = bytearray(data)
    for place, inserted in changes:
        start = int(place * end)
        new[start : start + len(inserted)] = inserted
    return bytes(new[: len(data)])


@pytest.fixture(scope="module")
def small_memory():
    """What is read meanwhile takes no more memory than a tiny model does."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MOST_KIB


@pytest.fixture(scope="module")
def gguf(write_gguf, make_checkpoint, tmp_path_factory):
    """A sound file of one layer, with the place where its header ends."""
    source = make_checkpoint(num_hidden_layers=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    file = write_gguf(source, tmp_path_factory.mktemp("fuzzed") / "sound.gguf")
    return file, read_gguf_header(file).data_start


def read_gguf(file: Path) -> None:
    """All that an import reads of the weights: every tensor has the size that the header gives the model."""
    header = read_gguf_header(file)
    entries = gguf_config(file, header)
    shape = Shape.from_config(entries, where=str(file))
    names, sizes = gguf_names(shape), checkpoint_tensors(shape)
    require_gguf_tensors(file, header, {names[name]: size for name, size in sizes.items()})
    rope_entries(file, header, entries)
    for name, size in sizes.items():
        tensor = read_tensor(header, names[name], shape)
        assert tuple(tensor.shape) == size
        assert tensor.isfinite().all()


def reads_or_refuses(read, place: Path) -> bool:
    """Whether a damaged file could be read; a refusal names it and is short."""
    refusal = ""
    try:
        read(place)
    except UserError as error:
        refusal = str(error)
    assert not refusal or (str(place) in refusal and len(refusal) < 1000)
    return not refusal


@pytest.mark.usefixtures("small_memory")
@FUZZED
@given(changes=CHANGES)
def test_a_gguf_header_with_other_bytes(gguf, changes):
    sound, end = gguf
    file = sound.with_name("changed.gguf")
    file.write_bytes(changed(sound.read_bytes(), end, changes))
    reads_or_refuses(read_gguf, file)


@pytest.fixture(scope="module")
def folder(make_checkpoint):
    """A sound checkpoint of one layer."""
    return make_checkpoint(num_hidden_layers=1)


def read_folder(folder: Path) -> None:
    """All that pruning reads of a checkpoint."""
    sizes = checkpoint_tensors(Shape.from_config(read_config(folder), where=str(folder / "config.json")))
    weights = open_weights(folder)
    require_tensors(weights, sizes, ignored=())
    for name, size in sizes.items():
        tensor = weights.read(name)
        assert (tuple(tensor.shape), tensor.dtype) == (size, weights.info[name].dtype)


def with_weights(folder: Path, data: bytes, tmp_path_factory) -> Path:
    """The checkpoint with another weight file."""
    copy = tmp_path_factory.getbasetemp() / "changed"
    copy.mkdir(exist_ok=True)
    (copy / "config.json").write_bytes((folder / "config.json").read_bytes())
    (copy / "model.safetensors").write_bytes(data)
    return copy


@pytest.mark.usefixtures("small_memory")
@FUZZED
@given(
    place=st.floats(0, 1, exclude_max=True), number=NUMBERS | st.sampled_from([-1, 0.5, 10**30, None, True, "2", []])
)
def test_a_safetensors_header_with_other_numbers(folder, tmp_path_factory, place, number):
    data = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[8:end].decode()
    found = list(re.finditer(r"(?<=[\[,])\d+(?=[,\]])", header))
    match = found[int(place * len(found))]
    new = (header[: match.start()] + json.dumps(number) + header[match.end() :]).encode()
    written = len(new).to_bytes(8, "little") + new + data[end:]
    is_same = json.dumps(number) == match.group()
    assert reads_or_refuses(read_folder, with_weights(folder, written, tmp_path_factory)) == is_same


def test_the_sound_files_are_read(gguf, folder):
    read_gguf(gguf[0])
    read_folder(folder)
    assert load_file(folder / "model.safetensors")
