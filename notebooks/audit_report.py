"""The report of a label audit: how many labels are wrong, by what, which, and what to do next."""

from __future__ import annotations

import contextlib
from html import escape

import numpy as np
import pandas as pd

from notebooks.audit_command import rate_of
from notebooks.pair_cards import STYLE, pair_card
from plc_core.batch.report_order import FINDING
from plc_core.engine.row_sources import source_of
from plc_core.label_audit.auditing import audit
from plc_core.label_audit.config import POLICIES, AuditConfig
from plc_core.label_audit.folder import KIND, AuditFolder, save_audit
from plc_core.label_audit.next_steps import (
    CHECK,
    MEASURED,
    advice,
    app_command,
    export_command,
    exported_to,
    train_command,
)
from plc_core.label_audit.result import Audit, group_in_words
from plc_core.progress import Progress
from plc_core.runs import Run, create_run, resolve


def audited(config: AuditConfig) -> tuple[Run, Audit]:
    """Audit what `config` names, and keep it as a run.

    Raises:
        RunError: where the name is taken.
        DataError, ModelError: where pairs or model cannot be used.
    """
    run = create_run(config.runs_folder, config.name, {"kind": KIND, "config": config.model_dump()})
    progress = Progress(run)
    with run.running("reading pairs"):
        source = source_of(config.data, config.data_revision)
        pairs = source.load(config, progress)
        found = audit(
            pairs,
            config.model,
            evidence=config.evidence,
            max_length=config.max_length,
            run=None if config.run is None else resolve(config.runs_folder, config.run),
            judge=config.judge,
            dpo=config.dpo,
            by=config.rates_by,
            progress=progress,
        )
        save_audit(found, run, config.noise_by)
        if config.policy is not None:
            found.export(config.export_file, config.policy)
    return run, found


def headline(found: Audit) -> str:
    """What was found, as HTML: the first sentence large, the others below."""
    first, *others = found.sentences()
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in others)
    return f'{STYLE}<p class="plc-lead">{escape(first)}</p>{said}{FINDING}'


def suspicious_pairs(found: Audit, count: int) -> str:
    """The most suspicious pairs as HTML, with the reason and the texts of each."""
    order = np.argsort(-found.probabilities, kind="stable")[:count]
    texts = found.pairs.dataset.select(order)
    cards = [
        pair_card(
            place,
            f"p_flip {found.probabilities[row]:.2f}, {source}",
            f"{found.why[row][:1].upper()}{found.why[row][1:]}." if found.why[row] else "",
            {"pair_id": pair_id, "prompt": prompt, "chosen": chosen, "rejected": rejected},
        )
        for place, (row, pair_id, source, prompt, chosen, rejected) in enumerate(
            zip(
                order.tolist(),
                *(texts[n][:] for n in ("pair_id", "source", "prompt", "chosen", "rejected")),
                strict=True,
            ),
            start=1,
        )
    ]
    return f'{STYLE}<div class="tex2jax_ignore mathjax_ignore">{"".join(cards)}</div>'


def _noisiest_first(found: Audit, column: str) -> pd.DataFrame:
    return found.noise_by(column).sort_values(["rate", "high"], ascending=False)


def noise_tables(config: AuditConfig, found: Audit) -> list[pd.DataFrame]:
    """Noise rates as text, a table a column of `noise_by` and a row a group.

    A column of one group is left out: that is the rate of the whole.
    """
    tables = []
    for column in config.noise_by:
        groups = _noisiest_first(found, column)
        rates = [rate_of(row) for row in groups.to_dict("records")]
        shown = {column: groups["group"], "pairs": groups["pairs"].map("{:,}".format)}
        if len(groups) > 1:
            tables.append(pd.DataFrame(shown | {"reversed labels": rates}))
    return tables


def evidence_table(found: Audit) -> pd.DataFrame:
    """`Audit.evidence_table`, without its notes where there are none."""
    table = found.evidence_table()
    return table if table["note"].any() else table.drop(columns="note")


def agreement_by_margin(found: Audit, bins: int = 12) -> pd.DataFrame:
    """By size of the evidence: mean |margin|, pairs, share of labels that it agrees with."""
    size = np.abs(found.stack.margins)
    with contextlib.suppress(ValueError):
        place = pd.qcut(size, min(bins, max(2, len(size) // 30)), labels=False, duplicates="drop")
        frame = pd.DataFrame({"size": size, "agrees": found.stack.margins > 0, "bin": place})
        grouped = frame.groupby("bin")
        table = grouped.agg(margin=("size", "mean"), agrees=("agrees", "mean"))
        return table.assign(pairs=grouped.size()).reset_index(drop=True)
    return pd.DataFrame(columns=["margin", "agrees", "pairs"])


def _noisy_groups(config: AuditConfig, folder: AuditFolder) -> str:
    """A point of the list on groups whose labels are worse than those of all; else nothing."""
    if (whole := folder.noise().rate) is None:
        return ""
    said = []
    for column in config.noise_by:
        table = folder.noise_by(column).sort_values(["rate", "high"], ascending=False)
        for row in table[table["low"] > whole].to_dict("records"):
            said.append(f"{group_in_words(column, row['group'])}, {rate_of(row)}")
    if not said:
        return ""
    return (
        f"<li>Look at these first, whose labels are worse than those of all: "
        f"{escape('; '.join(said))}.</li>"
    )


def next_steps(run: Run, config: AuditConfig) -> str:
    """What to do with the audit in the run's folder, as HTML with commands."""
    folder, policy = AuditFolder(run), config.policy or "weight"
    file = config.export_file if config.policy is not None else exported_to(folder, policy)
    policies = "".join(
        f"<li><code>{name}</code>: {escape(said)}</li>" for name, said in POLICIES.items()
    )
    written = (
        f"<li>The pairs, by the policy <code>{config.policy}</code>: <pre>{escape(str(file))}</pre>"
        "</li>"
        if config.policy is not None
        else ""
    )
    return (
        f'{STYLE}<ol class="plc-next">{_noisy_groups(config, folder)}{written}'
        f"<li>{escape(CHECK)}<pre>{escape(app_command(folder))}</pre></li>"
        f"<li>{'After a check w' if written else 'W'}rite the pairs in a form that TRL and "
        "load_pairs read, there or by this command, by a policy of your choice. "
        f"{escape(advice(folder).said)}<pre>{escape(export_command(folder, policy))}</pre>"
        f"<ul>{policies}</ul></li>"
        f"<li>Train on them. {escape(MEASURED)}"
        f"<pre>{escape(train_command(folder, policy, file))}</pre></li></ol>"
    )
