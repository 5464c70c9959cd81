"""The noise rate that a user sees, and the reliability of p_flip, from a run's files."""

import math

import pandas as pd
import pytest
from figures.overlay import run_curves

from plc_core.analysis.audit import posterior_calibration
from plc_core.analysis.noise import noise_rate, noise_sentence
from plc_core.runs import open_run
from tests.fake_run import write_fake_run


def metrics(rates, epochs):
    return pd.DataFrame(
        {
            "step": range(len(rates)),
            "epoch": epochs,
            "noise_rate": rates,
            "noise_low": [r - 0.05 for r in rates],
            "noise_high": [r + 0.05 for r in rates],
        }
    )


def test_the_rate_is_that_of_the_last_step_of_the_first_epoch():
    found = noise_rate(metrics([0.24, 0.21, 0.2, 0.04], [0, 0.5, 1.0, 1.5]))
    assert (found.rate, found.step) == (0.21, 1)
    assert str(found) == (
        "Estimated share of reversed labels: 21 % [16, 26] (95 %, from the margins before step 1)."
    )


@pytest.mark.parametrize(
    "table", [pd.DataFrame(), metrics([], []), metrics([0.2], [0]).drop(columns="noise_low")],
    ids=["none", "no steps", "older version"],
)  # fmt: skip
def test_a_run_without_the_estimate_says_so(table):
    assert noise_rate(table) is None
    assert "did not record" in noise_sentence(table)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_rate": 0.24, "noise_low": 0.0, "noise_high": 0.48},
        {"noise_rate": 0.3, "noise_low": 0.02, "noise_high": 0.44},
        {"noise_rate": math.nan, "noise_low": math.nan, "noise_high": math.nan},
    ],
    ids=["the prior", "still near it", "margins that have not settled"],
)
def test_a_prior_is_not_an_estimate(changes):
    table = metrics([0.2, 0.2], [0, 0.5])
    table.loc[1, list(changes)] = list(changes.values())
    assert noise_rate(table) is None  # nor is the rate of an earlier step
    assert "not known yet" in noise_sentence(table)
    figure = run_curves({"run": table}, ["noise_rate"])
    assert list(figure.data[0].y[:1]) == [0.2]
    assert math.isnan(figure.data[0].y[1])


def test_p_flip_is_judged_at_the_first_visit(tmp_path):
    run = open_run(write_fake_run(tmp_path, "two-epochs", epochs=2, posterior=True))
    visits, pairs = run.visits(), run.pairs()
    both = posterior_calibration(visits, pairs)
    assert both.n == len(pairs)
    assert str(both) == str(posterior_calibration(visits[visits["epoch"] < 1], pairs))
    assert both.base_rate == pytest.approx((pairs["oracle_state"] == "flip").mean())


def test_visits_without_p_flip_are_counted_out(tmp_path):
    run = open_run(write_fake_run(tmp_path, "older"))
    assert posterior_calibration(run.visits().assign(p_flip=float("nan")), run.pairs()).n == 0
