"""Triton backend: kernels for GPU users without a compiler, one file an op. Ops it lacks run on the reference.

Under TRITON_INTERPRET=1 the same kernels run on CPU tensors, in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

try:
    import triton
except ImportError as error:
    raise ImportError('Triton is not installed; pip install "d3d-engine[gpu]"') from error

from .launch import INTERPRETED

if isinstance(triton.language.sum, triton.JITFunction) is INTERPRETED:
    raise ImportError("TRITON_INTERPRET was set or unset after Triton had been imported; set it before")

from .draft_candidates import draft_candidates
from .draft_tree import draft_tree
from .move_kv import move_kv, rollback_kv
from .sample import sample
from .verify_chain import verify_chain
from .verify_tree import verify_tree

__all__ = ["draft_candidates", "draft_tree", "move_kv", "rollback_kv", "sample", "verify_chain", "verify_tree"]
