"""What a run is made from, in its folder: pairs, findings, reference, versions and machine."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import PartialState

from plc_core.engine.checkpoints import check_same
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward.packing import with_lengths
from plc_core.engine.tokens.tokenized import Tokens
from plc_core.runs import Run
from plc_core.runs.provenance import provenance
from plc_core.storage.files import RunError


def record_inputs(run: Run, config: TrainConfig, tokens: Tokens, reference: dict[str, Any]) -> None:
    """Write what the run is made from; RunError where a resumed run was made from other things."""
    pairs = tokens.pairs
    fingerprint = pairs.fingerprint
    table = with_lengths(pairs.table, tokens.dataset)
    if "data" in run.info:
        if not isinstance(run.info["data"], dict) or not isinstance(run.info["reference"], dict):
            raise RunError(f"The run.json of {run.name!r} is not as a run writes it.")
        check_same(run, "data", run.info["data"].get("fingerprint"), fingerprint)
        for name in ("model", "precision", "attention"):
            check_same(run, f"reference {name}", run.info["reference"].get(name), reference[name])
        run.write_pairs(table)  # the same, and whole, whatever became of the file
        return
    run.write_pairs(table)
    run.write_findings(pairs.findings)
    report = pairs.report()
    run.update_info(
        data={
            "source": config.data,
            "origin": pairs.origin,
            "fingerprint": fingerprint,
            "rows_read": pairs.rows_read,
            "rows": len(pairs),
            "rules": {
                row["rule"]: {"rows": row["rows"], "action": row["action"]}
                for row in report.table().to_dict("records")
            },
            "max_length": config.max_length,
            "tokens": tokens.counts,
            "tokens_in_words": tokens.sentences(),
            **{
                marker: sum(pairs.dataset[marker]) for marker in ("flipped", "injected_tie", "warm")
            },
        },
        reference=reference,
        **provenance(),
        hardware={
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "processes": PartialState().num_processes,
            "threads": torch.get_num_threads(),
        },
    )
