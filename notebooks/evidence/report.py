"""What `notebooks/20_evidence.ipynb` shows beside the claims table: curves, and the bill."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from notebooks.evidence.claims import shown
from notebooks.evidence.estimates import BASELINE, FEWEST, METHOD, Estimate, Study, over_seeds
from notebooks.evidence.estimates import read_study as read
from notebooks.evidence.published_claims import NOISY, accuracy_over_dpo
from plc_core.analysis.audit import AGAINST_LENGTH
from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish
from plc_core.engine.config import Parameters
from plc_core.runs import Run, create_run
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path, resource

TITLES = {"smollm2": "SmolLM2 135M", "qwen": "Qwen 1.5B", "world": "the embedded world"}
"""Of the studies that came with the package, for a reader; another has its folder's name."""
LARGE = "Qwen2.5-7B"
"""The largest of the paper's models in its ablations."""


class EvidenceConfig(Parameters):
    """The parameters of `notebooks/20_evidence.ipynb`."""

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    results_dir: str = "data/results"  # holds one folder of CSV files a study
    model_study: str = "smollm2"  # the study of a real model, which the verdicts are on
    larger_study: str = "qwen"  # of a larger real model, with some of the methods and rates
    world_study: str = "world"


def open_evidence(config: EvidenceConfig) -> tuple[Run, Study, Study, Study]:
    """The report's folder, and the studies of the model, the larger one and the world.

    One that was not run is empty.

    Raises:
        RunError: where there are no results of the study that the verdicts are on.
    """
    results = results_folder(config.results_dir)
    if not (results / config.model_study).is_dir():
        there = sorted(path.name for path in results.glob("*/")) if results.is_dir() else []
        raise RunError(
            f"There are no results of a study {config.model_study!r} in {results}; there are "
            f"{', '.join(there) or 'none'}."
        )
    info = {"kind": "analysis", "config": config.model_dump()}
    report = create_run(config.runs_folder, config.name, info)
    names = (config.model_study, config.larger_study, config.world_study)
    model, larger, world = (read(name, results / name) for name in names)
    return report, model, larger, world


def title(study: Study) -> str:
    """The study's name for a reader."""
    return TITLES.get(study.name, study.name)


def training_runs(study: Study) -> int:
    """How many jobs of the study have trained a policy; its other ones are audits alone."""
    return int((study.jobs["slice"] != "evidence").sum()) if study.is_run else 0


def runs_in_words(*studies: Study) -> str:
    """On how many training runs the report rests, as a sentence."""
    counts = {title(study): training_runs(study) for study in studies}
    parts = ", ".join(f"{count:,} of {name}" for name, count in counts.items() if count)
    return (
        f"{sum(counts.values()):,} training runs on pairs with known reversed labels: {parts}. "
        "`15_label_audit` has some more of its own."
    )


def advice(study: Study) -> str:
    """What the accuracy over DPO on noisy labels means for somebody who has to choose."""
    found = over_seeds(accuracy_over_dpo(NOISY)(study, METHOD))
    if found is None or found.n < FEWEST:
        return f"Whether PLC-DPO pays on noisy labels is not known on {title(study)}."
    gain = f"{shown(found, 1, 100, signed=True)} points of held-out accuracy over DPO"
    means = (
        "PLC-DPO pays here"
        if found.low > 0
        else "PLC-DPO costs accuracy here"
        if found.high < 0
        else "no gain and no loss is shown"
    )
    return (
        f"**What to do.** At 20 to 40 % reversed labels PLC-DPO has {gain} on {title(study)}: "
        f"{means}. What mending the labels themselves gains is in `15_label_audit`."
    )


def at_a_glance(table: pd.DataFrame) -> pd.DataFrame:
    """Of the claims table what the paper itself claims, without the shadow routing."""
    own = table[~table["paper"].isin(["–", "not measured"])]
    return own[["claim", "paper", "model", "larger", "world", "verdict"]]


def columns_in_words(model: Study, larger: Study, world: Study) -> dict[str, str]:
    """The columns of the claims table for a reader."""
    return {
        "read": "measured on",
        "paper": "the paper",
        "model": title(model),
        "larger": title(larger),
        "world": title(world),
        "shadow": f"plain DPO's shadow routing, {title(model)}",
        "over": "PLC-DPO over that",
        "verdict": f"verdict on {title(model)}",
    }


def provenance_table(*studies: Study) -> pd.DataFrame:
    """What each study was made with: runs by slice, seeds, model, devices, versions, commits."""
    rows = []
    for study in studies:
        jobs = study.jobs
        if not study.is_run:
            rows.append({"study": title(study), "training runs": 0})
            continue
        rows.append(
            {
                "study": title(study),
                "training runs": training_runs(study),
                "audits alone": len(jobs) - training_runs(study),
                "slices": ", ".join(f"{k} {v}" for k, v in jobs["slice"].value_counts().items()),
                "seeds": ", ".join(str(seed) for seed in sorted(jobs["seed"].unique())),
                "learning rate": ", ".join(
                    f"{x:g}"
                    for x in sorted(jobs.loc[jobs["slice"] == "main", "learning_rate"].unique())
                ),
            }
            | {
                name: ", ".join(sorted(jobs[name].dropna().astype(str).str[:length].unique()))
                for name, length in (("model", 16), ("device", 40), ("versions", 80), ("commit", 8))
            }
        )
    return pd.DataFrame(rows).set_index("study").fillna("")


def beside_the_paper(study: Study) -> str:
    """What a reader has to know before comparing the study's numbers with the paper's."""
    said = (
        "Routing is read of training pairs at their first visit, each before its own update, but "
        "where the table says otherwise. The paper's tie selectivity is of held-out pairs, and its "
        "exact ties and human votes are read zero-shot, when training has ended; here accuracy, "
        "disagreement with the reward model and votes alone are of pairs never trained on."
    )
    if not study.is_run:
        return said
    main = study.jobs[study.jobs["slice"] == "main"]
    low, high = main["steps"].min(), main["steps"].max()
    steps = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{said} A run is {steps} optimizer steps of all weights; the paper's are 955 of LoRA."


_COLOURS = {BASELINE: RUN_COLOURS[1], METHOD: RUN_COLOURS[2]}
"""Those of DPO and PLC-DPO in the demo's report."""
_DASHES = ("solid", "dash", "dot")


def by_rate(
    study: Study,
    lines: Mapping[str, tuple[str, str, str]],
    title: str,
    diagonal: bool = False,
) -> go.Figure:
    """Means over seeds with 95 % intervals against the share of reversed labels.

    A colour is a method, a dash what is measured of it; grey is what needs no policy.

    Args:
        lines: name of a line to (measure, group, method) of the slice main.
        title: of the y axis.
        diagonal: draws y = x, where a number should equal the share.
    """
    figure = go.Figure()
    for number, (name, (measure, group, method)) in enumerate(lines.items()):
        values = study.values(measure, group, method)
        points: dict[float, Estimate] = {}
        for rate in sorted(values["flip_rate"].unique()):
            found = over_seeds(values[values["flip_rate"] == rate])
            if found is not None:
                points[float(rate)] = found
        if not points:
            continue
        colour = INK if group == AGAINST_LENGTH else _COLOURS[method]
        read = list(dict.fromkeys(line[:2] for line in lines.values()))
        dash = _DASHES[read.index((measure, group)) % len(_DASHES)]
        # Side by side, so that intervals do not hide each other.
        shift = 0.004 * (number - (len(lines) - 1) / 2)
        known = list(points.values())
        figure.add_scatter(
            x=[rate + shift for rate in points],
            y=[p.value for p in known],
            error_y={
                "array": [p.high - p.value for p in known],
                "arrayminus": [p.value - p.low for p in known],
                "thickness": 1.2,
                "width": 3,
            },
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 1.6, "dash": dash},
            customdata=[p.n for p in known],
            hovertemplate="%{x:.2f}: %{y:.3f} (n=%{customdata} seeds)",
        )
    if not figure.data:
        return empty(f"The study {study.name!r} has no results yet.", 200)
    if diagonal:
        figure.add_scatter(
            x=[0, 0.4], y=[0, 0.4], mode="lines", name="equal", hoverinfo="skip",
            line={"color": INK, "dash": "dot", "width": 1},
        )  # fmt: skip
    figure.update_xaxes(title_text="share of reversed labels", tickformat=".0%")
    figure.update_yaxes(title_text=title)
    return finish(figure, 390, margin_t=44)


def bill(study: Study, throughput: pd.DataFrame) -> pd.DataFrame:
    """What the study took, and what its training would take for a model of the paper's size.

    A job's share of its device is its seconds over the workers that were dealt the device's time.

    Args:
        throughput: measured training, as in data/results/throughput.csv; the large model's hours
            are those of this study's tokens at the tokens a GPU second of its last row for `LARGE`.
    """
    if not study.is_run:
        return pd.DataFrame({"amount": []})
    jobs = study.jobs
    whole = float((jobs["seconds"] / jobs["workers"]).sum()) / 3600
    training = float((jobs["train_seconds"] / jobs["workers"]).sum()) / 3600
    tokens = float((jobs["tokens"] * jobs["epochs"]).sum())
    rows = {
        "jobs": len(jobs),
        "tokens trained on, millions": tokens / 1e6,
        "GPU hours of all jobs, measuring included": whole,
        "GPU hours of training": training,
        "tokens a GPU second in training": tokens / (3600 * training),
    }
    for measured in throughput[throughput["shape"] == LARGE].to_dict("records")[-1:]:
        rate = measured["tokens_per_gpu_second"]
        name = f"GPU hours of the same tokens through {LARGE}'s shape ({measured['training']}, "
        rows[f"{name}{measured['device']})"] = tokens / rate / 3600
    return pd.DataFrame({"amount": rows})


def amount(value: float) -> str:
    """A number of the bill as text: whole from a hundred, else with a decimal."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def read_throughput(config: EvidenceConfig) -> pd.DataFrame:
    """The measured throughput beside the studies; empty where there is none.

    Raises:
        RunError: for a file that cannot be read or has not the columns that `bill` reads.
    """
    path = results_folder(config.results_dir) / "throughput.csv"
    names = ["shape", "training", "device", "tokens_per_gpu_second"]
    if not path.exists():
        return pd.DataFrame(columns=names)
    try:
        return pd.read_csv(path)[names]
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def results_folder(results_dir: str) -> Path:
    """The folder of results; where it is missing, the one that came with the package."""
    given = project_path(results_dir)
    return given if given.is_dir() else resource(results_dir)
