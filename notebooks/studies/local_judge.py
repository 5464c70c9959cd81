"""A reward model of one's own as second judge, trained once and found again by its content."""

from __future__ import annotations

from plc_core.engine.reward_model import RewardModelConfig, train_reward_model
from plc_core.files import RunError, project_path
from plc_core.runs import Run, open_run, resolve
from plc_core.storage import content_hash


def local_judge(runs_dir: str, make: bool = True, **settings: str | int | float | None) -> Run:
    """The reward model of these settings, trained where it is missing.

    Args:
        runs_dir: where run folders lie.
        make: False raises where it is missing.
        settings: of `RewardModelConfig`, as model, data, num_pairs, seed. For the embedded world
            another seed than the policies' gives other pairs, with clean labels.

    Returns:
        Its run; the judge is `<run>/model`, and its accuracy on held-out prompts is in run.json.

    Raises:
        RunError: where it is missing and not to be made.
    """
    plain = RewardModelConfig(name="judge", **settings)  # type: ignore[arg-type]
    name = f"judge-{content_hash(plain.model_dump(exclude={'name', 'runs_dir'}))[:10]}"
    folder = resolve(project_path(runs_dir), name)
    if folder.exists():
        run = open_run(folder)
        if run.is_trained and (folder / "model" / "config.json").exists():
            return run
    if not make:
        raise RunError(
            f"The reward model {name!r} is not in {project_path(runs_dir)}; set make to true to "
            "train it, which takes about a minute in the embedded world."
        )
    return train_reward_model(plain.model_copy(update={"name": name, "runs_dir": runs_dir}))
