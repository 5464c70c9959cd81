"""What p_flip is off by in one set of pairs, where it is calibrated over all that it expects."""

import numpy as np
from scipy.special import expit
from scipy.stats import t as student

from plc_core.analysis.calibration import calibrate
from plc_core.label_audit.posterior import _RATES, _TAILS, WITH_HIDDEN_STATES, FlipModel

PAIRS, DRAWS, RELIABILITY = 2000, 24, 0.8


def drawn(rng):
    """Margins, which labels are reversed, and p_flip of one who knows rate, scale and link; all
    drawn as the posterior expects them."""
    tails, rate = rng.choice(_TAILS), rng.choice(_RATES)
    expected, spread = WITH_HIDDEN_STATES
    scale = expected * np.sqrt(RELIABILITY) * np.exp(spread * rng.normal())

    def agrees(margins):
        if np.isinf(tails):
            return expit(scale * margins)
        return student.cdf(scale * margins * 0.25 / student.pdf(0, tails), tails)

    sizes = np.abs(rng.normal(size=PAIRS))
    flipped = rng.random(PAIRS) < rate
    margins = np.where((rng.random(PAIRS) < agrees(sizes)) ^ flipped, sizes, -sizes)
    agree = agrees(margins)
    knowing = rate * (1 - agree) / (rate * (1 - agree) + (1 - rate) * agree)
    return margins, flipped, knowing


def test_p_flip_is_calibrated_over_what_it_expects_and_in_one_set_off_by_the_rate():
    rng = np.random.default_rng(0)
    forecasts, events, errors, rates, knowing = [], [], [], [], []
    for _ in range(DRAWS):
        margins, flipped, best = drawn(rng)
        found = FlipModel(margins, RELIABILITY, WITH_HIDDEN_STATES).p_flip(margins)
        forecasts.append(found)
        events.append(flipped)
        errors.append(calibrate(found, flipped).ece)
        rates.append(abs(found.mean() - flipped.mean()))
        knowing.append(calibrate(best, flipped).ece)
    overall = calibrate(np.concatenate(forecasts), np.concatenate(events)).ece
    assert overall < 0.025  # no bias that all sets share
    assert np.mean(errors) > 1.5 * overall
    assert np.mean(rates) > 0.5 * np.mean(errors)  # most of what one set is off by is its rate
    assert np.mean(knowing) < 0.025 < np.mean(errors)
