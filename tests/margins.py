"""Batches of given margins, and numbers compared in float64."""

import torch
from torch import tensor

from plc_core.objective import PairLogps


def f64(values):
    return tensor(values, dtype=torch.float64)


def close(actual, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        actual.detach().to(torch.float64), expected, atol=tolerance, rtol=tolerance
    )


def of_margin(m, beta=1.0, p_flip=None, p_tie=None):
    """Log-probs whose margin is m, all of it in the chosen response's log-ratio.

    The responses have one token each, so h = m / beta.
    """
    chosen = (torch.as_tensor(m, dtype=torch.float64) / beta).clone().requires_grad_()
    zero, one = torch.zeros_like(chosen), torch.ones_like(chosen)
    return PairLogps(chosen, zero, zero, zero, one, one, p_flip, p_tie)
