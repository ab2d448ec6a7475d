"""Everything here needs a GPU, and runs on every backend that takes CUDA tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from d3d_kernels import registry

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def _backends() -> list[str]:
    found = registry.available("cuda") if torch.cuda.is_available() else []
    return [name for name in found if name != "reference"] or ["cuda"]  # without a GPU: so that tests are collected


@pytest.fixture(params=_backends())
def backend(request: pytest.FixtureRequest) -> str:
    return request.param
