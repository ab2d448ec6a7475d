"""The tokenizer inside a GGUF file: byte-level BPE from its tokens and merges.

A GGUF names the splitting of text into words (`tokenizer.ggml.pre`) and leaves what it means to the reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from d3d_runtime.errors import UserError
from d3d_runtime.models.gguf_file import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # kinds of tokens; the others are ordinary


def _words(digits: str) -> str:
    """The splitting of Qwen and Llama 3, which differ in how many digits stay together."""
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    return (
        rf"{contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


SPLITTINGS = {  # None: GPT-2's
    "gpt-2": None,
    "default": None,
    "smollm": None,
    "qwen2": _words(r"\p{N}"),
    "llama-bpe": _words(r"\p{N}{1,3}"),
}


def read_tokenizer(file: GGUFFile) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and what a tokenizer_config.json would say: special tokens and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    get = file.metadata.get
    kind, splitting = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise _refusal(file.path, f"a tokenizer of kind {kind!r}; only byte-level BPE ('gpt2') is supported")
    if splitting not in SPLITTINGS:
        raise _refusal(file.path, f"text splitting {splitting!r}; supported are {', '.join(SPLITTINGS)}")
    tokens, merges = get("tokenizer.ggml.tokens") or [], get("tokenizer.ggml.merges") or []
    kinds = get("tokenizer.ggml.token_type") or [1] * len(tokens)
    vocabulary = {token: i for i, token in enumerate(tokens) if kinds[i] != UNUSED}
    try:
        bpe = models.BPE(
            vocabulary,
            [tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=splitting == "llama-bpe",
        )
    except Exception as error:  # the Rust side raises bare Exception
        raise _refusal(file.path, f"merges that do not fit its tokens ({error})") from None
    tokenizer = Tokenizer(bpe)
    if splitting == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(splitting)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds) if k == USER_DEFINED])
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds) if k == CONTROL])

    config = {"chat_template": get("tokenizer.chat_template")}
    for name in ("bos", "eos", "mask"):
        index = get(f"tokenizer.ggml.{name}_token_id")
        config[f"{name}_token"] = tokens[index] if index is not None and index < len(tokens) else None
    if config["bos_token"] is not None and get("tokenizer.ggml.add_bos_token", splitting == "llama-bpe"):
        special = [(config["bos_token"], get("tokenizer.ggml.bos_token_id"))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{special[0][0]} $A", special_tokens=special)
    return tokenizer, config


def _pre_tokenizer(splitting: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    pattern = SPLITTINGS[splitting]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_of])
    if splitting == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of])
    return bytes_of


def _refusal(path: Path, what: str) -> UserError:
    return UserError(f"tokenizer {str(path)!r}: it has {what}; use the model's Hugging Face folder")
