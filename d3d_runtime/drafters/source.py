"""Which drafter a name means, what is known of it before its weights are read, and how it is made for a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from d3d_runtime.drafters.dflash import DFlashDrafter
from d3d_runtime.drafters.diffusion import DiffusionDrafter
from d3d_runtime.drafters.drafter import Drafter
from d3d_runtime.drafters.ngram import NgramDrafter
from d3d_runtime.errors import UserError
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.models.checkpoint import SafetensorsFolder, open_checkpoint
from d3d_runtime.models.config import DiffusionSettings, ModelConfig, parse_diffusion
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.dflash import is_dflash, load_dflash, parse_dflash
from d3d_runtime.models.tokenizer import Tokenizer

NUM_CANDIDATES = 8
NGRAM, NGRAM_BLOCK = "ngram", 12  # the name of prompt lookup, in the place of a path


@dataclass(frozen=True)
class Surroundings:
    """What a drafter is made with: its target, and the engine's ways to load weights and to make a KV pool."""

    target: Decoder
    tokenizer: Tokenizer | None
    load: Callable[[Path], Decoder]
    new_cache: Callable[[ModelConfig], KVCache]


class DrafterSource(Protocol):
    drafts_ahead: bool  # it can draft behind outcomes that have not come true yet
    block_size: int
    config: ModelConfig | None  # of its weights, if it has any

    def make(self, around: Surroundings) -> Drafter:
        """Raises UserError, in one line, if it does not fit the target."""


def open_drafter(path: Path, settings: DiffusionSettings) -> DrafterSource:
    """settings: what the user says about it; what they leave open its config says."""
    if str(path) == NGRAM:
        return NgramSource(settings)
    checkpoint = open_checkpoint(path)
    if is_dflash(checkpoint.raw):
        return DFlashSource(checkpoint, settings)
    return DiffusionSource(path, settings)


class NgramSource:
    """Prompt lookup; of the settings only the block size means something: the root and the tokens behind it."""

    drafts_ahead, config = False, None

    def __init__(self, settings: DiffusionSettings):
        if settings.block_size is not None and not 2 <= settings.block_size <= 64:
            raise UserError(f"block_size: expected 2 to 64, got {settings.block_size}")
        self.block_size = settings.block_size or NGRAM_BLOCK

    def make(self, around: Surroundings) -> NgramDrafter:
        return NgramDrafter(self.block_size - 1, NUM_CANDIDATES, around.target.config.vocab_size)


class DFlashSource:
    """Layers that read the target's hidden states. Its config says all about it; settings would only break it."""

    drafts_ahead = False

    def __init__(self, checkpoint: SafetensorsFolder, settings: DiffusionSettings):
        given = next((name for name, value in vars(settings).items() if value is not None), None)
        if given is not None:
            raise UserError(f"{given}: a DFlash drafter's own config decides that")
        self.checkpoint, self.dflash = checkpoint, parse_dflash(checkpoint)
        self.config, self.block_size = self.dflash.model, self.dflash.block_size

    def make(self, around: Surroundings) -> DFlashDrafter:
        path, wanted, dflash = self.checkpoint.folder, around.target.config, self.dflash
        check_vocabulary(path, self.config.vocab_size, wanted.vocab_size, around.tokenizer)
        check_positions(self.config, wanted)
        layers = wanted.num_hidden_layers
        if dflash.target_layers not in (None, layers) or not all(0 <= tap < layers for tap in dflash.taps):
            made_for = f"a target of {dflash.target_layers or max(dflash.taps) + 1} layers"
            raise UserError(f"drafter {str(path)!r}: it was made for {made_for}, this one has {layers}")
        if self.config.hidden_size != wanted.hidden_size:
            sizes = f"{self.config.hidden_size} wide, the target {wanted.hidden_size}"
            raise UserError(f"drafter {str(path)!r}: it is {sizes}; it uses the target's embedding")
        if not 0 <= dflash.mask_token_id < wanted.vocab_size:
            outside = f"mask_token_id {dflash.mask_token_id} is outside the target's vocabulary of {wanted.vocab_size}"
            raise UserError(f"drafter {str(path)!r}: {outside}")
        model = load_dflash(self.checkpoint, dflash, around.target)
        return DFlashDrafter(model, dflash, around.target, around.new_cache(self.config), NUM_CANDIDATES)


class DiffusionSource:
    """A stand-alone block-diffusion model."""

    def __init__(self, path: Path, settings: DiffusionSettings):
        checkpoint = open_checkpoint(path)
        diffusion = parse_diffusion(checkpoint.raw, path, settings)
        if diffusion is None:
            raise UserError(
                f"drafter {str(path)!r}: config.json has no 'block_size'; this is a plain model, not a d3d drafter, or "
                "one that does not say so: pass block_size, mask_token_id and logit_shift (`d3d doctor --drafter` "
                "finds them)"
            )
        self.path, self.config, self.diffusion = path, checkpoint.config, diffusion
        self.block_size = diffusion.block_size
        self.drafts_ahead = diffusion.clean_attention == "causal"

    def make(self, around: Surroundings) -> DiffusionDrafter:
        wanted = around.target.config
        check_vocabulary(self.path, self.config.vocab_size, wanted.vocab_size, around.tokenizer)
        check_positions(self.config, wanted)
        model = around.load(self.path)
        cache = around.new_cache(self.config)
        return DiffusionDrafter(model, cache, self.diffusion, NUM_CANDIDATES, vocab_size=wanted.vocab_size)


def check_positions(config: ModelConfig, wanted: ModelConfig) -> None:
    if config.max_position_embeddings < wanted.max_position_embeddings:
        raise UserError(
            f"drafter: it was made for {config.max_position_embeddings} positions, the target for "
            f"{wanted.max_position_embeddings}"
        )


def check_vocabulary(path: Path, size: int, target_size: int, target_tokenizer: Tokenizer | None) -> None:
    """Both models must mean the same by a token id. Sizes may differ by padding if the tokenizers say so."""
    own = Tokenizer(path) if Tokenizer.exists(path) else None
    if own is not None and target_tokenizer is not None:
        difference = own.first_difference(target_tokenizer)
        if difference is not None:
            token_id, ours, theirs = difference
            raise UserError(
                f"drafter {str(path)!r}: its tokenizer is not the target's: token {token_id} is {ours!r} there and "
                f"{theirs!r} in the target"
            )
    elif size != target_size:
        raise UserError(
            f"drafter: its vocabulary has {size} tokens, the target's {target_size}; padding would be fine, but only "
            "two tokenizers can tell, and one is missing"
        )
