"""Print the claims table as Markdown, and put it into a file.

python -m notebooks.evidence [--write data/results/README.md]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from notebooks.evidence.claims import claims_table
from notebooks.evidence.estimates import read_study
from plc_core.environment import plain_streams
from plc_core.storage.files import RunError, replacing

_BEGIN, _END = "<!-- evidence: begin -->", "<!-- evidence: end -->"


def markdown(table: pd.DataFrame) -> str:
    """`claims_table` as a Markdown table, texts as they are."""
    names = {
        "claim": "claim",
        "read": "read",
        "paper": "paper",
        "world": "world",
        "model": "SmolLM2-135M",
        "larger": "Qwen 1.5B",
        "over": "over plain DPO's shadow routing",
        "verdict": "verdict on SmolLM2",
    }
    lines = [f"| {' | '.join(names.values())} |", f"|{' --- |' * len(names)}"]
    for row in table.to_dict("records"):
        cells = [str(row[name]).replace("|", "\\|") for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def put(text: str, path: Path) -> None:
    """Replace what stands between the two marks in a file; RunError where they are missing."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if content.count(_BEGIN) != 1 or content.count(_END) != 1:
        raise RunError(f"{path} has no place for the table: one line {_BEGIN} and one {_END}.")
    before, rest = content.split(_BEGIN)
    after = rest.split(_END)[1]
    with replacing(path) as temporary:
        temporary.write_text(f"{before}{_BEGIN}\n{text}{_END}{after}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 after a sentence."""
    plain_streams()
    parser = argparse.ArgumentParser(prog="python -m notebooks.evidence", description=__doc__)
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    given = parser.parse_args(arguments)
    try:
        text = markdown(claims_table(*map(read_study, ("smollm2", "world", "qwen"))))
        if given.write is not None:
            put(text, given.write)
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
