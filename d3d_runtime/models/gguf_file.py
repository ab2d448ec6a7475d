"""The container of GGUF files: metadata, and tensors as they lie in the memory-mapped file.

Read here, and not through `gguf.GGUFReader`, which makes a numpy array of every string: seconds for a vocabulary. The
package does the dequantisation.

    "GGUF" | version u32 | tensors u64 | entries u64 | entries: key, type u32, value | tensors: name, rank u32,
    sizes u64 (innermost first), type u32, offset u64 | padding | data          strings: length u64, UTF-8
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from d3d_runtime.errors import UserError

SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"


def open_gguf(path: Path) -> GGUFFile:
    """Config, tokenizer and weights ask one after another; a vocabulary's header takes a second to read."""
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"model {str(path)!r}: cannot be read ({error.strerror})") from None
    return _opened(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def _opened(path: Path, changed: int, size: int) -> GGUFFile:
    return GGUFFile(path)


@dataclass(frozen=True)
class StoredTensor:
    """shape: outermost first, as torch counts. quantisation: a GGMLQuantizationType. offset: into the data."""

    shape: tuple[int, ...]
    quantisation: int
    offset: int


class GGUFFile:
    """metadata: key -> value (lists for arrays); tensors: name -> StoredTensor. Raises UserError in one line."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise UserError(f"model {str(path)!r}: cannot be read ({error})") from None
        if bytes(self._bytes[:4]) != b"GGUF":
            raise self._refusal("this is not a GGUF file")
        version = int.from_bytes(self._bytes[4:8], "little")
        if version not in VERSIONS:
            raise self._refusal(f"GGUF version {version}; expected 2 or 3, little-endian")
        self._at = 8
        try:
            self._read_header()
        except (struct.error, ValueError, KeyError, OverflowError, MemoryError):
            raise self._refusal("not a whole GGUF file; its header breaks off or is damaged") from None

    def array(self, name: str) -> np.ndarray:
        """A tensor in float32, dequantised by the `gguf` package."""
        gguf, tensor = load_package(self.path), self.tensors[name]
        try:
            kind = gguf.GGMLQuantizationType(tensor.quantisation)
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise self._refusal(f"{name!r} is stored as GGML type {tensor.quantisation}, which is unknown") from None
        row = tensor.shape[-1] // block * block_bytes
        begin, size = self._data + tensor.offset, row * math.prod(tensor.shape[:-1])
        if tensor.shape[-1] % block or begin + size > len(self._bytes):
            raise self._refusal(f"not a whole GGUF file; {name!r} reaches beyond its end")
        stored = np.frombuffer(self._bytes[begin : begin + size], np.uint8).reshape(*tensor.shape[:-1], row)
        try:
            return np.require(gguf.quants.dequantize(stored, kind), requirements="W")  # a copy where it is the file
        except NotImplementedError:
            raise self._refusal(f"{name!r} is stored as {kind.name}, which the gguf package cannot read") from None

    def _refusal(self, what: str) -> UserError:
        return UserError(f"model {str(self.path)!r}: {what}")

    def _read_header(self) -> None:
        num_tensors, num_entries = self._scalar("<u8"), self._scalar("<u8")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<u4"))
        self.tensors: dict[str, StoredTensor] = {}
        for _ in range(num_tensors):
            name, rank = self._string(), self._scalar("<u4")
            shape = tuple(self._scalar("<u8") for _ in range(rank))[::-1]
            self.tensors[name] = StoredTensor(shape, self._scalar("<u4"), self._scalar("<u8"))
        alignment = self.metadata.get("general.alignment", 32)
        self._data = -(-self._at // alignment) * alignment

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            item, length = self._scalar("<u4"), self._scalar("<u8")
            if item == STRING:
                return [self._string() for _ in range(length)]
            return self._take(np.dtype(SCALARS[item]), length).tolist()
        return self._scalar(SCALARS[kind])

    def _scalar(self, dtype: str) -> Any:
        return self._take(np.dtype(dtype), 1)[0].item()

    def _take(self, dtype: np.dtype, count: int) -> np.ndarray:
        values = np.frombuffer(self._bytes, dtype, count, self._at)  # ValueError behind the end
        self._at += values.nbytes
        return values

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._bytes, self._at)
        begin, self._at = self._at + 8, self._at + 8 + length
        if self._at > len(self._bytes):
            raise ValueError("a string behind the end")
        return str(self._bytes[begin : self._at], "utf-8", "replace")


def load_package(path: Path) -> Any:
    try:
        import gguf
    except ImportError:
        raise UserError(
            f"model {str(path)!r}: GGUF files need the gguf package: pip install 'd3d-engine[gguf]'"
        ) from None
    return gguf
