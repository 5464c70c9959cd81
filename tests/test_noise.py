"""The noise rate that a user sees, and the reliability of p_flip, from a run's files."""

import pandas as pd
import pytest

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
