"""How such systems have failed elsewhere is a list of numbered reports; each is a test here, named after its number."""

from __future__ import annotations

import re
from pathlib import Path

SAMPLING_AND_VERIFICATION = range(1, 20)
KV_CACHE = range(20, 25)  # 25 is what harness.call watches over in every test


def test_every_known_failure_of_the_kernels_has_a_test() -> None:
    tests = (path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    named = {int(number) for text in tests for number in re.findall(r"^def test_failure_(\d\d)_", text, re.MULTILINE)}
    missing = {*SAMPLING_AND_VERIFICATION, *KV_CACHE} - named
    assert not missing, f"no test is named after {sorted(missing)}"
