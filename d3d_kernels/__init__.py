"""Kernels for speculative decoding: seeded sampling, draft trees, tree verification, KV rollback.

    import d3d_kernels as dk

Every op is a pure function of its tensors (the caches of ``move_kv`` aside), takes ``out=`` for preallocated
outputs and runs on the backend that fits the tensors; see ``d3d_kernels.registry``. Under torch.compile and
export the same functions go through ``torch.ops.d3d``.
"""

from .ops.build_tree import build_tree
from .ops.draft_candidates import draft_candidates
from .ops.draft_tree import draft_tree
from .ops.move_kv import move_kv, rollback_kv
from .ops.sample import sample
from .ops.select_outcome import select_outcome
from .ops.verify_chain import verify_chain
from .ops.verify_tree import verify_tree
from .registry import set_backend
from .types import Candidates, DraftTree, KVLayout, Outcomes, Penalties, SamplingTensors, Status, Verdict

__all__ = [
    "Candidates",
    "DraftTree",
    "KVLayout",
    "Outcomes",
    "Penalties",
    "SamplingTensors",
    "Status",
    "Verdict",
    "build_tree",
    "draft_candidates",
    "draft_tree",
    "move_kv",
    "rollback_kv",
    "sample",
    "select_outcome",
    "set_backend",
    "verify_chain",
    "verify_tree",
]
