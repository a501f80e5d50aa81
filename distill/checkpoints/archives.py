"""Torch's archives: whether every byte of one is as it was written. Nothing is unpickled. No torch."""

import struct
import zipfile
import zlib
from typing import IO

# What zipfile raises on bytes that no archiver wrote: also for encrypted entries and unknown compressions.
NOT_A_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError)


def zip_damage(file: IO[bytes], size: int) -> str | None:
    """What is wrong with an archive of so many bytes, in a few words.

    torch stores entries as they are and none twice. An archive that would be larger when unpacked is not read at all.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > size:
                return "its entries are larger than the file"
            entry = archive.testzip()
    except NOT_A_ZIP as error:
        return str(error) or type(error).__name__
    return None if entry is None else f"wrong checksum of {entry}"
