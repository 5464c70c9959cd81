"""Tables of win rates: what is shown, what is marked, what stands beside it."""

import io
import math

import pandas as pd
import pytest

from plc_core.analysis.paper import BENCHMARK_SIZES, NAMES, published
from plc_core.evaluation.results import mean_over_seeds
from plc_core.evaluation.win_rate import JoinError
from plc_core.evaluation.win_tables import win_table


def cells(*rows):
    columns = ["method", "benchmark", "n", "win_rate", "low", "high", "note"]
    return pd.DataFrame(rows, columns=columns)


TWO = cells(
    ("RE-PO", "Vicuna", 80, 48.125, 40.0, 56.0, ""),
    ("RE-PO", "AlpacaEval", 805, 41.5, 38.0, 45.0, ""),
    ("PLC-DPO", "Vicuna", 80, 76.875, 70.0, 83.0, ""),
    ("PLC-DPO", "AlpacaEval", 805, 58.14, 55.0, 61.0, ""),
    ("γ-PO", "Vicuna", 80, 51.25, 43.0, 59.0, ""),
    ("γ-PO", "AlpacaEval", 805, 48.45, 45.0, 52.0, "800 of 805 prompts compared"),
)


def test_a_table_with_n_intervals_marks_mean_and_worst():
    table = win_table(TWO).frame()
    assert table.to_csv(lineterminator="\n") == (
        "method,Vicuna (n=80),AlpacaEval (n=805),mean of 2,worst\n"
        'RE-PO,"48.1 [40.0, 56.0]","41.5 [38.0, 45.0]",44.8,41.5\n'
        'PLC-DPO,"76.9* [70.0, 83.0]","58.1* [55.0, 61.0]",67.5*,58.1*\n'
        'γ-PO,"51.2† [43.0, 59.0]","48.5† [45.0, 52.0]",49.9†,48.5†\n'
    )


def test_markdown_and_latex():
    markdown = win_table(TWO).markdown().splitlines()
    assert markdown[0] == "| method | Vicuna (n=80) | AlpacaEval (n=805) | mean of 2 | worst |"
    assert markdown[3].startswith("| PLC-DPO | **76.9** [70.0, 83.0] | **58.1** [")
    assert markdown[4].startswith("| γ-PO | <u>51.2</u> [43.0, 59.0] |")
    assert markdown[-1] == "- γ-PO, AlpacaEval: 800 of 805 prompts compared"
    latex = win_table(TWO).latex().splitlines()
    assert latex[0] == r"\begin{tabular}{lcccc}"
    assert latex[5].startswith(r"PLC-DPO & \textbf{76.9} [70.0, 83.0] & ")
    assert latex[6].startswith(r"$\gamma$-PO & \underline{51.2} [43.0, 59.0] & ")
    assert latex[-1] == "% γ-PO, AlpacaEval: 800 of 805 prompts compared"


def test_equal_numbers_as_printed_are_marked_alike():
    table = win_table(
        cells(
            ("a", "x", 9, 50.04, 1, 2, ""),
            ("b", "x", 9, 50.01, 1, 2, ""),
            ("c", "x", 9, 49.0, 1, 2, ""),
        )
    ).frame()
    marks = [text.split(" ")[0] for text in table.iloc[:, 0]]
    assert marks == ["50.0*", "50.0*", "49.0†"]


def test_the_best_is_marked_within_each_model():
    long = pd.concat([TWO.assign(model="small"), TWO.assign(model="large")])
    table = win_table(long, keys=("model", "method")).frame()
    assert table.index.names == ["model", "method"]
    for model in ("small", "large"):
        assert table.loc[(model, "PLC-DPO"), "worst"] == "58.1*"


def test_published_numbers_stand_beside_ours():
    """The paper's own cells, shown beside the paper's own cells."""
    paper = published("cells", dataset="UltraFeedback", model="Qwen2.5-7B")
    ours = TWO.assign(method=TWO["method"].replace({"γ-PO": "ours"}))
    table = win_table(ours, published=paper)
    assert table.frame().loc["PLC-DPO", "Vicuna, paper"] == "76.9"
    assert table.frame().loc["ours", "Vicuna, paper"] == "–"
    read = pd.read_csv(io.StringIO(table.csv()))
    assert read["published"].tolist()[:2] == [48.1, 41.5]
    assert read["win_rate"].tolist() == TWO["win_rate"].tolist()  # unrounded
    assert (NAMES["plc"], NAMES["rdpo-length"]) == ("PLC-DPO", "rDPO")


def test_seeds_and_kl_are_shown():
    long = pd.DataFrame(
        {
            "method": ["dpo", "plc"],
            "benchmark": "Vicuna",
            "n": 80,
            "seeds": 3,
            "win_rate": [41.3, 66.3],
            "sd": [7.8, math.nan],
            "kl": [1.5, math.nan],
        }
    )
    table = win_table(long).frame()
    assert table.loc["dpo"].tolist() == ["41.3† ± 7.8 (3 seeds)", "1.50"]
    assert table.loc["plc"].tolist() == ["66.3* ± – (3 seeds)", "–"]


def test_several_seeds_are_their_mean_and_deviation():
    rows = [
        {"method": method, "benchmark": "a", "seed": seed, "win_rate": rate, "n": 10,
         "low": 0.0, "high": 100.0, "note": "all 10 verdicts are a tie" if rate == 50 else ""}
        for method, rates in (("x", (40.0, 60.0)), ("y", (50.0, 70.0)))
        for seed, rate in enumerate(rates)
    ]  # fmt: skip
    table = win_table(pd.DataFrame(rows))
    assert table.frame().loc["x", "a (n=10)"] == "50.0† ± 14.1 (2 seeds)"
    assert table.notes == ["y, a, seed 0: all 10 verdicts are a tie"]
    with pytest.raises(JoinError, match="a seed is there twice"):
        win_table(pd.DataFrame([*rows, rows[0]]))


def test_a_hole_is_shown_and_no_mean_is_made_over_it():
    table = win_table(TWO.iloc[:5])
    assert table.frame().loc["γ-PO"].tolist() == ["51.2† [43.0, 59.0]", "–", "–", "–"]
    # The others have the same cells, so that their means compare.
    assert table.frame()["mean of 2"].tolist() == ["44.8†", "67.5*", "–"]
    assert table.notes == ["γ-PO: 1 of 2 columns, so there are no means"]


def test_a_ragged_group_has_means_of_its_own_cells():
    """Each model's methods have the model's own benchmarks; a mean says that these differ."""
    both = pd.concat([TWO.assign(model="a"), TWO[TWO["benchmark"] == "Vicuna"].assign(model="b")])
    table = win_table(both, keys=("model", "method"))
    frame = table.frame()
    assert frame.loc[("a", "PLC-DPO"), "mean of its cells"] == "67.5* (2)"
    assert frame.loc[("b", "PLC-DPO"), "mean of its cells"] == "76.9* (1)"
    assert not [note for note in table.notes if "means" in note]


def test_a_kl_that_nobody_measured_is_no_column():
    """Greedy answers alone have none; it was printed as "– [nan, nan]"."""
    greedy = TWO.assign(kl=math.nan, kl_low=math.nan, kl_high=math.nan)
    assert "KL, nats" not in win_table(greedy).frame()
    known = greedy.assign(kl=[math.nan] * 2 + [1.0] * 4, kl_low=0.5, kl_high=2.0)
    assert win_table(known).frame()["KL, nats"].tolist() == ["–", *["1.00 [0.50, 2.00]"] * 2]
    assert "nan" not in win_table(greedy).markdown() + win_table(known).markdown()


def test_different_counts_stand_in_their_cells():
    long = TWO[TWO["benchmark"] == "Vicuna"].assign(n=[80, 79, 80])
    assert win_table(long).frame().iloc[1].tolist() == ["76.9* [70.0, 83.0] (n=79)"]


def test_a_cell_over_fewer_prompts_than_the_benchmark_has_is_noted():
    long = TWO[TWO["benchmark"] == "Vicuna"].assign(n=[80, 79, 80])
    assert win_table(long, sizes=BENCHMARK_SIZES).notes == [
        "PLC-DPO, Vicuna: over 79 of 80 prompts"
    ]


def test_names_are_shown_literally():
    long = TWO.assign(method=TWO["method"].replace({"RE-PO": "a|b_<i> 5%"}))
    assert r"| a\|b\_&lt;i> 5% |" in win_table(long).markdown()
    assert r"a|b\_<i> 5\% &" in win_table(long).latex()


def test_what_is_no_table_is_refused():
    with pytest.raises(JoinError, match="lack the columns benchmark"):
        win_table(TWO.drop(columns="benchmark"))
    with pytest.raises(JoinError, match="no win rates to show"):
        win_table(TWO.iloc[:0])
    with pytest.raises(JoinError, match="have RE-PO, Vicuna twice; say what else"):
        win_table(pd.concat([TWO, TWO]))
    with pytest.raises(JoinError, match="published win rates have rDPO, AlpacaEval twice"):
        win_table(TWO, published=published("cells"))


def test_seeds_may_rest_on_other_prompts_where_a_note_says_why():
    cells = pd.DataFrame(
        {"benchmark": "vicuna", "method": "PLC-DPO", "seed": [0, 1], "win_rate": [50.0, 60.0],
         "n": [16, 15], "note": ["", "1 prompt without a reward"]}
    )  # fmt: skip
    (row,) = mean_over_seeds(cells, ["benchmark"]).to_dict("records")
    assert (row["seeds"], row["win_rate"], row["n"]) == (2, 55.0, 15)
    with pytest.raises(JoinError, match="seeds rest on"):
        mean_over_seeds(cells.assign(note=""), ["benchmark"])
