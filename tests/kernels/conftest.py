"""Every test that takes ``on`` runs on every backend that this machine must be able to run."""

import pytest
import torch

from d3d_kernels import registry

from .harness import Target, near_ties


def _targets() -> list:
    # The compiled CPU library is part of the product: it is listed whether or not it was built.
    targets = [pytest.param(Target(name, "cpu"), id=name) for name in ("reference", "cpu")]
    if "cpu" in registry.devices("triton"):
        targets.append(pytest.param(Target("triton", "cpu"), id="triton"))
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
    return target


def pytest_terminal_summary(terminalreporter) -> None:
    if near_ties.rows:
        terminalreporter.write_line(f"near ties between backends: {near_ties.count} of {near_ties.rows} rows")
