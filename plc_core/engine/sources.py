"""Where a run's pairs, exact ties and conversations come from, one object for every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from plc_core.data import DATASETS, DataError, Pairs, load_pairs
from plc_core.data.folders import local_files
from plc_core.data.formats import rows_of_file
from plc_core.data.world import WORLD
from plc_core.engine.config import DataConfig, SftConfig, TrainConfig
from plc_core.engine.conversations import Row
from plc_core.engine.world_source import Sampler, WorldSource
from plc_core.files import project_path
from plc_core.progress import Progress


class Source(Protocol):
    """A data source: the embedded world, a public dataset, or files.

    Attributes:
        name: as the user says it.
        scores_are_true: whether the scores are the truth, so that every pair has an oracle state.
        in_order: whether conversations come in the order in which they are to be learnt.
    """

    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> str | None:
        """What distinguishes its content from that of another day under the same name."""

    @property
    def scores_are_true(self) -> bool: ...
    @property
    def in_order(self) -> bool: ...

    def load(self, config: DataConfig, progress: Progress) -> Pairs:
        """The validated pairs, before any corruption; DataError where they cannot be read."""

    def load_ties(self, config: TrainConfig, progress: Progress) -> Pairs:
        """A pool of exact ties for these pairs; DataError where there is none."""

    def load_conversations(self, config: SftConfig) -> tuple[Iterator[Row], int]:
        """Raw conversations, and how many they are; 0 where that is not known."""


def source_of(name: str, revision: str | None = None, sampler: Sampler | None = None) -> Source:
    """The source that a parameter names.

    Args:
        name: "world", a public dataset, or a file or folder.
        revision: of a public dataset, instead of the pinned one.
        sampler: whose samples are the world's pairs, where it is loaded already.
    """
    return WorldSource(sampler) if name == WORLD else ReadSource(name, revision)


@dataclass(frozen=True)
class ReadSource:
    """Rows that are read: a public dataset by name, or a file or folder. See `Source`."""

    name: str
    revision: str | None = None
    scores_are_true: bool = False
    in_order: bool = False

    def load(self, config: DataConfig, progress: Progress) -> Pairs:
        """What `load_pairs` makes of the rows."""
        files, prompts = config.data_files, config.evaluation_prompts
        return load_pairs(
            self.name if self.name in DATASETS else project_path(self.name),
            config.num_pairs,
            split=config.data_split,
            files=None if files is None else project_path(files),
            revision=self.revision,
            columns=config.data_columns,
            actions=config.data_actions,
            bounds=config.data_bounds,
            evaluation_prompts=() if prompts is None else project_path(prompts),
            progress=progress,
        )

    def load_ties(self, config: TrainConfig, progress: Progress) -> Pairs:
        """The exact ties that a public dataset names."""
        name = DATASETS[self.name].tie_pool if self.name in DATASETS else None
        if name is None:
            raise DataError(
                f"There are no exact ties for {self.name}: set tie_pool to a file of pairs with "
                "equal scores, or of several scored answers a prompt."
            )
        return read_ties(name, config.tie_pool_files, progress)

    def load_conversations(self, config: SftConfig) -> tuple[Iterator[Row], int]:
        """The rows of a local file or folder, or of a dataset of the hub."""
        rows = conversation_rows(self.name, config.data_split, self.revision)
        return islice(rows, config.num_rows), config.num_rows or 0


def load_ties(source: Source, config: TrainConfig, progress: Progress) -> Pairs:
    """The exact ties of the parameter `tie_pool`, or else those of the source.

    Raises:
        DataError: where they cannot be read, or there are none.
    """
    if config.tie_pool is None:
        return source.load_ties(config, progress)
    return read_ties(config.tie_pool, config.tie_pool_files, progress)


def read_ties(name: str, files: str | None, progress: Progress) -> Pairs:
    """The exact ties of a public dataset or a file.

    Of a public dataset, ties of two scores of 10 that may be 1, misread, are left out.
    """
    if name not in DATASETS:
        return load_pairs(project_path(name), ties=True, progress=progress)
    return load_pairs(
        name,
        files=None if files is None else project_path(files),
        actions={"ten-was-one": "drop"},
        ties=True,
        progress=progress,
    )


def conversation_rows(data: str, split: str, revision: str | None) -> Iterator[Row]:
    """The raw rows of a local file or folder, or of a dataset of the hub.

    Raises DataError where there is no such source, or it cannot be read.
    """
    path = project_path(data)
    if path.exists() or data.startswith((".", "/", "~")) or data.count("/") != 1:
        files = [file for file in local_files(path, split) if file.split == split]
        if not files:
            raise DataError(f"{data} has no file of the split {split!r}.")
        for file in files:
            for number, value in rows_of_file(file.path):
                yield Row(file.name, number, value)
        return
    from datasets import load_dataset

    try:
        dataset = load_dataset(data, split=split, revision=revision)
    except Exception as error:  # the hub's client raises whatever its transport does
        said = str(error).splitlines()[0] if str(error) else ""
        raise DataError(
            f"The dataset {data!r} (split {split!r}) could not be read from the hub "
            f"({type(error).__name__}: {said}). Where the hub cannot be reached, name a local file."
        ) from None
    for number, value in enumerate(dataset, start=1):
        yield Row(data, number, value)
