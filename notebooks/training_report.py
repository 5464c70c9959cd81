"""The report of one training run, as HTML: what came of it, what to look at, what to do next.

Everything is read from the run folder. Texts of pairs are shown literally.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from notebooks.pair_cards import STYLE, pair_card
from plc_core.analysis.audit import AGAINST_LENGTH, flip_ranking, join_last_visits, knows_flips
from plc_core.analysis.noise import noise_rate
from plc_core.analysis.statistics import wilson
from plc_core.batch.report_order import FINDING
from plc_core.parameters import defaults_beside, rerun_command
from plc_core.runs import Run
from plc_core.runs.alerts import training_alerts
from plc_core.storage.files import read_table
from plc_core.storage.paths import checkout, plc_command, resource
from plc_core.typography import minus

_NOISES = 10
"""Margins below this many times the spread at step 0 are a policy's word, not rounding."""
_OPEN = 12
"""Pairs that are shown at first."""


def headline(run: Run) -> str:
    """What came of the run: a sentence, what is wrong with it, and its numbers."""
    visits, metrics = run.visits(), run.metrics()
    config = run.info["config"]
    noise = noise_rate(metrics)
    said = (
        f"An estimated <b>{noise.short}</b> of the labels are reversed"
        if noise is not None
        else "How many labels are reversed is <b>not known yet</b>"
    )
    agreed = agreement_before_training(visits)
    if agreed is not None:
        share, low, high, _ = agreed
        said += (
            f"; the policy agreed with <b>{100 * share:.0f} %</b> [{100 * low:.0f}, "
            f"{100 * high:.0f}] of them before it trained on them"
            + ("" if low > 0.5 else ", which may be chance")
        )
    trained = (
        f"{run.name}: {_objective(config)} on {run.info['data']['rows']:,} pairs of "
        f"{Path(str(config['data'])).name} for {len(metrics):,} steps. {run.data_sentence()}"
    )
    facts = {
        "pairs": f"{run.info['data']['rows']:,} of {run.info['data']['rows_read']:,} rows",
        "labels that the policy agreed with (second half of the first epoch)": "–"
        if agreed is None
        else "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * x for x in agreed[:3]))
        + f", n = {agreed[3]:,}",
        "reversed labels, estimated": noise.short if noise is not None else "not known yet",
        _reversed_name(config): f"{100 * (visits['weight'] * visits['q_flip']).mean():.2f} %",
    }
    if knows_flips(run.pairs(["flipped"])):
        for row in ranking_table(run).head(2).to_dict("records"):
            score = {"-margin": "the plain margin"}.get(row["score"], row["score"])
            facts[f"reversed labels ranked by {score}, AUROC"] = row["AUROC"]
    alerts = run.info.get("alerts", training_alerts(metrics, len(metrics)))
    return (
        STYLE
        + f'<p class="plc-lead">{said}.</p>'
        + "".join(f'<div class="plc-alert">{escape(alert)}</div>' for alert in alerts)
        + '<div class="plc-facts">'
        + "".join(
            f"<div><span>{escape(k)}</span><b>{escape(v)}</b></div>" for k, v in facts.items()
        )
        + f'</div><p class="plc-small">{escape(trained)}</p>'
        + _unknown_noise(noise is None)
        + FINDING
    )


def ranking_table(run: Run) -> pd.DataFrame:
    """How well scores rank reversed labels, as text: a row a score, where flips are known."""
    ranking = flip_ranking(run.visits(), run.pairs())
    area = [
        f"{row['auroc']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        for row in ranking.to_dict("records")
    ]
    shown = ranking[["score", "n_flip", "n_clean", "truth"]].assign(AUROC=area)
    shown["score"] = shown["score"].replace(AGAINST_LENGTH, "lengths alone")
    sources = {"oracle state": "true state", "corruption marker": "the run's own reversals"}
    shown["truth"] = shown["truth"].replace(sources)
    names = {"n_flip": "reversed", "n_clean": "right", "truth": "known from"}
    return shown[["score", "AUROC", *names]].rename(columns=names)


def earnings_table(earned: pd.DataFrame) -> pd.DataFrame:
    """What `evaluation.summary.evaluate` found, under names for a reader."""
    names = {
        "label": "policy",
        "n": "prompts",
        "reward": "gold reward",
        "against_reference": "win rate against SFT, %",
        "kl": "KL to SFT, nats",
    }
    table = earned[["label", "decoding", "n", "reward", "against_reference", "kl"]]
    counts = r" \(n=.*\)$"  # said once, in a column
    return table.replace(counts, "", regex=True).rename(columns=names)


def agreement_before_training(visits: pd.DataFrame) -> tuple[float, float, float, int] | None:
    """The share of labels with m > 0, its 95 % interval (Wilson) and n; None without visits.

    Of the visits in the second half of the first epoch, each before its own update: what the policy
    learnt from other pairs about these.
    """
    first = visits[visits["epoch"] < 1]
    later = first[first["step"] >= (first["step"].max() + 1) / 2]
    n, hits = len(later), int((later["margin"] > 0).sum())
    return (hits / n, *wilson(hits, n), n) if n else None


def suspicious(run: Run, count: int = 50) -> pd.DataFrame:
    """The pairs that the policy disagrees with most: lowest margin at their last visit first.

    Only those whose margin is below 0 by more than numerical noise, and none where the policy has
    not moved. The columns of pairs.parquet and of the visit.
    """
    joined = join_last_visits(run.visits(), run.pairs())
    alerts = run.info.get("alerts", [])
    if any("has not moved" in alert for alert in alerts):
        return joined.head(0)
    # Before the first update, and after a first step of learning rate 0, margins are rounding.
    noise = (run.info.get("margin_noise") or {}).get("step_0_std") or 0.0
    chosen = joined[joined["margin"] < -_NOISES * noise].nsmallest(count, "margin")
    if chosen.empty:
        return chosen
    texts = read_table(
        run.path / "pairs.parquet", filters=[("pair_id", "in", chosen["pair_id"].tolist())]
    ).to_pandas()
    fresh = [name for name in texts if name == "pair_id" or name not in chosen]
    return chosen.merge(texts[fresh], on="pair_id", how="left")


def suspicious_pairs(run: Run, count: int = 50) -> str:
    """`suspicious` as HTML: each pair with the reasons, its numbers and its texts."""
    table = suspicious(run, count)
    if table.empty:
        return "<p>No pair is listed: the policy has not moved away from any label.</p>"
    findings = run.findings()
    findings["said"] = findings["rule"] + ": " + findings["reason"].str.rstrip(".") + "."
    reasons = findings.groupby("pair_id")["said"].agg(lambda r: list(dict.fromkeys(r)))
    known = knows_flips(run.pairs(["flipped"]))
    cards = [
        _card(place, pair, reasons.get(pair["pair_id"], []), known)
        for place, pair in enumerate(table.to_dict("records"), start=1)
    ]
    return (
        '<p class="plc-small">Lowest margin at the last visit first: these are the pairs where the '
        "trained policy prefers the rejected answer most. The inspector's list of pairs starts "
        "with the highest w · q_flip; sort it by margin, ascending, for this order. Look at the "
        "pairs before you believe the ranking: in the embedded world 40 to 74 % of the first fifty "
        "were truly reversed, where 10 to 40 % of all labels were (eight runs of 6,141 pairs).</p>"
        '<div class="tex2jax_ignore mathjax_ignore">'
        + "".join(cards[:_OPEN])
        + (f"<details><summary>The other {len(cards) - _OPEN}</summary>" if cards[_OPEN:] else "")
        + "".join(cards[_OPEN:])
        + ("</details>" if cards[_OPEN:] else "")
        + "</div>"
    )


def next_steps(run: Run) -> str:
    """What to do now, with commands."""
    config = run.info["config"]
    python = "python" if checkout() is None else ".venv/bin/python"
    app = f"{plc_command()} app --runs {shlex.quote(str(run.path.parent))}"
    export = (
        f"{python} -c "
        + shlex.quote(
            "import sys; from plc_core import open_run; "
            "from plc_core.runs.cleaned import export_cleaned; "
            "print(*export_cleaned(open_run(sys.argv[1])))"
        )
        + f" {shlex.quote(str(run.path))}"
    )
    # The cleaned file holds the pairs as they are to be trained on.
    corruption = ("data", "data_", "flip", "tie_", "warm_", "margins_run", "annotator", "num_pairs")
    kept = {k: v for k, v in config.items() if not k.startswith(corruption)}
    cleaned = {"data": str(run.path / "decisions" / "cleaned.parquet"), "data_split": None}
    mended = kept | cleaned
    defaults = defaults_beside(resource("notebooks") / "01_train.ipynb", mended)
    again = rerun_command(mended, f"{run.name}-cleaned", run.path.parent, defaults)
    steps = [
        ("Look at the pairs, and keep, flip or drop them (Pairs, in the inspector):", app),
        ("Write the pairs as your decisions leave them (or there: Export cleaned data):", export),
        ("Train on them, and compare the two runs in the inspector:", again),
    ]
    if config["data"] == "world":  # its labels need no cleaning
        steps = steps[:1]
    listed = "".join(f"<li>{says}<pre>{escape(command)}</pre></li>" for says, command in steps)
    return (
        f'<ol class="plc-next">{listed}</ol>'
        f'<p class="plc-small">The run lies in {escape(str(run.path))}, and its checkpoint below '
        "checkpoints/.</p>"
    )


def _objective(config: Mapping[str, Any]) -> str:
    name = "PLC-DPO" if config["objective"] == "plc" else str(config["objective"]).upper()
    return f"{name} (β = {config['beta']:g}) trained {Path(str(config['model'])).name}"


def _reversed_name(config: Mapping[str, Any]) -> str:
    if config["objective"] == "plc":
        return "loss taken with the label reversed"
    return "loss that PLC-DPO would have reversed"


def _unknown_noise(unknown: bool) -> str:
    if not unknown:
        return ""
    return (
        '<p class="plc-small">The share of reversed labels takes 24 steps and 256 pairs or more in '
        "the first epoch once the margins have spread, and an interval of at most 40 points. With "
        "fewer than about 300 pairs it stays unknown; with more, a smaller batch_pairs gives more "
        "steps.</p>"
    )


def _card(place: int, pair: Mapping[Any, Any], reasons: Iterable[str], known: bool) -> str:
    p_flip = pair.get("p_flip")
    numbers = [
        f"m {pair['margin']:.3g}", f"z {pair['z']:.2f}", f"q_flip {pair['q_flip']:.3f}",
        f"p_flip {'not known yet' if pd.isna(p_flip) else format(p_flip, '.3f')}",
        f"weight {pair['weight']:.3f}", f"step {pair['step']:.0f}",
    ]  # fmt: skip
    why = [*_scores(pair), *map(str, reasons), *_lengths(pair)]
    if known:
        why.append(f"Truth: {_truth(pair)}.")
    return pair_card(place, minus(", ".join(numbers)), " ".join(why), pair)


def _scores(pair: Mapping[Any, Any]) -> list[str]:
    chosen, rejected = (pair.get(f"score_{side}") for side in ("chosen", "rejected"))
    if chosen is None or rejected is None or pd.isna(chosen) or pd.isna(rejected):
        return []
    sign = "the same as" if chosen < rejected else "against" if chosen > rejected else "nothing on"
    return [minus(f"The scores say {sign} the policy: {chosen:g} and {rejected:g}.")]


def _lengths(pair: Mapping[Any, Any]) -> list[str]:
    chosen, rejected = (pair.get(f"{side}_tokens") for side in ("chosen", "rejected"))
    if not chosen or not rejected or pd.isna(chosen) or pd.isna(rejected):
        return []
    if chosen == rejected:
        return [f"Both answers have {chosen:.0f} tokens."]
    longer = "longer" if chosen > rejected else "shorter"
    return [f"The label prefers the {longer} answer ({chosen:.0f} against {rejected:.0f} tokens)."]


def _truth(pair: Mapping[Any, Any]) -> str:
    if isinstance(state := pair.get("oracle_state"), str):
        return {"flip": "reversed", "clean": "not reversed", "tie": "a tie"}[state]
    return "reversed by the run" if pair["flipped"] else "not reversed by the run"
