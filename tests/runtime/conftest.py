"""Fixtures of the engine tests: a random pair, engines that live for the whole session, the ground truth."""

from __future__ import annotations

import pytest
import torch

from d3d_runtime.training.vocabulary import train_vocabulary

from .tiny_pair import Engines, Pair, plain_decoder, save_pair


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Threads cost more than they bring to a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Pair:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def unshifted_pair(tmp_path_factory) -> Pair:
    """The drafter predicts each mask's own token: L = block_size - 1."""
    return save_pair(tmp_path_factory.mktemp("unshifted"), logit_shift=False, seed=1)


@pytest.fixture(scope="session")
def text_pair(tmp_path_factory) -> Pair:
    """A pair with a tokenizer. Weights are random, so outputs are full of broken and split characters."""
    folder = tmp_path_factory.mktemp("text")
    pair = save_pair(folder, vocab_size=300, seed=2)
    texts = ["Anna has 3 red apples and 14 pens. The answer is 17. Größe, 日本語, 🙂 and ☕."] * 4
    train_vocabulary(texts, 300, pair.target)
    return pair


@pytest.fixture(scope="session")
def _engines():
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture
def engines(_engines):
    """Engines by (pair, mode, options). After every test they must be idle, with every page back."""
    yield _engines
    _engines.assert_idle()


@pytest.fixture(scope="session")
def plain(_engines, pair):
    """plain(prompt, params) -> (token ids, finish reason) of plain decoding, alone, in float64."""
    return plain_decoder(_engines(pair, "autoregressive", max_batch_size=1))
