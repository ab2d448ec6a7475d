"""Records of tensors: the declared shape and dtype of a field allocates it, validates it and documents it.

    @record
    class Verdict(Record):
        accepted_nodes: Tensor = tensor(torch.int32, "BN")
        num_accepted: Tensor = tensor(torch.int32, "B")

Letters name sizes; a letter has one value throughout a record. A record is immutable, so it is validated
once, on its first use by an op, and later calls only compare its sizes and device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from . import checks


class Checked(NamedTuple):
    """What validation found out."""

    device: torch.device
    sizes: tuple[int, ...]  # in the order of Record.LETTERS; -1 where no field that is present tells
    contiguous: bool


def tensor(dtype: torch.dtype, shape: str, *, optional: bool = False) -> Any:
    """Declare a field of a record."""
    metadata = {"dtype": dtype, "shape": shape, "optional": optional}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


def record(cls: type) -> type:
    """Class decorator: makes a Record of the declared fields."""
    cls = dataclass(frozen=True, slots=True, eq=False)(cls)
    cls.FIELDS = {f.name: f.metadata for f in fields(cls) if f.metadata}
    cls.LETTERS = "".join(dict.fromkeys("".join(spec["shape"] for spec in cls.FIELDS.values())))
    cls._get = attrgetter(*cls.FIELDS)
    cls._allocation = [
        (spec["dtype"], [cls.LETTERS.index(letter) for letter in spec["shape"]]) for spec in cls.FIELDS.values()
    ]
    return cls


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    FIELDS: ClassVar[dict[str, dict[str, Any]]]
    LETTERS: ClassVar[str]
    _get: ClassVar[attrgetter]
    _allocation: ClassVar[list[tuple[torch.dtype, list[int]]]]  # a field's dtype, and which sizes are its axes

    _checked: Checked | None = field(default=None, init=False, repr=False)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The fields in order."""
        return self._get(self)

    @property
    def batch(self) -> int:
        """The first size: requests, or rows."""
        return next(t for t in self.tensors() if t is not None).shape[0]

    @property
    def device(self) -> torch.device:
        return next(t for t in self.tensors() if t is not None).device

    def select(self, index: Tensor | slice):
        """The sub-batch ``index`` (a slice, or an integer tensor with repetitions allowed)."""
        return type(self)(*(None if t is None else t[index] for t in self.tensors()))

    def to(self, device: torch.device | str):
        """The record on another device."""
        return type(self)(*(None if t is None else t.to(device) for t in self.tensors()))

    @classmethod
    def allocate(cls, device: torch.device | str, *sizes: int):
        """Uninitialised tensors; sizes in the order of LETTERS."""
        return cls(
            *[torch.empty([sizes[i] for i in axes], dtype=dtype, device=device) for dtype, axes in cls._allocation]
        )

    def checked(self, name: str) -> Checked:
        """Validates the record on first use; ``name`` is the argument that error messages name."""
        if self._checked is None:
            object.__setattr__(self, "_checked", self._check(name))
        return self._checked

    def expect(self, name: str, device: torch.device, *sizes: int, contiguous: bool = False) -> None:
        """The record must lie on ``device`` and have these leading sizes; outputs must be contiguous too."""
        found = self.checked(name)
        if found.sizes[: len(sizes)] != sizes:
            wanted = ", ".join(f"{letter} = {n}" for letter, n in zip(self.LETTERS, sizes, strict=False))
            got = ", ".join(f"{letter} = {n}" for letter, n in zip(self.LETTERS, found.sizes, strict=True))
            raise ValueError(f"{name}: expected sizes {wanted}, got {got}")
        if found.device != device:
            raise ValueError(f"{name}: expected device {device}, got {found.device}")
        if contiguous and not found.contiguous:
            raise ValueError(f"{name}: expected contiguous tensors")

    def _check(self, name: str) -> Checked:
        size_of: dict[str, int] = {}
        device, contiguous = None, True
        for key, spec in self.FIELDS.items():
            value = getattr(self, key)
            if value is None and spec["optional"]:
                continue
            field_name, letters = f"{name}.{key}", spec["shape"]
            checks.is_tensor(field_name, value)
            if value.ndim == len(letters):
                for letter, size in zip(letters, value.shape, strict=True):
                    size_of.setdefault(letter, size)
            device = device or value.device
            shape = tuple(size_of.get(letter, -1) for letter in letters)
            checks.dense_rows(field_name, value, spec["dtype"], shape, device)
            contiguous = contiguous and value.is_contiguous()
        if device is None:
            raise ValueError(f"{name}: expected at least one tensor, got none")
        return Checked(device, tuple(size_of.get(letter, -1) for letter in self.LETTERS), contiguous)
