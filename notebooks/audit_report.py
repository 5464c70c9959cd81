"""The report of a label audit: how many labels are wrong, by what, which, and what to do next."""

from __future__ import annotations

import contextlib
from html import escape

import numpy as np
import pandas as pd

from notebooks.audit_command import plc_command
from notebooks.training_report import STYLE, pair_card
from plc_core.engine.sources import source_of
from plc_core.label_audit.audit import Audit, audit
from plc_core.label_audit.cleaning import POLICIES
from plc_core.label_audit.config import AuditConfig
from plc_core.label_audit.folder import KIND, save_audit
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
    return f'{STYLE}<p class="plc-lead">{escape(first)}</p>{said}'


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


def next_steps(run: Run, config: AuditConfig) -> str:
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
        f'{STYLE}<ol class="plc-next">{written}'
        "<li>Check it before you believe it: the inspector shows fifty pairs blind, one key each, "
        "and corrects the noise rate by what you found."
        f"<pre>{plc} app --runs {escape(str(run.path.parent))}</pre></li>"
        "<li>Write the pairs out in a form that TRL and load_pairs read:"
        f"<pre>import plc_core\naudit = plc_core.audit({escape(repr(config.data))}"
        f"{f', {escape(repr(config.model))}' if config.model else ''})\n"
        f'audit.export("cleaned.jsonl", policy="{policy}")</pre>'
        f"<ul>{policies}</ul></li>"
        "<li>Train on them:"
        f"<pre>{plc} train my-run.yaml -p data {escape(str(cleaned))}"
        f"{with_priors.get(policy, '')}</pre></li></ol>"
    )
