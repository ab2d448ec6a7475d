"""Tokens to text one at a time: what streams is what a whole decode writes, and stop strings cut exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d3d_runtime.detokenizer import Detokenizer
from d3d_runtime.models.tokenizer import Tokenizer

TEXTS = [
    "Anna has 3 red apples.",
    "Größe: 日本語 🙂🙃 ☕",
    "a\ufffdb",
    "The answer is 17.",
    "👩‍👩‍👧 é ñ",
    "",
    " \n\n 0",
]


@pytest.fixture(scope="module")
def tokenizer(text_pair) -> Tokenizer:
    return Tokenizer(text_pair.target)


def stream(tokenizer: Tokenizer, tokens: list[int], stop: list[str]) -> tuple[list[str], Detokenizer, int]:
    """Increments of a request that ends at its stop string or with its last token; tokens it took."""
    detokenizer, pieces, used = Detokenizer(tokenizer, stop), [], 0
    for used, token in enumerate(tokens, start=1):
        detokenizer.append(token)
        pieces.append(detokenizer.take(flush=detokenizer.stopped))
        if detokenizer.stopped:
            return pieces, detokenizer, used
    return [*pieces, detokenizer.take(flush=True)], detokenizer, used


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back(text, tokenizer):
    pieces, detokenizer, _ = stream(tokenizer, tokenizer.encode(text), [])
    assert "".join(pieces) == detokenizer.finish() == text


def test_half_a_character_is_held_back(tokenizer):
    tokens = tokenizer.encode("a🚀b")
    pieces, _, _ = stream(tokenizer, tokens, [])
    assert len(tokens) >= 5 and all("\ufffd" not in piece for piece in pieces)
    assert pieces.count("🚀") == 1


@given(tokens=st.lists(st.integers(0, 299), max_size=40))
def test_any_tokens_stream_to_the_text_of_a_whole_decode(tokens, tokenizer):
    """Broken characters and special tokens included."""
    pieces, detokenizer, _ = stream(tokenizer, tokens, [])
    assert "".join(pieces) == detokenizer.finish() == tokenizer.decode(tokens)


LETTERS = "abö🚀 "


@given(
    text=st.text(LETTERS, max_size=24), stop=st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=3)
)
def test_any_stop_string_cuts_where_it_begins(tokenizer, text, stop):
    tokens = tokenizer.encode(text)
    pieces, detokenizer, used = stream(tokenizer, tokens, stop)
    kept = tokenizer.decode(tokens[:used])
    assert "".join(pieces) == detokenizer.finish()
    assert detokenizer.stopped == any(string in text for string in stop)
    if detokenizer.stopped:
        first = min(kept.find(string) for string in stop if string in kept)
        assert detokenizer.finish() == kept[:first]
        before = tokenizer.decode(tokens[: used - 1])
        assert not any(string in before for string in stop)
    else:
        assert detokenizer.finish() == text


def test_a_stop_string_before_half_a_character_cuts_at_once():
    """A token may end one character and begin the next: the stop string is complete with the first."""

    class Bytes:
        def decode(self, token_ids: list[int]) -> str:
            return b"".join((b"a", b"\xc3", b"\xb6\xc3", b"\xb6")[i] for i in token_ids).decode(
                errors="replace"
            )

    pieces, detokenizer, used = stream(Bytes(), [0, 1, 2, 3], ["ö"])
    assert detokenizer.stopped and used == 3 and "".join(pieces) == "a"
    pieces, detokenizer, used = stream(Bytes(), [0, 1, 2, 3], ["öö"])
    assert detokenizer.stopped and used == 4 and "".join(pieces) == "a"


def test_text_that_may_become_a_stop_string_is_held_back(tokenizer):
    pieces, detokenizer, _ = stream(tokenizer, tokenizer.encode("aaab") + tokenizer.encode("b"), ["aabx"])
    assert pieces[:3] == ["", "", ""] and "".join(pieces) == "aaabb"
    assert not detokenizer.stopped


def test_cost_does_not_grow_with_the_text(tokenizer, monkeypatch):
    """Decoding restarts from the last settled token, so each call sees a handful of tokens."""
    sizes = []
    decode = Tokenizer.decode

    def counted(self, token_ids):
        sizes.append(len(token_ids))
        return decode(self, token_ids)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    stream(tokenizer, tokenizer.encode("Anna has 3 red apples. " * 20), ["never"])
    assert max(sizes) < 10


class LeadingSpace:
    """Drops the space before the first word, as SentencePiece vocabularies do; token 0 is special."""

    words = ("", " red", " pens")

    def decode(self, token_ids: list[int]) -> str:
        return "".join(self.words[token] for token in token_ids).removeprefix(" ")


def test_a_special_token_does_not_swallow_the_space_behind_it():
    pieces, detokenizer, _ = stream(LeadingSpace(), [1, 0, 2, 0, 0, 1], [])
    assert "".join(pieces) == detokenizer.finish() == "red pens red"
