"""The claims table: from CSV files alone, by a written rule, and honest where nothing was run."""

import numpy as np
import pandas as pd
import pytest

from notebooks.evidence import claims, forest
from notebooks.evidence.__main__ import main, markdown, put
from notebooks.evidence.claims import CLAIMS, Claim, claims_table, verdict
from notebooks.evidence.estimates import (
    Estimate,
    Study,
    above_frontier,
    at,
    best_other,
    difference,
    over_seeds,
    read_study,
    win_rates,
)
from notebooks.evidence.published_claims import gap, training_time, within_sources
from notebooks.evidence.report import (
    EvidenceConfig,
    beside_the_paper,
    bill,
    by_rate,
    open_evidence,
    runs_in_words,
)
from notebooks.evidence.result_files import COLUMNS, FILES
from notebooks.evidence.variants import (
    methods_table,
    variant_dots,
    variant_effects,
    variants_table,
)
from notebooks.replication.results import Results
from plc_core.batch import run_notebook
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path
from tests.paths import LARGEST_REPORT, ROOT

SEEDS, RATES = range(5), (0.0, 0.1, 0.2, 0.3, 0.4)
METHODS = ("dpo", "plc-aggressive")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """DPO's accuracy falls with the noise; PLC-DPO's by half as much, at twice the KL."""
    folder = tmp_path_factory.mktemp("results") / "smollm2"
    results = Results(folder)
    rng = np.random.default_rng(0)
    jobs, measures, rewards = [], [], []
    for seed in SEEDS:
        for rate in RATES:
            noise = rng.normal(0, 0.002)
            runs = [("main", "dpo", 0.1, 0.62 - 0.3 * rate, 1.0)]
            runs += [("frontier", "dpo", 0.05, 0.62 - 0.15 * rate, 2.0)]
            runs += [("main", "plc-aggressive", 0.1, 0.62 - 0.15 * rate + noise, 2.0)]
            runs += [("main", "cdpo", 0.1, 0.62 - 0.2 * rate, 1.0)]
            for part, method, beta, accuracy, kl in runs:
                numbers = {
                    ("accuracy", "test"): accuracy, ("kl", "responses"): kl,
                    ("flip_auroc", "q_flip"): 0.7 + noise, ("flip_auroc", "-margin"): 0.7,
                    ("early_share", "all"): 0.019, ("noise_rate", "all"): rate + noise,
                    ("tie_selectivity", "a"): 0.5 + noise, ("q_flip", "all"): 0.25 + 0.1 * rate,
                }  # fmt: skip
                name = f"{part}-{method}-{beta}-{rate}-{seed}"
                jobs.append(
                    {"job": name, "slice": part, "method": method, "seed": seed, "flip_rate": rate,
                     "tie_rate": 0.0, "beta": beta, "state": "done", "seconds": 20.0,
                     "train_seconds": 10.0, "tokens": 1e6, "epochs": 1.0, "workers": 4,
                     "learning_rate": 1e-5}
                )  # fmt: skip
                measures += [
                    {"job": name, "measure": m, "group": g, "value": v, "n": 100}
                    for (m, g), v in numbers.items()
                ]
                rewards += [
                    {"job": name, "prompt": i, "reward": float(method == "plc-aggressive" or i < 2)}
                    for i in range(8)
                ]
    for one in jobs:
        own = [m for m in measures if m["job"] == one["job"]]
        results.add(one, own, [r for r in rewards if r["job"] == one["job"]])
    return read_study("smollm2", folder)


def test_the_notebook_draws_the_table_with_and_without_results(study, tmp_path):
    (tmp_path / "smollm2").mkdir(exist_ok=True)
    for table, file in FILES.items():
        getattr(study, table).to_csv(tmp_path / "smollm2" / file, index=False)
    values = {"name": "evidence", "runs_dir": str(tmp_path / "runs"), "results_dir": str(tmp_path)}
    run_notebook(ROOT / "notebooks" / "20_evidence.ipynb", values)
    report = (tmp_path / "runs" / "evidence" / "report.html").read_text()
    assert "87.5 [87.5, 87.5] (n=5)" in report
    assert "not run" in report
    assert report.count('class="plc-figure"') == 4
    assert len(report.encode()) <= LARGEST_REPORT
    for said in (
        "read of training pairs at their first visit",
        "preference-trained on UltraFeedback",
        "a linear head on this policy&#39;s own starting weights",
    ):
        assert said in report or said.replace("&#39;", "'") in report, said


def test_the_report_says_how_short_the_runs_are_beside_the_papers():
    said = beside_the_paper(read_study("smollm2"))
    assert "61 optimizer steps of all weights; the paper's are 955 of LoRA" in said
    assert "optimizer steps" not in beside_the_paper(Study("none"))


def test_every_claim_says_of_which_pairs_it_is(study):
    """The paper reads ties of pairs that its policies never trained on."""
    table = claims_table(study, Study("world"), Study("larger"))
    for text, read in (
        ("q_tie ranks exact ties, AUROC", "training pairs at their first visit"),
        ("q_tie is larger for the smallest score gaps", "training pairs at their first visit"),
        ("q_flip ranks reversed labels at 20 %", "training pairs at their first visit"),
        ("Held-out accuracy over DPO, clean data", "held-out pairs"),
        ("q_flip finds disagreement with a reward model at 20 %", "held-out pairs"),
        ("q_tie follows the order of the three vote groups", "voted pairs, zero-shot"),
        ("PLC-DPO wins against same-data DPO on clean data", "answers"),
    ):
        assert row_of(table, text)["read"] == read


def row_of(table, text):
    (row,) = table[table["claim"].str.contains(text, regex=False)].to_dict("records")
    return row


def test_each_verdict_follows_the_rule(study):
    table = claims_table(study, Study("world"), Study("larger"))
    assert len(table) == len(CLAIMS)
    assert row_of(table, "20 to 40 % reversed labels, in points")["verdict"] == "higher"
    assert row_of(table, "another β at the same KL, in points")["verdict"] == "undecided"
    assert row_of(table, "more than the margin of plain DPO")["verdict"] == "undecided"
    assert row_of(table, "Little correction early")["verdict"] == "by construction"
    assert row_of(table, "on clean data, win rate")["model"] == "87.5 [87.5, 87.5] (n=5)"
    assert row_of(table, "30 % exact ties")["verdict"] == "not run"
    assert set(table["world"]) == {"not run"}


@pytest.mark.parametrize(
    ("found", "above", "expected"),
    [
        (None, True, "not run"),
        (Estimate(0.2, 0.1, 0.3, 5), True, "reproduced"),
        (Estimate(0.2, 0.1, 0.3, 5, over_pairs=0.15), True, "reproduced"),
        (Estimate(0.2, 0.1, 0.3, 5, over_pairs=0.25), True, "reproduced, of these pairs"),
        (Estimate(0.2, 0.1, 0.3, 5), False, "not reproduced"),
        (Estimate(-0.2, -0.3, -0.1, 5), True, "not reproduced"),
        (Estimate(0.2, -0.1, 0.5, 5), True, "undecided"),
        (Estimate(0.2, 0.1, 0.3, 2), True, "undecided"),
        (Estimate(0.2, float("nan"), float("nan"), 1), True, "undecided"),
    ],
    ids=str,
)
def test_the_rule(found, above, expected):
    claim = Claim("x", "1 (tab:x)", lambda study: found, above=above)
    assert verdict(claim, found) == expected


def test_the_verdicts_other_words():
    found = Estimate(0.2, 0.1, 0.3, 5)
    for published, word in (
        (0.25, "reproduced"),
        (0.1, "reproduced"),
        (31.0, "reproduced, smaller"),
    ):
        scale = 100 if published > 1 else 1
        claim = Claim("x", "y", lambda study: found, scale=scale, published=published)
        assert verdict(claim, found) == word
    wide = Estimate(0.2, -0.1, 0.5, 5)
    for published, word in ((0.49, "undecided"), (0.51, "undecided, smaller"), (-0.2, "undecided")):
        claim = Claim("x", "y", lambda study: wide, published=published)
        assert verdict(claim, wide) == word
    below = Claim("x", "y", lambda study: wide, published=0.51, above=False)
    assert verdict(below, wide) == "undecided"  # on the other side of the claim
    two = Estimate(0.2, float("nan"), float("nan"), 2)
    assert verdict(Claim("x", "y", lambda study: two, published=9.0), two) == "undecided"
    missed = Claim("x", "y", lambda study: found, threshold=0.4, published=0.9)
    assert verdict(missed, found) == "not reproduced"
    for paper in ("–", "not measured"):
        assert verdict(Claim("x", paper, lambda study: found), found) == "higher"
        assert verdict(Claim("x", paper, lambda study: found, threshold=0.4), found) == "lower"


def test_an_effect_and_the_papers_size_are_two_verdicts():
    studies = {name: read_study(name) for name in ("qwen", "smollm2", "world")}
    found = forest.forest_table(studies)
    for name, study in studies.items():
        table = found[found["study"] == name].set_index("claim")
        for claim in (c for c in CLAIMS if c.text in table.index):
            estimate, row = over_seeds(claim.values(study, "plc-aggressive")), table.loc[claim.text]
            word = verdict(claim, estimate)
            if row["effect"] == "unknown":
                assert word.startswith("undecided")
            elif row["effect"] != "by construction":
                assert word.startswith("reproduced") == (row["effect"] == "yes")
            outside = not estimate.low * claim.scale <= row["paper"] <= estimate.high * claim.scale
            assert row["excluded"] == (claim.published is not None and outside)
        clean = table.loc["PLC-DPO wins against same-data DPO on clean data, win rate in %"]
        assert clean["excluded"]  # 58.3 lies above it
        assert clean["effect"] == {"world": "no"}.get(name, "unknown")
        (said,) = (line for line in forest.tally(found) if line.startswith(f"On {name}, "))
        yes = (table["effect"] == "yes").sum()
        assert f", {yes} {'is' if yes == 1 else 'are'} found, " in said
        assert f"; {table['excluded'].sum()} of " in said


def test_the_forest_draws_each_claim_once_and_a_symbol_a_study():
    found = forest.forest_table({name: read_study(name) for name in ("qwen", "smollm2", "world")})
    drawn = forest.forest(found)
    papers = [x for trace in drawn.data if trace.name == "the paper" for x in trace.x]
    once = found.drop_duplicates("claim")["paper"]
    assert sorted(p for p in papers if p == p) == sorted(once.dropna())
    dots = [trace for trace in drawn.data if ", effect: " in trace.name]
    assert sum(len(trace.x) for trace in dots) == len(found)
    symbols = {
        (trace.name.split(",")[0], trace.marker.symbol.removesuffix("-open")) for trace in dots
    }
    assert len(symbols) == len({symbol for _, symbol in symbols}) == 3
    legend = [trace.name for trace in drawn.data if trace.showlegend is not False]
    assert {"qwen", "smollm2", "world", "effect found", "the paper"} <= set(legend)


def test_the_report_counts_the_training_runs_of_the_csv_files():
    counts = {}
    for name in ("smollm2", "qwen", "world"):
        jobs = pd.read_csv(ROOT / "data" / "results" / name / "jobs.csv")
        counts[name] = int(((jobs["state"] == "done") & (jobs["slice"] != "evidence")).sum())
    said = runs_in_words(*map(read_study, counts))
    assert said.startswith(f"{sum(counts.values()):,} training runs on pairs")
    assert f"{counts['qwen']} of Qwen 1.5B" in said


def test_two_groups_of_pairs_have_the_interval_of_a_difference():
    jobs = pd.DataFrame(
        [{"job": f"{seed}", "slice": "main", "method": "m", "flip_rate": 0.2, "tie_rate": 0.0,
          "seed": seed, "beta": 0.1, "learning_rate": 1e-5} for seed in range(3)]
    )  # fmt: skip
    rows = pd.DataFrame(
        [{"job": f"{seed}", "measure": "q_flip", "group": group, "value": value, "n": 9,
          "low": value - half, "high": value + half}
         for seed in range(3) for group, value, half in (("a", 0.5, 0.03), ("b", 0.4, 0.04))]
    )  # fmt: skip
    found = gap(("q_flip", "a"), ("q_flip", "b"), (0.2,))(Study("s", jobs, rows), "m")
    assert found["value"].tolist() == pytest.approx([0.1] * 3)
    assert found["half"].tolist() == pytest.approx([0.05] * 3)


def test_the_routing_is_compared_with_plain_dpos_seed_by_seed(study):
    claim = next(c for c in CLAIMS if c.text.startswith("q_flip ranks reversed labels"))
    row = row_of(claims_table(study, Study("world"), Study("larger")), claim.text)
    sides = [
        claim.values(study, method).set_index("seed")["value"]
        for method in ("plc-aggressive", "dpo")
    ]
    gap = (sides[0] - sides[1]).reset_index()
    assert len(gap) == len(SEEDS)
    assert row["over"] == claims.shown(over_seeds(gap), 3, signed=True)


def test_two_seeds_have_no_interval():
    found = over_seeds(pd.DataFrame({"seed": [0, 1], "value": [0.1, 0.2]}))
    assert (found.n, found.value) == (2, pytest.approx(0.15))
    assert np.isnan(found.low) and np.isnan(found.high)


def test_what_the_larger_kl_alone_does_is_taken_off(study):
    left = over_seeds(at(above_frontier(study, "accuracy", "test", "beta"), (0.4,)))
    assert left.n == 5
    assert abs(left.value) < 0.005  # DPO at half the beta does as well


def test_a_kl_outside_dpos_is_left_out_and_not_extrapolated(study):
    far = study.measures.copy()
    plc = far["job"].str.contains("plc") & (far["measure"] == "kl")
    far.loc[plc, "value"] = 9.0
    moved = Study("x", study.jobs, far, study.rewards)
    assert over_seeds(above_frontier(moved, "accuracy", "test", "beta")) is None
    row = row_of(
        claims_table(moved, Study("world"), Study("larger")), "another β at the same KL, in points"
    )
    assert row["model"] == "no DPO run has its KL (n=0)"
    assert row["world"] == "not run"
    assert row["verdict"] == "undecided"


def test_a_seed_without_one_of_the_rates_does_not_count(study):
    lacking = study.jobs[~((study.jobs["seed"] == 0) & (study.jobs["flip_rate"] == 0.4))]
    part = Study("x", lacking, study.measures, study.rewards)
    assert over_seeds(at(part.values("accuracy", "test"), (0.2, 0.4))).n == 4


def test_win_rates_are_of_the_same_prompts_and_data(study):
    table = win_rates(study)
    assert len(table) == len(SEEDS) * len(RATES)
    assert table["value"].tolist() == [100 * (6 + 0.5 * 2) / 8] * len(table)


def test_the_time_is_of_training_in_the_same_data_and_seed(study):
    jobs = study.jobs.copy()
    plc = jobs["method"] == "plc-aggressive"
    jobs.loc[plc, "train_seconds"] = 10.0 + jobs.loc[plc, "seed"]
    jobs.loc[jobs["slice"] == "frontier", "train_seconds"] = 1.0
    slower = Study("x", jobs, study.measures, study.rewards)
    values = training_time(slower, "plc-aggressive")
    assert values.groupby("seed")["value"].mean().tolist() == [1, 1.1, 1.2, 1.3, 1.4]
    row = row_of(claims_table(slower, Study("world"), Study("larger")), "No slower than DPO")
    assert row["model"] == claims.shown(over_seeds(values), 3)
    assert (row["verdict"], row["world"]) == ("undecided", "not run")
    row = row_of(claims_table(study, Study("world"), Study("larger")), "No slower than DPO")
    assert (row["model"], row["verdict"]) == ("1.000 [1.000, 1.000] (n=5)", "reproduced")


def test_the_claims_of_before_any_outcome_are_not_marked(study):
    table = claims_table(study, Study("world"), Study("larger"))
    for text, later in (
        ("order of the three vote groups", False),
        ("No slower than DPO", False),
        ("… of divergent above that of unanimous", True),
        ("… of tie-majority above that of divergent", True),
    ):
        assert row_of(table, text)["claim"].endswith(" (looked at later)") == later


def test_the_best_other_method_is_no_recipe_of_plc(study):
    assert best_other(study, "accuracy", "test", (0.2, 0.3, 0.4)) == "cdpo"


def test_without_results_everything_says_that_it_was_not_run():
    table = claims_table(Study("a"), Study("b"), Study("c"))
    assert set(table["verdict"]) == {"not run"}
    assert not len(bill(Study("a"), pd.DataFrame({"shape": []})))
    assert "no results yet" in by_rate(Study("a"), {}, "x").layout.annotations[0].text


def test_the_bill_shares_a_device_among_its_workers(study):
    throughput = pd.DataFrame(
        {"shape": ["Qwen2.5-1.5B", "Qwen2.5-7B"], "training": "LoRA", "device": "X",
         "tokens_per_gpu_second": [9e9, 500.0]}
    )  # fmt: skip
    amount = bill(study, throughput)["amount"]
    assert amount["GPU hours of training"] == pytest.approx(100 * 10 / 4 / 3600)
    large = amount["GPU hours of the same tokens through Qwen2.5-7B's shape (LoRA, X)"]
    assert large == pytest.approx(100 * 1e6 / 500 / 3600)
    assert len(bill(study, throughput[:1])) == len(amount) - 1


def test_curves_have_an_interval_at_every_rate(study):
    figure = by_rate(study, {"DPO": ("accuracy", "test", "dpo")}, "accuracy", diagonal=True)
    (line, equal) = figure.data
    assert line.name == "DPO"
    assert len(line.y) == len(line.error_y.array) == len(RATES)
    assert list(equal.x) == [0, 0.4]


def test_the_readme_shows_the_table_that_the_command_prints(tmp_path, capsys):
    """What stands in the README is what the CSV files give."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    readme = project_path("data/results/README.md").read_text()
    assert printed in readme
    (tmp_path / "no.md").write_text("no marks")
    with pytest.raises(RunError, match="has no place for the table"):
        put("x", tmp_path / "no.md")


def test_markdown_keeps_a_bar_inside_its_cell():
    names = ("claim", "read", "paper", "world", "model", "larger", "over", "verdict")
    table = pd.DataFrame([dict.fromkeys(names, "a|b")])
    assert markdown(table).splitlines()[-1].count("a\\|b") == len(names)


def test_a_variant_is_compared_with_what_it_varies(study):
    names = {
        "variants-near-0.4-{}": ("near", "plc", 0.01),
        "variants-ln-0.4-{}": ("ln", "dpo-ln", 0),
    }
    jobs, measures = [study.jobs], [study.measures]
    for name, (method, objective, gain) in names.items():
        base = "plc-aggressive" if objective == "plc" else "dpo"
        value = study.values("accuracy", "test", base)
        value = value[value["flip_rate"] == 0.4]
        jobs.append(pd.DataFrame(
            {"job": [name.format(s) for s in value["seed"]], "slice": "variants", "method": method,
             "objective": objective, "flip_rate": 0.4, "tie_rate": 0.0, "seed": value["seed"]}
        ))  # fmt: skip
        measures.append(pd.DataFrame(
            {"job": [name.format(s) for s in value["seed"]], "measure": "accuracy",
             "group": "test", "value": value["value"] + gain}
        ))  # fmt: skip
    varied = Study("x", pd.concat(jobs), pd.concat(measures), study.rewards)
    effects = variant_effects(varied)
    table = variants_table(effects).set_index("variant")
    assert table.loc["near", "accuracy, points"] == "+1.0 [+1.0, +1.0] (n=5)"
    assert table.loc["near", "against"] == "plc-aggressive"
    assert table.loc["ln", "accuracy, points"] == "+0.0 [+0.0, +0.0] (n=5)"
    assert table.loc["ln", "against"] == "dpo"
    assert table.loc["ln", "KL, nats"] == "–"
    for none in (variant_effects(study), variant_effects(Study("none"))):
        assert not len(variants_table(none))
        assert not variant_dots(none).data
    # The picture: the numbers of the table, the best change on top.
    dots = variant_dots(effects)
    assert dots.layout.yaxis.ticktext == ("ln", "near")
    assert dict(zip(np.round(dots.data[0].y), np.round(dots.data[0].x, 6), strict=True)) == {
        0: 0,
        1: 1,
    }
    assert np.round(dots.data[0].error_x.array, 6).tolist() == [0, 0]
    assert not len(dots.data[1].x)


def test_a_variant_is_compared_with_plain_dpo_at_its_kl(study):
    """DPO at a larger learning rate loses .02 by KL 3: .01 of it by the variant's KL of 2."""
    plain = study.values("accuracy", "test", "dpo")
    plain = plain[plain["flip_rate"] == 0.4]
    jobs, measures = [study.jobs], [study.measures]
    for part, method, rate, mixture, gain, kl in (
        ("frontier", "dpo", 2e-5, "all", -0.02, 3.0),
        ("variants", "near", 1e-5, "all", 0.0, 2.0),
        ("variants", "other-pairs", 1e-5, "helpful", 0.0, 2.0),
    ):
        names = [f"{part}-{method}-lr-{seed}" for seed in plain["seed"]]
        jobs.append(pd.DataFrame(
            {"job": names, "slice": part, "method": method, "objective": "plc", "flip_rate": 0.4,
             "tie_rate": 0.0, "seed": plain["seed"], "beta": 0.1, "learning_rate": rate,
             "mixture": mixture}
        ))  # fmt: skip
        for measure, group, value in (
            ("accuracy", "test", plain["value"] + gain),
            ("kl", "responses", kl),
        ):
            measures.append(
                pd.DataFrame({"job": names, "measure": measure, "group": group, "value": value})
            )
    varied = Study("x", pd.concat(jobs), pd.concat(measures), study.rewards)
    column = variants_table(variant_effects(varied)).set_index("variant")[
        "accuracy over DPO's at the same KL, points"
    ]
    assert column["near"] == "+1.0 [+1.0, +1.0] (n=5)"
    assert column["other-pairs"] == "–"


def test_methods_are_shown_above_or_below_dpo(study):
    table = methods_table(study)
    assert table.index.tolist()[0] == "DPO"
    row = table.loc["plc-aggressive over DPO"]
    expected = over_seeds(difference(*(
        at(study.values("accuracy", "test", m), (0.4,)) for m in ("plc-aggressive", "dpo")
    )))  # fmt: skip
    assert row["40 % reversed"].startswith(f"{100 * expected.value:+.1f} [")
    assert methods_table(Study("none")).empty


def spoil(folder, name, change):
    path = folder / FILES[name]
    table = pd.read_csv(path, dtype=str)
    change(table).to_csv(path, index=False)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("jobs", lambda t: t.drop(columns="state"), "has the columns"),
        ("measures", lambda t: t.rename(columns={"group": "of"}), "has the columns"),
        ("measures", lambda t: t.assign(value="much"), "value is 'much', and should be a number"),
        ("jobs", lambda t: pd.concat([t, t[:1]]), "has a row twice"),
    ],
    ids=["a column less", "another name", "text for a number", "a job twice"],
)
def test_broken_results_are_a_sentence(study, tmp_path, name, change, sentence):
    for part, file in FILES.items():
        getattr(study, part).to_csv(tmp_path / file, index=False)
    spoil(tmp_path, name, change)
    with pytest.raises(RunError, match=sentence):
        read_study("x", tmp_path)


def test_a_file_that_was_cut_off_is_a_sentence(study, tmp_path):
    study.jobs.to_csv(tmp_path / FILES["jobs"], index=False)
    study.rewards.to_csv(tmp_path / FILES["rewards"], index=False)
    content = (tmp_path / FILES["rewards"]).read_bytes()
    (tmp_path / FILES["rewards"]).write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="cannot be read"):
        read_study("x", tmp_path)


def test_every_run_that_was_judged_has_the_control_of_lengths():
    """Held-out labels, lengths and reward model are the same for all: so is what lengths rank."""
    rows = read_study("smollm2").measures
    rows = rows[rows["measure"] == "reward_auroc"]
    sides = {name: rows[rows["group"] == name] for name in ("q_flip", "against length")}
    assert set(sides["q_flip"]["job"]) == set(sides["against length"]["job"])
    assert len(sides["against length"][["value", "low", "high", "n"]].drop_duplicates()) == 1


def test_the_second_samples_are_of_runs_and_prompts_that_have_a_first():
    folder = project_path("data/results/smollm2")
    again, first = pd.read_csv(folder / "resampled.csv.gz"), read_study("smollm2").rewards
    assert list(again.columns) == COLUMNS["rewards"]
    both = again.merge(first, on=["job", "prompt"], suffixes=("", "_first"), validate="1:1")
    assert len(both) == len(again) > 0
    assert set(again["job"]) == {f"main-{m}-f0-s{s}" for m in METHODS for s in range(4)}
    assert (both["reward"] != both["reward_first"]).mean() > 0.5  # other answers, for the most part
    assert again.groupby("job").size().eq(first.groupby("job").size()[again["job"].unique()]).all()


def test_every_claim_names_its_place_in_the_paper_or_none():
    for claim in claims.CLAIMS:
        assert claim.paper in ("–", "not measured") or any(
            mark in claim.paper for mark in ("tab:", "app:", "fig:", "abstract", "ordered")
        )


def test_a_ranking_is_compared_with_that_of_lengths_within_each_source():
    jobs, measures = [], []
    for seed in range(3):
        for rate in (0.0, 0.2):
            job = f"{seed}-{rate}"
            jobs.append(
                {"job": job, "slice": "main", "method": "plc-aggressive", "flip_rate": rate,
                 "tie_rate": 0.0, "seed": seed, "beta": 0.1, "learning_rate": 1e-5}
            )  # fmt: skip
            for group, value, half in (
                ("a", 0.6, 0.03), ("-|length difference|, a", 0.7, 0.04),
                ("b", 0.5, 0.03), ("-|length difference|, b", 0.4, 0.04),
            ):  # fmt: skip
                if (seed, group) != (2, "-|length difference|, b"):
                    measures.append(
                        {"job": job, "measure": "tie_selectivity", "group": group, "n": 9,
                         "value": value + rate, "low": value - half, "high": value + half}
                    )  # fmt: skip
    study = Study("s", pd.DataFrame(jobs), pd.DataFrame(measures))
    alone = over_seeds(within_sources("tie_selectivity")(study, "plc-aggressive"))
    assert alone is not None and (alone.n, alone.value) == (3, pytest.approx(0.55))
    over = within_sources("tie_selectivity", over="-|length difference|, ")
    found = over(study, "plc-aggressive")
    assert set(found["seed"]) == {0, 1}  # the third lacks a source
    assert found["value"].tolist() == pytest.approx([0, 0])
    # Of a difference, and of the mean of two such.
    assert found["half"].tolist() == pytest.approx([0.05 / 2**0.5] * 2)
    assert over(Study("none"), "plc-aggressive").empty


def test_a_report_on_a_study_that_is_not_there_is_a_sentence(tmp_path):
    config = EvidenceConfig(name="none", runs_dir=str(tmp_path), model_study="nope")
    with pytest.raises(
        RunError, match=r"no results of a study 'nope' in .*; there are label-audit, qwen, "
    ):
        open_evidence(config)
    assert not (tmp_path / "none").exists()
