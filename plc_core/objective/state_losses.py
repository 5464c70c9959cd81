"""The losses of the three latent states, of a margin m: [B] to [B], differentiable."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

# softplus(x) is spelled -logsigmoid(-x): PyTorch's softplus is linear above 20, off by 2e-9 there.


def clean_loss(m: Tensor) -> Tensor:
    """L_clean = -log sigma(m), Eq. (lclean); also the DPO loss, Eq. (dpo)."""
    return -logsigmoid(m)


def flip_loss(m: Tensor) -> Tensor:
    """L_flip = -log sigma(-m), Eq. (lflip)."""
    return -logsigmoid(-m)


def tie_loss(m: Tensor) -> Tensor:
    """L_tie = softplus(|m|), Eq. (ltie).

    Its minimum is at the kink m = 0, where PyTorch's gradient of |m| is 0, which is right.
    """
    return -logsigmoid(-m.abs())
