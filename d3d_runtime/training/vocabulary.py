"""The embedded pair's vocabulary: byte-level BPE with every digit a token of its own, and a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

EOS, MASK, USER, ASSISTANT = "<|endoftext|>", "<|mask|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (EOS, MASK, USER, ASSISTANT)  # ids 0 to 3

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    + ASSISTANT
    + "{{ message.content }}"
    + EOS
    + "{% else %}"
    + USER
    + "{{ message.content }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def train_vocabulary(texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. Any UTF-8 text can be encoded: all 256 bytes are in."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # A leading space belongs to its word but never to a digit: "47" is the same two tokens wherever it stands.
    pieces = Regex(r"\d| ?[A-Za-z]+|\s+(?=\d)|[^\sA-Za-z\d]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": EOS,
        "mask_token": MASK,
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
