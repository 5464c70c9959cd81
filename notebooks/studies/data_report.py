"""What pairs look like before anything is trained on them."""

from __future__ import annotations

from typing import Annotated

import pandas as pd
from pydantic import Field

from plc_core.analysis.statistics import wilson
from plc_core.batch.report_order import FINDING
from plc_core.data import Pairs
from plc_core.engine.config import DataConfig
from plc_core.engine.models.load import load_tokenizer
from plc_core.engine.row_sources import source_of
from plc_core.engine.tokens.tokenized import Tokens, tokenize_pairs, truncation_table
from plc_core.progress import Progress
from plc_core.runs import Run, create_run


class DataReportConfig(DataConfig):
    """The parameters of `notebooks/data.ipynb`."""

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    lengths: list[Annotated[int, Field(ge=4)]] = Field(
        [256, 512, 1024, 2048], min_length=1
    )  # tokens to cut pairs to


def open_data_report(config: DataReportConfig) -> Run:
    """The report's own folder; an older one of this name is replaced."""
    info = {"kind": "analysis", "config": config.model_dump()}
    return create_run(config.runs_folder, config.name, info)


def read_for_report(config: DataReportConfig, run: Run) -> Pairs:
    """The pairs; where they come from is kept in the report's folder."""
    pairs = source_of(config.data, config.data_revision).load(config, Progress(run))
    run.update_info(data={"origin": pairs.origin, "fingerprint": pairs.fingerprint})
    return pairs


def tokens_for_report(
    config: DataReportConfig, run: Run, pairs: Pairs
) -> tuple[Tokens, pd.DataFrame]:
    """The tokens of the pairs, and what each of the lengths would cut.

    All that was found, in rows and tokens, is written to findings.parquet in the report's folder.
    """
    tokenizer = load_tokenizer(config.model)
    progress = Progress(run)
    tokens = tokenize_pairs(pairs, tokenizer, config.max_length, config.data_actions, progress)
    run.write_findings(tokens.pairs.findings)
    return tokens, truncation_table(pairs, tokenizer, config.lengths)


def answer_sizes(pairs: Pairs) -> pd.DataFrame:
    """One row a pair: source, characters of either answer, and the score gap, NaN without one."""
    frames = []
    for batch in pairs.batches(["source", "chosen", "rejected", "score_chosen", "score_rejected"]):
        frame = batch.to_pandas()
        frames.append(
            pd.DataFrame(
                {
                    "source": frame["source"],
                    "chosen": frame["chosen"].str.len(),
                    "rejected": frame["rejected"].str.len(),
                    "gap": frame["score_chosen"].astype("float64") - frame["score_rejected"],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def data_found(pairs: Pairs, tokens: Tokens, sizes: pd.DataFrame) -> str:
    """What was found in pairs, as Markdown: the report begins with it.

    The share is of pairs whose answers differ in length, with Wilson's 95 % interval. What a person
    should know before training comes after it. `sizes` is the table of `answer_sizes`.
    """
    report = pairs.report()
    said = f"**Of {report.rows_read:,} rows, {report.rows_kept:,} are pairs to train on"
    differ = sizes[sizes["chosen"] != sizes["rejected"]]
    longer = int((differ["chosen"] > differ["rejected"]).sum())
    if len(differ):
        low, high = (100 * bound for bound in wilson(longer, len(differ)))
        share = 100 * longer / len(differ)
        said += f"; the chosen answer is the longer one in {share:.0f} % [{low:.0f}, {high:.0f}]"
        said += " of them" if len(differ) == len(sizes) else f" of the {len(differ):,} that differ"
    known = [f"{line.rstrip('.')}." for line in (*report.sentences()[1:], *tokens.sentences())]
    return "\n\n".join([f"{said}.**", *known]) + FINDING


def spelled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the names of its columns as words."""
    return table.rename(columns=lambda name: str(name).replace("_", " "))


def length_bias(sizes: pd.DataFrame) -> pd.DataFrame:
    """By source: pairs, share whose chosen answer is longer, median lengths, share of equal scores.

    `sizes` is the table of `answer_sizes`. Where one side is longer nearly always, a policy can
    learn length in place of preference.
    """
    table = sizes.assign(
        longer=sizes["chosen"] > sizes["rejected"],
        tied=(sizes["gap"] == 0).where(sizes["gap"].notna()).astype("float64"),
    )
    return (
        table.groupby("source")
        .agg(
            pairs=("longer", "size"),
            chosen_longer=("longer", "mean"),
            median_chosen=("chosen", "median"),
            median_rejected=("rejected", "median"),
            equal_scores=("tied", "mean"),
        )
        .reset_index()
    )
