"""What validation found in a source, for the person whose data it is."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.rules import RULES


@dataclass(frozen=True)
class Report:
    """What validation found in the rows of a source; shows itself as text and in notebooks.

    Attributes:
        rows_read: rows of the source.
        rows_kept: pairs that remain.
        findings: one row a finding, in the schema `FINDINGS`.
        origin: what was read, as in `Pairs.origin`.
    """

    rows_read: int
    rows_kept: int
    findings: pa.Table
    origin: Mapping[str, Any]

    def table(self) -> pd.DataFrame:
        """One row a rule that found something: count, share of the rows read, action, example."""
        rows = []
        for name in [rule for rule in RULES if rule in self._counts()]:
            first = self._of_rule(name).slice(0, 1).to_pylist()[0]
            count = self._counts()[name]
            rows.append(
                {
                    "rule": name,
                    "rows": count,
                    "share": count / self.rows_read if self.rows_read else float("nan"),
                    "action": first["action"],
                    "meaning": RULES[name].meaning,
                    "first": self._place(first),
                    "reason": first["reason"],
                }
            )
        columns = ["rule", "rows", "share", "action", "meaning", "first", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def count(self, rule: str) -> int:
        """The number of rows under a rule."""
        return len(self._of_rule(rule))

    def _kept(self, rule: str) -> int:
        found = self._of_rule(rule)["action"]
        return int(pc.sum(pc.equal(found, "keep")).as_py() or 0)

    def of_rule(self, rule: str) -> pd.DataFrame:
        """The findings of a rule, one row each: rule, action, file, row, pair id and reason.

        Raises:
            ValueError: for a name that is no rule's.
        """
        return self._of_rule(rule).to_pandas()

    def ids(self, rule: str) -> list[str]:
        """The ids of the pairs under a rule; rows that are no pairs have none."""
        return [pair for pair in self._of_rule(rule)["pair_id"].to_pylist() if pair is not None]

    def _of_rule(self, rule: str) -> pa.Table:
        if rule not in RULES:
            raise ValueError(f"There is no rule {rule!r}; the rules are {', '.join(RULES)}.")
        return self.findings.filter(pc.equal(self.findings["rule"], rule))

    def sentences(self) -> list[str]:
        """What a person should know first, in plain words."""
        left_out = self.rows_read - self.rows_kept
        lines = [
            f"{self.rows_read:,} rows read: {self.rows_kept:,} pairs kept, "
            f"{left_out:,} rows left out"
        ]
        inverted, equal = self._kept("inverted-scores"), self._kept("equal-scores")
        if inverted > self.rows_kept / 2:
            lines.append(
                f"In {inverted:,} of {self.rows_kept:,} pairs the chosen answer has the lower "
                "score: chosen and rejected look swapped, or a lower score is the better one."
            )
        elif equal:
            lines.append(f"Ties by their scores: {equal:,} of {self.rows_kept:,} pairs.")
        return lines

    def _counts(self) -> dict[str, int]:
        counts = pc.value_counts(self.findings["rule"]).to_pylist()
        return {entry["values"]: entry["counts"] for entry in counts}

    def _place(self, finding: Mapping[str, Any]) -> str:
        if finding["row"] is None:  # found in the tokens, where no row is known any more
            return f"pair {finding['pair_id']}"
        alone = len(self.origin.get("files", ())) <= 1
        return f"row {finding['row']:,}" + ("" if alone else f" of {finding['file']}")

    def __str__(self) -> str:
        lines = self.sentences()
        for row in self.table().to_dict("records"):
            done = "left out" if row["action"] == "drop" else "marked"
            lines.append(
                f"  {row['rule']}: {row['rows']:,} {done}, the first is {row['first']}: "
                f"{row['reason']}"
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = self.table()
        shown["share"] = shown["share"].map("{:.2%}".format)
        sentences = "".join(f"<p>{html.escape(line)}</p>" for line in self.sentences())
        # Texts are somebody's: dollar signs in them are no formulas, where a notebook sets some.
        table = shown.to_html(index=False, escape=True)
        return f'<div class="tex2jax_ignore mathjax_ignore">{sentences}{table}</div>'
