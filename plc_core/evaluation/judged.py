"""Judged answers read back from run folders, and the win rates that follow from them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from plc_core.evaluation.cells import (
    mean_over_benchmarks,
    mean_win_rates,
    win_rate_cells,
    win_rate_columns,
)
from plc_core.evaluation.methods import GROUP, Contestant
from plc_core.evaluation.win_rate import Incomplete, verdict_win_rate
from plc_core.files import RunError, read_table
from plc_core.runs import Run

SFT = "SFT"
"""The method that training starts from: the reference's own answers."""
CELL = ("dataset", "model", "benchmark", "judge", "decoding")
"""What makes a cell of win rates, beside method and seed."""
MEAN = tuple(key for key in CELL if key != "benchmark")
"""What makes a mean over the cells of several benchmarks."""


@dataclass(frozen=True)
class Evaluation:
    """Judged answers of several policies.

    Attributes:
        judged: one row an answer, or a prompt's turns averaged: `CELL`, method, seed, run,
            prompt_id, category, turns, characters (of the answers to all turns), reward (NaN where
            the judge gave none).
        log_ratios: log(pi/pi_ref) of sampled answers, a row a prompt: dataset, model, seed,
            benchmark, method, prompt_id, log_ratio. No rows for servers.
        versus: verdicts of pairwise judges beside the baseline's answers, a row a prompt and turn,
            with the characters and baseline_characters of both; empty where no such judge was
            asked.
        baseline: the method that win rates are against unless told otherwise.
        sizes: prompts of each benchmark.
        incomplete: as in `win_rate`.
    """

    judged: pd.DataFrame
    log_ratios: pd.DataFrame
    versus: pd.DataFrame
    baseline: str
    sizes: Mapping[str, int]
    incomplete: Incomplete = "error"

    @property
    def methods(self) -> list[str]:
        """Those that were judged, in their order."""
        return list(dict.fromkeys(self.judged["method"]))

    def cells(self, baseline: str | None = None, baseline_seed: int | None = None) -> pd.DataFrame:
        """Win rates of every method, one row a cell, method and seed; see `win_rate_cells`.

        Raises:
            JoinError: where two sides do not answer the same prompts.
        """
        cells = win_rate_cells(
            self.judged, baseline or self.baseline, CELL, self.incomplete, baseline_seed
        )
        missing = [
            f"over {n} of {self.sizes[name]} prompts" if n != self.sizes[name] else ""
            for n, name in zip(cells["n"], cells["benchmark"], strict=True)
        ]
        notes = ["; ".join(filter(None, both)) for both in zip(cells["note"], missing, strict=True)]
        return cells.assign(note=notes)

    def means(self, baseline: str | None = None, baseline_seed: int | None = None) -> pd.DataFrame:
        """The same as means over benchmarks, each weighing alike; see `mean_win_rates`."""
        return mean_win_rates(
            self.judged, baseline or self.baseline, MEAN, self.incomplete, baseline_seed
        )

    def verdict_cells(self) -> pd.DataFrame:
        """Win rates by the pairwise judges: `CELL`, method, seed, and as `win_rate_cells` has them.

        Turns of a prompt are verdicts of their own, as the judge saw them.
        """
        rows = []
        if self.versus.empty:
            return pd.DataFrame()
        for key, own in self.versus.groupby([*CELL, "method", "seed"], sort=False):
            names = own["prompt_id"] + "/" + own["turn"].astype(str)
            result = verdict_win_rate(own.set_index(names)["win"], incomplete=self.incomplete)
            rows.append(
                dict(zip([*CELL, "method", "seed"], key, strict=True)) | win_rate_columns(result)
            )
        return pd.DataFrame(rows).drop(columns="p_wilcoxon")  # verdicts have no sizes

    def kl(self) -> pd.DataFrame:
        """KL to the start, nats a response: dataset, model, method, seed, kl, kl_low, kl_high, n.

        The mean over the policy's benchmarks, each weighing alike; 95 % bootstrap intervals over
        prompts.
        """
        rows = []
        for key, own in self.log_ratios.groupby([*GROUP[:2], "method", "seed"], sort=False):
            value = mean_over_benchmarks(_by_benchmark(own, "log_ratio"))
            names = ("dataset", "model", "method", "seed")
            numbers = {"kl": value.mean, "kl_low": value.low, "kl_high": value.high, "n": value.n}
            rows.append(dict(zip(names, key, strict=True)) | numbers)
        columns = ["dataset", "model", "method", "seed", "kl", "kl_low", "kl_high", "n"]
        return pd.DataFrame(rows, columns=columns)

    def rewards(self, keys: Sequence[str] = CELL) -> pd.DataFrame:
        """Mean rewards, 95 % intervals over prompts: `keys`, method, seed, reward, low, high, n.

        With the keys `MEAN` they are means over benchmarks, each weighing alike.
        """
        rows = []
        for key, own in self.judged.groupby([*keys, "method", "seed"], sort=False):
            mean = mean_over_benchmarks(_by_benchmark(own, "reward"))
            numbers = {"reward": mean.mean, "low": mean.low, "high": mean.high, "n": mean.n}
            rows.append(dict(zip([*keys, "method", "seed"], key, strict=True)) | numbers)
        return pd.DataFrame(rows)

    def by_category(self) -> Evaluation:
        """The same answers with every category of a benchmark as a benchmark of its own, named
        "benchmark: category": the same category of two benchmarks stays two.

        The KL stays that of all prompts. A benchmark without categories stays whole.
        """
        whole, category = self.judged["benchmark"], self.judged["category"]
        judged = self.judged.assign(benchmark=whole.where(category == "", whole + ": " + category))
        counts = judged.groupby("benchmark")["prompt_id"].nunique()
        sizes = {str(name): int(count) for name, count in counts.items()}
        return replace(self, judged=judged, versus=pd.DataFrame(), sizes=sizes)

    def only(self, **where: str) -> Evaluation:
        """The part whose columns equal `where`, as judge="gold"."""
        judged = self.judged
        for column, value in where.items():
            judged = judged[judged[column] == value]
        return replace(self, judged=judged)


def read_evaluation(
    entries: Sequence[Contestant],
    labels: Mapping[str, Mapping[str, str]],
    judges: Sequence[str],
    baseline: str,
    sizes: Mapping[str, int],
    versus: Sequence[pd.DataFrame] = (),
    incomplete: Incomplete = "error",
) -> Evaluation:
    """Read judgements and log-ratios from the run folders.

    Args:
        entries: who is compared; their benchmarks are names among the `labels`.
        labels: for each benchmark, the names in files of the decodings greedy and sampled.
        judges: names of the judgements' files.
        baseline, sizes, incomplete: of the `Evaluation`.
        versus: verdicts of pairwise judges.

    Raises:
        RunError: where judgements are missing, or a prompt has other turns in another run.
    """
    frames, ratios = [], []
    categories = {
        name: _categories(next(e for e in entries if e.answers(name)).run, name) for name in labels
    }
    for entry in entries:
        own = {name: kinds for name, kinds in labels.items() if entry.answers(name)}
        for benchmark, decodings in own.items():
            lengths = _lengths(entry.run, benchmark)
            of_judges = {
                judge: entry.run.table(f"judgements/{judge}-{benchmark}.parquet")
                for judge in judges
            }
            for judge, scores in of_judges.items():
                for kind, label in decodings.items():
                    of_kind = scores[scores["decoding"] == label]
                    where = {"benchmark": benchmark, "judge": judge, "decoding": kind}
                    sizes_of = lengths[lengths["decoding"] == label]
                    frames.append(_side(of_kind, entry, "trained", entry.method, where, sizes_of))
                    # One reference a group: the baseline's run has its answers.
                    if entry.method == baseline and "reference" in set(of_kind["policy"]):
                        frames.append(_side(of_kind, entry, "reference", SFT, where, sizes_of))
            if "sampled" in decodings:
                ratios.append(_log_ratios(entry, benchmark, decodings["sampled"], of_judges))
    judged = pd.concat(frames, ignore_index=True)
    pairs = zip(judged["benchmark"], judged["prompt_id"], strict=True)
    judged["category"] = [categories[name].get(prompt, "") for name, prompt in pairs]
    _check_turns(judged)
    known = [frame for frame in ratios if frame is not None]
    columns = [*GROUP, "benchmark", "method", "prompt_id", "log_ratio"]
    together = pd.concat(known, ignore_index=True) if known else pd.DataFrame(columns=columns)
    verdicts = pd.concat(versus, ignore_index=True) if versus else pd.DataFrame()
    return Evaluation(judged, together, verdicts, baseline, sizes, incomplete)


def _by_benchmark(rows: pd.DataFrame, value: str) -> dict[str, pd.Series]:
    """A column by prompt id, for each benchmark."""
    return {
        str(name): own.set_index("prompt_id")[value]
        for name, own in rows.groupby("benchmark", sort=False)
    }


def _categories(run: Run, benchmark: str) -> dict[str, str]:
    path = run.path / "generations" / f"{benchmark}.parquet"
    table = read_table(path, ["prompt_id", "category"])
    return dict(zip(table["prompt_id"].to_pylist(), table["category"].to_pylist(), strict=True))


def _lengths(run: Run, benchmark: str) -> pd.DataFrame:
    """Characters of the answers to a prompt, all turns together, by policy and decoding."""
    path = run.path / "generations" / f"{benchmark}.parquet"
    keys = ["policy", "decoding", "prompt_id"]
    answers = read_table(path, [*keys, "response"]).to_pandas()
    answers["characters"] = answers["response"].str.len()
    return answers.groupby(keys, sort=False)["characters"].sum().reset_index()


def _side(
    scores: pd.DataFrame,
    entry: Contestant,
    policy: str,
    method: str,
    where: Mapping[str, str],
    lengths: pd.DataFrame,
) -> pd.DataFrame:
    own = scores[scores["policy"] == policy]
    if own.empty:
        raise RunError(
            f"The run {entry.run.name!r} has no {where['decoding']} scores of {policy!r} by "
            f"{where['judge']!r} on {where['benchmark']!r}; evaluate it to make them."
        )
    if twice := int(own.duplicated(["prompt_id", "turn"]).sum()):
        raise RunError(
            f"The judgements of {entry.run.name!r} by {where['judge']!r} on "
            f"{where['benchmark']!r} hold {twice:,} rows twice."
        )
    # A prompt's reward is the mean of its turns'; one that is missing makes it missing.
    turns = own.groupby("prompt_id", sort=False)["reward"]
    mean = turns.mean().where(turns.count() == turns.size())
    known = lengths[lengths["policy"] == policy].set_index("prompt_id")["characters"]
    return pd.DataFrame(
        {
            "dataset": entry.dataset,
            "model": entry.model,
            **where,
            "method": method,
            "seed": entry.seed,
            "run": entry.run.name,
            "prompt_id": mean.index,
            "turns": turns.size().to_numpy(),
            "characters": known.reindex(mean.index).to_numpy(),
            "reward": mean.to_numpy(),
        }
    )


def _check_turns(judged: pd.DataFrame) -> None:
    counts = judged.groupby(["benchmark", "prompt_id"])["turns"].agg(["min", "max"])
    odd = counts[counts["min"] != counts["max"]]
    if len(odd):
        (benchmark, prompt), (low, high) = odd.index[0], odd.iloc[0]
        rows = judged[(judged["benchmark"] == benchmark) & (judged["prompt_id"] == prompt)]
        lacking = rows[rows["turns"] == low]["run"].iloc[0]
        raise RunError(
            f"{len(odd):,} prompts of {benchmark!r} have other turns in other runs: {prompt!r} has "
            f"{low} in {lacking!r} and {high} elsewhere. A mean over turns would not compare."
        )


def _log_ratios(
    entry: Contestant, benchmark: str, label: str, of_judges: Mapping[str, pd.DataFrame]
) -> pd.DataFrame | None:
    """None where there are none: of a server, or not measured."""
    path = f"generations/{benchmark}-log-probs.parquet"
    if not (entry.run.path / path).exists():
        path = f"generations/{benchmark}.parquet"  # the world's own hold them
    table = entry.run.table(path)
    if "policy_logp" not in table:
        return None
    own = table[table["decoding"] == label]
    own = own[own["policy"] == "trained"] if "policy" in own else own
    ratio = own["policy_logp"] - own["reference_logp"]
    for judge, scores in of_judges.items():
        judged = scores[(scores["policy"] == "trained") & (scores["decoding"] == label)]
        turns = [sorted(zip(t["prompt_id"], t["turn"], strict=True)) for t in (own, judged)]
        if turns[0] != turns[1] or ratio.isna().any():
            raise RunError(
                f"{entry.run.path / path} has {int(ratio.notna().sum()):,} log-ratios, and "
                f"{len(judged):,} sampled answers were judged by {judge!r}: a KL over other "
                "answers would not be theirs. Delete the file and evaluate again."
            )
    mean = ratio.groupby(own["prompt_id"], sort=False).mean()
    where = dict(zip(GROUP, entry.group, strict=True))
    columns = {"benchmark": benchmark, "method": entry.method}
    named = {**where, **columns}
    return pd.DataFrame({**named, "prompt_id": mean.index, "log_ratio": mean.to_numpy()})
