"""Safetensors, one tensor at a time: lazy reads from one file or many shards, writes in shards of bounded size.

Memory holds one tensor, whatever the size of the checkpoint. Files are read, not mapped: safetensors maps a whole
file, and a process with a memory limit may not map a file larger than its limit.

Shape suffixes used in this file:
    N = bytes
    R = rows wanted
    C = columns of a matrix
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from math import prod
from mmap import mmap
from pathlib import Path
from typing import Annotated

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from pydantic import Field, TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from architectures.console import track
from architectures.errors import UserError
from architectures.families.family import StoredNames
from architectures.files import checked, read_json_object, require_space, write_json

SINGLE_NAME = "model.safetensors"
HINT = "Choose another directory, or empty this one."
INDEX_NAME = "model.safetensors.index.json"
LENGTH_BYTES = 8  # length prefix of the header
MAX_SHARD_BYTES = 5 * 10**9  # the limit of transformers' save_pretrained for years; the hub accepts any size
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
INDEX = TypeAdapter(Annotated[dict[str, str], Field(min_length=1)])  # file of each tensor
DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """Dtype and size of a tensor."""

    dtype: torch.dtype
    size: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.size) * self.dtype.itemsize


@dataclass(frozen=True)
class Weights:
    """Tensors of a checkpoint directory; `read` loads one."""

    folder: Path
    info: Mapping[str, TensorInfo]
    files: Mapping[str, Path]  # file of each tensor
    left_out: str = ""  # prefix of every name that the names in the files lack

    def read(self, name: str) -> Tensor:
        """Read one tensor; nothing else of its file takes memory."""
        info = self.info[name]
        # An anonymous mapping returns to the system with the tensor; the C library keeps part of freed heap memory.
        bytes_N = torch.frombuffer(mmap(-1, info.num_bytes or 1), dtype=torch.uint8)[: info.num_bytes]
        with self.files[name].open("rb") as stream:
            stream.seek(self.start(name))
            self.fill(bytes_N.numpy().data, stream)
        return bytes_N.view(info.dtype).view(info.size)

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return rows_RC of a matrix; ascending rows are read fastest."""
        columns, dtype = self.info[name].size[1], self.info[name].dtype
        rows_RC = torch.empty((len(rows), columns), dtype=dtype)
        num_bytes, start = columns * dtype.itemsize, self.start(name)
        bytes_R = rows_RC.view(torch.uint8).numpy()
        with self.files[name].open("rb") as stream:
            for place, row in enumerate(rows):
                stream.seek(start + row * num_bytes)
                self.fill(bytes_R[place].data, stream)
        return rows_RC

    def fill(self, buffer: memoryview, stream: BufferedReader) -> None:
        """Read bytes of a tensor; raises UserError if the file has become shorter since it was opened."""
        if stream.readinto(buffer) != buffer.nbytes:
            raise UserError(f"{stream.name}: was truncated while being read. Copy or download it again.")

    def start(self, name: str) -> int:
        file = self.files[name]
        return starts_of(file, file.stat().st_mtime_ns)[name.removeprefix(self.left_out)]


@cache
def starts_of(file: Path, _changed_ns: int) -> dict[str, int]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = json.loads(stream.read(length))
    begin = LENGTH_BYTES + length
    return {name: begin + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def open_weights(folder: Path, *, base_prefix: str = "") -> Weights:
    """List the tensors of a checkpoint and check that every shard is whole.

    Args:
        base_prefix: Added to every name if no name in the checkpoint has it, as in the first releases of GPT-2, BLOOM
            and OPT.

    Raises:
        UserError: If there are no safetensors, a shard is missing or truncated, the index and the shards disagree, or
            a tensor has an unsupported dtype.
    """
    require_files_of_folder(folder)
    indexed, names = read_index(folder), shard_names(folder)
    info: dict[str, TensorInfo] = {}
    files: dict[str, Path] = {}
    for name in names:
        for tensor, tensor_info in read_header(folder / name).items():
            info[tensor], files[tensor] = tensor_info, folder / name
    found = {tensor: file.name for tensor, file in files.items()}
    if indexed and (wrong := sorted({tensor for tensor, _ in indexed.items() ^ found.items()})):
        listed, place = (each.get(wrong[0], "no file") for each in (indexed, found))
        raise UserError(
            f"{folder / INDEX_NAME}: lists {wrong[0]} in {listed}, but it is in {place}. Download the checkpoint again."
        )
    if not base_prefix or any(name.startswith(base_prefix) for name in info):
        return Weights(folder, info, files)
    renamed = {name: name if name.startswith("lm_head.") else f"{base_prefix}{name}" for name in info}
    return Weights(
        folder,
        {renamed[name]: tensor_info for name, tensor_info in info.items()},
        {renamed[name]: file for name, file in files.items()},
        left_out=base_prefix,
    )


def read_index(folder: Path) -> dict[str, str]:
    """Return tensor name -> shard name; empty if there is no index.

    Raises:
        UserError: If it is not an index, or names anything but a safetensors file in the same directory.
    """
    path = folder / INDEX_NAME
    if not path.exists():
        return {}
    index = read_json_object(path, "Download the checkpoint again.")
    weight_map = checked(INDEX, index.get("weight_map"), f"{path}: weight_map", "Download the checkpoint again.")
    for tensor, name in weight_map.items():
        if "\0" in name or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{path}: lists {tensor} in {name!r}, which is not a safetensors file in this directory. "
                "Download the checkpoint again."
            )
    return weight_map


def shard_names(folder: Path) -> list[str]:
    return sorted(set(read_index(folder).values())) or [single_file(folder)]


def require_files_of_folder(folder: Path) -> None:
    """Raise UserError if a checkpoint has weight files outside its directory, or files `open_weights` does not read."""
    read_index(folder)
    config = folder / "config.json"
    if config.is_file() and read_json_object(config, "Download the checkpoint again.").get("transformers_weights"):
        raise UserError(
            f"{config}: sets transformers_weights, but only {SINGLE_NAME} and {INDEX_NAME} are supported. "
            "Rename the files and remove the entry."
        )


def single_file(folder: Path) -> str:
    if (folder / SINGLE_NAME).is_file():
        return SINGLE_NAME
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise UserError(
            f"{folder}: contains {pickles[0]} but no safetensors; pickles are not supported. Convert it: load it with "
            'transformers\' AutoModelForCausalLM.from_pretrained(path, dtype="auto") and save_pretrained elsewhere.'
        )
    raise UserError(
        f"{folder}: contains neither {SINGLE_NAME} nor {INDEX_NAME}. Use a Hugging Face checkpoint with safetensors."
    )


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one shard. Opening checks that the file is as long as its header states.

    Opened for numpy: for torch the whole file would be mapped as private memory, which a memory limit may not allow.
    """
    entries = read_entries(file)
    for name, (code, _) in entries.items():
        if code not in DTYPES:
            raise UserError(f"{file}: {name} has dtype {code}; supported are {', '.join(DTYPES)}. Dequantise it first.")
    return {name: TensorInfo(DTYPES[code], size) for name, (code, size) in entries.items()}


def read_entries(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and size of the tensors of one shard; raise UserError if it is missing, damaged or truncated."""
    if not file.is_file():
        raise UserError(f"{file}: missing shard. Download the checkpoint again.")
    try:
        with safe_open(file, framework="np") as shard:
            slices = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118 - not a dict
            return {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: damaged or truncated ({error}). Download the checkpoint again.") from error


def read_parameter(names: StoredNames, read: Callable[[str], Tensor]) -> Tensor:
    """Read a parameter of transformers' model; experts are stacked [experts, rows, columns]."""
    if isinstance(names, str):
        return read(names)
    return torch.cat([torch.stack([read(name) for name in experts]) for experts in names], dim=1)


def stored_tensors(names: StoredNames, parameter: Tensor) -> dict[str, Tensor]:
    """Return a parameter of transformers' model, or its parts as views, under the names in a checkpoint."""
    if isinstance(names, str):
        return {names: parameter}
    parts = zip(names, parameter.chunk(len(names), dim=1), strict=True)
    return {name: matrix for experts, part_EXX in parts for name, matrix in zip(experts, part_EXX, strict=True)}


def require_numbers(weights: Weights, name: str) -> Tensor:
    """Read a tensor; UserError naming it if it contains NaN or infinity."""
    tensor = weights.read(name)
    if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
        raise UserError(f"{weights.files[name]}: {name} contains NaN or infinity. Download the checkpoint again.")
    return tensor


def require_tensors(weights: Weights, expected: Mapping[str, tuple[int, ...]], *, ignored: tuple[str, ...]) -> None:
    """Check that every expected tensor exists with its size, and no other.

    Args:
        ignored: Suffixes of names that may exist and are not read.
    """
    for name, size in expected.items():
        if name not in weights.info:
            raise UserError(
                f"{weights.folder}: {name} is missing, but config.json requires it. Download the checkpoint again."
            )
        if weights.info[name].size != size:
            raise UserError(
                f"{weights.files[name]}: {name} has shape {list(weights.info[name].size)}, but config.json implies "
                f"{list(size)}. Use config.json and weights from the same checkpoint."
            )
    for name in weights.info:
        if name not in expected and not name.endswith(ignored):
            raise UserError(
                f"{weights.files[name]}: {name} is not a tensor of this family, and dropping it would change the "
                "model. Use a checkpoint without it."
            )


def write_weights(
    layout: Mapping[str, TensorInfo],
    read: Callable[[str], Tensor],
    folder: Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write tensors as safetensors, each read, written and freed before the next.

    Args:
        layout: In the order of the shards.
        read: Returns the tensor of a name, with the layout's dtype and size.
        max_shard_bytes: Exceeded only by a single larger tensor.

    Raises:
        UserError: If the disk has too little free space; nothing is written then.
    """
    require_space(folder, sum(info.num_bytes for info in layout.values()))
    split = split_state_dict_into_shards_factory(
        dict(layout),
        get_storage_size=lambda info: info.num_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    for name, tensors in split.filename_to_tensors.items():
        write_shard({tensor: layout[tensor] for tensor in tensors}, read, folder / name)
    if split.is_sharded:
        write_json({"metadata": split.metadata, "weight_map": split.tensor_to_filename}, folder / INDEX_NAME)


def write_shard(layout: Mapping[str, TensorInfo], read: Callable[[str], Tensor], file: Path) -> None:
    """Write one safetensors file: the header from the layout, then each tensor's bytes as they are read.

    Wider dtypes come first, so that every tensor starts at a multiple of its element size.
    Source of the format: the safetensors README, section "Format". The library itself writes only whole dictionaries.
    """
    ordered = sorted(layout, key=lambda name: -layout[name].dtype.itemsize)
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in ordered:
        start, end = end, end + layout[name].num_bytes
        code = DTYPE_CODES[layout[name].dtype]
        header[name] = {"dtype": code, "shape": list(layout[name].size), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in track(ordered, description=f"writing {file.name}", total=len(ordered)):
            tensor = read(name)
            if TensorInfo(tensor.dtype, tuple(tensor.shape)) != layout[name]:
                raise ValueError(f"{name}: expected {layout[name]}, got {tensor.dtype} {tuple(tensor.shape)}.")
            stream.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
            del tensor  # free it before the next one is read


def require_replaceable(out: Path, mark: str, *, reading: Path, stage: str | None = None) -> None:
    """Check that a directory may be replaced: it is empty or an earlier result, and not the input.

    Args:
        mark: A file in every earlier result of this type.
        stage: Stage in the manifest of an earlier result, if the mark is the manifest: other tools use that name too.
    """
    is_other = out.is_symlink() or (out.exists() and not out.is_dir())
    if is_other or reading.resolve().is_relative_to(out.resolve()):
        raise UserError(f"{out}: cannot hold a checkpoint derived from {reading}. Choose another directory.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / mark).is_file():
        raise UserError(f"{out}: is not empty and contains no {mark}. {HINT}")
    if stage is not None and (recorded_stage := read_json_object(out / mark, HINT).get("stage")) != stage:
        raise UserError(f"{out}: its {mark} is from stage {recorded_stage!r}, not {stage!r}. {HINT}")
