"""Three seeds of each method against one seed of DPO, as in the paper, and against their own."""

from __future__ import annotations

import pandas as pd
from pydantic import Field

from notebooks.studies.study import Positive
from notebooks.studies.win_rate_study import DPO, PLC, MethodsConfig, entries_of
from plc_core.analysis.paper import published
from plc_core.analysis.statistics import MeanInterval, mean_interval
from plc_core.engine.config import ObjectiveName
from plc_core.evaluation.comparison import SFT, Evaluation
from plc_core.evaluation.methods import Contestant
from plc_core.evaluation.results import bounds, control_text


class SeedConfig(MethodsConfig):
    """The parameters of `notebooks/12_seeds.ipynb`."""

    seeds: list[int] = Field([0, 1, 2], min_length=2)
    methods: list[ObjectiveName] = Field(["ropo", "plc"], min_length=1)  # objectives beside dpo
    control_betas: list[Positive] = Field([0.1, 0.05])


def seed_entries(config: SeedConfig) -> list[Contestant]:
    """Every method and DPO, one run a seed."""
    return entries_of(config, config.compared())


def against_fixed(evaluation: Evaluation, seed: int) -> pd.DataFrame:
    """Every seed against the baseline's seed `seed`, a row a benchmark; also of the baseline's
    other seeds.
    """
    cells = evaluation.cells(baseline_seed=seed)
    return cells[cells["method"] != SFT]


def seed_means(evaluation: Evaluation, seed: int) -> pd.DataFrame:
    """The same, a row a seed: benchmarks are averaged within it first, each weighing alike."""
    means = evaluation.means(baseline_seed=seed)
    return means[means["method"] != SFT]


def seed_table(fixed: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Mean ± deviation over training seeds, with Student's interval: against one DPO, and against
    the own seed's. Benchmarks are averaged within a seed first.

    Args:
        fixed: of `seed_means`.
        table: of `means_of`, where like seeds meet.
    """
    rows: dict[str, dict[str, str]] = {}
    for method in [m for m in table["method"].unique() if m != SFT]:
        row: dict[str, str] = {}
        one = table[table["method"] == method].drop_duplicates("seed")
        for decoding in table["decoding"].unique():
            for head, source, value in (
                ("against DPO of one seed", fixed, "win_rate"),
                ("against DPO of its seed", table, "win_rate"),
                ("at the nearest KL", table, "over"),
            ):
                own = source[(source["method"] == method) & (source["decoding"] == decoding)]
                row[f"{decoding}, {head}"] = _spread(own, value, of=len(one))
        row["KL, nats"] = _spread(one, "kl", of=len(one), digits=2)
        row["control (KL)"] = control_text(one)
        row["seeds"] = str(len(one))
        row["benchmarks; prompts"] = f"{one['benchmarks'].iloc[0]}; {one['n'].iloc[0]:,}"
        rows[method] = row
    frame = pd.DataFrame.from_dict(rows, orient="index").fillna("–").replace("", "–")
    frame.index.name = "method"
    return frame


def benchmark_table(fixed: pd.DataFrame) -> pd.DataFrame:
    """The paper's table: mean ± deviation over seeds against one DPO, a column a benchmark; and the
    published one beside it.

    Args:
        fixed: of `against_fixed`.
    """
    seeds = fixed["seed"].nunique()
    rows: dict[str, dict[str, str]] = {}
    for (method, benchmark, decoding), own in fixed.groupby(
        ["method", "benchmark", "decoding"], sort=False
    ):
        row = rows.setdefault(str(method), {})
        row[f"{benchmark} (n={own['n'].iloc[0]:,}), {decoding}"] = _spread(
            own, "win_rate", of=seeds
        )
    for line in published("seeds").itertuples():
        if line.method in rows:
            row = rows[str(line.method)]
            row[f"paper, {line.benchmark}"] = f"{line.win_rate:.1f} ± {line.sd:.1f}"
    return pd.DataFrame.from_dict(rows, orient="index").fillna("–").rename_axis("method")


def seed_sentence(fixed: pd.DataFrame, table: pd.DataFrame) -> str:
    """Whether what a method wins against its seed's DPO is larger than what seeds do.

    Args:
        fixed: of `seed_means`.
        table: of `means_of`.
    """
    method = PLC if PLC in set(table["method"]) else str(table["method"].iloc[-1])
    rows = table[table["method"] == method]
    far = "not matched" in control_text(rows)
    like = "the nearest DPO, whose KL does not match," if far else "the DPO of like KL"
    parts = []
    for decoding, part in rows.groupby("decoding", sort=False):
        own = mean_interval(part["win_rate"])
        parts.append(
            f"{own.mean:.1f} % [{own.low:.1f}, {own.high:.1f}] {decoding} ({_verdict(own)})"
        )
        if part["over"].notna().any():
            left = mean_interval(part["over"])
            parts[-1] += (
                f", and {left.mean:.1f} % [{left.low:.1f}, {left.high:.1f}] against {like} "
                f"({_verdict(left)})"
            )
    others = fixed[fixed["method"] == DPO].groupby("decoding", sort=False)["win_rate"].mean()
    alone = " and ".join(f"{rate:.1f} % {decoding}" for decoding, rate in others.items())
    return (
        f"Over {own.n} seeds {method} wins {'; '.join(parts)}: means with Student's 95 % "
        f"intervals over seeds. DPO's own other seeds win {alone} against its first: that much "
        "depends on the one reference run."
    )


def _verdict(value: MeanInterval) -> str:
    if value.low > 50:
        return "more than half beyond the seeds' spread"
    if value.high < 50:
        return "less than half beyond the seeds' spread"
    return "no difference shown"


def _spread(rows: pd.DataFrame, value: str, of: int, digits: int = 1) -> str:
    """Mean ± deviation and interval over seeds, a row each, and how many seeds they rest on where
    these are not all.
    """
    known = rows.dropna(subset=[value])
    if known.empty:
        return "–"
    if len(known) == 1:
        return f"{known[value].iloc[0]:.{digits}f} (1 seed)"
    found = bounds(known, value)
    text = (
        f"{found.mean:.{digits}f} ± {known[value].std(ddof=1):.{digits}f} "
        f"[{found.low:.{digits}f}, {found.high:.{digits}f}]"
    )
    return text if len(known) == of else f"{text} ({len(known)} seeds)"
