"""What to do with an audit, in one card: check it blind, write the pairs out, train on them."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from audit_words import open_audit
from blind_view import invitation
from elements import heading
from export_box import MOST_TO_DOWNLOAD
from marking import plain
from reading import shown_errors
from state import TEXT, kept

from plc_core.label_audit.config import POLICIES, Policy
from plc_core.label_audit.folder import AuditFolder
from plc_core.label_audit.next_steps import (
    MEASURED,
    REFUTED,
    Advice,
    advice,
    exported_to,
    train_command,
)
from plc_core.storage.files import RunError

_PROBLEM = "export_problem"


def next_steps(root: Path, name: str) -> None:
    """The card: a check, the file, the command that trains on it."""
    folder = open_audit(root, name)
    with st.container(border=True, key="steps"):
        check, rest = st.columns([0.3, 0.7], gap="medium")
        with check:
            heading("1 · Check blind")
            invitation(folder)
        with rest:
            _export_and_train(root, name)


@st.fragment
def _export_and_train(root: Path, name: str) -> None:
    """What a policy changes, which is drawn alone."""
    with shown_errors(name):
        folder = open_audit(root, name)
        said = _advice(str(folder.run.path), _changed(folder), folder)
        write, train = st.columns([0.4, 0.6], gap="medium")
        with write:
            policies = "\n".join(f"- **{policy}**: {does}" for policy, does in POLICIES.items())
            st.markdown("**2 · Export**", help=policies)
            with st.container(horizontal=True, vertical_alignment="bottom"):
                policy: Policy = st.selectbox(
                    "Policy",
                    list(POLICIES),
                    key=kept("policy", "weight", TEXT, list(POLICIES)),
                    label_visibility="collapsed",
                    width=110,
                )
                st.button(
                    "Write the file", key="write_pairs", on_click=_write, args=(folder, policy)
                )
            if said.said != REFUTED:  # which the check below says
                (st.warning if policy in said.against else st.caption)(said.said)
            if problem := st.session_state.pop(_PROBLEM, None):
                st.error(plain(problem))
            _written(folder, policy)
        with train:
            st.markdown("**3 · Train**", help=MEASURED)
            file = exported_to(folder, policy)
            st.code(train_command(folder, policy, file), language="bash", wrap_lines=True)


def _write(folder: AuditFolder, policy: Policy) -> None:
    try:
        with st.spinner("Writing …"):
            folder.export(exported_to(folder, policy), policy)
    except RunError as error:
        st.session_state[_PROBLEM] = str(error)


def _written(folder: AuditFolder, policy: Policy) -> None:
    """The file of a policy, where it has been written."""
    path = exported_to(folder, policy)
    if not path.is_file():
        return
    state = path.stat()
    if (_changed(folder) or 0) > state.st_mtime_ns:
        st.caption("Written before the latest verdicts. Write it again.")
    if state.st_size <= MOST_TO_DOWNLOAD:
        st.download_button(
            f"Download {path.name}",
            path.read_bytes,
            f"{folder.run.name}-{path.name}",
            key="pairs_download",
            icon=":material/download:",
            on_click="ignore",
        )
    else:
        st.code(str(path), language=None)


def _changed(folder: AuditFolder) -> int | None:
    """When the latest verdict was given, in nanoseconds; None before any."""
    log = folder.check.folder / "verdicts.jsonl"
    return log.stat().st_mtime_ns if log.is_file() else None


@st.cache_data(max_entries=16, show_spinner=False)
def _advice(run: str, changed: int | None, _folder: AuditFolder) -> Advice:
    return advice(_folder)
