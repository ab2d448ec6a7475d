"""Plain torch forms of every op: the specification that the other backends are held to."""

from .build_tree import build_tree
from .dense_mask import dense_mask
from .draft_candidates import draft_candidates
from .draft_tree import draft_tree
from .frontier_inputs import frontier_inputs
from .move_kv import move_kv
from .packed_mask import packed_mask
from .rollback_kv import rollback_kv
from .sample import sample
from .select_outcome import select_outcome
from .verify_chain import verify_chain
from .verify_tree import verify_tree

__all__ = [
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
    "verify_chain",
    "verify_tree",
]
