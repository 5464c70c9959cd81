"""The report of a label audit: how many labels are wrong, by what, which, and what to do next."""

from __future__ import annotations

import contextlib
import inspect
from html import escape

import numpy as np
import pandas as pd

from notebooks.audit_command import plc_command, rate_of
from notebooks.pair_cards import STYLE, pair_card
from plc_core.batch.report_order import FINDING
from plc_core.engine.row_sources import source_of
from plc_core.label_audit.auditing import audit
from plc_core.label_audit.config import POLICIES, AuditConfig
from plc_core.label_audit.folder import KIND, save_audit
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


def _noisy_groups(config: AuditConfig, found: Audit) -> str:
    """A point of the list on groups whose labels are worse than those of all; else nothing."""
    if found.noise.rate is None:
        return ""
    said = []
    for column in config.noise_by:
        table = _noisiest_first(found, column)
        for row in table[table["low"] > found.noise.rate].to_dict("records"):
            said.append(f"{group_in_words(column, row['group'])}, {rate_of(row)}")
    if not said:
        return ""
    return (
        f"<li>Look at these first, whose labels are worse than those of all: "
        f"{escape('; '.join(said))}.</li>"
    )


def _arguments(config: AuditConfig) -> str:
    """What this audit was asked, as arguments of `plc_core.audit`; the defaults are left out."""
    given = {
        "model": config.model,
        "evidence": config.evidence,
        "max_length": config.max_length,
        "run": config.run and str(resolve(config.runs_folder, config.run)),
        "judge": config.judge,
        "dpo": config.dpo,
        "by": config.rates_by,
    }
    defaults = {name: p.default for name, p in inspect.signature(audit).parameters.items()}
    told = [
        f"{name}={value!r}"
        for name, value in given.items()
        if value != (list(defaults[name]) if name == "evidence" else defaults[name])
    ]
    return ", ".join([repr(config.data), *told])


def next_steps(run: Run, config: AuditConfig, found: Audit) -> str:
    """What to do with the audit, as HTML with commands."""
    plc = plc_command()
    policy = config.policy or "weight"
    cleaned = config.export_file if config.policy is not None else "cleaned.jsonl"
    with_priors = {
        "weight": " -p objective cdpo -p pair_priors true",
        "prior": " -p objective plc -p pair_priors true",
    }
    policies = "".join(
        f"<li><code>{name}</code>: {escape(said)}</li>" for name, said in POLICIES.items()
    )
    written = (
        f"<li>The pairs, by the policy <code>{config.policy}</code>: "
        f"<pre>{escape(str(config.export_file))}</pre></li>"
        if config.policy is not None
        else ""
    )
    return (
        f'{STYLE}<ol class="plc-next">{_noisy_groups(config, found)}{written}'
        "<li>Check it before you believe it: the inspector shows fifty pairs blind, one key each, "
        "and corrects the noise rate by what you found."
        f"<pre>{plc} app --runs {escape(str(run.path.parent))}</pre></li>"
        "<li>Write the pairs out in a form that TRL and load_pairs read, by the policy of your "
        f"choice:<pre>import plc_core\naudit = plc_core.audit({escape(_arguments(config))})\n"
        f'audit.export("cleaned.jsonl", policy="{policy}")</pre>'
        f"<ul>{policies}</ul></li>"
        "<li>Train on them:"
        f"<pre>{plc} train my-run.yaml -p data {escape(str(cleaned))}"
        f"{with_priors.get(policy, '')}</pre></li></ol>"
    )
