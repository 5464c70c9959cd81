"""Tables of win rates as data frame, Markdown, LaTeX and CSV, with n, intervals and marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from plc_core.evaluation.results import mean_over_seeds, over_cells
from plc_core.evaluation.win_rate import JoinError

Form = Literal["plain", "markdown", "latex"]

_MARKS = {
    "plain": {"best": "{}*", "second": "{}†"},
    "markdown": {"best": "**{}**", "second": "<u>{}</u>"},
    "latex": {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"},
}
_NONE = "–"
_LATEX = {"\\": r"\textbackslash{}", "γ": r"$\gamma$", "β": r"$\beta$", "η": r"$\eta$", "–": "--"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$"}


@dataclass(frozen=True)
class WinTable:
    """One row a method, one column a benchmark; see `win_table`.

    Attributes:
        cells: the long table: rows' keys, column, win_rate, low, high, n, and published and kl
            where there are any. This is what `csv` writes.
        keys: the columns of `cells` that make a row; the last is the method.
        column: the column of `cells` whose values are the table's columns.
        digits: decimals shown, by which equal numbers are equal.
        notes: a sentence for every cell that must be read with care.
    """

    cells: pd.DataFrame
    keys: tuple[str, ...]
    column: str
    digits: int
    notes: list[str]

    def frame(self, form: Form = "plain") -> pd.DataFrame:
        """The table as text, best and second best of each column and group marked.

        A group is the rows that share all keys but the method. Plain text marks with * and †.
        """
        texts: dict[str, dict[tuple[Any, ...], str]] = {}
        for name, part in self.cells.groupby(self.column, sort=False):
            sizes = set(part["n"]) if "n" in part else set()
            head = f"{name} (n={next(iter(sizes)):,})" if len(sizes) == 1 else str(name)
            texts[head] = self._marked(part, form, show_n=len(sizes) > 1)
            if "published" in part:
                shown = part["published"].map(self._number)
                texts[f"{name}, paper"] = dict(zip(self._rows(part), shown, strict=True))
        texts |= self._summary(form)
        if "kl" in self.cells and self.cells["kl"].notna().any():  # known where answers are sampled
            texts["KL, nats"] = self._kl()
        index = list(dict.fromkeys(self._rows(self.cells)))
        table = pd.DataFrame(
            {head: [column.get(row, _NONE) for row in index] for head, column in texts.items()},
            index=pd.MultiIndex.from_tuples(index, names=self.keys),
        )
        return table if len(self.keys) > 1 else _flat(table)

    def markdown(self) -> str:
        """A Markdown table: best in bold, second best underlined, notes below."""
        table = self.frame("markdown").reset_index()
        head = [_markdown(str(name)) for name in table.columns]
        lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        for row in table.astype(str).to_numpy().tolist():
            keys = [_markdown(text) for text in row[: len(self.keys)]]
            lines.append("| " + " | ".join([*keys, *row[len(self.keys) :]]) + " |")
        return "\n".join([*lines, *([""] if self.notes else []), *self._notes(_markdown)]) + "\n"

    def latex(self) -> str:
        """A booktabs tabular: best in bold, second best underlined, notes as comments."""
        table = self.frame("latex").reset_index()
        head = " & ".join(_latex(str(name)) for name in table.columns)
        spec = "l" * len(self.keys) + "c" * (table.shape[1] - len(self.keys))
        lines = [f"\\begin{{tabular}}{{{spec}}}", "\\toprule", head + r" \\", "\\midrule"]
        for row in table.astype(str).to_numpy().tolist():
            keys = [_latex(text) for text in row[: len(self.keys)]]
            values = [text.replace("–", "--") for text in row[len(self.keys) :]]
            lines.append(" & ".join([*keys, *values]) + r" \\")
        end = ["\\bottomrule", "\\end{tabular}"]
        notes = ["% " + " ".join(note.split()) for note in self.notes]
        return "\n".join([*lines, *end, *notes]) + "\n"

    def csv(self) -> str:
        """The long table, one line a cell, numbers unrounded."""
        return self.cells.to_csv(index=False)

    def _rows(self, part: pd.DataFrame) -> list[tuple[Any, ...]]:
        return list(part[[*self.keys]].itertuples(index=False, name=None))

    def _number(self, value: float) -> str:
        return _NONE if pd.isna(value) else f"{value:.{self.digits}f}"

    def _marked(
        self, part: pd.DataFrame, form: Form, show_n: bool, value: str = "win_rate"
    ) -> dict[tuple[Any, ...], str]:
        group = [*self.keys[:-1]]
        shown = part[value].round(self.digits)
        sets = [part[key] for key in group]
        ranked = shown.groupby(sets) if sets else shown
        ranks = ranked.rank(method="dense", ascending=False)
        texts = {}
        for row, line, rank in zip(self._rows(part), part.to_dict("records"), ranks, strict=True):
            text = self._number(line[value])
            mark = {1.0: "best", 2.0: "second"}.get(rank)
            if mark and len(part) > 1:
                text = _MARKS[form][mark].format(text)
            if "low" in line and value == "win_rate":
                text += f" [{self._number(line['low'])}, {self._number(line['high'])}]"
            elif "sd" in line and value == "win_rate":
                text += " $\\pm$ " if form == "latex" else " ± "
                text += f"{self._number(line['sd'])} ({line['seeds']} seeds)"
            texts[row] = text + (f" (n={line['n']:,})" if show_n else "")
        return texts

    def _summary(self, form: Form) -> dict[str, dict[tuple[Any, ...], str]]:
        """Mean and worst of a row's cells, for the rows that have all of their group's."""
        if self.cells[self.column].nunique() < 2:
            return {}
        whole = self.cells[~self.cells.index.isin(_partial(self.cells, self.keys, self.column))]
        if whole.empty:
            return {}
        means = over_cells(
            whole.rename(columns={self.keys[-1]: "method"}), [self.column], self.keys[:-1]
        ).rename(columns={"method": self.keys[-1]})
        counts = sorted(set(means["cells"]))
        named = f"mean of {counts[0]}" if len(counts) == 1 else "mean of its cells"
        texts = self._marked(means, form, show_n=False, value="mean")
        if len(counts) > 1:
            sizes = dict(zip(self._rows(means), means["cells"], strict=True))
            texts = {row: f"{text} ({sizes[row]})" for row, text in texts.items()}
        return {
            named: texts,
            "worst": self._marked(means, form, show_n=False, value="worst"),
        }

    def _kl(self) -> dict[tuple[Any, ...], str]:
        texts = {}
        for row, own in self.cells.groupby([*self.keys], sort=False):
            if own["kl"].isna().any():
                continue
            texts[row] = f"{own['kl'].mean():.2f}"
            # One KL for all benchmarks keeps its interval; a mean of several has none.
            if "kl_low" in own and len(set(own["kl"])) == 1:
                texts[row] += f" [{own['kl_low'].iloc[0]:.2f}, {own['kl_high'].iloc[0]:.2f}]"
        return texts

    def _notes(self, escape: Any) -> list[str]:
        return [f"- {escape(note)}" for note in self.notes]


def win_table(
    cells: pd.DataFrame,
    keys: Sequence[str] = ("method",),
    column: str = "benchmark",
    published: pd.DataFrame | None = None,
    digits: int = 1,
    sizes: Mapping[str, int] | None = None,
) -> WinTable:
    """A table of win rates.

    Args:
        cells: as `win_rate_cells` or `mean_over_seeds` give them: the columns `keys`, `column`,
            win_rate (percent), and where there are any n, low, high, sd, seeds, note, kl. Rows of
            several seeds become their mean ± standard deviation, as `mean_over_seeds` has it.
        keys: what makes a row; the last is the method, the others are groups, within which the
            best is marked.
        column: what makes a column.
        published: published win rates to show beside, with the columns `keys`, `column` and
            win_rate, as `plc_core.analysis.paper.published("cells")`. Names must be the same;
            a cell that was not published shows "–".
        digits: decimals.
        sizes: prompts of each column, as `plc_core.analysis.paper.BENCHMARK_SIZES`; a cell that
            rests on another number is noted.

    Raises:
        JoinError: for a missing column, an empty table, or a cell that is there twice.
    """
    wanted = [*keys, column]
    for table in (cells, published):
        if table is not None and (absent := [c for c in [*wanted, "win_rate"] if c not in table]):
            raise JoinError(f"The win rates lack the columns {', '.join(absent)}.")
    if cells.empty:
        raise JoinError("There are no win rates to show.")
    cells, notes = _without_seeds(cells, wanted)
    for name, table in (("win rates", cells), ("published win rates", published)):
        if table is not None and (twice := table[table.duplicated(wanted)]).size:
            first = ", ".join(map(str, twice[wanted].iloc[0]))
            raise JoinError(f"The {name} have {first} twice; say what else makes a row in `keys`.")
    long = cells.copy()
    if published is not None:
        beside = published[[*wanted, "win_rate"]].rename(columns={"win_rate": "published"})
        long = long.merge(beside, on=wanted, how="left", validate="one_to_one")
    if "note" in long:
        for line in long[long["note"].fillna("") != ""].to_dict("records"):
            notes.append(f"{', '.join(str(line[c]) for c in wanted)}: {line['note']}")
    for line in long.to_dict("records") if sizes and "n" in long else ():
        whole = (sizes or {}).get(line[column])
        if whole is not None and line["n"] != whole:
            who = ", ".join(str(line[c]) for c in wanted)
            notes.append(f"{who}: over {line['n']:,} of {whole:,} prompts")
    long = long.reset_index(drop=True)
    short = long.loc[_partial(long, keys, column)]
    for row, own in short.groupby([*keys], sort=False):
        whole = _columns_of_group(long, keys, column).loc[own.index[0]]
        who = ", ".join(map(str, row))
        notes.append(f"{who}: {len(own)} of {whole} columns, so there are no means")
    return WinTable(long, tuple(keys), column, digits, notes)


def _columns_of_group(cells: pd.DataFrame, keys: Sequence[str], column: str) -> pd.Series:
    """For each cell, how many columns its group has."""
    if len(keys) == 1:
        return pd.Series(cells[column].nunique(), index=cells.index)
    return cells.groupby([*keys[:-1]], sort=False)[column].transform("nunique")


def _partial(cells: pd.DataFrame, keys: Sequence[str], column: str) -> pd.Index:
    """The cells of rows that lack a column of their group: a mean of them would not compare."""
    have = cells.groupby([*keys], sort=False)[column].transform("size")
    return cells.index[have < _columns_of_group(cells, keys, column)]


def _without_seeds(cells: pd.DataFrame, wanted: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The cells with several seeds of one as their mean, and what was said of single seeds."""
    keys = [name for name in wanted if name != "method"]
    if "seed" not in cells or "method" not in wanted or not cells.duplicated(list(wanted)).any():
        return cells, []
    said = cells[cells["note"].fillna("") != ""] if "note" in cells else cells.iloc[:0]
    notes = [
        f"{', '.join(str(line[c]) for c in wanted)}, seed {line['seed']}: {line['note']}"
        for line in said.to_dict("records")
    ]
    return mean_over_seeds(cells, keys), notes


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_axis(pd.Index(table.index.get_level_values(0), name=table.index.names[0]))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _markdown(text: str) -> str:
    # Names are shown literally: no table borders, no markup, no formulas.
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    for sign in "\\|*_`[$":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
