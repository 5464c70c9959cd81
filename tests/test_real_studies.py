"""Notebooks 03 to 08 on the shapes of real benchmarks: every cell of their tables, recomputed.

What is expected is computed here with pandas and scipy from the files of the run folders; of the
package only the notebooks are run. Intervals that are resampled are drawn anew, and compared within
what the draw leaves open.
"""

import json
import math
import random

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from IPython.display import Markdown
from scipy import stats

from tests.real_shapes import messages, text
from tests.recomputed import (
    BENCHMARKS,
    Q,
    auroc,
    check_holm,
    check_mann_whitney,
    check_mean,
    check_wins,
    probed,
    same,
    visits,
)
from tests.test_ties_held_out import answer, row

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def own(shapes):
    """Parameters that the studies share: pairs with scores, some held out, a pool of ties."""
    folder, rng = shapes.folder / "studies", random.Random(5)
    folder.mkdir()
    pairs = []
    for n in range(60):
        asked = text(rng) + f" q{n}"
        sides = {s: messages(asked, f"{text(rng)} {s}") for s in ("chosen", "rejected")}
        scores = {"score_chosen": 5 + rng.random() * 4, "score_rejected": rng.random() * 5}
        pairs.append({"prompt": asked} | sides | scores)
    answers = [
        row(f"{text(rng)} t{n}", *(answer(f"{text(rng)} {side}", 5.0) for side in "ab"))
        for n in range(40)
    ]
    votes = [["a"] * 4, ["tie", "tie", "a", "b"], ["a", "a", "b", "tie"]]
    voted = [
        {"prompt": f"{text(rng)} v{n}", "votes": votes[n % 3]}
        | {f"response_{side}": f"{text(rng)} {side}" for side in "ab"}
        for n in range(24)
    ]
    for name, rows in {"pairs": pairs, "answers": answers, "votes": voted}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    common = {"data": str(folder / "pairs.jsonl"), "num_pairs": 60, "held_out": 20}
    common |= {"batch_pairs": 10, "pairs_per_forward": 10, "model": shapes.models[1]}
    common |= {"tie_pool": str(folder / "answers.jsonl")}
    judged = {"benchmarks": [shapes.benchmarks[name] for name in BENCHMARKS]}
    judged |= {"judge": shapes.judge, "max_new_tokens": 5}
    return {"common": common, "judged": judged, "votes": str(folder / "votes.jsonl")}


def tables(shapes, notebook, **parameters):
    """The tables of a study's report, by name, and its runs by label.

    The notebook itself shows pictures, and the paper's numbers beside its own.
    """
    shown = shapes.run(notebook, **parameters)["shown"]
    assert sum(isinstance(each, go.Figure) for each in shown) >= 2
    said = [each.data for each in shown if isinstance(each, Markdown)]
    said += [each.to_string() for each in shown if isinstance(each, pd.DataFrame)]
    # What 05 says of the paper stands in the notebook's own text.
    assert notebook == "05_tie_selectivity" or any("paper" in text for text in said)
    report = shapes.runs / notebook
    runs = json.loads((report / "run.json").read_text())["runs"]
    folders = {label: [shapes.runs / name for name in names] for label, names in runs.items()}
    kept = (report / "tables").glob("*.csv")
    return {path.stem: pd.read_csv(path) for path in kept}, folders


def test_label_noise(shapes, own) -> None:
    settings = own["judged"] | {"common": own["common"], "rates": [0.0, 0.3], "seeds": [0, 1]}
    found, runs = tables(shapes, "03_label_noise", **settings)
    table = found["win-rates"]

    def sides(line):
        rate = f"η={line['noise_rate']:g}"
        against = runs[f"DPO, η={0 if line['baseline'] == 'clean DPO' else line['noise_rate']:g}"]
        return runs[f"{line['method']}, {rate}"], against, runs[f"KL control (DPO), {rate}"]

    check_wins(table, sides, lambda line: line["noise_rate"] == 0.3 and line["method"] == "PLC-DPO")
    # Every benchmark, their mean, and all prompts together: the two AlpacaEvals stay two.
    rows = table.groupby(["noise_rate", "baseline", "method", "decoding"])["benchmark"].agg(list)
    assert set(map(tuple, rows)) == {("mean of benchmarks", "pooled", *BENCHMARKS)}
    assert {(rate, base) for rate, base, method, _ in rows.index if method == "PLC-DPO"} == {
        (rate, base) for rate in (0.0, 0.3) for base in ("clean DPO", "same-data DPO")
    }
    alone = table[table["benchmark"].isin(BENCHMARKS)].reset_index(drop=True)
    pd.testing.assert_frame_equal(found["win-rates-by-benchmark"], alone)
    assert "embedded world only" in found["calibration"].columns[0]


def test_exact_ties(shapes, own) -> None:
    """The rows are of the rates of injected ties, whatever share of the verdicts is tied."""
    settings = own["judged"] | {"common": own["common"], "rates": [0.0, 0.25], "seeds": [0]}
    found, runs = tables(shapes, "06_exact_ties", **settings, probe_rate=0.25, held_out=20)
    table = found["win-rates"]

    def sides(line):
        rate = f"{line['tie_rate']:.0%} ties"
        return (runs[f"{line['method']}, {rate}"], runs[f"DPO, {rate}"],
                runs[f"KL control (DPO), {rate}"])  # fmt: skip

    check_wins(table, sides, lambda line: line["decoding"] == "sampled")
    spotlight = table[table["method"] == "PLC-DPO"]
    assert sorted(set(spotlight["tie_rate"])) == [0.0, 0.25]
    assert len(spotlight) == 2 * 2 * (2 + len(BENCHMARKS))
    for line in found["zero-shot"].to_dict("records"):
        label = {"PLC-DPO": "PLC-DPO, 0% ties", "DPO (shadow)": "DPO, 0% ties"}[line["policy"]]
        probe = "ties-0.25" if line["pairs"].startswith("training") else "held-out-ties-0.25-20"
        scores = pd.read_parquet(runs[label][0] / "scores" / f"{probe}.parquet")
        part = scores[scores["calibration"] == line["calibration"]]
        inside, outside = (part.loc[part["injected_tie"] == tie, line["score"]] for tie in (1, 0))
        side = "less" if line["score"] == "q_clean" else "greater"
        test = stats.mannwhitneyu(inside, outside, alternative=side)
        turn = -1 if side == "less" else 1
        area = auroc(turn * inside, turn * outside)
        for name, value in zip(("auroc", "low", "high"), area, strict=True):
            same(line[name], value)
        same(line["p"], test.pvalue)
        same(line["injected"], inside.mean())
        same(line["clean"], outside.mean())
        assert (line["n_injected"], line["n_clean"]) == (len(inside), len(outside))
        assert line["missing"] == 0
    check_holm(found["zero-shot"], ["pairs", "policy", "calibration"])
    assert len(found["zero-shot"]) == 2 * 2 * 2 * 3
    for line in found["direction-kept"].to_dict("records"):
        label = f"{'DPO' if 'shadow' in line['method'] else 'PLC-DPO'}, {line['tie_rate']:.0%} ties"
        seen = visits(runs[label])
        kept = seen["q_clean"] - seen["q_flip"]
        inside, outside = kept[seen["injected_tie"]], kept[~seen["injected_tie"]]
        check_mean(line, inside, ("injected", "injected_low", "injected_high", "n_injected"))
        check_mean(line, outside, ("clean", "clean_low", "clean_high", "n_clean"))
        if len(inside):
            same(line["factor"], outside.mean() / inside.mean() if inside.mean() > 0 else math.inf)
            assert line["low"] <= line["factor"] <= line["high"]


def test_self_confirmation(shapes, own) -> None:
    """Without controls and sampled answers, as a table of greedy decoding alone."""
    settings = own["judged"] | {"common": own["common"], "rate": 0.3, "seeds": [0, 1]}
    settings |= {"kl_control": False, "decodings": ["greedy"], "reward_model": shapes.judge}
    found, runs = tables(shapes, "08_self_confirmation", **settings, held_out=20)
    table = found["win-rates"]
    assert not table.isna().any(axis=None)

    def sides(line):
        warm = line["baseline"].removeprefix("DPO")
        return runs[line["method"]], runs[f"DPO (shadow){warm}"], None

    check_wins(table, sides)
    longer = [f"{arm}, 30% warm-up" for arm in ("PLC-DPO", "DPO (shadow)")]
    assert set(zip(table["baseline"], table["method"], strict=True)) == {
        ("DPO", "PLC-DPO"), ("DPO, 30% warm-up", longer[0]), ("DPO", longer[1])
    }  # fmt: skip
    for line in found["flip-detection"].to_dict("records"):
        own_runs = runs[line["method"]]
        in_training = line["pairs"].startswith("training")
        seen = visits(own_runs) if in_training else probed(own_runs, "flips-0.3-20")
        values = seen["q_flip"] if line["score"] == "q_flip" else -seen["z"]
        up, down = values[seen["flipped"]], values[~seen["flipped"]]
        for name, value in zip(("auroc", "low", "high"), auroc(up, down), strict=True):
            same(line[name], value)
        assert (line["n_flipped"], line["n_others"]) == (len(up), len(down))
        means = (up.mean(), down.mean()) if line["score"] == "q_flip" else (math.nan, math.nan)
        same((line["flipped"], line["others"]), means)
    # 20 pairs held out, and two seeds that were shown them: each pair counts once.
    zero_shot = found["flip-detection"].query("pairs.str.startswith('held')")
    assert (zero_shot["n_flipped"] + zero_shot["n_others"]).eq(20).all()
    assert len(found["flip-detection"]) == 4 * 2 * 2
    for number, method in enumerate(runs):
        curve = found[f"disagreement-{number}"]
        scores = probed(runs[method], "disagreement-20")
        assert curve["n"].sum() == len(scores) == 20
        order = scores["q_flip"].sort_values(kind="stable")
        for line, part in zip(
            curve.to_dict("records"), np.array_split(order.to_numpy(), 10), strict=True
        ):
            same(line["q_flip"], part.mean())
            share = line["share"]
            low, high = stats.binomtest(round(share * line["n"]), int(line["n"])).proportion_ci(
                0.95, "wilson"
            )
            same((line["low"], line["high"]), (low, high))
    for line in found["phases"].to_dict("records"):
        seen = visits(runs[line["method"]])
        place = np.minimum(seen["step"] * 5 // (seen["step"].max() + 1), 4)
        inside = seen.loc[place == line["phase"], "weight"]
        same((line["from"], line["to"]), (line["phase"] / 5, (line["phase"] + 1) / 5))
        same(line["share"], inside.sum() / seen["weight"].sum())
        check_mean(line, inside, ("mean", "low", "high", "n"))


def test_hard_pairs(shapes, own) -> None:
    found, runs = tables(
        shapes, "04_hard_pair_routing", common=own["common"], rates=[0.1, 0.25], seeds=[0]
    )
    table = found["dose-response"]
    for (method, rate), lines in table.groupby(["method", "noise_rate"]):
        seen = visits(runs[f"{method}, η={rate:g}"])
        marked = seen["flipped"]
        assert marked.sum() == round(rate * 40)
        cells = lines.set_index("measure").to_dict("index")
        names = ("value", "low", "high", "n")
        for column in Q:
            check_mean(cells[column], seen[column], names)
        check_mean(cells["marked_q_flip"], seen.loc[marked, "q_flip"], names)
        check_mean(cells["unmarked_q_flip"], seen.loc[~marked, "q_flip"], names)
        most = int((seen["q_flip"] > seen[["q_clean", "q_tie"]].max(axis=1)).sum())
        wilson = stats.binomtest(most, len(seen)).proportion_ci(0.95, "wilson")
        expected = (most / len(seen), wilson.low, wilson.high, len(seen))
        same(tuple(cells["argmax_flip"][name] for name in names), expected)
        area = (*auroc(seen.loc[marked, "q_flip"], seen.loc[~marked, "q_flip"]), marked.sum())
        same(tuple(cells["marker_auroc"][name] for name in names), area)
    assert len(table) == 2 * 2 * 7


def test_tie_selectivity(shapes, own) -> None:
    found, runs = tables(
        shapes, "05_tie_selectivity", common=own["common"], seeds=[0, 1], held_out=20, share=0.3
    )
    for policy in runs:
        scores = probed(runs[policy], "held-out-20")
        assert len(scores) == 20
        scores["abs_margin"] = scores["margin"].abs()
        scores["length_difference"] = (scores["chosen_tokens"] - scores["rejected_tokens"]).abs()
        gap = (scores["score_chosen"] - scores["score_rejected"]).abs()
        ranked = scores.assign(gap=gap).sort_values("gap")
        slices = {"bottom": ranked.iloc[:6], "top": ranked.iloc[-6:]}
        for line in found["slices"].query("policy == @policy").to_dict("records"):
            part = slices[line["slice"]]
            assert (line["n"], line["cut_ties"], line["source"]) == (6, 0, "pairs.jsonl")
            same((line["gap_low"], line["gap_high"]), (part["gap"].min(), part["gap"].max()))
            for name in ("q_tie", "abs_margin"):
                same(line[f"{name}_mean"], part[name].mean())
                same(line[f"{name}_median"], part[name].median())
        lines = found["tests"].query("policy == @policy").to_dict("records")
        assert [line["measure"] for line in lines] == ["q_tie", "abs_margin"]
        for line in [*lines, *found["lengths"].to_dict("records")]:
            low, high = (slices[side][line["measure"]] for side in ("bottom", "top"))
            check_mann_whitney(line, low, high)


def test_multipref(shapes, own) -> None:
    found, runs = tables(
        shapes, "07_multipref", common=own["common"], seeds=[0, 1], votes=own["votes"]
    )
    table = found["groups"]
    groups = ("unanimous", "divergent", "tie-majority")
    for (policy, calibration, measure), lines in table.groupby(
        ["policy", "calibration", "measure"]
    ):
        scores = probed(runs[policy], "votes-file", calibration)
        assert len(scores) == 24  # each once, though two seeds were shown them
        scores["abs_margin"] = scores["margin"].abs()
        parts = {name: scores.loc[scores["group"] == name, measure] for name in groups}
        assert lines["group"].tolist() == list(groups)
        for line in lines.to_dict("records"):
            values, base = parts[line["group"]], parts["unanimous"]
            check_mean(line, values, ("mean", "low", "high", "n"))
            assert (line["n"], line["missing"]) == (8, 0)
            if line["group"] == "unanimous":
                assert all(math.isnan(line[name]) for name in ("change", "p", "log10_p", "p_holm"))
                continue
            same(line["change"], 100 * (values.mean() / base.mean() - 1))
            side = "less" if measure == "abs_margin" else "greater"
            same(line["p"], stats.mannwhitneyu(values, base, alternative=side).pvalue)
    check_holm(table, ["policy", "calibration", "measure"])
    assert len(table) == 2 * 2 * 3 * 3
