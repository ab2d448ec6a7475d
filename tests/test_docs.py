"""The documentation is part of the product: its examples run, its signatures and links are the code's.

Every ```python block of docs/, and every one of the README that uses the kernels, is executed; the blocks of
a page share a namespace. `<!-- not run: reason -->` on the line before a block skips it.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import d3d_kernels as dk

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
OP_PAGES = [page for page in PAGES if page.parent.name == "kernels" and page.name != "README.md"]
OPS = [name for name in dk.__all__ if inspect.isfunction(getattr(dk, name)) and name != "set_backend"]

BLOCK = re.compile(r"^(<!-- not run: .+ -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> Iterator[str]:
    """Code that is not marked, each block at its own line of the page, so that tracebacks point there."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        skipped, tag, code = found.groups()
        if tag == language and not skipped and (page != README or "d3d_kernels" in code):
            yield "\n" * text.count("\n", 0, found.start(3)) + code


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def quiet_torch() -> Iterator[None]:
    """Examples seed torch, and their tensors are too small for a pool of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p, "python"))], ids=name_of)
def test_examples_run(page: Path, quiet_torch: None) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", OP_PAGES, ids=name_of)
def test_a_page_of_an_op_has_an_example_that_runs(page: Path) -> None:
    assert any(f"dk.{page.stem}" in code for code in blocks(page, "python"))


@pytest.mark.parametrize("op", OPS)
def test_signatures_are_those_of_the_code(op: str) -> None:
    signature = inspect.signature(getattr(dk, op))
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    expected = op + str(signature.replace(parameters=bare, return_annotation=signature.empty))
    pages = [re.sub(r"\s+", " ", page.read_text(encoding="utf-8")) for page in OP_PAGES]
    assert sum(expected in page for page in pages) == 1, f"no page, or several, with the signature {expected}"


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p, "cpp"))], ids=name_of)
def test_cpp_examples_compile(page: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "example.cpp"
    source.write_text("\n".join(blocks(page, "cpp")), encoding="utf-8")
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc/include'}"]
    done = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [found for found in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in found]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{name_of(page)} links to what does not exist: {missing}"
