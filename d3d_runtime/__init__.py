"""D3D runtime: asynchronous speculative decoding with block-diffusion drafters, token-identical to plain decoding.

from d3d_runtime import Engine, SamplingParams
print(Engine().generate("...", SamplingParams(max_tokens=128))[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from d3d_runtime.conversation import Conversation
    from d3d_runtime.engine import Engine
    from d3d_runtime.errors import UserError
    from d3d_runtime.request import RequestOutput
    from d3d_runtime.sampling_params import SamplingParams

__all__ = ["Conversation", "Engine", "RequestOutput", "SamplingParams", "UserError"]
_HOMES = {
    "Conversation": "conversation",
    "Engine": "engine",
    "RequestOutput": "request",
    "SamplingParams": "sampling_params",
    "UserError": "errors",
}


def __getattr__(name: str):
    """Imports on first use: `d3d --help` and the tests of plain text need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
