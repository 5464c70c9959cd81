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

from plc_core.analysis.audit import flip_ranking, join_last_visits, knows_flips
from plc_core.analysis.noise import noise_rate
from plc_core.analysis.statistics import wilson
from plc_core.files import checkout, read_table, resource
from plc_core.parameters import defaults_beside, rerun_command
from plc_core.runs import Run
from plc_core.runs.alerts import training_alerts

_SHOWN, _MOST = 400, 4_000
"""Characters of a text that are shown at first, and that the report holds."""

_NOISES = 10
"""Margins below this many times the spread at step 0 are a policy's word, not rounding."""
_OPEN = 12
"""Pairs that are shown at first."""

STYLE = """<style>
.plc-lead {font-size: 1.25rem; line-height: 1.5; margin: .2rem 0 1rem}
.plc-alert {border-left: 4px solid #D55E00; background: rgba(213,94,0,.09); padding: .6rem .9rem;
  margin: .5rem 0}
.plc-facts {display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1rem 0}
.plc-facts div {max-width: 20rem} .plc-facts span {display: block; font-size: .8rem; color: #666}
.plc-facts b {font-size: 1.15rem; font-variant-numeric: tabular-nums; font-weight: 600}
.plc-small {font-size: .85rem; color: #555}
.plc-pair {border-top: 1px solid #ccc; padding: .9rem 0 1rem; break-inside: avoid}
.plc-pair h4 {margin: 0 0 .3rem; font-size: 1rem}
.plc-pair h4 code {font-weight: 400; font-size: .8rem; color: #666; user-select: all}
.plc-why {margin: .1rem 0 .5rem; font-size: .9rem}
.plc-sides {display: grid; grid-template-columns: 1fr 1fr; gap: .8rem}
@media (max-width: 700px) {.plc-sides {grid-template-columns: 1fr}}
.plc-role {font-size: .78rem; color: #666; margin-bottom: .15rem}
.plc-text {white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; font-size: .88rem;
  line-height: 1.45; background: rgba(128,128,128,.09); border-radius: .3rem; padding: .5rem .7rem;
  margin-bottom: .5rem; max-height: 26rem; overflow-y: auto}
.plc-text details {display: inline} .plc-text summary {color: #0072B2; cursor: pointer}
.plc-next li {margin: .7rem 0}
.plc-next pre {background: rgba(128,128,128,.12); padding: .6rem .8rem; margin: .35rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: .3rem; user-select: all}
</style>"""


def headline(run: Run) -> str:
    """What came of the run: a sentence, what is wrong with it, and its numbers."""
    visits, metrics = run.visits(), run.metrics()
    config = run.info["config"]
    said = [
        f"<b>{escape(run.name)}</b>: {escape(_objective(config))} on {run.info['data']['rows']:,} "
        f"pairs of {escape(Path(str(config['data'])).name)} for {len(metrics):,} steps."
    ]
    agreed = agreement_before_training(visits)
    if agreed is not None:
        share, low, high, _ = agreed
        said.append(
            f"The policy agreed with <b>{share:.0%}</b> [{100 * low:.0f}, {100 * high:.0f}] of the "
            "labels that it had not trained on yet"
            + ("." if low > 0.5 else ", which may be chance.")
        )
    noise = noise_rate(metrics)
    said.append(
        f"An estimated <b>{noise.short}</b> of the labels are reversed."
        if noise is not None
        else "How many labels are reversed is <b>not known yet</b>."
    )
    facts = {
        "pairs": f"{run.info['data']['rows']:,} of {run.info['data']['rows_read']:,} rows",
        "labels agreed with, 2nd half of the 1st epoch": "–"
        if agreed is None
        else f"{agreed[0]:.1%} [{100 * agreed[1]:.1f}, {100 * agreed[2]:.1f}], n = {agreed[3]:,}",
        "reversed labels, estimated": noise.short if noise is not None else "not known yet",
        _reversed_name(config): f"{(visits['weight'] * visits['q_flip']).mean():.2%}",
    }
    pairs = run.pairs()
    if knows_flips(pairs):
        for row in flip_ranking(visits, pairs).head(2).to_dict("records"):
            facts[f"AUROC of {row['score']}, {row['truth']}"] = (
                f"{row['auroc']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            )
    alerts = run.info.get("alerts", training_alerts(metrics, len(metrics)))
    return (
        STYLE
        + f'<p class="plc-lead">{" ".join(said)}</p>'
        + "".join(f'<div class="plc-alert">{escape(alert)}</div>' for alert in alerts)
        + '<div class="plc-facts">'
        + "".join(
            f"<div><span>{escape(k)}</span><b>{escape(v)}</b></div>" for k, v in facts.items()
        )
        + f'</div><p class="plc-small">{escape(run.data_sentence())}</p>'
        + _unknown_noise(noise is None)
    )


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
        '<p class="plc-small">Lowest margin at the last visit first: having seen these data, the '
        "policy prefers the rejected answer here most. It is a list to look at, not a verdict. In "
        "the embedded world 40 to 74 % of the first fifty were truly reversed, where 10 to 40 % of "
        "all labels were (eight runs of 6,141 pairs).</p>"
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
    python, plc = "python", "plc"
    if checkout() is not None:
        python, plc = ".venv/bin/python", ".venv/bin/plc"
    app = f"{plc} app --runs {shlex.quote(str(run.path.parent))}"
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
    return pair_card(place, ", ".join(numbers), " ".join(why), pair)


def pair_card(place: int, numbers: str, why: str, pair: Mapping[Any, Any]) -> str:
    """One pair as HTML: its numbers, why it is shown, and its texts, all literal.

    Args:
        pair: pair_id, prompt (turns), chosen and rejected.
    """
    sides = [
        f'<div><div class="plc-role">{role}</div>{_text(pair[name])}</div>'
        for role, name in (("labelled better", "chosen"), ("labelled worse", "rejected"))
    ]
    turns = "".join(
        f'<div class="plc-role">{escape(str(turn["role"]))}</div>{_text(turn["content"])}'
        for turn in pair["prompt"]
    )
    return (
        f'<div class="plc-pair"><h4>{place}. {escape(numbers)} '
        f"<code>{escape(pair['pair_id'])}</code></h4>"
        + (f'<p class="plc-why">{escape(why)}</p>' if why else "")
        + f'{turns}<div class="plc-sides">{"".join(sides)}</div></div>'
    )


def _scores(pair: Mapping[Any, Any]) -> list[str]:
    chosen, rejected = (pair.get(f"score_{side}") for side in ("chosen", "rejected"))
    if chosen is None or rejected is None or pd.isna(chosen) or pd.isna(rejected):
        return []
    sign = "the same as" if chosen < rejected else "against" if chosen > rejected else "nothing on"
    return [f"The scores say {sign} the policy: {chosen:g} and {rejected:g}."]


def _lengths(pair: Mapping[Any, Any]) -> list[str]:
    chosen, rejected = (pair.get(f"{side}_tokens") for side in ("chosen", "rejected"))
    if not chosen or not rejected or pd.isna(chosen) or pd.isna(rejected):
        return []
    longer = "longer" if chosen > rejected else "shorter" if chosen < rejected else "equally long"
    return [f"The label prefers the {longer} answer ({chosen:.0f} against {rejected:.0f} tokens)."]


def _truth(pair: Mapping[Any, Any]) -> str:
    if isinstance(state := pair.get("oracle_state"), str):
        return {"flip": "reversed", "clean": "not reversed", "tie": "a tie"}[state]
    return "reversed by the run" if pair["flipped"] else "not reversed by the run"


def _text(text: Any) -> str:
    shown = str(text)
    left = len(shown) - _MOST
    html = escape(shown[:_SHOWN])
    if len(shown) > _SHOWN:
        html += f"<details><summary>… more</summary>{escape(shown[_SHOWN:_MOST])}</details>"
    if left > 0:
        html += f"<br><i>{left:,} more characters: see the inspector.</i>"
    return f'<div class="plc-text" dir="auto">{html or "<i>empty</i>"}</div>'
