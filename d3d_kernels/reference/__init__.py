"""Plain torch forms of every op: the specification that the other backends are held to."""

from .build_tree import build_tree
from .draft_candidates import draft_candidates
from .move_kv import move_kv
from .sample import sample
from .select_outcome import select_outcome
from .verify_chain import verify_chain
from .verify_tree import verify_tree

__all__ = ["build_tree", "draft_candidates", "move_kv", "sample", "select_outcome", "verify_chain", "verify_tree"]
