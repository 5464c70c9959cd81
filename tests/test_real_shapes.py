"""02, 09, 10, 12, 13 and 14 on the shapes of real benchmarks: every number of their tables again,
with pandas alone, from the files of the run folders.

AlpacaEval and AlpacaEval 2 share ids and `dataset` values, MT-Bench and Vicuna categories; there
are two models, two data sets, three seeds and two judges.
"""

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from notebooks.studies import win_rate_study
from plc_core.analysis.paper import published

NAMES = ["alpaca-eval", "alpaca-eval-2", "mt-bench", "vicuna"]
PAPER = {"alpaca-eval": "AlpacaEval", "alpaca-eval-2": "AlpacaEval 2", "mt-bench": "MT-Bench"}
PAPER |= {"vicuna": "Vicuna"}
QWEN, LLAMA = "Qwen2.5-7B", "Llama-3-8B"
CELL = ["dataset", "model", "benchmark", "judge", "decoding", "method", "seed"]
MEAN = [key for key in CELL if key != "benchmark"]
GREEDY = {"decodings": ["greedy"], "make": False}


@pytest.fixture(scope="module")
def asked(shapes):
    """What each notebook is asked for, and what it left: its names, and the report's folder."""
    files = {name: shapes.benchmarks[name] for name in NAMES}
    shared = {"benchmarks": list(files.values()), "judges": [shapes.judge], "max_new_tokens": 8}
    shared |= {"control_betas": [0.1]}
    alone = shared | {"common": {}}
    whole, part = None, [files["alpaca-eval-2"], files["vicuna"]]
    own = {
        "02_main_results": shared
        | {
            "datasets": {
                "UltraFeedback": {"data": shapes.data[0]},
                "HH-Golden": {"data": shapes.data[1]},
            },
            "models": {QWEN: shapes.models[0], LLAMA: shapes.models[1]},
            "grid": {
                "UltraFeedback": {QWEN: whole, LLAMA: whole},
                "HH-Golden": {QWEN: whole, LLAMA: part},
            },
            "methods": ["rdpo-length", "rdpo-robust", "plc"],
            "transfer": ["plc"],
            "control_betas": [],
        },
        "09_ablations": alone,
        "10_sensitivity": alone | {"hyperparameters": ["kappa"]},
        "12_seeds": alone | {"seeds": [0, 1, 2], "methods": ["plc"]},
        "13_training_dynamics": alone
        | {"methods": ["dpo", "plc"], "save_steps": 1, "control_betas": []}
        | {"benchmarks": [files["mt-bench"], files["vicuna"]]},
        "14_judges": alone
        | {"judges": [shapes.judge, shapes.second_judge], "benchmarks": part}
        | {"methods": ["rdpo-length", "plc"]},
    }  # fmt: skip
    done = {}

    def run(notebook, **more):
        if more or notebook not in done:
            name = notebook + "".join(f"-{key}" for key in more)
            names = shapes.run(notebook, **own[notebook], **more, name=name)
            done[notebook if not more else name] = names, shapes.runs / name / "tables"
            return names, shapes.runs / name / "tables"
        return done[notebook]

    run.shapes, run.files = shapes, files
    return run


# ---- from the files ------------------------------------------------------------------------------


@cache
def stored(folder, kind, name):
    return pd.read_parquet(folder / kind / f"{name}.parquet")


@cache
def rewards(folder, judge, benchmark, policy, kind):
    """By prompt id, the mean over turns."""
    table = stored(folder, "judgements", f"{judge}-{benchmark}")
    of_kind = table[(table["decoding"] == "greedy") == (kind == "greedy")]
    own = of_kind[of_kind["policy"] == policy]
    return own.groupby("prompt_id", sort=False)["reward"].mean()


@cache
def log_ratios(folder, benchmark, policy="trained"):
    table = stored(folder, "generations", f"{benchmark}-log-probs")
    own = table[table["policy"] == policy]
    return (own["policy_logp"] - own["reference_logp"]).groupby(own["prompt_id"]).mean()


@cache
def categories(folder, benchmark):
    table = stored(folder, "generations", benchmark)
    return table.drop_duplicates("prompt_id").set_index("prompt_id")["category"]


def wins(own, other):
    return (np.sign(own - other.loc[own.index]) + 1) / 2


class Files:
    """The runs of a report by (dataset, model, method, seed), and what their files say."""

    def __init__(self, runs, report, judges=("rm",), names=NAMES):
        self.judges, self.names, self.runs = judges, names, {}
        info = json.loads((report.parent / "run.json").read_text())
        for label, names in info["runs"].items():
            method, dataset, model = label.rsplit(", ", 2)
            for name in names:
                config = json.loads((runs / name / "run.json").read_text())["config"]
                self.runs[dataset, model, method, config["seed"]] = runs / name

    def benchmarks(self, dataset, model):
        if (dataset, model) == ("HH-Golden", LLAMA):
            return ["alpaca-eval-2", "vicuna"]
        return self.names

    def rewards(self, line, method, prompts=None):
        """Of the answers of a method, SFT among them, to a row's benchmark; or some prompts."""
        of = line | {"method": "DPO" if method == "SFT" else method}
        folder = self.runs[tuple(of[key] for key in ("dataset", "model", "method", "seed"))]
        policy = "reference" if method == "SFT" else "trained"
        benchmark, _, category = line["benchmark"].partition(": ")
        found = rewards(folder, line["judge"], benchmark, policy, line["decoding"])
        if category:
            of_prompt = categories(folder, benchmark)
            found = found[of_prompt.loc[found.index] == category]
        return found

    def kl(self, line, method):
        """The mean of the benchmarks' means."""
        folder = self.runs[line["dataset"], line["model"], method, line["seed"]]
        names = self.benchmarks(line["dataset"], line["model"])
        return np.mean([log_ratios(folder, name).mean() for name in names])

    def controls(self, line):
        return [m for d, mo, m, s in self.runs if m.split(" β=")[0] == "DPO"
                and (d, mo, s) == (line["dataset"], line["model"], line["seed"])]  # fmt: skip

    def cells(self, by_category=False):
        """Every cell, method and seed that there must be."""
        for (dataset, model, method, seed), folder in self.runs.items():
            for own in [method, *(["SFT"] if method == "DPO" else [])]:
                for name in self.benchmarks(dataset, model):
                    parts = sorted(set(categories(folder, name))) if by_category else [""]
                    for judge in self.judges:
                        for decoding in ("greedy", "sampled"):
                            for part in parts:
                                where = f"{name}: {part}" if part else name
                                yield (dataset, model, where, judge, decoding, own, seed)


def check_cells(table, files, by_category=False):
    """Every row and column of a table of cells."""
    found = list(table[CELL].itertuples(index=False, name=None))
    assert sorted(found) == sorted(files.cells(by_category))
    for line in table.to_dict("records"):
        method = line["method"]
        own = files.rewards(line, method)
        assert line["n"] == len(own)
        assert line["reward"] == pytest.approx(own.mean())
        others = {"": "DPO", "sft": "SFT"}
        if method != "SFT" and not pd.isna(line["control"]):
            kls = {control: files.kl(line, control) for control in files.controls(line)}
            nearest = min(kls, key=lambda name: abs(np.log(kls[name] / files.kl(line, method))))
            assert line["control"] == nearest
            assert line["control_kl"] == pytest.approx(kls[nearest])
            others["over"] = nearest
        else:
            assert method in ("SFT", *files.controls(line))
        for name, other in others.items():
            ends = [f"{name}_low", f"{name}_high"] if name else ["low", "high"]
            rate = line[name or "win_rate"]
            if method == other:
                assert pd.isna(rate)
                continue
            won = wins(own, files.rewards(line, other))
            assert rate == pytest.approx(100 * won.mean())
            drawn = np.random.default_rng(0).integers(0, len(won), (2000, len(won)))
            expected = 100 * np.quantile(won.to_numpy()[drawn].mean(axis=1), [0.025, 0.975])
            assert [line[end] for end in ends] == pytest.approx(expected.tolist())
            if not name:
                check_counts(line, won)
        if method == "SFT":
            assert pd.isna(line["kl"])
        else:
            assert line["kl"] == pytest.approx(files.kl(line, method))


def check_counts(line, won):
    counts = [int((won == value).sum()) for value in (1, 0.5, 0)]
    assert [line["wins"], line["ties"], line["losses"]] == counts
    decided = counts[0] + counts[2]
    p = stats.binomtest(counts[0], decided).pvalue if decided else np.nan
    assert line["p_sign"] == pytest.approx(p, nan_ok=True)


def check_means(table, cells):
    """Means over benchmarks, each weighing alike, of a checked table of cells."""
    values = ["win_rate", "sft", "over", "reward", "kl", "control_kl"]
    expected = cells.groupby(MEAN, sort=False)[values].mean()
    expected["n"] = cells.groupby(MEAN, sort=False)["n"].sum()
    expected["benchmarks"] = cells.groupby(MEAN, sort=False).size()
    found = table.set_index(MEAN)
    assert set(found.index) == set(expected.index)
    for name in expected:
        pd.testing.assert_series_equal(
            found[name].astype(float), expected[name].loc[found.index].astype(float)
        )
    for rate, low, high in (("win_rate", "low", "high"), ("over", "over_low", "over_high")):
        known = found.dropna(subset=[rate])
        assert (known[low] <= known[rate] + 1e-9).all()
        assert (known[rate] <= known[high] + 1e-9).all()


def number(text):
    """The first number of a table's text."""
    return float(str(text).replace("−", "-").split(" ")[0].strip("*<u>/†"))


# ---- notebook by notebook ------------------------------------------------------------------------


def test_the_main_table_and_its_grid(asked):
    names, tables = asked("02_main_results")
    files = Files(asked.shapes.runs, tables)
    cells = pd.read_csv(tables / "cells.csv")
    check_cells(cells, files)
    check_means(pd.read_csv(tables / "results.csv"), cells)
    check_cells(pd.read_csv(tables / "categories.csv"), files, by_category=True)
    # The paper's rDPO stands beside the one it cites, and the other keeps a row of its own.
    keys = ["dataset", "model", "method", "benchmark"]
    both = pd.concat([published("cells"), published("main_results")])
    printed = both.groupby(keys)["win_rate"].agg(list)
    for decoding in ("greedy", "sampled"):
        shown = pd.read_csv(tables / f"cells-{decoding}.csv")
        rows = cells[(cells["decoding"] == decoding) & cells["win_rate"].notna()]
        assert shown["win_rate"].tolist() == rows["win_rate"].tolist()
        for line in shown.to_dict("records"):
            key = (*(line[key] for key in keys[:3]), PAPER[line["benchmark"]])
            assert line["published"] in printed.get(key, [line["published"]])
            assert pd.notna(line["published"]) == (key in printed)
    assert {"rDPO", "PLC-DPO", "SFT"} == set(shown[shown["published"].notna()]["method"])
    first = cells[(cells["dataset"] == "UltraFeedback") & (cells["model"] == QWEN)]
    assert {"rDPO", "rdpo-robust"} < set(first["method"])
    check_grid(pd.read_csv(tables / "grid.csv"), cells)
    sentence = names["shown"][-1].data
    assert "Best mean over all cells: " in sentence
    assert "over 14 cells; rDPO, rdpo-robust lack some cells and are left out." in sentence


def check_grid(table, cells):
    """One mean and one worst over all 14 cells, of the methods that have them all."""
    assert set(table["method"]) == {"SFT", "PLC-DPO"}
    for line in table.to_dict("records"):
        own = cells[(cells["method"] == line["method"]) & (cells["decoding"] == line["decoding"])]
        of = own.groupby("dataset")["win_rate"].mean()
        assert len(own) == 14
        assert line["UltraFeedback (n=8)"] == pytest.approx(of["UltraFeedback"], abs=0.051)
        assert line["HH-Golden (n=6)"] == pytest.approx(of["HH-Golden"], abs=0.051)
        assert line["all cells (n=14)"] == pytest.approx(own["win_rate"].mean(), abs=0.051)
        assert line["worst"] == pytest.approx(own["win_rate"].min(), abs=0.051)
        named = own.set_index(own["dataset"] + ", " + own["model"] + ", " + own["benchmark"])
        assert named["win_rate"][line["worst cell"]] == own["win_rate"].min()
        paper = {"mean": "60.5", "worst": "41.2"}
        for statistic, value in paper.items():
            known = (line["method"], line["decoding"]) == ("PLC-DPO", "greedy")
            assert str(line[f"paper: {statistic} of 57"]) == (value if known else "–")


def test_the_ablations(asked):
    names, tables = asked("09_ablations")
    files = Files(asked.shapes.runs, tables)
    cells = win_rate_study.results_of(names["evaluation"], names["config"])
    check_cells(cells, files)
    check_means(pd.read_csv(tables / "results.csv"), cells)
    kept = pd.read_csv(tables / "cells.csv")
    assert kept["win_rate"].tolist() == pytest.approx(
        cells[cells["method"].isin(kept["method"])]["win_rate"].tolist(), nan_ok=True
    )
    full = pd.read_csv(tables / "against-full.csv")
    for line in full.to_dict("records"):
        rates = [
            wins(files.rewards(line | {"benchmark": name}, line["method"]),
                 files.rewards(line | {"benchmark": name}, "PLC-DPO full")).mean()
            for name in NAMES
        ]  # fmt: skip
        assert line["win_rate"] == pytest.approx(100 * np.mean(rates))
    shown = names["shown"][0]
    results = pd.read_csv(tables / "results.csv").set_index(["method", "decoding"])
    over_full = full.set_index(["method", "decoding"])
    for method in shown.index:
        for decoding in ("greedy", "sampled"):
            line = results.loc[method, decoding]
            text = shown.loc[method]
            assert number(text[f"{decoding}, against DPO"]) == round(line["win_rate"], 1)
            assert number(text[f"{decoding}, at the nearest KL"]) == round(line["over"], 1)
            if method != "PLC-DPO full":
                rate = over_full.loc[(method, decoding), "win_rate"]
                assert number(text[f"{decoding}, against full"]) == round(rate, 1)
        assert number(text["KL, nats"]) == pytest.approx(line["kl"], abs=0.0051)
        assert text["n"] == "23"


def test_the_sweeps_and_recipes(asked):
    names, tables = asked("10_sensitivity")
    cells = pd.read_csv(tables / "cells.csv")
    check_cells(cells, Files(asked.shapes.runs, tables))
    results = pd.read_csv(tables / "results.csv")
    check_means(results, cells)
    recipes = pd.read_csv(tables / "recipes.csv")
    called = {"aggressive": "PLC-DPO", "balanced": "PLC-DPO balanced"}
    called |= {"conservative": "PLC-DPO conservative", "rDPO": "rDPO", "Dr.DPO": "Dr.DPO"}
    assert set(recipes["method"]) == set(called)
    known = cells.set_index(["method", "benchmark", "decoding"])["win_rate"]
    for line in recipes.to_dict("records"):
        rate = known[called[line["method"]], line["benchmark"], line["decoding"]]
        assert line["win_rate"] == pytest.approx(rate)
    sweep = names["sensitivity"].sweep_table(names["sweep"])
    methods = {"0.5": "kappa 0.5", "0.8 (default)": "PLC-DPO", "2": "kappa 2"}
    means = results.set_index(["method", "decoding"])["win_rate"]
    assert [value for _, value in sweep.index] == list(methods)
    for (_, value), line in sweep.iterrows():
        for decoding in ("greedy", "sampled"):
            expected = round(means[methods[value], decoding], 1)
            assert number(line[f"{decoding}, against DPO"]) == expected


def test_a_seed_is_a_training_seed(asked):
    """Three, whatever the number of benchmarks, which are averaged within each first."""
    names, tables = asked("12_seeds")
    files = Files(asked.shapes.runs, tables)
    cells = pd.read_csv(tables / "cells.csv")
    check_cells(cells, files)
    results = pd.read_csv(tables / "results.csv")
    check_means(results, cells)
    fixed = pd.read_csv(tables / "cells-against-one-seed.csv")
    for line in fixed.to_dict("records"):
        own = files.rewards(line, line["method"])
        won = wins(own, files.rewards(line | {"seed": 0}, "DPO"))
        assert line["win_rate"] == pytest.approx(100 * won.mean())
    assert len(fixed[fixed["method"] == "PLC-DPO"]) == 3 * len(NAMES) * 2
    assert len(fixed[fixed["method"] == "DPO"]) == 2 * len(NAMES) * 2  # the first is the reference
    means = pd.read_csv(tables / "against-one-seed.csv")
    by_seed = fixed.groupby(["method", "decoding", "seed"])["win_rate"].mean()
    for line in means.to_dict("records"):
        expected = by_seed[line["method"], line["decoding"], line["seed"]]
        assert line["win_rate"] == pytest.approx(expected)
    shown, by_benchmark = names["shown"][0], names["shown"][1]
    sources = {
        "against DPO of one seed": (means, "win_rate"),
        "at the nearest KL": (results, "over"),
    }
    sources["against DPO of its seed"] = (results, "win_rate")
    for decoding in ("greedy", "sampled"):
        for head, (table, value) in sources.items():
            own = table[(table["method"] == "PLC-DPO") & (table["decoding"] == decoding)][value]
            assert len(own) == 3
            text = shown.loc[f"{decoding}, {head}", "PLC-DPO"]
            assert text.startswith(f"{own.mean():.1f} ± {own.std(ddof=1):.1f} [")
            assert "seeds)" not in text
        for name in NAMES:
            of = (fixed["method"] == "PLC-DPO") & (fixed["benchmark"] == name)
            own = fixed[of & (fixed["decoding"] == decoding)]
            head = f"{name} (n={own['n'].iloc[0]}), {decoding}"
            spread = f"{own['win_rate'].mean():.1f} ± {own['win_rate'].std(ddof=1):.1f} ["
            assert by_benchmark.loc[head, "PLC-DPO"].startswith(spread)
    assert shown.loc["seeds"].tolist() == ["3"] * 3
    assert "Over 3 seeds PLC-DPO" in names["shown"][-1].data


def test_the_checkpoints(asked):
    names, tables = asked("13_training_dynamics")
    table = pd.read_csv(tables / "checkpoints.csv")
    info = json.loads((tables.parent / "run.json").read_text())["runs"]
    benchmarks = ["mt-bench", "vicuna"]
    of_benchmark = table[table["benchmark"] != "mean of benchmarks"]
    assert len(of_benchmark) == 2 * 2 * 4 * 2  # methods, benchmarks, SFT and 3 steps, decodings
    for line in of_benchmark.to_dict("records"):
        folder = asked.shapes.runs / info[line["method"]][0]
        policy = f"step-{line['step']}" if line["step"] else "step-0"
        own, start = (
            rewards(folder, "rm", line["benchmark"], who, line["decoding"])
            for who in (policy, "step-0")
        )
        assert line["n"] == len(own)
        assert line["share"] == pytest.approx(line["step"] / 3)
        assert line["reward"] == pytest.approx(own.mean())
        assert line["win_rate"] == pytest.approx(100 * wins(own, start).mean())
        kl = log_ratios(folder, line["benchmark"], policy).mean() if line["step"] else 0
        assert line["kl"] == pytest.approx(kl)
    keys = ["method", "step", "decoding"]
    values = ["reward", "win_rate", "kl"]
    expected = of_benchmark.groupby(keys)[values].mean()
    found = table[table["benchmark"] == "mean of benchmarks"].set_index(keys)[values]
    pd.testing.assert_frame_equal(found.sort_index(), expected.sort_index())
    assert set(of_benchmark["benchmark"]) == set(benchmarks)
    shown = next(frame for frame in names["shown"] if "at the end" in getattr(frame, "columns", []))
    last = found["win_rate"].xs(3, level="step")
    for (benchmark, method, decoding), line in shown.iterrows():
        if benchmark == "mean of benchmarks":
            assert number(line["at the end"]) == round(last[method, decoding], 1)


def test_two_judges(asked):
    names, tables = asked("14_judges")
    files = Files(
        asked.shapes.runs, tables, judges=("rm", "rm2"), names=["alpaca-eval-2", "vicuna"]
    )
    cells = pd.read_csv(tables / "cells.csv")
    check_cells(cells, files)
    results = pd.read_csv(tables / "results.csv")
    check_means(results, cells)
    for decoding in ("greedy", "sampled"):
        shown = pd.read_csv(tables / f"win-rates-{decoding}.csv")
        rows = cells[(cells["decoding"] == decoding) & cells["win_rate"].notna()]
        assert shown["win_rate"].tolist() == rows["win_rate"].tolist()
    single = names["shown"][0]
    for line in results.to_dict("records"):
        of = single[line["method"]][f"{line['judge']}, {line['decoding']}"]
        assert number(of["single"]) == pytest.approx(line["reward"], abs=0.0051)
        if line["method"] != "DPO":
            assert number(of["WR"]) == round(line["win_rate"], 1)
    check_agreement(names["agreed"], files)


def check_agreement(table, files):
    """By benchmark, and over the prompts of all of them pooled, under that name."""
    assert set(table.index.get_level_values("method")) == {"rDPO", "PLC-DPO"}
    for (method, decoding, benchmark), line in table.iterrows():
        pooled = benchmark == "all, pooled"
        same = []
        for name in files.names if pooled else [benchmark]:
            where = {"dataset": "pairs", "model": "m7b", "seed": 0, "benchmark": name}
            where["decoding"] = decoding
            both = [
                wins(files.rewards(where | {"judge": judge}, method),
                     files.rewards(where | {"judge": judge}, "DPO"))
                for judge in files.judges
            ]  # fmt: skip
            same += (both[0] == both[1].loc[both[0].index]).tolist()
        assert line["n"] == str(len(same))
        assert line["same verdict"].startswith(f"{100 * np.mean(same):.0f} % [")


@pytest.mark.parametrize("notebook", ["02_main_results", "12_seeds", "13_training_dynamics"])
def test_greedy_decoding_alone_leaves_nothing_that_is_not_a_number(asked, notebook):
    """The answers are there; what only sampled ones tell has no column or a plain dash."""
    asked(notebook)
    names, tables = asked(notebook, **GREEDY)
    texts = [path.read_text() for path in tables.glob("*.md")]
    for thing in names["shown"]:
        texts.append(
            thing.to_string() if hasattr(thing, "to_string") else getattr(thing, "data", "")
        )
    whole = "\n".join(text for text in texts if isinstance(text, str))
    assert "nan" not in whole.lower().replace("nanmean", "")
    assert "sampled" not in whole.replace("as it was not sampled", "")


def test_runs_are_shared_between_the_notebooks(asked):
    """The pairs of the first data set, DPO, PLC-DPO and the control are trained once."""
    labels = {"02_main_results": f"PLC-DPO, UltraFeedback, {QWEN}"}
    labels |= {"09_ablations": "PLC-DPO full, pairs, m7b", "10_sensitivity": "PLC-DPO, pairs, m7b"}
    labels |= {"12_seeds": "PLC-DPO, pairs, m7b", "14_judges": "PLC-DPO, pairs, m7b"}
    named = set()
    for notebook, label in labels.items():
        _, tables = asked(notebook)
        named.add(json.loads((tables.parent / "run.json").read_text())["runs"][label][0])
    assert len(named) == 1
