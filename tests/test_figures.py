"""The figures' data, not their pixels."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from plc_core.analysis import audit, curves, figures
from plc_core.runs import Run, open_run
from tests.fake_run import write_fake_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of 300 pairs and two epochs."""
    return open_run(write_fake_run(tmp_path_factory.mktemp("runs"), "run", pairs=300, epochs=2))


def names(figure: go.Figure) -> list[str]:
    """The traces' names."""
    return [trace.name for trace in figure.data]


def said(figure: go.Figure) -> str:
    """The annotations' texts."""
    return " ".join(annotation.text for annotation in figure.layout.annotations)


def test_training_curves_show_each_weight_in_its_states_colour(run: Run) -> None:
    metrics = run.metrics()
    figure = figures.training_curves(metrics.head(curves.LEAST_SMOOTHED - 1))
    assert names(figure) == ["loss", "margin_mean", "gamma", "q_clean", "q_flip", "q_tie"]
    colours = [trace.line.color for trace in figure.data]
    assert colours[3:] == list(figures.STATE_COLOURS.values())
    np.testing.assert_allclose(figure.data[0].y, metrics["loss"].head(len(figure.data[0].y)))


def test_training_curves_are_running_means_over_the_steps_and_say_where_they_end() -> None:
    loss = np.tile([1.0, 3.0], 50)
    figure = figures.training_curves(pd.DataFrame({"step": range(100), "loss": loss}))
    steps, mean = figure.data[:2]
    np.testing.assert_allclose(steps.y, loss)
    assert np.ptp(mean.y[2:-2]) == pytest.approx(0.4)  # of five steps, two or three are high
    assert said(figure).startswith("loss: 2.00 ± 0.33 mean margin m")


def test_a_panel_that_no_run_logged_says_so(run: Run) -> None:
    figure = figures.training_curves(run.metrics().drop(columns=["gamma"]))
    assert "no correction under this objective" in said(figure)
    assert [any(y is not None for y in trace.y) for trace in figure.data].count(False) == 1


def test_routing_by_state_carries_means_intervals_and_n(run: Run) -> None:
    table = audit.routing_by_state(run.visits(), run.pairs())
    figure = figures.routing_by_state(table)
    assert names(figure) == ["q_clean", "q_flip", "q_tie"]
    flip = table[table["state"] == "flip"]
    np.testing.assert_allclose(figure.data[1].y, flip["mean"])
    np.testing.assert_allclose(figure.data[1].error_y.array, flip["high"] - flip["mean"])
    assert figure.data[0].x[0] == f"clean<br>n = {flip['n'].iloc[0]}"


def test_q_against_z_draws_curves_or_points_and_the_pair(run: Run) -> None:
    visits = run.visits()
    points = figures.q_against_z(visits)
    assert points.data[0].mode == "markers"
    assert len(points.data[0].x) == len(visits)
    curve = figures.q_against_z(visits.drop(columns="pair_id"), pair=visits.iloc[0])
    assert curve.data[0].mode == "lines"
    assert (np.diff(np.asarray(curve.data[0].x, dtype=float)) >= 0).all()
    assert curve.data[3].y[1] == visits["q_flip"].iloc[0]


def test_q_against_z_samples_large_runs_and_says_so() -> None:
    z = np.linspace(-3, 3, 50_001)
    large = pd.DataFrame({"pair_id": "a", "z": z, "q_clean": 1.0, "q_flip": 0.0, "q_tie": 0.0})
    figure = figures.q_against_z(large)
    assert len(figure.data[0].x) == 2_000
    assert (figure.data[0].x[0], figure.data[0].x[-1]) == (-3, 3)
    assert "2,000 of 50,001 visits" in said(figure)


def test_pair_trajectory_shows_every_visit_over_the_ema_band(run: Run) -> None:
    visits = run.visits(pair_id=run.pairs()["pair_id"][0])
    figure = figures.pair_trajectory(visits, run.metrics())
    assert names(figure) == ["EMA mean ± sd", "q_clean", "q_flip", "q_tie", "z", "margin"]
    assert len(figure.data[5].x) == len(visits) == 2
    assert names(figures.pair_trajectory(visits, run.metrics()[["step", "loss"]]))[0] == "q_clean"


def test_flip_distribution_adds_up_in_each_group(run: Run) -> None:
    figure = figures.flip_distribution(audit.join_last_visits(run.visits(), run.pairs()))
    assert [sum(trace.y) for trace in figure.data] == pytest.approx([1, 1, 1])


def test_flip_reliability_leaves_empty_bins_out(run: Run) -> None:
    calibration = audit.flip_calibration(run.visits(), run.pairs(), bins=50)
    figure = figures.flip_reliability(calibration)
    assert len(figure.data[2].x) == (calibration.table["n"] > 0).sum() < 50


def test_tie_selectivity_keeps_the_two_scales_apart(run: Run) -> None:
    slices = audit.tie_selectivity(run.visits(), run.pairs()).slices
    figure = figures.tie_selectivity(slices)
    assert [trace.yaxis for trace in figure.data] == ["y", "y2", "y", "y2"]
    assert list(figure.data[0].y) == slices[["q_tie_mean", "q_tie_median"]].iloc[0].tolist()
    assert figure.data[0].name == "bottom 20% of the score gap (n = 60)"
    # Margins may be of any size: significant digits, and powers of ten rather than µ.
    tiny = slices.assign(abs_margin_median=4.578e-6)
    assert figures.tie_selectivity(tiny).data[1].text[1] == "4.58e-06"
    assert figure.layout.yaxis2.exponentformat == "power"


def test_tie_ceiling_ends_the_axis(run: Run) -> None:
    table = audit.routing_by_state(run.visits(), run.pairs())
    figure = figures.tie_ceiling(table, audit.tie_ceiling(run.visits()))
    assert "largest seen 0.13" in said(figure)
    assert max(figure.data[0].x) < figure.layout.xaxis.range[1] < 0.2


def test_nothing_to_draw_is_said_in_a_sentence(run: Run) -> None:
    no_visits, pairs = run.visits()[:0], run.pairs()
    table = audit.routing_by_state(no_visits, pairs)
    for figure in (
        figures.training_curves(pd.DataFrame()),
        figures.q_against_z(no_visits),
        figures.pair_trajectory(no_visits),
        figures.flip_distribution(audit.join_last_visits(no_visits, pairs)),
        figures.flip_reliability(audit.flip_calibration(no_visits, pairs)),
        figures.tie_ceiling(table, audit.tie_ceiling(no_visits)),
    ):
        assert not figure.data
        assert said(figure).startswith("No") or "not been visited" in said(figure)
    assert len(figures.routing_by_state(table).data) == 3
    assert len(figures.tie_selectivity(audit.tie_selectivity(no_visits, pairs).slices).data) == 4


def test_no_figure_counts_winning_states() -> None:
    assert not [name for name in figures.__all__ if "pie" in name or "argmax" in name]
