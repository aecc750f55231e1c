r"""Exactness of real decoding, from the emitted tokens alone: statistics without extra forwards.

Under an exact verifier every emitted token x_t has law p_t given all tokens before it. So for any
function f_t that is known before x_t is drawn, sum_t (f_t(x_t) - E_{p_t} f_t) has mean 0 and
variance sum_t Var_{p_t} f_t, and

    z = sum_t (f_t(x_t) - E f_t) / sqrt(sum_t Var f_t)

is close to a standard normal. Three choices of f:

- surprisal: -log p_t(x), whose mean is the entropy H(p_t). It shows wrong temperatures and an
  argmax in place of a draw.
- overdraft: 1[q_t(x) > p_t(x)], where the draft's law q_t is known. A bias toward the draft shows
  here first.
- rank: sum_{y < x} p_t(y) + p_t(x) / 2, of mean 1/2. Draws invert cumulative sums, so uniform
  numbers that are used twice prefer tokens by their index, which the other two hardly see.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from resispec.audit.row_checks import check_like
from resispec.audit.verdict import Statistic, z_scores
from resispec.decode import Step


class Terms(NamedTuple):
    """The terms of the statistics for K emitted tokens in order, each (K,) float64.

    overdraft and its variance are NaN where the draft's law is not known.
    """

    surprisal: Tensor
    surprisal_variance: Tensor
    overdraft: Tensor
    overdraft_variance: Tensor
    rank: Tensor
    rank_variance: Tensor

    def scores(self) -> dict[str, Statistic]:
        """The z-scores of statistics that have terms, by name.

        Raises FloatingPointError for a NaN law.
        """
        return z_scores({name: terms.numpy() for name, terms in self._asdict().items()})


def surprisal_terms(target_probs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Deviation -log p_t(x_t) - H(p_t) and variance Var_{p_t}(-log p_t), each (T,) float64.

    target_probs: (T, V), the law that each token had; tokens: (T,) int64. 0 log 0 = 0; a token of
    probability 0 deviates infinitely.
    """
    check_like("tokens", tokens, target_probs.shape[:1])
    p = target_probs.double()
    surprisal = -torch.where(
        p > 0, p, 1.0
    ).log()  # weighted by p, so values where p = 0 do not matter
    entropy = (p * surprisal).sum(-1)
    variance = (p * (surprisal - entropy[:, None]).square()).sum(-1)
    return -p.gather(-1, tokens[:, None])[:, 0].log() - entropy, variance


def overdraft_terms(
    target_probs: Tensor, draft_probs: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Deviation 1[q_t(x_t) > p_t(x_t)] - m_t and variance m_t (1 - m_t), each (T,) float64.

    m_t = p_t(q_t > p_t). target_probs, draft_probs: (T, V); tokens: (T,) int64. Defined where a
    draft law is known.
    """
    check_like("tokens", tokens, target_probs.shape[:1])
    check_like("draft probabilities", draft_probs, target_probs.shape)
    over = draft_probs > target_probs
    mean = (target_probs.double() * over).sum(-1).clamp(0, 1)
    return over.gather(-1, tokens[:, None])[:, 0].double() - mean, mean * (1 - mean)


def rank_terms(target_probs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Deviation sum_{y < x_t} p_t(y) + p_t(x_t) / 2 - 1/2 and variance (1 - sum p_t^3) / 12.

    Each is (T,) float64. target_probs: (T, V); tokens: (T,) int64.
    """
    check_like("tokens", tokens, target_probs.shape[:1])
    p = target_probs.double()
    middle = (p.cumsum(-1) - p / 2).gather(-1, tokens[:, None])[:, 0]
    return middle - 0.5, (1 - (p**3).sum(-1)).clamp_min(0) / 12


def step_terms(step: Step) -> Terms:
    """The terms of every token that one step emitted, in order, on its device, without waiting.

    The first token was emitted at the root, token k at the k-th node of the path; its law is the
    target's at that node. The draft's law is known at nodes that have children. `join` drops what
    lies past `max_new_tokens` or an end of sequence.
    """
    nodes = [0, *step.verdict.path]
    children = step.draft.tree.topology.children
    ranks = [rank for rank, node in enumerate(nodes) if children[node]]
    tokens = torch.tensor(step.verdict.tokens, device=step.target_probs.device)
    target = step.target_probs[nodes]
    overdraft = torch.full((2, len(nodes)), math.nan, dtype=torch.float64, device=tokens.device)
    if ranks:
        draft = step.draft.probs[[nodes[rank] for rank in ranks]]
        overdraft[:, ranks] = torch.stack(overdraft_terms(target[ranks], draft, tokens[ranks]))
    return Terms(
        *surprisal_terms(target, tokens), overdraft[0], overdraft[1], *rank_terms(target, tokens)
    )


def join(terms: Iterable[Terms], num_tokens: int | None = None) -> Terms:
    """The terms of steps, prompts or cells, on the host, one after the other; there may be none.

    num_tokens: how many terms are kept, those of the returned tokens; None keeps all. The decision
    to stop may depend on the tokens so far without causing bias, since every term has mean 0 given
    the past.
    """
    none = torch.empty(0, dtype=torch.float64)
    terms = [Terms(*[none] * len(Terms._fields)), *terms]
    return Terms(
        *(
            torch.cat([part.cpu() for part in parts])[:num_tokens]
            for parts in zip(*terms, strict=True)
        )
    )
