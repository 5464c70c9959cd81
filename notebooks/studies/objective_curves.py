"""What each objective does to a pair, as a function of its margin."""

from __future__ import annotations

import pandas as pd
import torch
from pydantic import Field, field_validator

from plc_core.engine.config import Parameters
from plc_core.objective import OBJECTIVES, PairLogps, build_objective
from plc_core.runs import Run, create_run


class ObjectivesConfig(Parameters):
    """The parameters of `notebooks/objectives.ipynb`."""

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    objectives: list[str] = Field(default_factory=list)  # keys of OBJECTIVES; empty draws all
    recipe: str = "aggressive"  # of PLC-DPO
    span: float = Field(4.0, gt=0)  # margins from -span to span, in standard deviations
    points: int = Field(201, gt=2)

    @field_validator("objectives")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        if unknown := sorted(set(names) - set(OBJECTIVES)):
            raise ValueError(f"unknown are {', '.join(unknown)}; known are {', '.join(OBJECTIVES)}")
        return names


def open_objectives(config: ObjectivesConfig) -> Run:
    """The report's own folder; an older one of this name is replaced."""
    info = {"kind": "analysis", "config": config.model_dump()}
    return create_run(config.runs_folder, config.name, info)


def objective_curves(config: ObjectivesConfig) -> pd.DataFrame:
    """Loss and dL/dm over a grid of margins: columns objective, margin, loss, gradient.

    beta is 1, both responses have one token, and the margin is all in the chosen response. PLC-DPO
    is shown at the end of training with mean 0 and deviation 1 of the margins. Objectives that
    couple a batch (Dr.DPO, KTO-Pair, gamma-PO) see the grid as their batch.
    """
    margin = torch.linspace(-config.span, config.span, config.points, dtype=torch.float64)
    frames = []
    for name in config.objectives or OBJECTIVES:
        options = {"recipe": config.recipe, "initial": (0.0, 1.0)} if name == "plc" else {}
        chosen = margin.clone().requires_grad_()
        zero, one = torch.zeros_like(margin), torch.ones_like(margin)
        logps = PairLogps(chosen, zero, zero, zero, one, one)
        out = build_objective(name, beta=1.0, **options)(logps, progress=1.0, update=False)
        (gradient,) = torch.autograd.grad(out.loss.sum(), chosen)
        frames.append(
            pd.DataFrame(
                {
                    "objective": name,
                    "margin": margin.numpy(),
                    "loss": out.loss.detach().numpy(),
                    "gradient": gradient.numpy(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def pull_sentence(curves: pd.DataFrame) -> str:
    """Which objectives still pull a pair towards its label that the policy has turned against."""
    margin = curves["margin"].min()
    pull = -curves[curves["margin"] == margin].set_index("objective")["gradient"].sort_values()
    least, most = pull.iloc[::-1].head(3), pull.head(1)
    named = [[f"{n} ({v:.2f})" for n, v in part.items()] for part in (least, most)]
    said = [" and ".join(filter(None, [", ".join(own[:-1]), own[-1]])) for own in named]
    return (
        f"At m = −{-margin:g} the pull towards the label (−dL/dm) is least under {said[0]}, and "
        f"greatest under {said[1]}."
    )
