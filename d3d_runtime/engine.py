"""The public engine: prompts in, outputs out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from d3d_runtime.detokenizer import Detokenizer
from d3d_runtime.devices import device_errors, parse_device
from d3d_runtime.drafters.source import Surroundings, open_drafter
from d3d_runtime.errors import UserError
from d3d_runtime.kv_cache import KVCache
from d3d_runtime.lanes import Inline, Lane, LaneLost, ProcessLane, ThreadLane
from d3d_runtime.models.checkpoint import open_checkpoint
from d3d_runtime.models.config import DiffusionSettings, ModelConfig, parse_diffusion
from d3d_runtime.models.decoder import Decoder
from d3d_runtime.models.hub import locate
from d3d_runtime.models.loader import load_decoder
from d3d_runtime.models.memory import Footprint, affordable_tokens
from d3d_runtime.models.tokenizer import Tokenizer
from d3d_runtime.policy import choose_policy
from d3d_runtime.prefix import Prefix
from d3d_runtime.progress import Progress, silent
from d3d_runtime.request import Request, RequestOutput
from d3d_runtime.round import Round
from d3d_runtime.sampling_params import SamplingParams
from d3d_runtime.scheduler import Scheduler
from d3d_runtime.target import Target

EMBEDDED_PAIR = Path(__file__).parent / "pair"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
PAGE_SIZE = 16
MAX_RESTARTS = 3  # of a drafter process that dies
USUAL_LENGTH = 512  # tokens a request is expected to need, when the pools are sized

Prompt = str | list[int] | list[dict[str, str]]


class Engine:
    """Runs a target with a drafter, token-identical to the target alone.

    target, drafter: model folders or .gguf files; None is the embedded pair (a target given without a drafter runs
    plain), drafter "none" runs the target alone, "ngram" looks drafts up in the text so far. mode: "auto",
    "autoregressive", "sync", "async" or "pingpong". dtype: None is float32.
    drafter_device: None puts the drafter beside the target, in modes that overlap them on a CPU in a process of its own
    ("process"); "cpu" keeps it in this process, where two threads share one interpreter.
    num_nodes, num_outcomes: N and E of a round, None lets the engine choose. max_batch_size: requests in one round.
    num_pages: KV pages of each model, None sizes the pools for full batches of usual length, or as memory allows.
    weights: "int8" keeps matrices in one byte a number (bfloat16 on a CPU only), None in dtype.
    block_size, mask_token_id, logit_shift, clean_attention: of the drafter, where its config does not say or is wrong.
    progress: hears how far the loading is, and the reading of prompts; an attribute, so another may listen later.
    Raises UserError, in one line, for whatever a user can mend.
    """

    def __init__(
        self,
        target: str | Path | None = None,
        drafter: str | Path | None = None,
        mode: str = "auto",
        device: str = "cpu",
        drafter_device: str | None = None,
        dtype: str | None = None,
        *,
        num_nodes: int | None = None,
        num_outcomes: int | None = None,
        max_batch_size: int = 16,
        num_pages: int | None = None,
        weights: str | None = None,
        block_size: int | None = None,
        mask_token_id: int | None = None,
        logit_shift: bool | None = None,
        clean_attention: str | None = None,
        progress: Progress = silent,
    ):
        self.dtype, self.progress = _dtype(dtype), progress
        self.device = parse_device("device", device)
        if drafter_device != "process":
            parse_device("drafter_device", drafter_device or device)
        self._drafter_device, self._restarts = drafter_device, 0
        if max_batch_size < 1:
            raise UserError(f"max_batch_size: expected at least 1, got {max_batch_size}")
        if num_pages is not None and num_pages < 1:
            raise UserError(f"num_pages: expected at least 1, got {num_pages}")
        self.int8_weights = _int8_weights(weights, self.dtype, self.device)
        folder, drafter_folder = _folders(target, drafter)
        settings = DiffusionSettings(block_size, mask_token_id, logit_shift, clean_attention)
        has_drafter = drafter_folder is not None and mode != "autoregressive"
        self._source = open_drafter(drafter_folder, settings) if has_drafter else None
        self._shape = (num_nodes, num_outcomes)
        self._follow(mode, has_drafter)
        with device_errors(self.device):
            self._load(folder, max_batch_size, num_pages)
        self._ids = count()
        self._submitted: set[str] = set()  # `step` reports these,
        self._ended: list[RequestOutput] = []  # also if they ended in a round of `generate` or `stream`

    def _load(self, folder: Path, max_batch_size: int, num_pages: int | None) -> None:
        """Models, their KV pools, and who runs them."""
        checkpoint = open_checkpoint(folder)
        if parse_diffusion(checkpoint.raw, folder) is not None:
            raise UserError(f"target {str(folder)!r}: this is a drafter (its config has block_size)")
        self.config = checkpoint.config
        pages = self._num_pages(max_batch_size, num_pages)

        def load(path: Path) -> Decoder:
            return load_decoder(path, self.dtype, self.device, self.progress, int8_weights=self.int8_weights)

        def new_cache(config: ModelConfig) -> KVCache:
            return KVCache(config, pages + 1, PAGE_SIZE, self.dtype, self.device)

        self._target = Target(load(folder), new_cache(self.config))
        self.tokenizer = Tokenizer(folder) if Tokenizer.exists(folder) else None
        self.eos_token_ids = self._eos_token_ids()
        self._drafter = None
        if self._source is not None:
            self._drafter = self._source.make(Surroundings(self._target.model, self.tokenizer, load, new_cache))
            self._target.taps = self._drafter.taps
        self._lane = self._open_lane()
        round_ = Round(self._target, self._drafter, self._lane)
        self._scheduler = Scheduler(
            self._target, self._drafter, round_, self.policy, max_batch_size, lambda *told: self.progress(*told)
        )

    def _num_pages(self, max_batch_size: int, asked: int | None) -> int:
        """Pages of each pool, checked against free memory before anything is loaded."""
        models, longest, scratch = {"target": self.config}, self.config.max_position_embeddings, self.num_nodes
        if self._source is not None:
            scratch += self.num_outcomes * self._source.block_size
            models |= {"drafter": self._source.config} if self._source.config is not None else {}
        one = min(longest, USUAL_LENGTH) + scratch
        full = max(max_batch_size * one, longest + scratch) + max_batch_size * PAGE_SIZE
        affordable = affordable_tokens(
            {role: Footprint.of(config, self.dtype, self.int8_weights) for role, config in models.items()},
            workspace=2 * max_batch_size * self.num_nodes * self.config.vocab_size * self.dtype.itemsize,
            wanted=asked * PAGE_SIZE if asked is not None else full,
            required=asked * PAGE_SIZE if asked is not None else one,
            device=self.device,
            dtype=self.dtype,
        )
        return asked if asked is not None else -(-affordable // PAGE_SIZE)

    def _follow(self, mode: str, has_drafter: bool) -> None:
        drafts_ahead = self._source is not None and self._source.drafts_ahead
        self.policy = choose_policy(mode, has_drafter, drafts_ahead, *self._shape)
        self.mode = mode if has_drafter else "autoregressive"
        self.num_nodes = max(plan.num_nodes for plan in self.policy.plans)
        self.num_outcomes = max(plan.num_outcomes for plan in self.policy.plans)

    def switch_mode(self, mode: str) -> None:
        """Goes on in another mode, with the models and prefixes that are there. Nothing may run or wait."""
        if self._scheduler.running or self._scheduler.waiting:
            raise UserError("mode: it cannot change while requests run")
        self._follow(mode, self._drafter is not None)
        self._scheduler.policy = self.policy
        if isinstance(self._lane, Inline):  # another lane has the drafter's KV, and serves every mode
            self._lane = self._scheduler.round.lane = self._open_lane()

    def _open_lane(self) -> Lane:
        """Where the drafter runs: beside the target if a plan overlaps them, on a CPU in a process of its own."""
        if not any(plan.overlaps for plan in self.policy.plans):
            return Inline()
        if self.device.type == "cpu" and self._drafter_device in (None, "process"):
            return ProcessLane("d3d-drafter", self._drafter)
        return ThreadLane("d3d-drafter")

    def _restart_lane(self, lost: LaneLost) -> None:
        """The requests are as they were before the round; a new drafter reads them again."""
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise lost
        warnings.warn(f"{lost}; it is started again", RuntimeWarning, stacklevel=4)
        self._lane.close()
        self._lane = self._scheduler.round.lane = self._open_lane()

    def close(self) -> None:
        self._lane.close()

    def generate(
        self, prompts: Prompt | list[Prompt], params: SamplingParams | list[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Runs all prompts to their end; outputs in the order of the prompts (n > 1: n outputs a prompt, in a row)."""
        prompts = [prompts] if _is_one_prompt(prompts) else list(prompts)
        each = params if isinstance(params, list) else [params or SamplingParams()] * len(prompts)
        if len(each) != len(prompts):
            raise UserError(f"params: expected one for all prompts or {len(prompts)}, got {len(each)}")
        requests = [request for prompt, p in zip(prompts, each) for request in self._requests(prompt, p, None)]
        self._scheduler.add(requests)
        try:
            while not all(request.finished for request in requests):
                self._run_round()
        except BaseException:  # an error, or Ctrl-C: leave nothing behind
            for request in requests:
                if not request.finished:
                    self._scheduler.abort(request.request_id)
            raise
        return [request.output() for request in requests]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, prefix: Prefix | None = None
    ) -> Iterator[RequestOutput]:
        """Yields what each round adds. Closing the iterator aborts the request.

        prefix: the KV of a conversation. The request reads only what its prompt does not share with the one that used
        the prefix before, and leaves its own there; `forget` frees it. Tokens and tau are the same with and without.
        """
        params = params or SamplingParams()
        if params.n != 1:
            raise UserError(f"n: expected 1 when streaming, got {params.n}")
        (request,) = self._requests(prompt, params, None)
        request.prefix = prefix
        self._scheduler.add([request])
        told_the_end = False
        try:
            while not told_the_end:
                if not request.finished:  # it may have ended in a round of somebody else
                    self._run_round()
                told_the_end = request.finished
                increment = request.increment()
                if increment.token_ids or told_the_end:  # nothing: it still waits, or is being prefilled
                    yield increment
        finally:
            if not request.finished:
                self._scheduler.abort(request.request_id)

    def forget(self, prefix: Prefix) -> None:
        """Frees the pages of a prefix; it can be used again."""
        self._scheduler.forget(prefix)

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, request_id: str | None = None) -> str:
        """Queues a request for `step` and returns its id (n > 1: of the first; the others end in -1, -2, ...)."""
        requests = self._requests(prompt, params or SamplingParams(), request_id)
        self._scheduler.add(requests)
        self._submitted.update(request.request_id for request in requests)
        return requests[0].request_id

    def step(self) -> list[RequestOutput]:
        """One round of everything that runs; returns the outputs of submitted requests that have ended."""
        self._run_round()
        ended, self._ended = self._ended, []
        return ended

    def _run_round(self) -> None:
        try:
            with device_errors(self.device):
                ran = self._scheduler.step()
        except LaneLost as lost:
            self._restart_lane(lost)
            ran = []
        for request in ran:
            if request.finished and request.request_id in self._submitted:
                self._submitted.remove(request.request_id)
                self._ended.append(request.output())

    def abort(self, request_id: str) -> RequestOutput:
        """Ends a waiting or running request; what it has generated is in the output, `finish_reason` is "abort"."""
        self._submitted.discard(request_id)
        return self._scheduler.abort(request_id).output()

    def _requests(self, prompt: Prompt, params: SamplingParams, request_id: str | None) -> list[Request]:
        tokens = self._encode(prompt)
        limit = self.config.max_position_embeddings
        if not tokens:
            raise UserError("prompt: it is empty; expected at least one token")
        if len(tokens) >= limit:
            raise UserError(f"prompt: {len(tokens)} tokens; this model takes at most {limit - 1}")
        bad = next((t for t in tokens if not 0 <= t < self.config.vocab_size), None)
        if bad is not None:
            raise UserError(f"prompt: token id {bad} is outside the vocabulary of {self.config.vocab_size}")
        if params.stop and self.tokenizer is None:
            raise UserError("stop: this model has no tokenizer; use stop_token_ids")
        for name in ("stop_token_ids", "logit_bias"):
            bad = next((t for t in getattr(params, name) if t >= self.config.vocab_size), None)
            if bad is not None:
                raise UserError(f"{name}: token id {bad} is outside the vocabulary of {self.config.vocab_size}")
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_token_ids)
        name = request_id
        if name is None:
            name = next(i for i in map(str, self._ids) if not self._scheduler.knows(i))
        first = self._request(name, tokens, params, stop_ids)
        copies = [
            self._request(f"{name}-{i}", tokens, replace(params, seed=sub_seed(first.seed, i)), stop_ids)
            for i in range(1, params.n)
        ]
        return [first, *copies]

    def _request(self, name: str, tokens: list[int], params: SamplingParams, stop_ids: frozenset[int]) -> Request:
        detokenizer = Detokenizer(self.tokenizer, params.stop) if self.tokenizer is not None else None
        most = min(params.max_tokens, self.config.max_position_embeddings - len(tokens))
        return Request(name, list(tokens), params, stop_ids, most, detokenizer)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return prompt
        if not isinstance(prompt, str | list):
            kind = type(prompt).__name__
            raise UserError(f"prompt: expected text, a list of token ids or of chat messages, got {kind}")
        if self.tokenizer is None:
            raise UserError("prompt: this model has no tokenizer; pass token ids")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=True)
        return self.tokenizer.encode_chat(prompt)

    def _eos_token_ids(self) -> frozenset[int]:
        ids = set(self.config.eos_token_ids)
        if self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            ids.add(self.tokenizer.eos_token_id)
        return frozenset(ids)


def sub_seed(seed: int, index: int) -> int:
    """The seed of output `index` of n: far from its neighbours, the request's own for index 0."""
    return (seed + index * 0x9E3779B97F4A7C15) % 2**64


def _is_one_prompt(prompts: Prompt | list[Prompt]) -> bool:
    return not isinstance(prompts, list) or (bool(prompts) and isinstance(prompts[0], int | dict))


def _folders(target: str | Path | None, drafter: str | Path | None) -> tuple[Path, Path | None]:
    if target is None:
        if not EMBEDDED_PAIR.is_dir():
            raise UserError("target: the embedded pair is not installed; pass target=")
        folder, own_drafter = EMBEDDED_PAIR / "target", EMBEDDED_PAIR / "drafter"
    else:
        folder, own_drafter = locate(target, "target"), None
    if drafter is None:
        return folder, own_drafter
    return folder, None if str(drafter) == "none" else locate(drafter, "drafter")


def _dtype(name: str | None) -> torch.dtype:
    if name is not None and name not in DTYPES:
        raise UserError(f"dtype: expected one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name or "float32"]


def _int8_weights(weights: str | None, dtype: torch.dtype, device: torch.device) -> bool:
    if weights not in (None, "int8"):
        raise UserError(f"weights: expected 'int8' or None, got {weights!r}")
    if weights is not None and (dtype is not torch.bfloat16 or device.type != "cpu"):
        given = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        raise UserError(f"weights: 'int8' goes with dtype='bfloat16' on a CPU, got {given}")
    return weights is not None
