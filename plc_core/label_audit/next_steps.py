"""What to do with an audit: check it blind, write the pairs out, train on them.

The inspector's page and the report say it in the same sentences and commands. No torch here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plc_core.label_audit.posterior import FlipModel
from plc_core.storage.paths import checkout, plc_command, resource

if TYPE_CHECKING:
    from plc_core.label_audit.config import Policy
    from plc_core.label_audit.folder import AuditFolder

CHECK = (
    "Check it before you believe it: the inspector shows fifty pairs blind, one key each. What you "
    "find corrects the noise rate, and p_flip in whatever is exported afterwards."
)
MEASURED = (
    "Measured on real pairs of which 20 % were reversed: weighting gained +1.9 [1.4, 2.5] points "
    "of held-out accuracy over DPO at the same KL with a 1.5 B model and +1.4 [0.3, 2.5] with "
    "SmolLM2; on clean labels no loss shows (+0.3 [−0.4, 0.9] and −0.3 [−0.7, 0.1])."
)
"""95 % intervals over seeds; `notebooks.studies.audit_gains` computes them anew."""

OBJECTIVES: dict[Policy, tuple[str, bool]] = {
    "flip": ("dpo", False),
    "drop": ("dpo", False),
    "weight": ("cdpo", True),
    "prior": ("plc", True),
}
"""What trains on the pairs as a policy leaves them: the objective, and whether with pair_priors."""

_SURE = 0.95
"""The probability of fewer wrong labels from which on turning them is advised."""
_LEVELS = 1000


def fewer_wrong(
    flips: FlipModel,
    p_flip: NDArray[np.float64],
    margins: NDArray[np.float64],
    groups: NDArray[Any] | None = None,
) -> tuple[float, float]:
    """How many labels fewer are expected to be wrong once the suspicious ones are turned.

    And the probability that it is fewer at all, as the noise rate is not known for sure: with weak
    evidence turning makes more labels wrong than it mends.

    Args:
        p_flip, margins: [pairs].
        groups: [pairs] whose noise rates p_flip tells apart; or None.
    """
    turned = p_flip > 0.5
    expected = float((2 * p_flip[turned] - 1).sum())
    names = np.zeros(len(margins)) if groups is None else groups
    # Scale and link are those of all groups, so their rates err together: taken as wholly so.
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    total = np.zeros(_LEVELS)
    for name in np.unique(names[turned]):
        here = names == name
        model = flips if groups is None else flips.of_group(margins[here])
        chances, surplus = model.surplus(margins[here & turned])
        places = np.searchsorted(np.cumsum(chances), levels)
        total += surplus[np.minimum(places, len(surplus) - 1)]
    return expected, float((total > 0).mean())


def turning_sentence(fewer: float, probability: float) -> str:
    """What `fewer_wrong` found, and the advice that follows."""
    chance = "above 99%" if probability > 0.995 else f"{probability:.0%}"
    said = (
        "Turning the labels that are more likely reversed than not would leave some "
        f"{fewer:,.0f} fewer wrong; the probability that it leaves fewer at all is {chance}"
    )
    advice = "" if probability >= _SURE else ": weight them instead, or check some blind first"
    return f"{said}{advice}."


GUESS = (
    "While the rate is not known, turning or dropping labels is a guess: weight them, or check "
    "some blind first."
)
REFUTED = "The verdicts contradict the audit: mend nothing by p_flip."


class Advice(NamedTuple):
    """What the audit and the verdicts so far say of mending; the policies that it is `against`."""

    said: str
    against: tuple[Policy, ...] = ()


def advice(folder: AuditFolder) -> Advice:
    """Which policies may be used, by the audit and the verdicts so far.

    Raises:
        RunError: as `AuditFolder.noise`.
    """
    if folder.is_refuted():
        return Advice(REFUTED, tuple(OBJECTIVES))
    p_flip = folder.p_flip()
    if not (p_flip > 0.5).any():
        return Advice("No label is more likely reversed than not, so none would be turned.")
    if folder.noise().rate is None:
        return Advice(GUESS, ("flip", "drop"))
    margins = folder.table["margin"].to_numpy()
    fewer, probability = fewer_wrong(folder.flips(), p_flip, margins, folder.groups)
    against: tuple[Policy, ...] = () if probability >= _SURE else ("flip",)
    return Advice(turning_sentence(fewer, probability), against)


def app_command(folder: AuditFolder) -> str:
    """The command that opens the inspector on the audit."""
    return f"{plc_command()} app --runs {shlex.quote(str(folder.run.path.parent))}"


def exported_to(folder: AuditFolder, policy: Policy) -> Path:
    """Where the inspector and `export_command` write the pairs."""
    return folder.run.path / f"cleaned-{policy}.jsonl"


def export_command(folder: AuditFolder, policy: Policy) -> str:
    """The command that writes the pairs by a policy, as the verdicts so far have moved p_flip."""
    python = ".venv/bin/python" if checkout() is not None else "python"
    script = (
        "import sys; from plc_core import open_run; "
        "from plc_core.label_audit.folder import AuditFolder; "
        "print(AuditFolder(open_run(sys.argv[1])).export(*sys.argv[2:]))"
    )
    given = (str(folder.run.path), str(exported_to(folder, policy)), policy)
    return shlex.join([python, "-c", script, *given])


def train_command(folder: AuditFolder, policy: Policy, file: Path) -> str:
    """The command that trains on the pairs in `file`, written by a policy, on their audit's model.

    The recipe for own data is small enough for two CPU cores.
    """
    config = folder.run.info.get("config")
    asked: Mapping[str, Any] = config if isinstance(config, dict) else {}
    objective, priors = OBJECTIVES[policy]
    given = {
        "data": str(file),
        "name": f"{folder.run.name}-{policy}",
        "runs_dir": str(folder.run.path.parent),
        "objective": objective,
    }
    if priors:
        given["pair_priors"] = "true"
    if asked.get("model"):
        given["model"] = str(asked["model"])
    if asked.get("data_split", "train") != "train":
        given["data_split"] = str(asked["data_split"] or "null")
    recipe = Path("notebooks") / "recipes" / "own-data.yaml"
    if checkout() is None:
        recipe = resource("notebooks") / "recipes" / "own-data.yaml"
    words = [word for name, value in given.items() for word in ("-p", name, value)]
    return shlex.join([plc_command(), "train", str(recipe), *words])
