"""`d3d train target`: the embedded pair's autoregressive half, from nothing."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from d3d_runtime.models.attention import causal_attention
from d3d_runtime.models.config import ModelConfig
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.loader import save_model
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.progress import Progress, silent
from d3d_runtime.training.data import Batch, problem_batches
from d3d_runtime.training.loop import Schedule, train, write_curve
from d3d_runtime.training.problems import generate
from d3d_runtime.training.vocabulary import train_vocabulary

# Deep and narrow: a drafter that is several times shallower is what makes drafting ahead visible on a CPU.
EMBEDDED_TARGET = ModelConfig(
    vocab_size=1024,
    hidden_size=160,
    intermediate_size=448,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
    eos_token_id=0,
)


def initialise(model: Decoder) -> None:
    """Normal weights; the two projections that write into the residual stream start smaller the deeper the model."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            deep = name.endswith(("out.weight", "down.weight"))
            std = 0.02 if name.startswith(("embed", "head")) else weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=std / (2 * model.config.num_hidden_layers) ** 0.5 if deep else std)


def target_loss(model: Decoder, batch: Batch) -> Tensor:
    """Mean cross-entropy of the answer's tokens; the question only conditions."""
    positions = torch.arange(batch.token_ids.shape[1] - 1).expand(len(batch.lengths), -1)
    hidden = model(batch.token_ids[:, :-1], positions, causal_attention)
    wanted = batch.answer_mask()
    return F.cross_entropy(model.logits(hidden[wanted]), batch.token_ids[:, 1:][wanted])


def train_target(
    folder: Path,
    *,
    steps: int,
    minutes: float,
    batch_size: int,
    learning_rate: float,
    drills: float,
    seed: int,
    progress: Progress = silent,
) -> None:
    """Trains, or goes on from `folder/target.pt`, and writes a Hugging Face folder with the loss curve."""
    if not Tokenizer.exists(folder):
        texts = (p.question + " " + p.solution for p in generate(seed, 20_000, "train", drills=0.1))
        train_vocabulary(texts, EMBEDDED_TARGET.vocab_size, folder)
    tokenizer = Tokenizer(folder)
    torch.manual_seed(seed)
    model = Decoder(EMBEDDED_TARGET)
    initialise(model)
    history = train(
        model,
        lambda step: problem_batches(tokenizer, seed, step, batch_size, drills),
        lambda batch, _: target_loss(model, batch),
        Schedule(steps, learning_rate, minutes=minutes),
        folder / "target.pt",
        progress=progress,
    )
    save_model(model, folder)
    write_curve(history, folder, "target")
