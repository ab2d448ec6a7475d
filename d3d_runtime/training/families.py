"""What the word problems are about: how a family draws its numbers, and how it is solved step by step.

A solution first restates the facts in a fixed order, which turns reading the question into copying, and
then works through one to three operations in the spelling of `arithmetic`. All numbers are 0 ... 200, and
whatever is counted is at least 2, so that nouns are always plural.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from d3d_runtime.training.arithmetic import spell_add, spell_divide, spell_multiply, spell_subtract

Numbers = dict[str, int]
Words = dict[str, str]


@dataclass(frozen=True)
class Family:
    """One kind of problem. `solve(numbers, words)` returns the worked steps and the answer."""

    description: str
    draw: Callable[[Random], Numbers]
    solve: Callable[[Numbers, Words], tuple[str, int]]


def _between(rng: Random, low: int, high: int) -> int:
    """Uniform in low ... high, both included (`randint` is several times slower)."""
    return low + int(rng.random() * (high - low + 1))


def _draw_buy_more(rng: Random) -> Numbers:
    return {"a": _between(rng, 5, 95), "b": _between(rng, 2, 95)}


def _solve_buy_more(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, name, things = n["a"], n["b"], w["name"], w["things"]
    return (
        f"{name} starts with {a} {things} and gets {b} more. To find how many there are in all, we add. "
        f"{spell_add(a, b)} So {name} has {a + b} {things} now."
    ), a + b


def _draw_give_away(rng: Random) -> Numbers:
    a = _between(rng, 12, 99)
    return {"a": a, "b": _between(rng, 2, a - 2)}


def _solve_give_away(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, name, things = n["a"], n["b"], w["name"], w["things"]
    return (
        f"{name} starts with {a} {things} and {b} of them go away. To find how many are left, we subtract. "
        f"{spell_subtract(a, b)} So there are {a - b} {things} left."
    ), a - b


def _draw_boxes(rng: Random) -> Numbers:
    b = _between(rng, 2, 9)
    return {"a": _between(rng, 2, min(40, 200 // b)), "b": b}


def _solve_boxes(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, things = n["a"], n["b"], w["things"]
    return (
        f"One box holds {a} {things} and there are {b} boxes. To find how many there are in all, we multiply. "
        f"{spell_multiply(a, b)} So the boxes hold {a * b} {things} in all."
    ), a * b


def _draw_price(rng: Random) -> Numbers:
    return {key: _between(rng, 2, 9) for key in "abpq"}


def _solve_price(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, p, q = n["a"], n["b"], n["p"], n["q"]
    return (
        f"First we look at the {w['things']}. There are {a} of them at {p} dollars each. "
        f"{spell_multiply(a, p)} Next we look at the {w['others']}. There are {b} of them at {q} dollars each. "
        f"{spell_multiply(b, q)} Now we add the two prices. {spell_add(a * p, b * q)} "
        f"So the total price is {a * p + b * q} dollars."
    ), a * p + b * q


def _draw_change(rng: Random) -> Numbers:
    a, p = _between(rng, 2, 9), _between(rng, 2, 9)
    return {"a": a, "p": p, "c": _between(rng, a * p + 2, 99)}


def _solve_change(n: Numbers, w: Words) -> tuple[str, int]:
    a, p, c, name = n["a"], n["p"], n["c"], w["name"]
    return (
        f"{name} buys {a} {w['things']} at {p} dollars each. First we find the price. {spell_multiply(a, p)} "
        f"{name} had {c} dollars. To find how many dollars are left, we subtract the price. "
        f"{spell_subtract(c, a * p)} So {name} has {c - a * p} dollars left."
    ), c - a * p


def _draw_share(rng: Random) -> Numbers:
    n, total = _between(rng, 2, 9), 0
    while total < 8:
        total = n * _between(rng, 2, 9)
    a = _between(rng, 2, total - 2)
    return {"a": a, "b": total - a, "n": n}


def _solve_share(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, friends, things = n["a"], n["b"], n["n"], w["things"]
    each = (a + b) // friends
    return (
        f"{w['name']} has {a} {things} and {w['other']} has {b} {things}. First we add to find how many there are. "
        f"{spell_add(a, b)} Now {friends} friends share {a + b} {things}, so we divide. "
        f"{spell_divide(a + b, friends)} So each friend gets {each} {things}."
    ), each


def _draw_gain_and_lose(rng: Random) -> Numbers:
    total = _between(rng, 15, 99)
    a = _between(rng, 5, total - 3)
    return {"a": a, "b": total - a, "c": _between(rng, 2, total - 2)}


def _solve_gain_and_lose(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, c, things = n["a"], n["b"], n["c"], w["things"]
    return (
        f"At first there are {a} {things} and then {b} more. We add. {spell_add(a, b)} "
        f"After that, {c} of the {a + b} {things} go away. We subtract. {spell_subtract(a + b, c)} "
        f"So there are {a + b - c} {things} left."
    ), a + b - c


def _solve_difference(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, name, things, other = n["a"], n["b"], w["name"], w["things"], w["other"]
    return (
        f"{name} has {a} {things} and {other} has only {b}. To find the difference, we subtract. "
        f"{spell_subtract(a, b)} So {name} has {a - b} more {things} than {other}."
    ), a - b


def _draw_times_as_many(rng: Random) -> Numbers:
    k = _between(rng, 2, 6)
    return {"a": _between(rng, 2, 99 // k), "k": k}


def _solve_times_as_many(n: Numbers, w: Words) -> tuple[str, int]:
    a, k, name, things, other = n["a"], n["k"], w["name"], w["things"], w["other"]
    return (
        f"{name} has {a} {things} and {other} has {k} times as many. First we multiply. "
        f"{spell_multiply(a, k)} So {other} has {a * k} {things}. Now we add the {a} {things} of {name}. "
        f"{spell_add(a * k, a)} So they have {a * k + a} {things} together."
    ), a * k + a


def _draw_distance(rng: Random) -> Numbers:
    h = _between(rng, 2, 9)
    return {"a": _between(rng, 3, min(30, 99 // h)), "h": h, "b": _between(rng, 2, 30)}


def _solve_distance(n: Numbers, w: Words) -> tuple[str, int]:
    a, h, b, name = n["a"], n["h"], n["b"], w["name"]
    return (
        f"{name} travels {a} miles every hour for {h} hours. First we multiply. {spell_multiply(a, h)} "
        f"So that part is {a * h} miles. {name} also walks {b} miles. Now we add. "
        f"{spell_add(a * h, b)} So {name} goes {a * h + b} miles in total."
    ), a * h + b


def _draw_savings(rng: Random) -> Numbers:
    p = _between(rng, 2, 9)
    missing = p * _between(rng, 2, 9)
    b = _between(rng, 2, 99 - missing)
    return {"p": p, "b": b, "c": b + missing}


def _solve_savings(n: Numbers, w: Words) -> tuple[str, int]:
    p, b, c, name = n["p"], n["b"], n["c"], w["name"]
    weeks = (c - b) // p
    return (
        f"{name} needs {c} dollars and has {b} dollars. To find how many are missing, we subtract. "
        f"{spell_subtract(c, b)} {name} saves {p} dollars every week, so we divide. "
        f"{spell_divide(c - b, p)} So {name} has to save for {weeks} weeks."
    ), weeks


def _draw_ages(rng: Random) -> Numbers:
    return {"a": _between(rng, 3, 50), "b": _between(rng, 2, 30), "n": _between(rng, 2, 19)}


def _solve_ages(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, years, other = n["a"], n["b"], n["n"], w["other"]
    return (
        f"{w['name']} is {a} years old and {other} is {b} years older. To find the age of {other}, we add. "
        f"{spell_add(a, b)} So {other} is {a + b} years old now. To look {years} years ahead, we add again. "
        f"{spell_add(a + b, years)} So {other} will be {a + b + years} years old."
    ), a + b + years


def _draw_pages(rng: Random) -> Numbers:
    n = _between(rng, 2, 9)
    a = _between(rng, 2, min(30, 90 // n))
    return {"a": a, "n": n, "c": _between(rng, a * n + 2, 99)}


def _solve_pages(n: Numbers, w: Words) -> tuple[str, int]:
    a, days, c, name = n["a"], n["n"], n["c"], w["name"]
    return (
        f"{name} reads {a} pages every day for {days} days. First we multiply. {spell_multiply(a, days)} "
        f"So {name} has read {a * days} pages. The book has {c} pages. Now we subtract. "
        f"{spell_subtract(c, a * days)} So there are {c - a * days} pages left."
    ), c - a * days


def _draw_legs(rng: Random) -> Numbers:
    # The numbers of legs, p and q, belong to the animals and are filled in with them.
    return {"a": _between(rng, 2, 9), "b": _between(rng, 2, 9)}


def _solve_legs(n: Numbers, w: Words) -> tuple[str, int]:
    a, b, p, q = n["a"], n["b"], n["p"], n["q"]
    return (
        f"First we look at the {w['things']}. There are {a} of them with {p} legs each. "
        f"{spell_multiply(a, p)} Next we look at the {w['others']}. There are {b} of them with {q} legs each. "
        f"{spell_multiply(b, q)} Now we add the legs. {spell_add(a * p, b * q)} "
        f"So there are {a * p + b * q} legs in total."
    ), a * p + b * q


FAMILIES: dict[str, Family] = {
    "buy_more": Family("some are bought on top: a + b", _draw_buy_more, _solve_buy_more),
    "give_away": Family("some are given away: a - b", _draw_give_away, _solve_give_away),
    "boxes": Family("equal boxes: a * b", _draw_boxes, _solve_boxes),
    "price": Family("price of two kinds of things: a * p + b * q", _draw_price, _solve_price),
    "change": Family("change from a payment: c - a * p", _draw_change, _solve_change),
    "share": Family("put together and share equally: (a + b) / n", _draw_share, _solve_share),
    "gain_and_lose": Family("some come, some go: a + b - c", _draw_gain_and_lose, _solve_gain_and_lose),
    "difference": Family("how many more or fewer: a - b", _draw_give_away, _solve_difference),
    "times_as_many": Family(
        "together with k times as many: a * k + a", _draw_times_as_many, _solve_times_as_many
    ),
    "distance": Family("speed times hours plus a walk: a * h + b", _draw_distance, _solve_distance),
    "savings": Family("weeks of saving up to a price: (c - b) / p", _draw_savings, _solve_savings),
    "ages": Family("an older person's age some years ahead: a + b + n", _draw_ages, _solve_ages),
    "pages": Family("pages left after some days: c - a * n", _draw_pages, _solve_pages),
    "legs": Family("legs of two kinds of animals: a * p + b * q", _draw_legs, _solve_legs),
}
