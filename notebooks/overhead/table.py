"""What training costs, read from the timings that `notebooks.overhead.measure` keeps.

`timings` has one row a timing: what, round, the seconds of each step, pairs a step, peak_gib,
reference_seconds (a pair's in TRL's own pass), and error, the reason why it could not be run. Table
"Computational overhead" of the paper.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from plc_core.analysis.paper import published
from plc_core.batch.report_order import FINDING

DPO, PLC, REFERENCE = "DPO", "PLC-DPO", "reference pass, once"
"""What is timed beside TRL's settings, whose names begin with TRL."""


def overhead_table(
    timings: pd.DataFrame, tokens_a_pair: float, share_a_pair: float
) -> pd.DataFrame:
    """One row for each of those timed: medians over all steps, ranges, memory, share of the rate.

    Args:
        timings: of `measure`.
        tokens_a_pair: of the pairs, padding aside, so that it is the same work for all.
        share_a_pair: seconds that a pair's arithmetic takes at the measured matrix rate.
    """
    rows = {}
    for name, group in timings.groupby("what", sort=False):
        seconds = np.concatenate(group["seconds"].to_list())
        rates = group["pairs"].iloc[0] / seconds if len(seconds) else np.array([np.nan])
        median = float(np.median(rates))
        rows[name] = {
            "pairs/s": median,
            "slowest step": rates.min(),
            "fastest step": rates.max(),
            "tokens/s": median * tokens_a_pair,
            "peak GiB": group["peak_gib"].max() or np.nan,
            "% of matrix rate": np.nan if name == REFERENCE else 100 * median * share_a_pair,
            "remark": group["error"].iloc[0] or "",
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def runtime_table(timings: pd.DataFrame) -> pd.DataFrame:
    """Table "Computational overhead" as it is published, one's own measurement above it, as text.

    A round is a window of steps: the median second a step is the median of the windows' medians,
    in brackets their range. The total is the sum of a window's first steps, of the median window,
    and is not known where windows are shorter than the paper's run. The overhead is PLC-DPO's
    median step against DPO's, one's own with its range over windows.

    Args:
        timings: of `measure`.
    """
    paper = published("runtime")
    steps = int(paper["total_steps"].iloc[0])
    by_round = _medians(timings)
    rows = {}
    for method in (DPO, PLC):
        windows = timings.loc[timings["what"] == method, "seconds"]
        medians = by_round[method].dropna()
        totals = [sum(own[:steps]) for own in windows if len(own) >= steps]
        lengths = ", ".join(f"{n:,}" for n in sorted({len(own) for own in windows}))
        more = _range(_more(by_round), "+.1f") + " %" if method == PLC else "–"
        rows["here", method] = {
            f"{steps}-step total": f"{np.median(totals):.0f} s" if totals else "not measured",
            "Median s/step": _range(medians, ".3f"),
            "Overhead": "–" if _more(by_round).empty else more,
            "windows": f"{len(windows)} of {lengths} steps",
        }
    base = paper.set_index("method")["step_seconds"][DPO]
    for line in paper.to_dict("records"):
        by_medians = f"{100 * (line['step_seconds'] / base - 1):+.1f} % by these medians"
        rows["paper, eight B200", line["method"]] = {
            f"{steps}-step total": f"{line['total_seconds']:.0f} s",
            "Median s/step": "{step_seconds:.3f} [{step_low:.3f}, {step_high:.3f}]".format_map(
                line
            ),
            "Overhead": "–" if pd.isna(line["overhead"]) else f"{line['overhead']} ({by_medians})",
            "windows": f"{line['windows']} of {line['window_steps']:,} steps",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["", "method"])


def reading(timings: pd.DataFrame) -> str:
    """PLC-DPO against DPO, and this engine against TRL at its best, each with its sign."""
    by_round = _medians(timings)
    more = _more(by_round)
    if more.empty:
        return f"{PLC} and {DPO} were not both measured, so there is nothing to compare."
    if more.min() <= 0 <= more.max():
        against_dpo = "no difference from DPO's step shown"
    else:
        against_dpo = f"it takes {'more' if more.median() > 0 else 'less'} time than DPO's"
    spread = f"from {more.min():+.1f} to {more.max():+.1f} over {len(more)} rounds; {against_dpo}"
    if len(more) == 1:
        spread = "one round, which says nothing of a difference"
    sentence = f"PLC-DPO's step against DPO's: {more.median():+.1f} % time ({spread})"
    rate = timings["pairs"].iloc[0] / by_round.median()
    trl = rate[[name for name in rate.index if str(name).startswith("TRL")]].dropna()
    if trl.empty:
        return f"{sentence}; no setting of TRL could be run here."
    passed = timings.loc[timings["what"] == REFERENCE, ["pairs", "seconds"]]
    extra = float(np.median([s[0] for s in passed["seconds"]])) / passed["pairs"].iloc[0]
    # Over one epoch a reference computed before it is paid too: the others pay as they go.
    before = timings.groupby("what")["reference_seconds"].median().reindex(trl.index)
    known = [name for name in trl.index if "precompute" not in name or before.notna()[name]]
    whole = (1 / (1 / trl + before.fillna(0))).loc[known]
    memory = timings.groupby("what")["peak_gib"].max()

    def against(rates: pd.Series, own: float) -> str:
        best = str(rates.idxmax())
        return (
            f"{own / rates[best]:.2f} times as many ({best}: {memory[DPO]:.1f} GiB here, "
            f"{memory[best]:.1f} there)"
        )

    epoch = ""
    if len(whole):
        ratio = against(whole, 1 / (1 / rate[DPO] + extra))
        epoch = f", and over one epoch, both reference passes included, {ratio}"
    return (
        f"{sentence}; compared with TRL at its best of {len(trl)} settings, this engine's DPO "
        f"trains, in pairs a second, {against(trl, rate[DPO])}{epoch}. Below 1 TRL wins."
    )


def found(timings: pd.DataFrame) -> str:
    """The sentence of `reading` as Markdown, PLC-DPO against DPO in bold: the report begins so."""
    first, end, rest = reading(timings).partition("; compared with TRL ")
    return f"**{first}**{end}{rest}{FINDING}"


def _medians(timings: pd.DataFrame) -> pd.DataFrame:
    """Median seconds a step: a row a round, a column each of those timed; NaN: it could not run."""
    medians = timings["seconds"].map(lambda x: np.median(x) if len(x) else np.nan)
    return timings.assign(median=medians).pivot_table(
        index="round", columns="what", values="median", dropna=False
    )


def _more(by_round: pd.DataFrame) -> pd.Series:
    """How much more time PLC-DPO's step takes than DPO's, percent, by round."""
    return (100 * (by_round[PLC] / by_round[DPO] - 1)).dropna()


def _range(values: pd.Series, form: str) -> str:
    if values.empty:
        return "–"
    return f"{values.median():{form}} [{values.min():{form}}, {values.max():{form}}]"
