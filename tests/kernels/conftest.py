"""Every test that takes ``on`` runs on every backend that this machine must be able to run."""

from importlib.util import find_spec

import pytest
import torch

from d3d_kernels import registry

from . import interpreter
from .harness import Target, near_ties


def _targets() -> list:
    # The compiled CPU library is part of the product: it is listed whether or not it was built.
    targets = [pytest.param(Target(name, "cpu"), id=name) for name in ("reference", "cpu")]
    if "cpu" in registry.devices("triton"):
        installed = pytest.mark.skipif(not find_spec("triton"), reason='needs Triton: pip install "d3d-engine[gpu]"')
        targets.append(pytest.param(Target("triton", "cpu"), id="triton", marks=installed))
    if torch.cuda.is_available():
        for name in registry.available("cuda"):
            targets.append(pytest.param(Target(name, "cuda"), id=f"{name}-on-gpu", marks=pytest.mark.gpu))
    return targets


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are tiny, and a pool of threads waits for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=_targets())
def on(request: pytest.FixtureRequest) -> Target:
    target = request.param
    module = registry.load(target.backend)
    if isinstance(module, ImportError):
        pytest.fail(f"backend {target.backend!r} cannot be imported: {module}", pytrace=False)
    if target == Target("triton", "cpu"):
        interpreter.quicken()
    return target


# Triton's interpreter takes a second or so a call, so that it runs this much of the suite: each op, dtype, stride,
# penalties, and the shapes of trees and rows that have failed elsewhere. The rest is marked slow.
INTERPRETED = (
    "test_sample[triton-plain-float32-padded-1030]",
    "test_sample[triton-penalised-bfloat16-strided-33]",
    "test_sample[triton-plain-float64-padded-5]",
    "test_draft_candidates[triton-plain-bfloat16-strided-1030]",
    "test_draft_candidates[triton-penalised-float16-dense-257]",
    "test_verify_tree[triton-plain-float16-strided-257]",
    "test_verify_tree[triton-penalised-float64-padded-5]",
    "test_verify_chain[triton-coupled-penalised-bfloat16-dense-33]",
    "test_the_match_inside_the_verdict_is_select_outcome[triton-0]",
    "test_sample_status[triton-plain-float32]",
    "test_failure_11_cyclic_or_missing_parent[triton-1.0-[-1, 2, 1, 2]]",
    "test_failure_12_temperatures_0_and_1e_8_and_1_in_one_batch[triton]",
    "test_a_packed_row_outside_the_logits[triton]",
    "test_failure_20_in_place_moves_with_overlapping_ranges[triton-NHD]",
    "test_target_and_drafter_in_one_call[triton-16-HND]",
)


OF_OTHER_OPS = ("test_build_tree", "test_chain_rules", "test_frontier_inputs", "test_masks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def is_interpreted(item: pytest.Item) -> bool:
        return hasattr(item, "callspec") and item.callspec.params.get("on") == Target("triton", "cpu")

    idle = [item for item in items if is_interpreted(item) and item.module.__name__.endswith(OF_OTHER_OPS)]
    for item in idle:  # Triton has no kernels for them: the reference would be tested once more
        items.remove(item)
    config.hook.pytest_deselected(items=idle)
    for item in items:
        if is_interpreted(item) and item.name not in INTERPRETED:
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter) -> None:
    if near_ties.rows:
        terminalreporter.write_line(f"near ties between backends: {near_ties.count} of {near_ties.rows} rows")
