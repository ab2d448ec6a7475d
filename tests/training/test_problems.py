"""The word problems: exact arithmetic, disjoint splits, and answers recomputed from the question alone."""

from __future__ import annotations

import doctest
import operator
import re
from functools import cache
from random import Random
from string import Formatter

import pytest

from d3d_runtime.training import arithmetic
from d3d_runtime.training.arithmetic import spell_add, spell_divide, spell_multiply, spell_subtract
from d3d_runtime.training.problems import (
    DRILL,
    FAMILIES,
    SPLITS,
    Problem,
    check,
    drill,
    generate,
    is_reserved,
)
from d3d_runtime.training.wordings import HELD_OUT_WORDINGS, LEGS, NAMES, THINGS, WORDINGS

STATEMENT = re.compile(r"(\d+(?: [-+*/] \d+)+) = (\d+)")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}

# Written a second time, independently of the solutions, from what each family's question asks.
ANSWERS = {
    "buy_more": lambda a, b: a + b,
    "give_away": lambda a, b: a - b,
    "boxes": lambda a, b: a * b,
    "price": lambda a, b, p, q: a * p + b * q,
    "change": lambda a, p, c: c - a * p,
    "share": lambda a, b, n: (a + b) / n,
    "gain_and_lose": lambda a, b, c: a + b - c,
    "difference": lambda a, b: a - b,
    "times_as_many": lambda a, k: a + a * k,
    "distance": lambda a, h, b: a * h + b,
    "savings": lambda p, b, c: (c - b) / p,
    "ages": lambda a, b, n: a + b + n,
    "pages": lambda a, n, c: c - a * n,
    "legs": lambda a, b, p, q: a * p + b * q,
}


@cache
def sample(split: str, count: int = 3000, drills: float = 0.0) -> tuple[Problem, ...]:
    return tuple(generate(5, count, split, drills))


def everything() -> tuple[Problem, ...]:
    return (
        sample("train", drills=0.2)
        + sample("held_out_values", count=300)
        + sample("held_out_wordings", count=1500)
    )


def value(expression: str) -> float:
    first, *rest = expression.split()
    result: float = int(first)
    for sign, operand in zip(rest[::2], rest[1::2]):
        result = OPERATIONS[sign](result, int(operand))
    return result


def assert_statements_hold(text: str) -> None:
    statements = STATEMENT.findall(text)
    assert len(statements) == text.count("=") > 0, text
    for left, right in statements:
        assert value(left) == int(right), text


def read_numbers(problem: Problem) -> dict[str, int]:
    """The numbers of a question, recovered by matching its wording."""
    pattern, seen = "", set()
    for literal, slot, _, _ in Formatter().parse(WORDINGS[problem.family][problem.wording]):
        pattern += re.escape(literal)
        if slot in seen:
            pattern += f"(?P={slot})"
        elif slot is not None:
            seen.add(slot)
            pattern += rf"(?P<{slot}>\d+)" if len(slot) == 1 else rf"(?P<{slot}>[A-Za-z]+)"
    match = re.fullmatch(pattern, problem.question)
    assert match, problem
    return {slot: int(text) for slot, text in match.groupdict().items() if len(slot) == 1}


# ---- arithmetic


@pytest.mark.parametrize(
    ("spell", "sign", "operands"),
    [
        (spell_add, "+", [(a, b) for a in range(100) for b in range(100)]),
        (spell_subtract, "-", [(a, b) for a in range(100) for b in range(a + 1)]),
        (spell_multiply, "*", [(a, b) for a in range(100) for b in range(10)]),
        (spell_divide, "/", [(b * c, b) for b in range(1, 10) for c in range(10)]),
    ],
)
def test_every_spelling_states_only_truths_and_contains_its_result(spell, sign, operands):
    for a, b in operands:
        text = spell(a, b)
        assert_statements_hold(text)
        result = int(OPERATIONS[sign](a, b))
        assert f"{a} {sign} {b} = {result}" in text and text.endswith(".")


@pytest.mark.parametrize(
    ("spell", "a", "b", "digits"),
    [(spell_add, 47, 38, "write 5 carry 1"), (spell_subtract, 52, 17, "write 5 borrow 1")],
)
def test_columns_write_the_ones_and_carry(spell, a, b, digits):
    assert digits in spell(a, b)


def test_written_digit_and_carry_are_those_of_the_column():
    for a in range(10, 100):
        for b in range(10):
            ones, digit, carry = re.search(r"= (\d+), write (\d) carry (\d)", spell_add(a, b)).groups()
            assert int(ones) == 10 * int(carry) + int(digit)
            ones, digit, carry = re.search(r"= (\d+), write (\d) carry (\d)", spell_multiply(a, b)).groups()
            assert int(ones) == 10 * int(carry) + int(digit)


@pytest.mark.parametrize(
    ("spell", "a", "b"),
    [
        (spell_add, 100, 1),
        (spell_add, -1, 1),
        (spell_subtract, 3, 4),
        (spell_multiply, 5, 10),
        (spell_divide, 7, 2),
        (spell_divide, 4, 0),
        (spell_divide, 90, 9),
    ],
)
def test_operands_out_of_range_are_refused(spell, a, b):
    with pytest.raises(ValueError, match="out of range"):
        spell(a, b)


def test_docstring_examples():
    results = doctest.testmod(arithmetic)
    assert results.attempted >= 5 and results.failed == 0


# ---- problems


def test_every_statement_in_every_solution_holds():
    for problem in everything():
        if "=" in problem.solution:
            assert_statements_hold(problem.solution)
        else:
            assert problem.family == DRILL


def test_answers_follow_from_the_numbers_of_the_question():
    families = set()
    for problem in everything():
        if problem.family == DRILL:
            continue
        families.add(problem.family)
        assert ANSWERS[problem.family](**read_numbers(problem)) == problem.answer, problem
    assert families == set(FAMILIES) == set(WORDINGS)


def test_drills_are_answered_right():
    rng, kinds = Random(0), set()
    for _ in range(2000):
        problem = drill(rng)
        kinds.add(problem.wording)
        if match := re.fullmatch(r"What is (\d+ [-+*/] \d+)\?", problem.question):
            assert value(match[1]) == problem.answer
        else:
            asked = re.search(r"How many (\w+) does", problem.question)[1]
            assert re.findall(rf"(\d+) {asked}\b", problem.question) == [str(problem.answer)]
    assert len(kinds) == 6


def test_solutions_end_in_the_answer_and_numbers_stay_small():
    for problem in everything():
        assert problem.solution.endswith(f" The answer is {problem.answer}.")
        assert problem.solution.count("The answer is") == 1
        assert all(int(number) <= 200 for number in re.findall(r"\d+", problem.question + problem.solution))
        assert len(problem.question.split()) <= 45
        assert "{" not in problem.question + problem.solution
        assert not re.search(r"\b[01] (?!and\b)[a-z]+s\b", problem.solution), "a counted noun is plural"


def test_each_wording_uses_exactly_the_numbers_of_its_family():
    for name, wordings in WORDINGS.items():
        assert len(wordings) >= 8 and len(set(wordings)) == len(wordings)
        slots = [
            {slot for _, slot, _, _ in Formatter().parse(text) if slot and len(slot) == 1}
            for text in wordings
        ]
        expected = set(FAMILIES[name].draw(Random(0))) | ({"p", "q"} if name == "legs" else set())
        assert all(found == expected for found in slots), name


def test_pools_have_regular_distinct_words():
    assert len(set(NAMES)) == len(NAMES) == 40
    assert len(set(THINGS)) == len(THINGS) == 40
    assert all(word.endswith("s") and not word.endswith("ss") for word in (*THINGS, *LEGS))


# ---- splits


@pytest.mark.parametrize("split", SPLITS)
def test_same_arguments_same_problems_and_other_seeds_others(split):
    first = list(generate(1, 100, split))
    assert first == list(generate(1, 100, split))
    assert len(first) == 100
    assert {problem.question for problem in first}.isdisjoint(
        problem.question for problem in generate(2, 100, split)
    )


def test_training_never_yields_a_reserved_question_nor_a_held_out_wording():
    for problem in sample("train", drills=0.2):
        assert not is_reserved(problem.question)
        if problem.family != DRILL:
            assert problem.wording < len(WORDINGS[problem.family]) - HELD_OUT_WORDINGS


def test_held_out_values_are_reserved_questions_in_training_wordings():
    for problem in generate(3, 200, "held_out_values", drills=0.3):
        assert is_reserved(problem.question)
        if problem.family != DRILL:
            assert problem.wording < len(WORDINGS[problem.family]) - HELD_OUT_WORDINGS


def test_held_out_wordings_cover_every_family_and_only_the_last_wordings():
    found = {(problem.family, problem.wording) for problem in sample("held_out_wordings", count=1500)}
    expected = {(name, len(texts) - back) for name, texts in WORDINGS.items() for back in (1, 2)}
    assert HELD_OUT_WORDINGS == 2 and found == expected


def test_words_of_held_out_wordings_all_occur_in_training():
    def words(problems):
        return {word for problem in problems for word in re.findall(r"[A-Za-z]+", problem.question)}

    assert words(sample("held_out_wordings", count=1500)) <= words(sample("train", drills=0.2))


def test_share_of_drills():
    made = sample("train", drills=0.2)
    share = sum(problem.family == DRILL for problem in made) / len(made)
    assert 0.16 < share < 0.24
    assert all(problem.family != DRILL for problem in sample("held_out_wordings", count=1500))
    assert all(problem.family == DRILL for problem in generate(0, 50, "train", drills=1.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "split"),
        ({"split": "train", "drills": 1.5}, "drills"),
        ({"split": "held_out_wordings", "drills": 0.1}, "drills"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        next(generate(0, 1, **arguments))


# ---- check


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("7 + 8 = 15. The answer is 15.", True),
        ("The answer is 14. No. The answer is 15.", True),
        ("The answer is 15. The answer is 14.", False),
        ("The answer is 15", False),
        ("The answer is 150.", False),
        ("The answer is -15.", False),
        ("7 + 8 = 15.", False),
        ("", False),
    ],
)
def test_check_reads_the_last_stated_answer(text, right):
    assert check(15, text) is right


def test_check_accepts_every_solution():
    assert all(check(problem.answer, problem.solution) for problem in everything())
