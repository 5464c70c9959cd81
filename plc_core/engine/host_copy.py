"""Tensors on their way from the device to the host, without waiting for the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class HostCopy:
    """A tensor on its way to the host; who asks for it waits for it, and for nothing after it."""

    def __init__(self, tensor: Tensor) -> None:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        self._copy = whole.detach().to("cpu", non_blocking=whole.is_cuda, copy=True)
        self._there = torch.cuda.Event() if whole.is_cuda else None
        if self._there is not None:
            self._there.record()

    def numpy(self) -> np.ndarray:
        """The tensor's values."""
        if self._there is not None:
            self._there.synchronize()
        values: np.ndarray = self._copy.numpy()
        return values


def mean_of(values: np.ndarray) -> float:
    """The mean of some values; NaN of none, without numpy's warning."""
    return float(values.mean()) if len(values) else float("nan")
