"""How candidates should be scored at T > 0: tau of the embedded pair under several definitions.

    python -m bench.fit_beta --problems 16 --temperatures 0.7 1.0 1.5 2.0

Verification is lossless, so the text of a request does not depend on its drafts. It is generated once, the drafter runs
once from every position of it, and every definition of the scores is then replayed on the same logits: the tree that it
builds at a root, the path of the text through that tree, the next root behind the bonus token.

    x = s + G, perturbed; q the filtered, tempered distribution; all relative to the K candidates of a position

    sharpened    log softmax(x / beta)                    what `draft_candidates` gives
    by depth     the same with beta (1 + slope * d)       a later position is less certain
    log q        the drafter's own log-probability, the noise forgotten
    raw          x - max x, not normalised
    mixed        (log softmax(x / beta) + log q) / 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import d3d_kernels as dk
from d3d_runtime import Engine, SamplingParams
from d3d_runtime.engine import EMBEDDED_PAIR, NUM_CANDIDATES
from d3d_runtime.models.attention import MaskedAttention
from d3d_runtime.models.loader import load_model
from d3d_runtime.training.data import collate
from d3d_runtime.training.drafter import block_rows
from d3d_runtime.training.problems import generate

NODES = (8, 16, 32)
BETAS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
Score = Callable[[Tensor, Tensor], Tensor]  # log softmax(x), log q [A, L, K] -> scores


def definitions() -> dict[str, Score]:
    def sharpened(beta: float, slope: float = 0.0) -> Score:
        def score(x: Tensor, log_q: Tensor) -> Tensor:
            return (x / (beta * (1 + slope * torch.arange(x.shape[1])[:, None]))).log_softmax(-1)

        return score

    found = {f"sharpened, beta {beta}": sharpened(beta) for beta in BETAS}
    found |= {f"by depth, beta {b}, slope {s}": sharpened(b, s) for b in (0.5, 1.0) for s in (0.1, 0.3)}
    found["log q"] = lambda x, log_q: log_q
    found["raw x"] = lambda x, log_q: x - x[..., :1]
    found |= {f"mixed, beta {b}": lambda x, log_q, b=b: (sharpened(b)(x, log_q) + log_q) / 2 for b in (0.5, 1.0)}
    return found


class Text:
    """One request: its tokens, and the drafter's candidates from every position that can be a root."""

    def __init__(self, drafter, diffusion, prompt: list[int], answer: list[int], sampling: dk.SamplingTensors):
        batch = collate([(prompt, answer)])
        self.tokens, self.first = batch.token_ids[0], len(prompt) - 1
        anchors = torch.arange(self.first, len(self.tokens) - 1)
        token_ids, positions, sees = block_rows(batch, anchors[None], diffusion)
        hidden = drafter(token_ids, positions, MaskedAttention(sees))[0]
        masks = hidden[len(self.tokens) :].unflatten(0, (len(anchors), diffusion.num_masks))
        logits = drafter.logits(torch.cat((hidden[anchors][:, None], masks), dim=1))  # logit shift: the anchor's first
        owner = torch.zeros(len(anchors), dtype=torch.int32)
        mask = diffusion.mask_token_id
        self.drafts = dk.draft_candidates(
            logits, NUM_CANDIDATES, sampling, anchors + 1, owner, beta=1.0, mask_token_id=mask
        )
        self.anchors = anchors

    def rounds(self, score: Score, nodes: int) -> int:
        """Rounds that the text takes with trees of `nodes` nodes."""
        ids = self.drafts.token_ids
        scores, order = score(self.drafts.scores, self.drafts.log_probs).sort(dim=-1, descending=True, stable=True)
        candidates = dk.Candidates(ids.gather(2, order), scores, scores)
        tree, _ = dk.build_tree(self.tokens[self.anchors], candidates, nodes)
        padded = torch.cat((self.tokens, torch.full((ids.shape[1] + 1,), -2)))
        said = padded[(self.anchors[:, None] + tree.depths).clamp(max=len(padded) - 1)] == tree.token_ids
        on_path = torch.ones_like(said)
        for node in range(1, nodes):
            parent = tree.parents[:, node : node + 1].clamp(min=0).long()
            on_path[:, node] = said[:, node] & on_path.gather(1, parent).squeeze(1) & (tree.parents[:, node] >= 0)
        accepted = torch.where(on_path, tree.depths, 0).amax(1).tolist()
        root, count = 0, 0
        while root < len(accepted):
            root += accepted[root] + 1
            count += 1
        return count


@torch.inference_mode()
def texts(engine: Engine, temperature: float, problems: int) -> list[Text]:
    drafter, diffusion = load_model(EMBEDDED_PAIR / "drafter", torch.float32)
    prompts = [[{"role": "user", "content": p.question}] for p in generate(1, problems, "held_out_wordings")]
    params = [SamplingParams(max_tokens=160, temperature=temperature, seed=i) for i in range(problems)]
    found = []
    for i, output in enumerate(engine.generate(prompts, params)):
        prompt = engine.tokenizer.encode_chat(prompts[i])
        sampling = dk.SamplingTensors.full(1, temperature=temperature, seed=i)
        found.append(Text(drafter, diffusion, prompt, output.token_ids, sampling))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0, 1.5, 2.0])
    flags = parser.parse_args()
    problems, temperatures = flags.problems, flags.temperatures
    engine = Engine(mode="autoregressive")
    sets = {t: texts(engine, t, problems) for t in temperatures}
    emitted = {t: sum(len(text.anchors) for text in sets[t]) for t in temperatures}
    sizes = " and ".join(f"{emitted[t]} tokens at T = {t}" for t in temperatures)
    print(f"{problems} problems, {sizes}, K = {NUM_CANDIDATES}\n")
    print("| scores | " + " | ".join(f"T={t} N={n}" for t in temperatures for n in NODES) + " | mean |")
    print("|---" * (2 + len(temperatures) * len(NODES)) + "|")
    for name, score in definitions().items():
        tau = [emitted[t] / sum(text.rounds(score, n) for text in sets[t]) for t in temperatures for n in NODES]
        print(f"| {name} | " + " | ".join(f"{x:.3f}" for x in tau) + f" | {sum(tau) / len(tau):.3f} |", flush=True)


if __name__ == "__main__":
    main()
