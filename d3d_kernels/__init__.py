"""Kernels for speculative decoding: seeded sampling, draft trees, tree verification, KV rollback.

    import d3d_kernels as dk

Every op is a pure function of its tensors (the caches of ``move_kv`` aside), takes ``out=`` for preallocated
outputs and runs on the backend that fits the tensors; see ``d3d_kernels.registry``. Under torch.compile and
export the same functions go through ``torch.ops.d3d``.
"""

from .ops.build_tree import build_tree
from .ops.dense_mask import dense_mask
from .ops.draft_candidates import draft_candidates
from .ops.draft_tree import draft_tree
from .ops.frontier_inputs import frontier_inputs
from .ops.move_kv import move_kv
from .ops.packed_mask import packed_mask
from .ops.rollback_kv import rollback_kv
from .ops.sample import sample
from .ops.select_outcome import select_outcome
from .ops.verify_chain import verify_chain
from .ops.verify_tree import verify_tree
from .registry import set_backend
from .types import (
    CacheRows,
    Candidates,
    DraftTree,
    FrontierInputs,
    KVLayout,
    Outcomes,
    PackedMask,
    Penalties,
    Rollback,
    SamplingTensors,
    Status,
    TreeLinks,
    Verdict,
)

__all__ = [
    "CacheRows",
    "Candidates",
    "DraftTree",
    "FrontierInputs",
    "KVLayout",
    "Outcomes",
    "PackedMask",
    "Penalties",
    "Rollback",
    "SamplingTensors",
    "Status",
    "TreeLinks",
    "Verdict",
    "build_tree",
    "dense_mask",
    "draft_candidates",
    "draft_tree",
    "frontier_inputs",
    "move_kv",
    "packed_mask",
    "rollback_kv",
    "sample",
    "select_outcome",
    "set_backend",
    "verify_chain",
    "verify_tree",
]
