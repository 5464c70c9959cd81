"""How likely a label is reversed, and how many are: a calibrated reading of the margins.

Before its own update, the margin of a pair that is seen for the first time is a held-out
prediction of its label, and where |m| is large the share of labels that agree levels off at one
minus the noise rate. That identifies the rate, and with it a probability for every pair. It is not
in the paper and enters no loss: it is read beside the routing under any objective. In a second
epoch the labels are remembered, and margins are evidence no more.

At the start of training it would mislead: the first margins are rounding noise, the next follow
one direction such as length, and a scale for all of them fits none. So nothing is said, which is
NaN, until the memory holds enough margins and their spread has settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

_LEVEL = 0.95
_MOST_GROWTH = 2.0
"""Of the margins' root mean square between the halves of the memory, to be read by one scale."""
_ABOVE_NOISE = 10.0
"""The least root mean square of margins, in that of those before the first update."""


class NoiseEstimate(NamedTuple):
    """Posterior of the noise rate e: its mean and the ends of its 95 % interval, scalars.

    All NaN until the margins have settled.
    """

    rate: Tensor
    low: Tensor
    high: Tensor


class FlipPosterior:
    """The posterior over noise rate e and scale k from the margins of the last steps.

    With the margins m_j of the steps in memory, rho their root mean square, and a flat prior over
    a grid of 25 rates e (0 to 0.48) and 19 scales k (0.25 to 16, in equal ratios):

        W(e, k) ∝ prod_j [(1 - e) sigma(k m_j / rho) + e sigma(-k m_j / rho)]
        p_i = sum_{e,k} W(e, k) e sigma(-k m_i / rho)
                                / [(1 - e) sigma(k m_i / rho) + e sigma(-k m_i / rho)]

    Everything stays on the margins' device, and nothing waits for it. Probabilities and rate are
    NaN until the margins have settled: the memory is full, and the root mean square of its older
    half of steps is between half and twice that of its newer half, and ten times that of the
    margins before the first update.

    A margin that is NaN is none: of a pair with the same tokens on both sides, which says nothing.

    Args:
        steps: optimizer steps in memory.
        pairs: margins in memory at least; small batches are remembered for more steps.
    """

    def __init__(self, steps: int = 24, pairs: int = 256) -> None:
        self._steps, self._pairs = steps, pairs
        self._window: deque[Tensor] = deque()
        self._noise: Tensor | None = None  # mean square of the margins before any update
        self._read: tuple[Tensor, Tensor, Tensor] | None = None

    def observe(self, margins: Tensor, before_any_update: bool = False) -> None:
        """Take the margins of an optimizer step, [B], over all ranks, in an order of their own.

        Another order gives the same posterior up to rounding. Those `before_any_update` are
        numerical noise around 0: they are no evidence, and say how large that noise is.
        """
        values = margins.detach().to(torch.float64)
        if before_any_update:
            self._noise = values.square().nanmean().nan_to_num(0.0)
            return
        self._window.append(values.clone())
        kept = self._size()
        while len(self._window) > self._steps and kept - len(self._window[0]) >= self._pairs:
            kept -= len(self._window.popleft())
        self._read = None

    def __call__(self, margins: Tensor) -> Tensor:
        """Probabilities that the labels of `margins` are reversed, from the steps so far.

        [B] to [B], float64 in [0, 1]; NaN until the margins have settled.
        """
        values = margins.detach().to(torch.float64)
        weights, scales, settled = self.read(values.device)
        rates = _rates(values.device)[:, None, None]
        # e sigma(-x) / [(1 - e) sigma(x) + e sigma(-x)], without a quotient of two zeros.
        reversed_share = torch.sigmoid(rates.logit() - scales[:, None] * values)
        return (weights[..., None] * reversed_share).sum((0, 1)).where(settled, torch.nan)

    def estimate(self, device: torch.device | str = "cpu") -> NoiseEstimate:
        """The noise rate that the steps so far speak for, and its 95 % interval.

        The interval is of the marginal posterior over e on the grid: it takes margins for
        independent and their link for a logistic one, so its coverage is nominal.
        """
        weights, _, settled = self.read(device)
        of_rate = weights.sum(1)
        rates = _rates(of_rate.device)
        below = of_rate.cumsum(0)
        # The smallest rate up to which the mass reaches the level; rounding must not pass the end.
        # By gather, as rates[place] would wait for the device to know the place.
        places = [(below < level).sum() for level in ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2)]
        low, high = rates.gather(0, torch.stack(places).clamp(max=len(rates) - 1))
        numbers = ((of_rate * rates).sum(), low, high)
        return NoiseEstimate(*(number.where(settled, torch.nan) for number in numbers))

    def read(self, device: torch.device | str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """W, [25, 19], k / rho, [19], and whether the margins have settled, a scalar.

        Of the steps so far; computed once a step. On `device`, or where the margins of the last
        step are.
        """
        if self._read is None:
            nothing = torch.zeros(1, dtype=torch.float64, device=device)
            last = self._window[-1] if self._window else nothing
            steps = [m.to(last.device) for m in self._window]
            self._read = (*grid_posterior(torch.cat(steps or [nothing])), self._settled(steps))
        weights, scales, settled = self._read
        return weights.to(device), scales.to(device), settled.to(device)

    def _size(self) -> int:
        return sum(len(step) for step in self._window)

    def _settled(self, steps: list[Tensor]) -> Tensor:
        """Whether the margins of `steps`, on one device, can be read by one scale."""
        half = len(steps) // 2
        if len(steps) < self._steps or self._size() < self._pairs or not half:
            return torch.zeros((), dtype=torch.bool, device=steps[-1].device if steps else None)
        old, new = (torch.cat(part).square().nanmean() for part in (steps[:half], steps[half:]))
        noise = torch.zeros_like(new) if self._noise is None else self._noise.to(new.device)
        settled = (old * _MOST_GROWTH**2 >= new) & (new * _MOST_GROWTH**2 >= old)
        return settled & (old > _ABOVE_NOISE**2 * noise)  # squares all; margins of 0 say nothing

    def state_dict(self) -> dict[str, Any]:
        """The margins in memory, oldest step first and None where they say nothing; their noise."""
        noise = None if self._noise is None else self._noise.item()
        steps = [step.tolist() for step in self._window]
        margins = [[None if m != m else m for m in step] for step in steps]
        return {"margins": margins, "noise": noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; ValueError where it is something else."""
        try:
            steps = [[0.0 if m is None else m for m in step] for step in state["margins"]]
            window = [torch.tensor(step, dtype=torch.float64) for step in steps]
            noise = state.get("noise")  # states of older versions lack it
            noise = None if noise is None else torch.tensor(float(noise), dtype=torch.float64)
        except (KeyError, TypeError, ValueError, RuntimeError):
            window, noise = [torch.tensor(torch.nan)], None
        if not all(step.ndim == 1 and step.isfinite().all() for step in window):
            raise ValueError("This is no state of a flip posterior: it holds no lists of margins.")
        for step, given in zip(window, state["margins"], strict=True):
            step[[m is None for m in given]] = torch.nan
        self._window.clear()
        self._window.extend(window)
        self._noise = noise
        self._read = None


def grid_posterior(margins: Tensor) -> tuple[Tensor, Tensor]:
    """W(e, k), [25, 19], and k / rho, [19], from margins [N]; k / rho is 0 where all are 0."""
    known = ~margins.isnan()
    margins = torch.where(known, margins, 0.0)
    rho = (margins.square().sum() / known.sum()).sqrt()
    scales = _scales(margins.device) / rho
    # Where there is no evidence, no margin may say anything.
    scales = torch.where(rho > 0, scales, torch.zeros_like(scales))
    scaled = scales[:, None] * margins
    rates = _rates(margins.device)[1:, None, None]
    # log[(1 - e) s + e (1 - s)], s = sigma(k m / rho); for e = 0 by itself, as s underflows.
    noisy = torch.log(rates + (1 - 2 * rates) * torch.sigmoid(scaled)).sum(-1)
    clean = logsigmoid(scaled).sum(-1)
    log_likelihood = torch.cat((clean[None], noisy))
    return log_likelihood.flatten().softmax(0).view_as(log_likelihood), scales


# Made on the device: a copy of a list would wait for it.


def _rates(device: torch.device) -> Tensor:
    return 0.02 * torch.arange(25, dtype=torch.float64, device=device)


def _scales(device: torch.device) -> Tensor:
    return 0.25 * 64 ** (torch.arange(19, dtype=torch.float64, device=device) / 18)
