"""A table of a run changed as the run itself would write it: with its checksum."""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from plc_core.storage.files import write_table


def rewrite(path: Path, content: pa.Table | pd.DataFrame) -> None:
    """Replace a Parquet file by other content."""
    if isinstance(content, pd.DataFrame):
        content = pa.Table.from_pandas(content, preserve_index=False)
    write_table(path, content)
