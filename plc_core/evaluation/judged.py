"""Judged answers read back from run folders, under the names of any comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from plc_core.evaluation.comparison import GROUP, SFT, Evaluation
from plc_core.evaluation.methods import Contestant, check_same
from plc_core.evaluation.win_rate import Incomplete
from plc_core.runs import Run
from plc_core.storage.files import RunError

ITSELF = "run"
"""The one method of the evaluation of one run."""


class JudgedRuns:
    """Judged answers of runs, each evaluated once and compared under any names.

    Args:
        evaluate: gives the evaluation of a run as the method `ITSELF`.
    """

    def __init__(self, evaluate: Callable[[Run], Evaluation]) -> None:
        self._evaluate = evaluate
        self._known: dict[Path, Evaluation] = {}

    def of(self, run: Run) -> Evaluation:
        """The run's own evaluation, with the method `ITSELF`."""
        if run.path not in self._known:
            self._known[run.path] = self._evaluate(run)
        return self._known[run.path]

    def together(self, methods: Mapping[str, Sequence[Run]], baseline: str) -> Evaluation:
        """Runs by method, one a training seed, as one evaluation, whatever pairs they are trained
        on; RunError where they do not start from one model.
        """
        check_same([run for runs in methods.values() for run in runs], ("model",))
        judged, ratios = [], []
        for method, runs in methods.items():
            for run in runs:
                own = self.of(run)
                named = {"method": method, "seed": run.info["config"]["seed"]}
                judged.append(own.judged[own.judged["method"] == ITSELF].assign(**named))
                ratios.append(own.log_ratios.assign(**named))
        answers = pd.concat(judged, ignore_index=True)
        log_ratios = pd.concat(ratios, ignore_index=True)
        return Evaluation(answers, log_ratios, pd.DataFrame(), baseline, own.sizes)


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
                    frames.append(
                        _side(of_kind, entry, entry.answered_as, entry.method, where, sizes_of)
                    )
                    # One reference a group: the baseline's run has its answers.
                    own_start = entry.method == baseline and entry.answered_as == "trained"
                    if own_start and "reference" in set(of_kind["policy"]):
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


def _categories(run: Run, benchmark: str) -> dict[str, str]:
    path = run.path / "generations" / f"{benchmark}.parquet"
    table = run.read_table(path, ["prompt_id", "category"])
    return dict(zip(table["prompt_id"].to_pylist(), table["category"].to_pylist(), strict=True))


def _lengths(run: Run, benchmark: str) -> pd.DataFrame:
    """Characters of the answers to a prompt, all turns together, by policy and decoding."""
    path = run.path / "generations" / f"{benchmark}.parquet"
    keys = ["policy", "decoding", "prompt_id"]
    answers = run.read_table(path, [*keys, "response"]).to_pandas()
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
    own = own[own["policy"] == entry.answered_as] if "policy" in own else own
    if own.empty:
        return None
    ratio = own["policy_logp"] - own["reference_logp"]
    for judge, scores in of_judges.items():
        judged = scores[(scores["policy"] == entry.answered_as) & (scores["decoding"] == label)]
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
