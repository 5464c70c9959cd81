"""The figures of the win-rate studies: what they draw, from small tables."""

import math

import pandas as pd

from notebooks import figures
from notebooks.studies.seed_stability import seed_table
from plc_core.analysis.paper import published


def rows(**changes):
    line = {"decoding": "greedy", "win_rate": 52.0, "low": 48.0, "high": 56.0, "over": 50.0,
            "over_low": 46.0, "over_high": 54.0, "sft": 60.0, "sft_low": 55.0, "sft_high": 65.0,
            "kl": 1.5, "n": 80, "judge": "gold", "seed": 0}  # fmt: skip
    lines = [
        {"method": "DPO", "win_rate": math.nan, "over": math.nan, "kl": 1.0, "sft": 58.0},
        {"method": "DPO β=0.1", "over": math.nan, "kl": 1.6, "sft": 61.0},
        {"method": "PLC-DPO"},
    ]
    return pd.DataFrame([line | own | changes for own in lines])


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_every_method_has_a_dot_against_dpo_and_one_at_like_kl_where_there_is_a_control():
    traces = named(figures.win_rate_dots(rows()))
    assert list(traces["against DPO on the same data"].x) == [52.0, 52.0]
    assert list(traces["against the DPO of the nearest KL"].x) == [50.0]
    assert list(traces["against the DPO of the nearest KL"].error_x.array) == [4.0]


def test_plain_dpo_over_beta_is_a_line_in_the_order_of_the_kl():
    traces = named(figures.win_rate_against_kl(rows(), ["DPO", "DPO β=0.1"]))
    assert list(traces["DPO over β"].x) == [1.0, 1.6]
    assert list(traces["PLC-DPO"].y) == [60.0]
    assert len(traces) == 2


def test_no_two_of_many_methods_look_alike():
    many = pd.concat([rows().iloc[[2]].assign(method=f"m{n}", kl=n) for n in range(14)])
    marks = [trace.marker for trace in figures.win_rate_against_kl(many, ["DPO"]).data[1:]]
    assert len({(mark.color, mark.symbol) for mark in marks}) == len(marks) == 14


def test_seeds_that_are_not_all_there_are_counted():
    table = pd.concat(
        [
            rows(seed=s, reward=0.0, control=None, control_kl=math.nan, benchmarks=1)
            for s in (0, 1, 2)
        ]
    )
    fixed = table[(table["method"] == "PLC-DPO") & (table["seed"] > 0)]
    shown = seed_table(fixed, table).loc["PLC-DPO"]
    assert shown["greedy, against DPO of one seed"] == "52.0 ± 0.0 [52.0, 52.0] (2 seeds)"
    assert shown["greedy, against DPO of its seed"] == "52.0 ± 0.0 [52.0, 52.0]"


def test_a_sweep_marks_its_default_and_shows_the_papers_line():
    table = (
        rows()
        .iloc[[2, 2, 2]]
        .assign(hyperparameter="kappa", value=[2.0, 0.5, 0.8], default=[False, False, True])
    )
    traces = named(figures.sweep_panels(table, published("sweeps")))
    own = traces["here, greedy"]
    assert list(own.x) == [0.5, 0.8, 2.0]
    assert list(own.marker.symbol) == ["circle", "star", "circle"]
    assert list(traces["the paper, Qwen2.5-7B, greedy"].y) == [60.3, 58.2, 60.3, 60.8]


def test_seeds_are_dots_and_their_mean_a_bar():
    table = pd.concat([rows(seed=s, win_rate=50.0 + s).iloc[[2]] for s in (0, 1, 2)])
    figure = figures.seed_dots(table, published("seeds"))
    assert list(figure.data[0].x) == [50.0, 51.0, 52.0]
    assert list(figure.data[1].x) == [51.0]
    paper = named(figure)["Vicuna"]
    assert list(paper.x) == [66.3]
    assert list(paper.error_x.array) == [7.0]


def test_judges_stand_side_by_side():
    table = pd.concat([rows(), rows(judge="other", win_rate=40.0, low=35.0, high=45.0).iloc[2:]])
    traces = named(figures.judges_side_by_side(table))
    assert list(traces["judged by other"].x) == [40.0]
    assert list(traces["judged by gold"].x) == [52.0, 52.0]


def test_checkpoints_over_training_and_over_the_distance():
    table = pd.DataFrame(
        [
            {"method": "DPO", "step": s, "share": s / 4, "decoding": "greedy", "reward": 2.0 + s,
             "reward_low": 1.0, "reward_high": 9.0, "win_rate": 50.0 + s, "low": 40.0,
             "high": 70.0, "kl": s / 2}
            for s in (4, 0, 2)
        ]
    )  # fmt: skip
    figure = figures.training_dynamics(table, 0.45)
    assert [list(trace.y) for trace in figure.data] == [[50.0, 52.0, 54.0], [2.0, 4.0, 6.0]]
    assert list(figures.dynamics_over_kl(table).data[0].x) == [0.0, 1.0, 2.0]


def test_nothing_to_show_is_said():
    nothing = rows().iloc[:0]
    for figure in (figures.win_rate_dots(nothing), figures.judges_side_by_side(nothing),
                   figures.win_rate_against_kl(nothing, []), figures.sweep_panels(nothing, nothing),
                   figures.training_dynamics(nothing, 0.5)):  # fmt: skip
        assert figure.layout.annotations[-1].text
        assert not figure.data
