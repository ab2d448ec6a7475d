"""School arithmetic written out digit by digit.

A small language model cannot compute `47 + 38` in one go, but it can look up one-digit facts and copy
digits. Each function spells one operation so that every digit follows from the text just before it. There
is exactly one spelling per operation: a second one would only have to be learned as well.
"""

from __future__ import annotations


def spell_add(a: int, b: int) -> str:
    """Column addition of 0 <= a, b <= 99, as a sentence.

    >>> spell_add(7, 8)
    '7 + 8 = 15.'
    >>> spell_add(47, 38)
    '47 + 38: 7 + 8 = 15, write 5 carry 1, 4 + 3 + 1 = 8, so 47 + 38 = 85.'
    """
    _require(0 <= a <= 99 and 0 <= b <= 99, "+", a, b)
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    (a_tens, a_ones), (b_tens, b_ones) = divmod(a, 10), divmod(b, 10)
    carry, digit = divmod(a_ones + b_ones, 10)
    return (
        f"{a} + {b}: {a_ones} + {b_ones} = {a_ones + b_ones}, write {digit} carry {carry}, "
        f"{a_tens} + {b_tens} + {carry} = {a_tens + b_tens + carry}, so {a} + {b} = {a + b}."
    )


def spell_subtract(a: int, b: int) -> str:
    """Column subtraction of 0 <= b <= a <= 99, as a sentence.

    >>> spell_subtract(52, 17)
    '52 - 17: 12 - 7 = 5, write 5 borrow 1, 5 - 1 - 1 = 3, so 52 - 17 = 35.'
    """
    _require(0 <= b <= a <= 99, "-", a, b)
    if a < 10:
        return f"{a} - {b} = {a - b}."
    (a_tens, a_ones), (b_tens, b_ones) = divmod(a, 10), divmod(b, 10)
    borrow = int(a_ones < b_ones)
    ones = a_ones + 10 * borrow
    digit = ones - b_ones
    return (
        f"{a} - {b}: {ones} - {b_ones} = {digit}, write {digit} borrow {borrow}, "
        f"{a_tens} - {b_tens} - {borrow} = {a_tens - b_tens - borrow}, so {a} - {b} = {a - b}."
    )


def spell_multiply(a: int, b: int) -> str:
    """Product of 0 <= a <= 99 and a digit b: the ones, then the tens plus the carry, as a sentence.

    >>> spell_multiply(23, 4)
    '23 * 4: 3 * 4 = 12, write 2 carry 1, 2 * 4 = 8, 8 + 1 = 9, so 23 * 4 = 92.'
    """
    _require(0 <= a <= 99 and 0 <= b <= 9, "*", a, b)
    if a < 10:
        return f"{a} * {b} = {a * b}."
    tens, ones = divmod(a, 10)
    carry, digit = divmod(ones * b, 10)
    return (
        f"{a} * {b}: {ones} * {b} = {ones * b}, write {digit} carry {carry}, "
        f"{tens} * {b} = {tens * b}, {tens * b} + {carry} = {tens * b + carry}, so {a} * {b} = {a * b}."
    )


def spell_divide(a: int, b: int) -> str:
    """Exact division by a digit with a one-digit quotient, read off the times table, as a sentence.

    >>> spell_divide(72, 8)
    '72 / 8 = 9 because 8 * 9 = 72.'
    """
    _require(1 <= b <= 9 and 0 <= a <= 9 * b and a % b == 0, "/", a, b)
    return f"{a} / {b} = {a // b} because {b} * {a // b} = {a}."


def _require(in_range: bool, operator: str, a: int, b: int) -> None:
    if not in_range:
        raise ValueError(f"no spelling for {a} {operator} {b}: operands out of range")
