"""The control that moved as far: its beta, its choice, and win rates counted by other means."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from notebooks.studies.kl_control import find_controls, matched_beta, mean_kl
from notebooks.studies.kl_sentences import beyond_control, results_in_words, win_rates_shown
from notebooks.studies.seed_win_rates import win_rates
from plc_core.evaluation.judged import ITSELF, JudgedRuns, read_evaluation
from plc_core.evaluation.methods import Contestant
from plc_core.evaluation.win_rate import JoinError
from plc_core.runs import Run, open_run
from plc_core.storage.files import RunError, write_table
from tests.fake_run import change_json, write_fake_run

PROMPTS = 60


def judged(
    root: Path, name: str, reward: float, kl: float, seed: int = 0, prompts: int = PROMPTS, **config
) -> Run:
    """A run with judged answers: rewards about `reward`, log-ratios with mean `kl`."""
    path = write_fake_run(root, name, pairs=20, seed=seed, **config)
    rng = np.random.default_rng([seed, round(1000 * reward)])
    ids = [f"p{i}" for i in range(prompts)]
    rows = []
    for policy in ("trained", "reference"):
        for decoding in ("greedy", "sampled"):
            values = (rng.normal(reward, 1, prompts) * 4).round() / 4
            rows.append(
                pd.DataFrame(
                    {"prompt_id": ids, "policy": policy, "decoding": decoding, "reward": values}
                    | {"turn": 1, "category": "", "response": "so"}
                )
            )
    table = pd.concat(rows, ignore_index=True)
    ratio = np.linspace(kl - 0.5, kl + 0.5, prompts)
    answers = table.assign(policy_logp=np.tile(ratio, 4) - 40.0, reference_logp=-40.0)
    for folder, name_, frame in (
        ("judgements", "gold-world", table),
        ("generations", "world", answers),
    ):
        (path / folder).mkdir()
        write_table(
            path / folder / f"{name_}.parquet", pa.Table.from_pandas(frame, preserve_index=False)
        )
    return open_run(path)


def as_judged(decodings=("greedy", "sampled")):
    """Reads runs of `judged`, in the place of what would answer and judge."""
    files = {"world": {decoding: decoding for decoding in decodings}}
    sizes = {"world": PROMPTS}
    return JudgedRuns(
        lambda run: read_evaluation([Contestant(ITSELF, run)], files, ["gold"], ITSELF, sizes)
    )


JUDGED = as_judged()


def rates(methods, control=None, benchmarks=None, judged=JUDGED):
    """Win rates against DPO; `benchmarks` are of prompts, in place of the one."""
    evaluation = judged.together(methods, "DPO")
    if benchmarks:
        named = evaluation.judged["prompt_id"].map(benchmarks)
        evaluation = replace(evaluation, judged=evaluation.judged.assign(benchmark=named))
    return win_rates(evaluation, control)


def find_control(method, dpo, train, rounds=2):
    """The control of one case."""
    cases = {"one": (method, dpo)}
    return find_controls(cases, lambda b: {"one": train(b["one"])}, JUDGED, rounds)["one"]


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, list[Run]]:
    return {
        "DPO": [judged(tmp_path, f"dpo{s}", 1.0, 1.0, s, objective="dpo") for s in (0, 1)],
        "PLC-DPO": [judged(tmp_path, f"plc{s}", 1.5, 2.0, s) for s in (0, 1)],
        "control": [
            judged(tmp_path, f"low{s}", 1.4, 2.1, s, objective="dpo", beta=0.1) for s in (0, 1)
        ],
    }


def test_the_matched_beta_lies_on_the_line_through_what_is_known() -> None:
    # KL = 1 at .2 and 2 at .1: a slope of -1, so 1.5 at .2 / 1.5.
    assert matched_beta(1.5, {0.2: 1.0, 0.1: 2.0}) == pytest.approx(0.13)
    assert matched_beta(1.0, {0.2: 1.0}) == 0.2
    assert 0.06 < matched_beta(2.0, {0.2: 1.0}) < 0.2
    # Two noisy points that say that KL rises with beta do not turn the direction around.
    assert matched_beta(2.0, {0.2: 1.0, 0.19: 0.99}) < 0.2


@pytest.mark.parametrize(("target", "known"), [(0.0, {0.2: 1.0}), (1.0, {}), (1.0, {0.2: -0.01})])
def test_no_control_for_a_policy_that_has_not_moved(target, known) -> None:
    with pytest.raises(RunError, match="must be above 0"):
        matched_beta(target, known)


def test_the_control_is_trained_where_the_known_ones_are_too_far(runs) -> None:
    asked = []

    def train(beta):
        asked.append(beta)
        return runs["control"]

    control = find_control(runs["PLC-DPO"], [runs["DPO"]], train)
    assert asked == [matched_beta(2.0, {0.2: 1.0})]
    assert control.beta == 0.1 or control.beta == asked[0]
    assert control.matched
    assert "moved 2.10" in str(control)
    assert "moved 2.00" in str(control)
    # With the matched one known already, nothing is trained.
    again = find_control(runs["PLC-DPO"], [runs["DPO"], runs["control"]], train)
    assert len(asked) == 1
    assert again.runs == runs["control"]


def test_a_control_that_is_not_near_says_so(runs) -> None:
    control = find_control(runs["PLC-DPO"], [runs["DPO"]], lambda beta: runs["DPO"], rounds=1)
    assert not control.matched
    assert str(control).endswith("which is not matched.")


def test_policies_that_have_not_moved_have_no_other_control(tmp_path: Path) -> None:
    still = [judged(tmp_path, "still", 1.0, -0.1)]
    dpo = [judged(tmp_path, "dpo", 1.0, -0.2, objective="dpo")]
    control = find_control(still, [dpo], lambda beta: pytest.fail("nothing is to be trained"))
    assert control.runs == dpo
    assert not control.matched


def test_controls_of_a_round_are_asked_for_at_once(runs, tmp_path):
    """A case whose control matches asks for no more, while the other goes on."""
    asked = []

    def train(betas):
        asked.append(sorted(betas))
        near = {"a": 2.0, "b": 1.5}
        return {
            k: [judged(tmp_path, f"{k}-{b}-{s}", 1.0, near[k], s, beta=b) for s in (0, 1)]
            for k, b in betas.items()
        }

    case = (runs["PLC-DPO"], [runs["DPO"]])
    target = mean_kl(runs["PLC-DPO"], JUDGED).mean
    found = find_controls({"a": case, "b": case}, train, JUDGED)
    assert asked == [["a", "b"], ["b"]]
    assert found["a"].matched == (abs(2.0 - target) <= 0.1 * target)
    assert not found["b"].matched


def test_rows_of_one_place_are_refused(runs) -> None:
    """A row that hid another did so without a word."""
    table = pd.concat([rates(runs).assign(rate=rate) for rate in (0.0, 0.3)])
    shown = win_rates_shown(table, {"rate": "injected ties", "method": "method"})
    assert ("0.3", "PLC-DPO") in shown.index
    assert len(shown) == 4
    with pytest.raises(ValueError, match="Two rows of the win rates are those of"):
        win_rates_shown(table)


def test_without_control_and_sampled_answers_there_are_no_such_columns(runs) -> None:
    table = rates(runs, judged=as_judged(["greedy"]))
    assert not set(table) & {"kl", "kl_low", "control_kl", "over_control"}
    shown = win_rates_shown(table)
    assert list(shown) == ["win %, greedy", "seeds × prompts"]
    said = results_in_words(
        table[table["method"] == "PLC-DPO"].assign(rate=0.1), "rate", "at {:.0%}".format, "PLC-DPO"
    )
    assert "control" not in said
    assert "in 0 of 1 comparisons" in said or "in 1 of 1 comparisons" in said
    with pytest.raises(RunError, match="needs sampled answers"):
        rates(runs, "control", judged=as_judged(["greedy"]))


def test_one_baseline_may_serve_all_seeds_and_others_are_paired_by_seed(runs) -> None:
    one = rates({"PLC-DPO": runs["PLC-DPO"], "DPO": runs["DPO"][:1]})
    assert one["seeds"].tolist() == [2, 2]
    backwards = rates({"PLC-DPO": runs["PLC-DPO"], "DPO": runs["DPO"][::-1]})
    forwards = rates({"PLC-DPO": runs["PLC-DPO"], "DPO": runs["DPO"]})
    pd.testing.assert_frame_equal(backwards, forwards)


def test_what_cannot_be_compared_is_refused(runs, tmp_path: Path) -> None:
    fewer = judged(tmp_path, "fewer", 1.0, 1.0, prompts=50)
    with pytest.raises(JoinError, match=r"greedy, method x, seed 0: .*10 of 60 are missing"):
        rates({"x": [fewer], "DPO": runs["DPO"][:1]})
    third = judged(tmp_path, "third", 1.0, 1.0, seed=3)
    with pytest.raises(JoinError, match="method x, seed 3: there are no rewards of the baseline"):
        rates({"x": [third], "DPO": runs["DPO"]})
    other = judged(tmp_path, "other", 1.0, 1.0)
    change_json(other.path / "run.json", reference={"model": "b" * 16})
    with pytest.raises(RunError, match="do not start from the same model"):
        rates({"x": [open_run(other.path)], "DPO": runs["DPO"][:1]})


def test_the_table_and_the_sentence_show_sign_interval_and_n(runs) -> None:
    table = rates(runs, "control")
    shown = win_rates_shown(table)
    assert shown.loc["PLC-DPO", "seeds × prompts"] == "2 × 60"
    assert shown.loc["control", "over KL control, greedy"] == "–"
    assert shown.loc["PLC-DPO", "KL, nats"].startswith("2.00 [")
    own, base = (runs[m][0].table("judgements/gold-world.parquet") for m in ("PLC-DPO", "DPO"))
    keep = (own["policy"] == "trained") & (own["decoding"] == "greedy")
    level = (own[keep]["reward"].to_numpy() == base[keep]["reward"].to_numpy()).mean()
    one = rates({"PLC-DPO": runs["PLC-DPO"][:1], "DPO": runs["DPO"][:1]})
    assert one.loc[one["decoding"] == "greedy", "ties"].item() == pytest.approx(100 * level)
    # An interval of no width would read as a certainty.
    assert (
        win_rates_shown(table.assign(ties=100.0)).loc["PLC-DPO", "win %, greedy"].count("all ties")
    )
    assert "no control" in beyond_control({"over_control": math.nan})
    assert mean_kl(runs["DPO"], JUDGED).n == 2 * PROMPTS


def test_a_control_that_moved_less_is_not_said_to_be_of_like_kl(runs) -> None:
    table = rates(runs | {"held": runs["DPO"]}, "held")
    [row] = table[(table["method"] == "PLC-DPO") & (table["decoding"] == "greedy")].to_dict(
        "records"
    )
    assert row["control_kl"] == pytest.approx(mean_kl(runs["DPO"], JUDGED).mean)
    said = beyond_control(row)
    assert "like KL" not in said
    assert "beyond the nearest control, whose KL is not matched (1.00 nats where" in said
    shown = win_rates_shown(table)
    assert shown.loc["PLC-DPO", "over KL control, greedy"].endswith(", not matched")


def test_sentences_count_what_is_clear_and_have_every_result() -> None:
    even = {"win_rate": 49.0, "low": 45.0, "high": 53.0, "kl": 0.87, "control_kl": 0.73}
    even |= {"over_control": -1.0, "over_low": -4.0, "over_high": 2.0}
    clear = {"over_control": -7.0, "over_low": -10.8, "over_high": -3.8, "control_kl": 0.85}
    rows = pd.DataFrame(
        [
            even | clear | {"rate": 0.0, "decoding": "greedy"},
            even | {"rate": 0.3, "decoding": "greedy"},
        ]
    )
    said = results_in_words(rows, "rate", lambda rate: f"with {rate:.0%} flipped", "PLC-DPO")
    assert said == (
        "Against DPO on the same data, PLC-DPO wins clearly more in 0 of 2 comparisons and "
        "clearly less in 0; against plain DPO that moved as far (the KL control), PLC-DPO wins "
        "clearly more in 0 of 2 comparisons and clearly less in 1 (95 % intervals). "
        "With 0% flipped, PLC-DPO wins 49.0 % [45.0, 53.0] in greedy decoding (no difference "
        "shown; −7.0 points [−10.8, −3.8] beyond the control of like KL, less than it). "
        "With 30% flipped, PLC-DPO wins 49.0 % [45.0, 53.0] in greedy decoding (no difference "
        "shown; −1.0 points [−4.0, +2.0] beyond the nearest control, whose KL is not matched "
        "(0.73 nats where the method moved 0.87), no difference shown)."
    )
