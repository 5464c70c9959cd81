"""Which runs the studies ask for, and the tables that they make of them; nothing is trained."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from notebooks import figures
from notebooks.studies import (
    hard_pair_routing,
    kl_control,
    label_noise,
    self_confirmation,
    study,
    tie_selectivity,
)
from notebooks.studies.hard_pair_routing import HardPairConfig
from notebooks.studies.kl_control import CONTROL
from notebooks.studies.kl_sentences import win_rates_shown
from notebooks.studies.label_noise import CLEAN, SAME, NoiseConfig
from notebooks.studies.plan_runs import plan_runs
from notebooks.studies.self_confirmation import ConfirmationConfig
from notebooks.studies.study import concluded, keep, open_report, record
from notebooks.studies.tie_selectivity import ExactTieConfig
from plc_core.batch.report_order import FINDING
from plc_core.runs import Run
from plc_core.storage.files import RunError
from tests.test_kl_control import as_judged, judged


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is asked for, each answered by fake runs; PLC-DPO moves further and wins more."""
    found: list[dict[str, Any]] = []
    made: dict[str, Run] = {}

    def trained(config, variants, seeds=None, then=""):
        ready: dict[str, list[Run]] = {}
        for label, values in variants.items():
            for seed in seeds or config.seeds:
                name = "-".join(map(str, [*values.values(), seed])).replace(" ", "")
                name = "".join(c if c.isalnum() or c in ".-" else "_" for c in f"r{name}")
                if name not in made:
                    found.append({**values, "seed": seed})
                    fake = {k: v for k, v in values.items() if k in ("objective", "beta")}
                    flips = float(values.get("flip_rate", 0.0))
                    plc = values["objective"] == "plc"
                    kl = 2.0 if plc or values.get("beta", 0.2) < 0.2 else 1.0
                    made[name] = judged(
                        tmp_path, name, 2 - 2 * flips + plc, kl, seed, flip_rate=flips, **fake
                    )
                ready.setdefault(label, []).append(made[name])
        return ready

    for module in (label_noise, hard_pair_routing, tie_selectivity, self_confirmation, kl_control):
        monkeypatch.setattr(module, "trained", trained)
    for module in (label_noise, tie_selectivity, self_confirmation):
        monkeypatch.setattr(module, "judged_by", lambda config: as_judged(config.decodings))
    return found


def config(kind: type, tmp_path: Path, **changes: Any) -> Any:
    return kind(name="report", runs_dir=str(tmp_path), **changes)


def test_noise_asks_for_every_rate_and_the_control_of_each(asked, tmp_path: Path) -> None:
    settings = config(NoiseConfig, tmp_path, rates=[0.1, 0.3], methods=["plc", "ropo"])
    found = label_noise.noise_runs(settings)
    plain = {(a["objective"], a["flip_rate"]) for a in asked if "beta" not in a}
    assert plain == {("dpo", 0.0)} | {(o, r) for o in ("dpo", "plc", "ropo") for r in (0.1, 0.3)}
    controls = [a for a in asked if "beta" in a]
    assert {(a["objective"], a["flip_rate"], a["seed"]) for a in controls} == {
        ("dpo", rate, seed) for rate in (0.1, 0.3) for seed in (0, 1)
    }
    assert all(control.matched for control in found.controls.values())
    assert list(found.runs[0.0]) == ["DPO"]
    assert list(found.runs[0.3]) == ["DPO", "PLC-DPO", "ROPO", CONTROL]
    assert "PLC-DPO, η=0.3" in found.named


def test_noise_is_measured_against_both_baselines(asked, tmp_path: Path) -> None:
    found = label_noise.noise_runs(config(NoiseConfig, tmp_path, rates=[0.0, 0.3]))
    table = label_noise.noise_table(found)
    keys = table.set_index(["noise_rate", "baseline", "method", "decoding"])["win_rate"]
    assert keys[0.0, CLEAN, "PLC-DPO", "greedy"] == keys[0.0, SAME, "PLC-DPO", "greedy"]
    # Noise costs DPO itself against clean DPO, and against itself there is no row.
    assert keys[0.3, CLEAN, "DPO", "greedy"] < 50
    assert (0.3, SAME, "DPO", "greedy") not in keys
    assert keys[0.3, SAME, "PLC-DPO", "sampled"] > 50
    assert set(table["seeds"]) == {2}
    said = label_noise.noise_sentence(table, found)
    assert "against DPO trained on the same labels, over 2 training seeds and 60 prompts." in said
    for rate in ("0%", "30%"):
        assert f"With {rate} of the labels flipped, PLC-DPO wins " in said
    assert said.startswith("Against DPO on the same data, PLC-DPO wins clearly more in 4 of 4 ")
    assert "72.3 % on Nectar-60k and 69.5 % on ORPO-mix-40k" in said


def test_the_published_noise_is_shown_as_printed() -> None:
    shown = label_noise.published_noise()
    row = shown.loc[("same-data DPO", "Nectar-60k, Qwen2.5-7B, mean of 3", "PLC-DPO")]
    assert row.to_dict() == {"0": "50.0", "0.05": "–", "0.1": "–", "0.2": "56.5", "0.3": "72.3"}


def test_a_spotlight_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="'ropo' is none of the methods"):
        config(NoiseConfig, tmp_path, spotlight="ropo")
    with pytest.raises(ValidationError, match="'ropo' is none of the methods"):
        config(ExactTieConfig, tmp_path, spotlight="ropo")


def test_hard_pairs_are_ranked_by_the_clean_dpo_of_their_seed(asked, tmp_path: Path) -> None:
    found = hard_pair_routing.hard_pair_runs(
        config(HardPairConfig, tmp_path, rates=[0.1], seeds=[0, 1])
    )
    hard = [a for a in asked if "margins_run" in a]
    assert {(a["objective"], a["seed"], a["margins_run"][-1]) for a in hard} == {
        (objective, seed, str(seed)) for objective in ("plc", "dpo") for seed in (0, 1)
    }
    assert list(found) == ["PLC-DPO", "DPO (shadow)"]
    assert [run.info["config"]["seed"] for run in found["PLC-DPO"][0.1]] == [0, 1]


def test_other_readings_of_hard_need_no_ranking(asked, tmp_path: Path) -> None:
    settings = config(HardPairConfig, tmp_path, rates=[0.1], flips="largest-gap", methods=["plc"])
    hard_pair_routing.hard_pair_runs(settings)
    (only,) = asked
    assert only == {
        "objective": "plc", "flip_rate": 0.1, "flips": "largest-gap", "margins_run": None, "seed": 0
    }  # fmt: skip


def test_ties_are_compared_on_their_own_data(asked, tmp_path: Path) -> None:
    found = tie_selectivity.tie_runs(config(ExactTieConfig, tmp_path, rates=[0.0, 0.3]))
    assert {(a["objective"], a["tie_rate"]) for a in asked} == {
        (objective, rate) for objective in ("dpo", "plc") for rate in (0.0, 0.3)
    }
    table = tie_selectivity.tie_table(found)
    shown = win_rates_shown(table, {"tie_rate": "injected ties", "method": "method"})
    # Keyed by the share that was injected, not by that of tied verdicts.
    assert set(shown.index) == {
        (rate, method) for rate in ("0", "0.3") for method in ("PLC-DPO", CONTROL)
    }
    assert set(table["method"]) == {"PLC-DPO", CONTROL}
    said = tie_selectivity.tie_sentence(table, found)
    assert " With 0% ties, PLC-DPO wins " in said
    assert " With 30% ties, PLC-DPO wins " in said
    assert "against DPO trained on the same data, over 60 prompts." in said
    assert "The paper reports 58.3 % at 0% of ties and 68.5 % at 30%." in said
    assert tie_selectivity.published_ties().loc["PLC-DPO", "30%"] == "68.5"
    with pytest.raises(ValidationError, match=r"add 0\.0 to the rates"):
        config(ExactTieConfig, tmp_path, rates=[0.3])


def test_the_longer_warm_up_is_of_both_and_has_a_control_of_its_own(asked, tmp_path: Path) -> None:
    """The paper extends the warm-up for PLC-DPO and DPO alike."""
    found = self_confirmation.confirmation_runs(config(ConfirmationConfig, tmp_path))
    longer = {arm: f"{arm}, 30% warm-up" for arm in ("PLC-DPO", "DPO (shadow)")}
    assert list(found.runs) == [*longer, *longer.values()]
    rises = {(a["objective"], a.get("beta")) for a in asked if "learning_rate_warmup" in a}
    beta = found.controls[longer["PLC-DPO"]].beta
    assert rises == {("plc", None), ("dpo", None), ("dpo", beta)}
    assert [a["objective_options"] for a in asked if "objective_options" in a] == [
        {"warmup": 0.3}
    ] * 2
    table = self_confirmation.confirmation_win_rates(found)
    assert {tuple(row) for row in table[["baseline", "method"]].to_numpy()} == {
        ("DPO", "PLC-DPO"), ("DPO", f"{CONTROL} of PLC-DPO"), ("DPO", longer["DPO (shadow)"]),
        ("DPO, 30% warm-up", longer["PLC-DPO"]),
        ("DPO, 30% warm-up", f"{CONTROL} of {longer['PLC-DPO']}"),
    }  # fmt: skip


def test_a_learning_rate_that_rises_as_ever_leaves_dpo_itself(asked, tmp_path: Path) -> None:
    settings = config(ConfirmationConfig, tmp_path, learning_rate_warmup=0.1, seeds=[0])
    plain, longer = (
        settings.variants()[name] for name in ("DPO (shadow)", "DPO (shadow), 30% warm-up")
    )
    (one,) = plan_runs("world", {"a": plain}, [0])
    (other,) = plan_runs("world", {"b": longer}, [0])
    assert one.name == other.name


@pytest.mark.parametrize("kind", [NoiseConfig, ExactTieConfig, ConfirmationConfig])
def test_controls_and_sampled_decoding_can_be_left_out(kind, asked, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="kl_control needs sampled answers"):
        config(kind, tmp_path, decodings=["greedy"])
    settings = config(kind, tmp_path, decodings=["greedy"], kl_control=False, seeds=[0])
    made, tabled = {
        NoiseConfig: (label_noise.noise_runs, label_noise.noise_table),
        ExactTieConfig: (tie_selectivity.tie_runs, tie_selectivity.tie_table),
        ConfirmationConfig: (
            self_confirmation.confirmation_runs, self_confirmation.confirmation_win_rates
        ),
    }[kind]  # fmt: skip
    found = made(settings)
    assert not [a for a in asked if "beta" in a]
    assert not [name for name in found.named if "control" in name]
    table = tabled(found)
    assert set(table["decoding"]) == {"greedy"}
    assert not set(table) & {"kl", "kl_low", "kl_high", "control_kl", "over_control"}
    assert not table.isna().any(axis=None)


def test_controls_that_are_missing_are_told_apart(asked, tmp_path: Path, monkeypatch) -> None:
    named: list[str] = []
    makes = kl_control.trained

    def trained(config, variants, seeds=None, then=""):
        named.extend(label for label in variants if "control" in label)
        return makes(config, variants, seeds, then)

    monkeypatch.setattr(kl_control, "trained", trained)
    # Each is asked for: nothing that is there matches, and every beta is a new one.
    monkeypatch.setattr(kl_control.Control, "matched", False)
    monkeypatch.setattr(kl_control, "matched_beta", lambda _, known: min(known) / 2)
    found = self_confirmation.confirmation_runs(config(ConfirmationConfig, tmp_path))
    assert set(named) == {"KL control of PLC-DPO", "KL control of PLC-DPO, 30% warm-up"}
    assert {f"{CONTROL} of {method}" for method in found.controls} < set(found.named)
    named.clear()
    label_noise.noise_runs(config(NoiseConfig, tmp_path, rates=[0.1, 0.3]))
    assert set(named) == {"KL control at η=0.1", "KL control at η=0.3"}


def test_a_report_keeps_its_runs_and_tables(asked, tmp_path: Path) -> None:
    settings = config(NoiseConfig, tmp_path, rates=[0.3])
    report = open_report(settings)
    found = label_noise.noise_runs(settings)
    record(report, found.named)
    table = label_noise.noise_table(found)
    keep(report, win_rates=table)
    assert report.info["runs"]["DPO, η=0.3"] == [run.name for run in found.runs[0.3]["DPO"]]
    kept = pd.read_csv(report.path / "tables" / "win-rates.csv")
    pd.testing.assert_frame_equal(kept, table, check_dtype=False)
    # A second report of the name replaces the first.
    assert open_report(settings).path == report.path


def test_figures_show_every_method_once_in_the_legend(asked, tmp_path: Path) -> None:
    found = label_noise.noise_runs(config(NoiseConfig, tmp_path, rates=[0.0, 0.3]))
    table = label_noise.noise_table(found)
    lines = figures.win_rates_by_dose(table[table["baseline"] == SAME], "noise_rate", "η", CONTROL)
    shown = [trace.name for trace in lines.data if trace.showlegend]
    assert shown == ["PLC-DPO", CONTROL]
    rows = table[(table["baseline"] == CLEAN) & (table["method"] != CONTROL)]
    radar = figures.win_rate_radar(rows, "noise_rate", {0.3: "much"})
    # DPO is no method at η = 0, where it is the baseline, and yet has its place in the legend.
    assert sorted(trace.name for trace in radar.data if trace.showlegend) == ["DPO", "PLC-DPO"]
    assert [title.text for title in radar.layout.annotations[:2]] == ["0.0", "much"]
    first = next(trace for trace in radar.data if trace.name)
    assert (first.x[0], first.y[0]) == (first.x[-1], first.y[-1])
    assert {axis for axis, _ in first.customdata} == {"world<br>greedy", "world<br>sampled"}


def test_the_worlds_prompts_are_those_that_the_recipe_asks_for(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("eval_prompts: 24\n")
    values = {"recipe": str(recipe), "judge": "some/model"}
    asked = study.evaluation_of(config(NoiseConfig, tmp_path, **values))
    assert (asked.eval_prompts, asked.make) == (24, True)
    own = config(NoiseConfig, tmp_path, **values, common={"eval_prompts": 12}, make=False)
    assert (study.evaluation_of(own).eval_prompts, study.evaluation_of(own).make) == (12, False)
    recipe.write_text("eval_prompts: 0\n")
    with pytest.raises(ValidationError, match="answer no prompt of the benchmark 'world'"):
        config(NoiseConfig, tmp_path, **values)
    file = tmp_path / "prompts.jsonl"
    other = config(NoiseConfig, tmp_path, **values, benchmarks=[str(file)])
    assert study.evaluation_of(other).benchmarks == [str(file)]


def test_a_report_says_what_its_runs_are_and_when_they_are_too_small(tmp_path: Path) -> None:
    report = open_report(config(NoiseConfig, tmp_path, rates=[0.3]))
    runs = [judged(tmp_path, f"run{seed}", 1.0, 1.0, seed) for seed in (0, 1)]
    for run, steps in zip(runs, (40, 60), strict=True):
        run.update_info(trained_steps=steps)
    said = record(report, {"DPO": runs, "again": runs[:1]})
    assert said == (
        "2 training runs of the model world on pairs of world: 20 pairs and 40 to 60 steps each, "
        "seeds 0, 1."
    )
    runs[0].update_info(trained_steps=3)
    assert concluded(report, "It wins.") == f"**It wins.**{FINDING}"
    warning = "In fewer than 24 steps little is learnt: this shows that it runs, no more."
    assert record(report, {"DPO": runs}).endswith(f" {warning}")
    assert concluded(report, "It wins.", "So.") == f"{warning}\n\n**It wins.**{FINDING}\n\nSo."


def test_missing_runs_are_named_and_what_follows_them_is_counted(tmp_path: Path) -> None:
    """Controls and reversals of ranked pairs have no names before other runs exist."""
    noise = config(NoiseConfig, tmp_path, rates=[0.0, 0.3], seeds=[0, 1], make=False)
    with pytest.raises(RunError, match=r"^8 runs are missing .*Then up to 8 more follow: the KL"):
        label_noise.noise_runs(noise)
    tie = config(ExactTieConfig, tmp_path, rates=[0.0, 0.3], make=False)
    with pytest.raises(RunError, match=r"^4 runs are missing .*Then up to 4 more follow: the KL"):
        tie_selectivity.tie_runs(tie)
    confirmed = config(ConfirmationConfig, tmp_path, make=False)
    with pytest.raises(RunError, match=r"^8 runs are missing .*Then up to 8 more follow: the KL"):
        self_confirmation.confirmation_runs(confirmed)
    hard = config(HardPairConfig, tmp_path, rates=[0.1, 0.2], make=False)
    with pytest.raises(RunError, match=r"^1 run is missing .*Then 4 more follow, whose pairs are"):
        hard_pair_routing.hard_pair_runs(hard)
    other = config(HardPairConfig, tmp_path, rates=[0.1], flips="largest-gap", make=False)
    with pytest.raises(RunError, match=r"^2 runs are missing .*--workers 2$"):
        hard_pair_routing.hard_pair_runs(other)
