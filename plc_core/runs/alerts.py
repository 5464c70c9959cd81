"""What a run should be told of its own training: that it saturates, or does not move."""

from __future__ import annotations

import logging
import math

import pandas as pd

from plc_core.runs.run import Run

logger = logging.getLogger(__name__)

SATURATED = 10.0
"""|m| from which a pair trains nothing: the derivative of DPO's loss, sigma(-m), is below 5e-5."""

WITHOUT_CHECKSUMS = (
    "No checksums: the run was begun by a version that wrote none, so damage to its files would "
    "not be noticed."
)

_MOST_SATURATED = 0.9
_LEAST_SIZE = 1e-3
"""Of the margins' root mean square: below it the loss differs from ln 2 by less than 5e-4."""
_NOISE = 3.0
_MUCH_NOISE = 10.0
_LAST_STEPS = 8
_SOON = 0.25
"""Share of the steps by which margins have moved, warm-up included, if they ever will."""


def training_alerts(metrics: pd.DataFrame, total_steps: int) -> list[str]:
    """Sentences for a person about a run whose training does not do what it should.

    That at least 90 % of the pairs of its last eight steps are saturated (|m| > 10); or, once a
    quarter of the steps is done, that the margins are still no larger than .001 or three times
    their numerical noise, which is what they were at step 0, before any update; or that this noise
    is more than a tenth of them at the end, so that the routing was partly read from it.

    Args:
        metrics: a row a step (metrics.parquet), of any number of steps so far.
        total_steps: optimizer steps of the whole run.
    """
    if len(metrics) < 2:
        return []
    table = metrics.sort_values("step")
    size = (table["margin_mean"] ** 2 + table["margin_std"] ** 2) ** 0.5
    last = table.tail(_LAST_STEPS)
    found = []
    if len(last) == _LAST_STEPS or len(table) >= total_steps:
        share = last["saturated"].mean() if "saturated" in last else math.nan
        if share >= _MOST_SATURATED:
            found.append(
                f"Training is saturated: {share:.0%} of the pairs of the last {len(last)} steps "
                f"have a margin beyond ±{SATURATED:g} (mean loss {last['loss'].mean():.1g}) and "
                "train nothing. Lower the learning rate, beta or the epochs: the policy is as far "
                "away as it can be, and its routing weights mean little."
            )
    noise, now = float(size.iloc[0]), float(size.tail(_LAST_STEPS).iloc[1:].median())
    if table["step"].iloc[0] != 0 or len(table) < _SOON * total_steps:
        return found
    said = f"the margins are {now:.2g} in size, and their numerical noise, at step 0, {noise:.2g}"
    if now <= max(_LEAST_SIZE, _NOISE * noise):
        found.append(
            f"The policy has not moved: {said}, so that the loss is still ln 2 and the routing "
            f"reads noise. Raise the learning rate (its peak was {_peak(table)}) or beta, or train "
            "for more steps."
        )
    elif len(table) >= total_steps and now < _MUCH_NOISE * noise:
        found.append(
            f"The signal is weak: {said}. The routing was read from noise to that extent. More "
            "steps, a larger learning rate or beta, or precision fp32 raise the signal above it."
        )
    return found


def margin_noise(metrics: pd.DataFrame) -> dict[str, float]:
    """The margins' spread at step 0, which is numerical noise, and the EMA's at the last step.

    Before the first update the margins are 0 but for the noise between the cached reference pass
    and a differently shaped batch, which low precision makes large.
    """
    return {
        "step_0_std": metrics["margin_std"].iloc[0],
        "last_ema_std": metrics["ema_std"].iloc[-1],
    }


def _peak(table: pd.DataFrame) -> str:
    return f"{table['learning_rate'].max():.2g}"


class Alerts:
    """What a run is told while it goes on: logged once a kind, and kept in status.json.

    `run` is None on processes other than the first one, which say nothing.
    """

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._told: set[str] = set()
        older = run is not None and not run.has_checksums
        self._standing = [WITHOUT_CHECKSUMS] if older else []

    def look(self, progress: tuple[int, int] | None) -> None:
        """Tell the alerts of the steps so far; `progress` is how many are done, and of the run."""
        if progress is not None and self._run is not None:
            self.tell(training_alerts(self._run.metrics(), progress[1]))

    def tell(self, sentences: list[str]) -> None:
        """Tell these; earlier ones in status.json give way."""
        if self._run is None:
            return
        sentences = [*self._standing, *sentences]
        for sentence in sentences:
            kind = sentence.partition(":")[0]
            if kind not in self._told:
                self._told.add(kind)
                logger.warning(sentence)
        self._run.set_status(alerts=sentences)
