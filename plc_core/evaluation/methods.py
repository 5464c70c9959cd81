"""Who is compared: runs under the names of tables, and what they must have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from plc_core.runs import Run
from plc_core.storage.files import RunError

if TYPE_CHECKING:
    from plc_core.evaluation.policies import Policy


class Contestant(NamedTuple):
    """A policy in a comparison.

    Attributes:
        method: its name in tables.
        run: whose folder holds its answers and judgements.
        dataset: the name of its pairs, where several are compared.
        policy: who answers in place of the run's last checkpoint, as a server.
        start: the name in tables of the model that training started from; "" takes `short_name`.
        benchmarks: those of an evaluation's benchmarks that it answers; None: all.
        answered_as: its name in the files of answers, as that of a checkpoint on the way.
    """

    method: str
    run: Run
    dataset: str = "pairs"
    policy: Policy | None = None
    start: str = ""
    benchmarks: tuple[str, ...] | None = None
    answered_as: str = "trained"

    @property
    def model(self) -> str:
        """The name in tables of the model that training started from."""
        return self.start or short_name(str(self._config.get("model", "server")))

    def answers(self, benchmark: str) -> bool:
        """Whether it is asked this benchmark."""
        return self.benchmarks is None or benchmark in self.benchmarks

    @property
    def seed(self) -> int:
        """The seed that the run was trained with."""
        return int(str(self._config.get("seed", 0)))

    @property
    def group(self) -> tuple[str, str, int]:
        """Its values of `comparison.GROUP`."""
        return self.dataset, self.model, self.seed

    @property
    def _config(self) -> dict[str, object]:
        return self.run.info.get("config") or {}


def short_name(model: str) -> str:
    """A model's name in tables and files: of its folder, or of the run whose `model` it is."""
    *_, before, last = ("", "", *PurePath(model).parts)
    return before if last == "model" and before else last


def contestants(
    runs: Mapping[str, Run | Sequence[Run]], dataset: str = "pairs"
) -> list[Contestant]:
    """Contestants from runs by method, one a seed."""
    return [
        Contestant(method, run, dataset)
        for method, of_method in runs.items()
        for run in ([of_method] if isinstance(of_method, Run) else of_method)
    ]


def check_contestants(entries: Sequence[Contestant], baseline: str) -> None:
    """Refuse a comparison that would mean nothing.

    Raises:
        RunError: where there is nobody, somebody twice, a group without the baseline, or a group
            whose runs have not the same pairs and the same start.
    """
    if not entries:
        raise RunError("There are no runs to compare.")
    seen: dict[tuple[object, ...], str] = {}
    for entry in entries:
        place = (entry.method, *entry.group)
        if place in seen:
            raise RunError(
                f"{entry.method} is there twice for {_shown(entry)}: as {seen[place]!r} and as "
                f"{entry.run.name!r}."
            )
        seen[place] = entry.run.name
        if entry.policy is None and not entry.run.is_trained:
            raise RunError(
                f"The run {entry.run.name!r} ({entry.method}) is not trained to its end; its state "
                f"is {entry.run.status.get('state')!r}. Run it again with resume to go on."
            )
    for entry in entries:
        if (baseline, *entry.group) not in seen:
            raise RunError(
                f"{entry.method} has no {baseline} beside it on {_shown(entry)}, which its win "
                "rates would be against."
            )
    for what, field, key in (("pairs", "data", "fingerprint"), ("start", "reference", "model")):
        known: dict[tuple[str, str, int], tuple[str, str]] = {}
        for entry in entries:
            if field not in entry.run.info:  # not trained here
                continue
            value = str(entry.run.info[field][key])
            first = known.setdefault(entry.group, (entry.run.name, value))
            if first[1] != value:
                raise RunError(
                    f"{entry.run.name!r} ({value}) and {first[0]!r} ({first[1]}) have not the same "
                    f"{what}, though both are called {_shown(entry)}."
                )


def check_same(runs: Iterable[Run], what: Sequence[str] = ("pairs", "model")) -> None:
    """RunError where runs do not start from the same pairs or the same model."""
    fields = {"pairs": ("data", "fingerprint"), "model": ("reference", "model")}
    for name in what:
        field, key = fields[name]
        seen = {run.name: run.info[field][key] for run in runs}
        if len(set(seen.values())) > 1:
            raise RunError(f"These runs do not start from the same {name}: {seen}.")


def _shown(entry: Contestant) -> str:
    return f"{entry.dataset}, {entry.model}, seed {entry.seed}"
