"""Names of models: a path, a model of the Hugging Face hub, or one of the published D3D drafters."""

from __future__ import annotations

import re
from pathlib import Path

from d3d_runtime.errors import UserError

PUBLISHER = "fudan-generative-ai"
DRAFTERS = {  # published drafter -> its target
    "D3D-1.7B-8B": "Qwen/Qwen3-8B",
    "D3D-8B-8B": "Qwen/Qwen3-8B",
    "D3D-31D-p8B-8B": "Qwen/Qwen3-8B",
    "D3D-1.7B-32B": "Qwen/Qwen3-32B",
    "D3D-8B-32B": "Qwen/Qwen3-32B",
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt"]


def locate(name: str | Path, role: str) -> Path:
    """The path of a model: what is there, or what the hub's cache has, or gets from the hub.

    role: "target" or "drafter", for messages. A path that is not there and looks like no hub name is returned as it
    is: whoever reads it says what is wrong. Raises UserError in one line for what the hub cannot give.
    """
    path, text = Path(name), str(name)
    hub_name = hub_name_of(text)
    if path.exists() or hub_name is None:
        return path
    owner, _, model = hub_name.partition("/")
    if owner == PUBLISHER and model not in DRAFTERS:
        raise UserError(
            f"{role} {text!r}: the published drafters known here are {', '.join(DRAFTERS)} (there is a sixth, whose "
            "name is not known here): download it and pass its folder"
        )
    return _from_hub(hub_name, text, role)


def hub_name_of(name: str) -> str | None:
    """`owner/model`, if a name is one and no path: "pairs/traget" beside a folder "pairs" is a misspelt path."""
    if name in DRAFTERS or (name.startswith("D3D-") and "/" not in name):
        return f"{PUBLISHER}/{name}"
    if HUB_NAME.fullmatch(name) and not Path(name).parent.exists() and not name.endswith(".gguf"):
        return name
    return None


def _from_hub(hub_name: str, given: str, role: str) -> Path:
    folder = hub_name.partition("/")[2]
    where = f"{role} {given!r}: no such folder here" + ("" if given == hub_name else f" ({hub_name} on the hub)")
    way_out = f"where there is a network, `hf download {hub_name} --local-dir {folder}`, then pass that folder"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(f"{where}, and huggingface_hub is not installed to get it; {way_out}") from None
    try:
        return Path(snapshot_download(hub_name, allow_patterns=FILES, local_files_only=True))
    except Exception:  # not in its cache
        pass
    try:
        return Path(snapshot_download(hub_name, allow_patterns=FILES, etag_timeout=10))
    except Exception as error:  # its errors, those of two HTTP libraries, and the operating system's
        raise UserError(f"{where}, and the hub did not give it ({type(error).__name__}); {way_out}") from None
