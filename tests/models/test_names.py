"""Names that are no paths: the published drafters, models of the hub; offline, what to do about it in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from d3d_runtime import Engine
from d3d_runtime.errors import UserError
from d3d_runtime.models import hub
from d3d_runtime.models.hub import DRAFTERS, hub_name_of, locate


@pytest.fixture
def offline(monkeypatch):
    """A hub that is not reached, and remembers what it was asked for."""
    asked = []

    class Hub:
        @staticmethod
        def snapshot_download(name: str, **options):
            asked.append((name, options.get("local_files_only", False)))
            raise ConnectionError("a long\nstory")

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    return asked


def refusal(name: str, role: str = "drafter") -> str:
    with pytest.raises(UserError) as refused:
        locate(name, role)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", DRAFTERS)
def test_published_drafters(name, offline):
    """With and without their publisher; first the cache is asked, then the network."""
    full = f"{hub.PUBLISHER}/{name}"
    for given in (name, full):
        message = refusal(given)
        assert given in message and f"`hf download {full} --local-dir {name}`" in message
        assert "the hub did not give it (ConnectionError)" in message
    assert offline == [(full, True), (full, False)] * 2


def test_the_sixth_is_refused_honestly(offline):
    message = refusal("D3D-4B-8B")
    assert all(name in message for name in DRAFTERS)
    assert "there is a sixth, whose name is not known here" in message and "pass its folder" in message
    assert offline == []


def test_what_the_hub_gives_is_used(monkeypatch, tmp_path):
    class Hub:
        @staticmethod
        def snapshot_download(name: str, local_files_only: bool = False, **options):
            assert name == "Qwen/Qwen3-8B" and "*.safetensors" in options["allow_patterns"]
            if local_files_only:
                raise FileNotFoundError
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    assert locate("Qwen/Qwen3-8B", "target") == tmp_path


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = refusal("Qwen/Qwen3-8B", "target")
    assert "huggingface_hub is not installed to get it; where there is a network, `hf download Qwen/Qwen3-8B" in message


def test_paths_are_no_hub_names(tmp_path, monkeypatch):
    (tmp_path / "pairs").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("pairs/traget", "traget", "/a/b", "./a/b", "a/b/c", "../x", "model/q4.gguf", "D3D-1.7B-8B/"):
        assert hub_name_of(path) is None, path
        assert locate(path, "target") == Path(path)
    (tmp_path / "D3D-1.7B-8B").mkdir()
    assert locate("D3D-1.7B-8B", "drafter") == Path("D3D-1.7B-8B")  # what is there wins


def test_the_engine_and_the_command_say_so(offline, capsysbinary):
    from d3d_runtime.cli import run

    with pytest.raises(UserError, match="target 'Qwen/Qwen3-8B': no such folder here, and the hub"):
        Engine("Qwen/Qwen3-8B")
    assert run(["generate", "x", "--target", "Qwen/Qwen3-8B", "--drafter", "D3D-8B-8B"], debug=False) == 2
    assert capsysbinary.readouterr().err.startswith(b"d3d: target 'Qwen/Qwen3-8B': no such folder here")
