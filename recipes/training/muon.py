"""The optimizer Muon: momentum whose steps are matrices with all singular values near one.

Jordan et al., 2024, https://kellerjordan.github.io/posts/muon. In a few hundred steps it reaches a
loss for which AdamW needs three times the tokens. torch.optim.Muon computes in bfloat16, which most
CPUs emulate: on these, the same step takes several times as long as the gradient.
"""

from collections import defaultdict

import torch
from torch import Tensor

_MOMENTUM = 0.95
_ADAM_RMS = (
    0.2  # usual size of an AdamW update, so that both optimizers take the same learning rate
)


class Muon(torch.optim.Optimizer):
    """Muon for a list of matrices, in float32, with decoupled weight decay."""

    def __init__(self, matrices: list[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix; matrices of one shape are orthogonalised together."""
        [group] = self.param_groups
        directions: defaultdict[torch.Size, dict[Tensor, Tensor]] = defaultdict(dict)
        for matrix in group["params"]:
            momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
            momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
            directions[matrix.shape][matrix] = matrix.grad.lerp(momentum, _MOMENTUM)  # Nesterov's
        for shape, batch in directions.items():
            updates = orthogonalise(torch.stack(list(batch.values())))
            size = group["lr"] * (_ADAM_RMS * max(shape) ** 0.5)
            for matrix, update in zip(batch, updates, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices (K, m, n) of the same singular vectors and values near one, by Newton-Schulz."""
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalise(matrices.mT).mT
    # of the iteration x -> a x + b x^3 + c x^5 on singular values
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
