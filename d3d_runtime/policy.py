"""Which mode, how many nodes and outcomes. For now a static choice; `auto` is meant to measure."""

from __future__ import annotations

from dataclasses import dataclass

from d3d_runtime.errors import UserError

MODES = ("auto", "autoregressive", "sync", "async")
NUM_NODES = 16
NUM_OUTCOMES = 4
MAX_NODES = 256


@dataclass(frozen=True)
class Plan:
    """N nodes to verify, of which the root is one, and E outcomes to draft ahead; (1, 0) is plain decoding."""

    mode: str
    num_nodes: int
    num_outcomes: int

    @property
    def drafts(self) -> bool:
        return self.num_nodes > 1


def choose(mode: str, has_drafter: bool, num_nodes: int | None, num_outcomes: int | None) -> Plan:
    """On a CPU `sync` wins for the embedded pair: both models share two cores, so drafting ahead is not free."""
    if mode not in MODES:
        raise UserError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if num_nodes is not None and not 2 <= num_nodes <= MAX_NODES:
        raise UserError(f"num_nodes: expected 2 to {MAX_NODES}, got {num_nodes}")
    if num_outcomes is not None and not 1 <= num_outcomes <= 64:
        raise UserError(f"num_outcomes: expected 1 to 64, got {num_outcomes}")
    if mode == "auto":
        mode = "sync" if has_drafter else "autoregressive"
    if mode == "autoregressive":
        return Plan(mode, 1, 0)
    if not has_drafter:
        raise UserError(f"mode: {mode!r} needs a drafter; pass drafter=, or mode='autoregressive'")
    return Plan(mode, num_nodes or NUM_NODES, (num_outcomes or NUM_OUTCOMES) if mode == "async" else 0)
