"""What p_flip is off by in one set of pairs, where it is calibrated over all that it expects."""

import numpy as np

from plc_core.analysis.calibration import calibrate
from plc_core.label_audit.posterior import (
    RATES,
    TAILS,
    WITH_HIDDEN_STATES,
    FlipModel,
    link,
    slope,
)

PAIRS, DRAWS, RELIABILITY = 2000, 24, 0.8


def drawn(rng):
    """Margins, which labels are reversed, and p_flip of one who knows rate, scale and link; all
    drawn as the posterior expects them."""
    tails, rate = rng.choice(TAILS), rng.choice(RATES)
    expected, spread = WITH_HIDDEN_STATES
    scale = expected * np.sqrt(RELIABILITY) * np.exp(spread * rng.normal())

    def agrees(margins):  # the scale is that of the logistic link of the same slope at 0
        return link(scale * margins * slope(np.inf) / slope(tails), tails)

    sizes = np.abs(rng.normal(size=PAIRS))
    flipped = rng.random(PAIRS) < rate
    margins = np.where((rng.random(PAIRS) < agrees(sizes)) ^ flipped, sizes, -sizes)
    agree = agrees(margins)
    knowing = rate * (1 - agree) / (rate * (1 - agree) + (1 - rate) * agree)
    return margins, flipped, knowing


def test_p_flip_is_calibrated_over_what_it_expects():
    rng = np.random.default_rng(0)
    forecasts, events, errors, knowing = [], [], [], []
    for _ in range(DRAWS):
        margins, flipped, best = drawn(rng)
        found = FlipModel(margins, RELIABILITY, WITH_HIDDEN_STATES).p_flip(margins)
        forecasts.append(found)
        events.append(flipped)
        errors.append(calibrate(found, flipped).ece)
        knowing.append(calibrate(best, flipped).ece)
    overall = calibrate(np.concatenate(forecasts), np.concatenate(events)).ece
    assert overall < 0.025  # no bias that all sets share
    # In one set it is off by what it cannot know of it: rate, scale and link.
    assert np.mean(knowing) < 0.025
    assert np.mean(knowing) < np.mean(errors)
