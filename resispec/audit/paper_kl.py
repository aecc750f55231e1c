r"""The paper's validation (Appendix B) as published, and the divergence that it should measure.

The appendix sums the masses of all paths,

    P_i = prod_{j<i} (1 - beta_j) min(k_i, R_{i-1}),   P_fail = prod_{j<=n} (1 - beta_j) R_n,
    p_hat = sum_i P_i + P_fail,

with R_0 = p, beta_i = sum min(k_i, R_{i-1}) and R_i = norm(max(R_{i-1} - k_i, 0)), for ONE fixed
proxy k_i per step, and reports D_KL(p_hat || p). This cannot fail: (1 - beta_i) R_i = R_{i-1} -
min(k_i, R_{i-1}), so every step adds min(k, R) + (R - min(k, R)) = R and p_hat = p for every
sequence of laws k_i, also for random ones. The figure measures rounding. What Algorithm 1 does
differs: its proxy depends on the rejected token, and the residual after it is an average over the
tokens that can be rejected.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from resispec.audit.estimate import EstimatedLaw
from resispec.audit.row_checks import RETURNED, check_rows
from resispec.distributions import draw, normalise
from resispec.verifiers.resispec import ResiSpec

Proxy = Callable[[Tensor, Tensor, Generator], Tensor]
"""Chooses one step's fixed proxy k (..., V), given its target R and the draft's law Q (..., V)."""


def resispec_proxy(target: Tensor, draft: Tensor, generator: Generator) -> Tensor:
    """GetProxy(R, Q, x0) for a token x0 that can be refused, drawn in proportion to max(Q - R, 0).

    k = R - r, then k(x0) = Q(x0): the paper's last line. The appendix keeps this k fixed although
    it depends on x0.
    """
    token = draw(normalise((draft - target).clamp_min(0), draft), 1, generator)
    proxy = target - ResiSpec().reshape(target, draft, token)
    return proxy.scatter(-1, token, draft.gather(-1, token))


def random_proxy(target: Tensor, draft: Tensor, generator: Generator) -> Tensor:
    """The control: a uniform draw from the simplex (Dirichlet of ones), blind to p and q."""
    uniform = torch.rand(
        target.shape, generator=generator, device=target.device, dtype=target.dtype
    )
    weights = -torch.log1p(-uniform)
    return weights / weights.sum(-1, keepdim=True)


def draft_proxy(target: Tensor, draft: Tensor, generator: Generator) -> Tensor:
    """The draft's law Q itself as the proxy: SpecInfer."""
    return draft


def paper_kl(
    target_probs: Tensor,
    draft_probs: Tensor,
    proxy: Proxy,
    num_candidates: int,
    generator: Generator,
) -> Tensor:
    """The appendix's D_KL(p_hat || p) (...) for `num_candidates`, in the inputs' precision.

    target_probs, draft_probs: (..., V). proxy: `resispec_proxy`, `random_proxy`, `draft_proxy` or
    your own. The three give the same figure up to rounding (float32 at V = 32,000: below 1e-6),
    which is why it says nothing about exactness. Raises InvalidInput when p or q is no law, within
    float32's precision.
    """
    check_rows("target probabilities", target_probs, RETURNED)
    check_rows("draft probabilities", draft_probs, RETURNED)
    residual, reach = target_probs, torch.ones_like(target_probs[..., :1])
    law = torch.zeros_like(target_probs)
    for _ in range(num_candidates):
        k = proxy(residual, draft_probs, generator)
        common = torch.minimum(k, residual)
        law = law + reach * common
        reach = reach * (1 - common.sum(-1, keepdim=True)).clamp_min(0)
        residual = normalise((residual - k).clamp_min(0), residual)
    law = law + reach * residual  # p_hat
    support = law > 0  # 0 log 0 = 0
    ratio = torch.where(support, law, 1.0) / torch.where(support, target_probs, 1.0)
    return (law * ratio.log()).sum(-1)


def kl_bound(estimate: EstimatedLaw, num_errors: float = 0.0) -> float:
    """A lower bound of D_KL(law || p): the divergence of the masses of the estimate's set.

    Merging tokens can only lower a divergence: KL(law || p) >= a log(a / b) +
    (1 - a) log((1 - a) / (1 - b)), a = law(S), b = p(S). num_errors: how many standard errors `a`
    is moved toward `b` first; 2 makes it a bound with confidence, 0 the plug-in value.
    """
    law, target, margin = estimate.mass, estimate.target, num_errors * estimate.mass_error
    law = (
        min(1.0, max(target, law - margin))
        if law >= target
        else max(0.0, min(target, law + margin))
    )
    total = 0.0
    for mass, reference in ((law, target), (1 - law, 1 - target)):
        if mass > 0 and reference > 0:
            total += mass * math.log(mass / reference)
        # laws sum to 1 only up to rounding: a smaller mass is no evidence
        elif mass > estimate.rounding:
            total = math.inf
    return total
