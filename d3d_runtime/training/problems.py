"""Word problems a five-million-parameter model can learn, with worked solutions.

They feed the training of the small target and drafter pair: endless, free of any licence, and with answers
that can be checked. A training problem and a held-out one can never have the same question: the split of a
question follows from the question itself (a checksum of its text, or its wording), not from a stored list.

    for problem in generate(seed=0, count=3, split="train"):
        print(problem.question, problem.solution)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from d3d_runtime.training.arithmetic import spell_add, spell_divide, spell_multiply, spell_subtract
from d3d_runtime.training.families import FAMILIES
from d3d_runtime.training.wordings import HELD_OUT_WORDINGS, LEGS, NAMES, THINGS, WORDINGS

Split = Literal["train", "held_out_values", "held_out_wordings"]
SPLITS: tuple[Split, ...] = ("train", "held_out_values", "held_out_wordings")

DRILL = "drill"
RESERVED_ONE_IN = 50

_FAMILY_NAMES = tuple(FAMILIES)
_ANIMALS = tuple(LEGS)
_ANSWER = re.compile(r"The answer is (-?\d+)\.")


@dataclass(frozen=True)
class Problem:
    """A question and its worked solution, which ends with `The answer is N.`

    `family` is a key of FAMILIES or "drill"; `wording` is the index of the family's wording, or for a drill
    the index of its kind.
    """

    family: str
    wording: int
    question: str
    solution: str
    answer: int


def generate(seed: int, count: int, split: Split, drills: float = 0.0) -> Iterator[Problem]:
    """Yields `count` problems, the same ones for the same arguments, families uniformly at random.

    train:             training wordings, questions that are not reserved.
    held_out_values:   training wordings, reserved questions only (names, things and numbers never seen together).
    held_out_wordings: wordings that training never uses.

    `drills` is the share of drills; "held_out_wordings" has none. Raises ValueError at the first `next` for an
    unknown split, a share outside [0, 1], or drills in "held_out_wordings".
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {SPLITS}, got {split!r}")
    if not 0.0 <= drills <= 1.0:
        raise ValueError(f"drills: expected a share in [0, 1], got {drills}")
    if drills and split == "held_out_wordings":
        raise ValueError("drills: held_out_wordings has none, a drill has a single wording")
    rng = Random(f"{split} {seed}")  # a text seed: streams of different splits or seeds are unrelated
    made = 0
    while made < count:
        if rng.random() < drills:
            problem = drill(rng)
            if is_reserved(problem.question) != (split == "held_out_values"):
                continue
        else:
            maybe = _word_problem(rng, split)
            if maybe is None:
                continue
            problem = maybe
        made += 1
        yield problem


def is_reserved(question: str) -> bool:
    """Whether a question is kept out of training: one question in `RESERVED_ONE_IN`, by its checksum."""
    return zlib.crc32(question.encode()) % RESERVED_ONE_IN == 0


def check(problem_answer: int, text: str) -> bool:
    """Whether the last `The answer is N.` of a text states the right answer."""
    stated = _ANSWER.findall(text)
    return bool(stated) and int(stated[-1]) == problem_answer


def drill(rng: Random) -> Problem:
    """One bare exercise: an operation in the spelling the solutions use, or finding a number in a sentence."""
    kind = rng.choices(range(len(_DRILLS)), cum_weights=_DRILL_CUM_WEIGHTS)[0]
    question, steps, answer = _DRILLS[kind](rng)
    return Problem(DRILL, kind, question, _finish(steps, answer), answer)


def _word_problem(rng: Random, split: Split) -> Problem | None:
    """One word problem, or None if the question drawn belongs to another split."""
    name = rng.choice(_FAMILY_NAMES)
    family, wordings = FAMILIES[name], WORDINGS[name]
    in_training = len(wordings) - HELD_OUT_WORDINGS
    if split == "held_out_wordings":
        wording = rng.randrange(in_training, len(wordings))
    else:
        wording = rng.randrange(in_training)

    numbers = family.draw(rng)
    person, other = rng.sample(NAMES, 2)
    if name == "legs":
        things, others = _two_animals(rng)
        numbers |= {"p": LEGS[things], "q": LEGS[others]}
    else:
        things, others = rng.sample(THINGS, 2)
    words = {
        "name": person,
        "other": other,
        "things": things,
        "thing": things[:-1],
        "others": others,
        "another": others[:-1],
    }
    question = wordings[wording].format(**numbers, **words)
    if split != "held_out_wordings" and is_reserved(question) != (split == "held_out_values"):
        return None
    steps, answer = family.solve(numbers, words)
    return Problem(name, wording, question, _finish(steps, answer), answer)


def _two_animals(rng: Random) -> tuple[str, str]:
    """Two animals with different numbers of legs."""
    while True:
        one, two = rng.sample(_ANIMALS, 2)
        if LEGS[one] != LEGS[two]:
            return one, two


def _finish(steps: str, answer: int) -> str:
    return f"{steps} The answer is {answer}."


def _drill_add(rng: Random) -> tuple[str, str, int]:
    a, b = rng.randrange(100), rng.randrange(100)
    return f"What is {a} + {b}?", spell_add(a, b), a + b


def _drill_subtract(rng: Random) -> tuple[str, str, int]:
    b, a = sorted((rng.randrange(100), rng.randrange(100)))
    return f"What is {a} - {b}?", spell_subtract(a, b), a - b


def _drill_multiply(rng: Random) -> tuple[str, str, int]:
    b = rng.randrange(2, 10)
    a = rng.randrange(min(100, 200 // b + 1))
    return f"What is {a} * {b}?", spell_multiply(a, b), a * b


def _drill_divide(rng: Random) -> tuple[str, str, int]:
    b, quotient = rng.randrange(2, 10), rng.randrange(1, 10)
    return f"What is {b * quotient} / {b}?", spell_divide(b * quotient, b), quotient


def _drill_small(rng: Random) -> tuple[str, str, int]:
    """The one-digit facts all other spellings are made of."""
    a, b = rng.randrange(10), rng.randrange(10)
    operation = rng.randrange(3)
    if operation == 0:
        return f"What is {a} + {b}?", spell_add(a, b), a + b
    if operation == 1:
        return f"What is {a + b} - {b}?", f"{a + b} - {b} = {a}.", a
    return f"What is {a} * {b}?", spell_multiply(a, b), a * b


def _drill_copy(rng: Random) -> tuple[str, str, int]:
    count = rng.randrange(2, 5)
    name, things = rng.choice(NAMES), rng.sample(THINGS, count)
    numbers = [rng.randrange(2, 100) for _ in things]
    owned = [f"{number} {thing}" for number, thing in zip(numbers, things)]
    listed = ", ".join(owned[:-1]) + " and " + owned[-1]
    asked = rng.randrange(count)
    question = f"{name} has {listed}. How many {things[asked]} does {name} have?"
    return question, f"{name} has {owned[asked]}.", numbers[asked]


_DRILLS = (_drill_add, _drill_subtract, _drill_multiply, _drill_divide, _drill_small, _drill_copy)
_DRILL_CUM_WEIGHTS = (25, 50, 65, 75, 85, 100)
