"""Triton's interpreter, quicker: for tests only.

It points the functions of triton.language at itself anew for every call of a device function, tl.max included, which
takes more time than all else. They stay pointed until the kernel returns, so once a kernel is enough.
"""

from __future__ import annotations

from functools import cache


@cache
def quicken() -> None:
    from triton import language
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patch_once(function):
        modules = [m for m in function.__globals__.values() if m is language or m is language.core]
        if any(language.core.is_builtin(module.load) for module in modules):
            return patch(function)
        return interpreter._LangPatchScope()  # of no changes

    interpreter._patch_lang = patch_once
