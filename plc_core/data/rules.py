"""The rules of validation: what is looked for, what is done about it, and the report on it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

Action: TypeAlias = Literal["keep", "drop", "error"]
Mark: TypeAlias = tuple[str, str]
"""A rule that a pair falls under, and the reason."""


@dataclass(frozen=True)
class Rule:
    """What is looked for, and what is done with a row where it is found.

    keep: the pair stays and carries the rule's name in `marks`; drop: the row is left out and
    listed; error: nothing is read. A rule without `can_keep` finds rows that are no pairs.
    """

    meaning: str
    action: Action
    can_keep: bool = True


# In the order in which they are applied: a row that is dropped meets no later rule.
RULES: dict[str, Rule] = {
    "wrong-type": Rule("a field holds something else than it should", "drop", False),
    "no-tie": Rule("no two of the row's answers have the same score", "drop", False),
    "missing-answer": Rule("an answer is null or missing", "drop", False),
    "empty-answer": Rule("an answer is an empty text", "drop", False),
    "blank-answer": Rule("an answer is white space or invisible characters only", "drop", False),
    "no-answer": Rule("the last turn of a dialogue is not the assistant's", "drop", False),
    "unsupported-turn": Rule("a turn is of a tool, or holds more than text", "drop", False),
    "no-prompt": Rule(
        "the prompt is missing or empty, or does not end with the user", "drop", False
    ),
    "two-prompts": Rule("the answers continue different dialogues", "drop", False),
    "not-unicode": Rule("a lone surrogate, which no file in UTF-8 can hold", "drop", False),
    "no-votes": Rule("a comparison that nobody voted on has no label", "drop", False),
    "unknown-vote": Rule("a vote is not among those that are known", "error", False),
    "more-than-text": Rule(
        "the row has images, audio, video, tools or documents, which the pair leaves out", "drop"
    ),
    "rendered-template": Rule(
        "a text was written in a chat template already and cannot be turned back exactly: the "
        "model's own template would wrap it again",
        "drop",
    ),
    "from-template": Rule(
        "a text was written in a chat template already; its turns were read from it", "keep"
    ),
    "spells-template": Rule("a mark of a chat template is inside a text, and stays text", "keep"),
    "differs-in-reasoning": Rule(
        "both answers are the same text after different reasoning, which is not trained on", "drop"
    ),
    "reasoning-left-out": Rule(
        "a message has its reasoning in a field of its own: it is kept as metadata and not trained "
        "on; write it into the content to train on it",
        "keep",
    ),
    "identical": Rule("both answers are the same text: a tie that trains nothing", "drop"),
    "nearly-identical": Rule(
        "both answers are the same but for line ends, Unicode form and outer white space", "keep"
    ),
    "prefix": Rule("one answer is the beginning of the other", "keep"),
    "repeats-prompt": Rule(
        "both answers begin with the prompt's text (20 characters or more)", "keep"
    ),
    "equal-scores": Rule("both answers have the same score: a tie by the scores", "keep"),
    "inverted-scores": Rule("the chosen answer has the lower score", "keep"),
    "ten-was-one": Rule(
        "a score of 10 that may be a 1, misread by a release of UltraFeedback", "keep"
    ),
    "ratings-disagree": Rule("the mean of the ratings contradicts the scores", "keep"),
    "tied-votes": Rule("as many votes for either answer: the orientation is random", "keep"),
    "prompt-differs": Rule("the prompt is no turn of the dialogue, which is used instead", "keep"),
    "inferred-prompt": Rule("there is no prompt field: it was read from the answers", "keep"),
    "contaminated-exact": Rule("the prompt is one of the evaluation prompts", "keep"),
    "contaminated-ngram": Rule("the prompt shares long runs of words with one of them", "keep"),
    "duplicate": Rule("the same pair, with the same votes, was read before in its split", "drop"),
    "other-votes": Rule("the same answers were read before, with other votes", "keep"),
    "near-duplicate": Rule(
        "as a pair read before, but for line ends, Unicode form and outer white space", "keep"
    ),
    "contradiction": Rule("the same answers occur the other way round", "keep"),
    "cycle": Rule("the preferences under one prompt form a cycle of three or more", "keep"),
    "split-leak": Rule("the prompt occurs in more than one split", "keep"),
    "other-split": Rule("the row is of a split that was not asked for", "drop"),
    "not-sampled": Rule("the row is not in the sample that was asked for", "drop"),
    "held-out": Rule("the pair is kept out of training, to be read zero-shot", "drop", False),
    "template-refused": Rule("the model's chat template cannot render the pair", "drop", False),
    "template-rewritten": Rule(
        "the chat template writes an answer otherwise than it is: it strips white space, adds or "
        "drops reasoning",
        "keep",
    ),
    "truncated": Rule("the pair is longer than max_length and lost tokens", "keep"),
    "identical-tokens": Rule("both answers have the same tokens: the pair trains nothing", "keep"),
}

FINDINGS = pa.schema(
    {
        "rule": pa.string(),
        "action": pa.string(),  # keep or drop
        "file": pa.string(),
        "row": pa.int64(),  # number in its file, from 1
        "pair_id": pa.string(),  # null where the row is no pair
        "reason": pa.string(),
    }
)


def chosen_actions(changes: Mapping[str, str]) -> dict[str, Action]:
    """The action of every rule, with the caller's changes.

    Raises:
        DataError: for an unknown rule or action, or one that the rule cannot take.
    """
    actions = {name: rule.action for name, rule in RULES.items()}
    for name, action in changes.items():
        if name not in RULES:
            raise DataError(f"There is no rule {name!r}; the rules are {', '.join(RULES)}.")
        possible = ("keep", "drop", "error") if RULES[name].can_keep else ("drop", "error")
        if action not in possible:
            raise DataError(f"The rule {name!r} can {', '.join(possible)}, not {action!r}.")
        actions[name] = action  # type: ignore[assignment]
    return actions


class DataError(ValueError):
    """Preference data that cannot be used as asked; the message is a sentence for the user."""


class RowError(Exception):
    """Why a row is no pair: the rule of `RULES` and the reason."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


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
