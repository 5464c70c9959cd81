"""Runs: what there is, how it is going, how runs compare, and what they were made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import streamlit as st
from elements import Guide, chart, heading, page_title
from figures.overlay import GROUPS, TITLES, losses_apart
from health import damage
from inspection.step_metrics import noise_of
from listing import (
    ANALYSIS,
    AUDIT,
    WITHOUT_VISITS,
    listed,
    report_of,
    resumable_at,
    training_runs,
)
from marking import plain
from provenance import provenance
from reading import LIVE, metrics, open_training, read_ahead, runs_root, shown_errors
from rerun_box import command
from run_list import (
    filtered,
    how_many,
    live,
    report_button,
    reports,
    run_table,
    runs_csv,
    unread_results,
)
from run_loading import curves
from selection import chosen_runs
from state import TEXT, kept

from plc_core.analysis.curves import in_words, last_tenth
from plc_core.runs.listing import RunSummary
from plc_core.storage.files import RunError

SECTIONS = ("Curves", "Numbers", "Provenance", "Run again")
FINAL = (
    *("accuracy", "margin_mean", "loss", "q_clean", "q_flip", "q_tie", "weight_mean"),
    *("ema_std", "pairs_per_second"),
)
NOISE = "reversed labels, 1st epoch"
NOT_COMPARABLE = (
    "Losses of different objectives are different quantities: each objective has a panel of its "
    "own. Accuracies compare, and so do q and, at one β, margins."
)
NUMBERS = Guide(
    "Means over steps, each of them a mean over its pairs. Δ: minus the baseline, over the same "
    f"steps. “{NOISE}”: the estimated share of reversed labels with its 95 % interval, "
    "at the end of the first epoch, as later the policy remembers its labels.",
    "A Δ of more than two standard errors.",
    "What another seed would give: steps are taken as independent, and a run is one seed.",
)
GUIDES = {
    "Margin and loss": Guide(
        "Running means over a twentieth of the steps; faint: single steps. m is in β × nats. "
        + NOT_COMPARABLE,
        "m rises and spreads, and the loss falls. With noisy labels accuracy stays below 1.",
        "Whether the policy is better.",
    ),
    "Routing": Guide(
        "Mean weights of each step's pairs, and γ, the strength of the correction.",
        "γ is 0 during warm-up and then rises; mean q moves slowly. More label noise gives less "
        "q_clean and more q_flip.",
        "Under other objectives than PLC, q is only logged and does not touch the loss. z is "
        "centred, so mean q hardly depends on how far training has come.",
    ),
    "Rewards": Guide(
        "β × log-ratio to the reference of chosen and rejected answers, mean of a step.",
        "Chosen lies above rejected. Both may fall below 0: what counts is the margin.",
        "Whether answers got better: falling rewards of both sides are common, and not a fault.",
    ),
    "Calibration": Guide(
        "The running mean and deviation that z is measured with; whether the deviation is at its "
        "floor; the estimated share of reversed labels, where a run has it, read from the last "
        "steps: it is of the data at the end of the first epoch only.",
        "Both settle; the floor is left within the first steps. In later epochs the estimate of "
        "reversed labels can fall far too low, as the policy remembers its labels.",
        "That q is calibrated: this centres and scales the margin only.",
    ),
    "Optimiser": Guide(
        "Learning rate, gradient norm and speed.",
        "The norm stays bounded; speed is level after the first steps.",
        "Anything about the data.",
    ),
}


def page() -> None:
    """Draw the page."""
    left, right = st.columns([0.8, 0.2], vertical_alignment="bottom")
    with left:
        page_title("Runs", "What is there, how is it going, and how do runs compare?")
    root = runs_root()
    everything = listed(root)
    training = training_runs(everything)
    if not training:
        st.info("There is no training run yet.")
    else:
        shown = filtered(training)
        how_many(training, shown, everything, chosen_runs(root))
        if shown:
            run_table(shown, chosen_runs(root))
            with right:
                runs_csv(shown)
        else:
            st.info("No run matches this filter.")
    if any(run.state in LIVE for run in everything):
        live()
    by_name = {run.name: run for run in everything}
    chosen = [by_name[name] for name in chosen_runs(root) if name in by_name]
    if training and not chosen:
        st.info("Select one or more runs in the table.")
    if chosen:
        _selected(root, chosen)
    reports(everything)
    if chosen and chosen[0].problem is None and chosen[0].kind not in WITHOUT_VISITS:
        with contextlib.suppress(RunError):  # the pages that need it say what is wrong
            read_ahead(open_training(root, chosen[0].name))


def _selected(root: Path, chosen: Sequence[RunSummary]) -> None:
    for run in chosen:
        _remark(run)
    with st.container(horizontal=True):
        for run in (run for run in chosen if report_of(run)):
            report_button(run, f"Report of {plain(run.name)}", "chosen")
    readable = [run for run in chosen if run.problem is None and run.kind not in WITHOUT_VISITS]
    if not readable:
        return
    names = [run.name for run in readable]
    left, middle, right = st.columns([0.4, 0.36, 0.24], vertical_alignment="bottom")
    section = left.segmented_control(
        "Show",
        SECTIONS,
        key=kept("show", SECTIONS[0], TEXT, SECTIONS),
        required=True,
        label_visibility="collapsed",
    )
    middle.caption(f"Shown: {', '.join(plain(name) for name in names)}")
    options = ["", *names]
    baseline = right.selectbox(
        "Pinned baseline",
        options,
        key=kept("baseline", "", TEXT, options),
        format_func=lambda name: name or "none",
        disabled=len(names) < 2,
    )
    if section == "Curves":
        going_on = any(run.state in LIVE for run in readable)
        st.fragment(_curves, run_every=10 if going_on else None)(names, baseline)
    elif section == "Numbers":
        _numbers(names, baseline)
    elif section == "Provenance":
        opened = {}
        for name in sorted(names, key=lambda name: name != baseline):
            with shown_errors(name):
                opened[name] = open_training(root, name)
        provenance(opened)
    else:
        _again(root, readable)


def _remark(run: RunSummary) -> None:
    """What there is to know before looking at the run: that it is an analysis, or why it ended."""
    name = f"**{plain(run.name)}**"
    if run.kind in WITHOUT_VISITS:
        if run.kind == AUDIT:
            st.info(f"{name} is a label audit; the page Label audit shows it.")
        else:
            what = "an analysis" if run.kind == ANALYSIS else f"of the kind {plain(run.kind)}"
            st.info(f"{name} is {what}, not a run on pairs.")
    remark = damage(run) or unread_results(run)
    if run.problem or run.reason:
        remark = run.problem or f"{run.state}: {run.reason}"
    if not remark:
        return
    text = f"{name} · {plain(remark)}"
    step = resumable_at(run)
    if step is not None:
        text += (
            f"  \nIt can go on from its checkpoint after step {step:,}: start it again with the "
            "same parameters and `-p resume true`."
        )
    st.warning(text)


def _tables(names: Sequence[str]) -> dict[str, pd.DataFrame]:
    root = runs_root()
    found = {}
    for name in names:
        with shown_errors(name):
            found[name] = metrics(open_training(root, name))
    return found


def _curves(names: Sequence[str], baseline: str) -> None:
    found = _tables(names)
    if not found:
        return  # what cannot be read was said, and an empty chart would say something else
    groups = list(GROUPS)
    picked = st.pills(
        "Curves",
        groups,
        key=kept("curves", groups[0], TEXT, groups),
        required=True,
        label_visibility="collapsed",
    )
    group = picked or groups[0]
    tables, drawn = losses_apart(found, _objectives(found), GROUPS[group])
    if len(drawn) > len(GROUPS[group]):
        st.caption("Losses of different objectives are not comparable: each has its own panel.")
    figure = curves(tables, drawn, baseline or None)
    chart(group, figure, GUIDES[group], key="training_curves")


def _objectives(names: Iterable[str]) -> dict[str, str]:
    """The objective of each run, whose loss is another quantity than that of another objective."""
    configs = {run.name: run.config for run in listed(runs_root())}
    return {name: str(configs.get(name, {}).get("objective", "?")) for name in names}


def _numbers(names: Sequence[str], baseline: str) -> None:
    found = _tables(names)
    if not found:
        return
    tables, columns = losses_apart(found, _objectives(found), FINAL)
    numbers = last_tenth(tables, columns, baseline or None)
    table = numbers.reindex(columns=["run", "step"])
    for name in (n for n in map(str, numbers) if n not in table and not n.startswith("±")):
        table[name] = [
            in_words(*pair) for pair in zip(numbers[name], numbers[f"± {name}"], strict=True)
        ]
    estimates = [_noise(name) for name in table["run"]]
    if any(estimates):
        table.insert(2, NOISE, pd.Series(estimates, dtype="str"))
    heading("Mean of the last tenth of the steps ± standard error", NUMBERS)
    st.dataframe(
        table,
        key="final_values",
        hide_index=True,
        height="content",
        placeholder="–",
        column_config={
            name: st.column_config.TextColumn(TITLES[name]) for name in FINAL if name in TITLES
        },
    )


def _noise(name: str) -> str | None:
    """A run's estimated share of reversed labels, in short; None where it has none."""
    with shown_errors(name):
        found = noise_of(open_training(runs_root(), name))
        return found.short if found else None
    return None


def _again(root: Path, runs: Sequence[RunSummary]) -> None:
    for run in runs:
        said = command(root, run.name, run.kind, run.config)
        st.markdown(f"**{plain(run.name)}**")
        if said is None:
            st.caption("How this run was made is not recorded.")
            continue
        st.code(said, language="bash", wrap_lines=True)
    st.caption(
        "Run it from the checkout. Parameters that are not given have the notebook's defaults; the "
        "same seed, data and machine give the same numbers."
    )


page()
