"""Weights that a checkpoint holds once and a model under two names."""

from __future__ import annotations

from typing import Any

from transformers import Trainer


class KnowsTiedWeights(Trainer):
    """Mixin for trainers: a resumed run warns of no weight that was loaded under another name."""

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = load_result.missing_keys
        model: Any = self.model
        weights = dict(model.named_parameters(remove_duplicate=False))
        loaded = {id(weight) for name, weight in weights.items() if name not in missing}
        unknown = [name for name in missing if id(weights.get(name)) not in loaded]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=unknown))
