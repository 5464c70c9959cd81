"""The blind check of a label audit: one pair at a time, without its label and without a number.

Keys act in the browser at once. Every verdict comes with the id of the pair that was shown and the
name of who judges (`blind.js`), so that none can land on another pair, however late it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st
from audit_words import open_audit, rate, row_of, texts_of
from key_log import Entry, acknowledged, take_new
from marking import CSS, marked, plain, prompt_turns
from pair_view import text_of
from reading import runs_root, shown_errors
from state import FLAG, NUMBER, TEXT, kept, set_kept, value_of

from plc_core.label_audit.blind_check import VERDICTS, BlindCheck, Shown, draw
from plc_core.label_audit.folder import AuditFolder
from plc_core.label_audit.posterior import NoiseRate
from plc_core.storage.files import RunError

KEY = "blind"
FEWEST, MOST = 20, 200
CHECKING, JUDGE, COUNT = "check", "judge", "blind"
AHEAD, MOST_BYTES = 40, 400_000
"""Pairs and bytes that are sent along, so that nobody who judges quickly waits for the next one."""

_PROBLEM = "blind_problem"
HELP = (
    "A blind check shows pairs of every degree of suspicion, without label or number, on shuffled "
    "sides. What you find corrects the noise rate and says how far to believe p_flip."
)
_BUTTONS = (
    ("left", "Answer 1 is better", "1"),
    ("right", "Answer 2 is better", "2"),
    ("neither", "Neither, or cannot say", "0"),
    ("undo", "Undo", "U"),
)
HTML = (
    '<div class="plc-reader" data-at="root"><div class="plc-bar">'
    + "".join(
        f'<button data-action="{action}">{label}<kbd>{key}</kbd></button>'
        for action, label, key in _BUTTONS
    )
    + '<span class="plc-progress" data-at="progress" role="status"></span></div>'
    '<div class="plc-track"><div data-at="bar"></div></div>'
    '<div class="plc-saving" data-at="saving" role="status"></div><div data-at="pane"></div></div>'
)
_HERE = Path(__file__).parent
READER_CSS = (_HERE / "reader.css").read_text(encoding="utf-8")
_component = st.components.v2.component(
    "plc_blind",
    html=HTML,
    css=CSS + READER_CSS,
    js=(_HERE / "blind.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def is_checking() -> bool:
    """Whether the page shows pairs blind; it stands in the URL."""
    return bool(st.session_state[kept(CHECKING, False, FLAG)])


def invitation(folder: AuditFolder) -> None:
    """The button that begins a check, or continues one."""
    shown = folder.check.shown()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        who = st.text_input(
            "Who judges", key=kept(JUDGE, "", TEXT), placeholder="your name", width=150, help=HELP
        )
        done = len(_judged(folder.check, who)) if (who := who.strip()) else 0
        if len(folder.check.verdicts()):
            label = "Continue with the blind check" + (f" ({done} of {len(shown)})" if done else "")
            if done == len(shown):
                label = "Open the blind check"
        else:
            count = st.number_input(
                "Pairs",
                FEWEST,
                MOST,
                key=kept(COUNT, 50, NUMBER, range(FEWEST, MOST + 1)),
                width=120,
            )
            label = f"Check {count} pairs blind"
        st.button(label, type="primary", key="check_blind", on_click=_begin, args=(folder,))
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(plain(problem))


def _begin(folder: AuditFolder) -> None:
    if not str(value_of(JUDGE) or "").strip():
        st.session_state[_PROBLEM] = "Write your name first: it tells your verdicts from others'."
        return
    try:
        count = int(value_of(COUNT) or 50)
        # An earlier draw of as many, on which nobody has judged yet, may be on another screen.
        same = len(folder.check.shown()) == min(count, len(folder.table))
        if not same and not len(folder.check.verdicts()):
            chances = folder.table["p_flip"].to_numpy()
            folder.check.start(draw(folder.table["pair_id"].tolist(), chances, count))
        set_kept(CHECKING, True)
    except (RunError, OSError) as error:
        st.session_state[_PROBLEM] = str(error)


@st.fragment
def blind_check(root: Path, name: str) -> None:
    """The pair to judge, or what was found when there is none left."""
    with shown_errors(name):
        folder = open_audit(root, name)
        shown = folder.check.shown()
        who = str(st.session_state[kept(JUDGE, "", TEXT)]).strip()
        if not shown or not who:
            st.info("Write your name on the page of the audit, and begin there.")
            return
        judged = _judged(folder.check, who)
        left = [pair for pair in shown if pair.pair_id not in set(judged)]
        _component(
            key=KEY,
            data={
                "run": name,
                "who": who,
                "order": [pair.pair_id for pair in shown],
                "judged": judged,
                "pairs": _texts(folder, left),
                "acked": acknowledged(KEY),
            },
            on_log_change=_apply,
        )
        if problem := st.session_state.pop(_PROBLEM, None):
            st.error(f"This was not saved. {plain(problem)}")
        if not left:
            outcome(folder)


def _texts(folder: AuditFolder, left: Sequence[Shown]) -> dict[str, str]:
    """The pair on the screen and those after it, by their ids."""
    texts: dict[str, str] = {}
    size = 0
    for pair in left[:AHEAD]:
        if size < MOST_BYTES:
            texts[pair.pair_id] = _html(folder, pair)
            size += len(texts[pair.pair_id])
    return texts


def outcome(folder: AuditFolder) -> None:
    """What people found: noise rate before and after, precision, and a row a stratum."""
    verdicts = folder.check.verdicts()
    if verdicts.empty:
        return
    people = verdicts["who"].nunique()
    count = "1 verdict" if len(verdicts) == 1 else f"{len(verdicts):,} verdicts"
    by = f"{count} by {people} {'person' if people == 1 else 'people'}"
    st.markdown(f"**Blind check** · {by}")
    before, after = NoiseRate(**folder.said["noise"]), folder.noise()
    refuted = folder.is_refuted()
    after_is = "By people's verdicts alone." if refuted else "The audit's rate, corrected by them."
    left, right = st.columns([0.3, 0.7], gap="medium")
    with left, st.container(horizontal=True):
        st.metric("Reversed, by the audit", rate(*before[:3]), width="content")
        st.metric("After the check", rate(*after[:3]), width="content", help=after_is)
        found = folder.precision()
        row = found.iloc[0] if len(found) else None
        said = "–" if row is None else rate(row["reversed"], row["low"], row["high"])
        st.metric("Found reversed where p_flip > 0.5", said, width="content")
    if refuted:
        moved = folder.flips().noise()
        st.warning(
            f"By the verdicts {rate(*after[:3])}, by the audit after them {rate(*moved[:3])}: only "
            "the verdicts count. Do not rely on p_flip's values."
        )
    table, number = folder.verified(), st.column_config.NumberColumn
    right.dataframe(
        pd.DataFrame(
            {
                "p_flip": table["p_flip"],
                "judged": table["pairs"],
                "expected": 100 * table["expected"],
                "found reversed, 95 %": [
                    rate(share, low, high)
                    for share, low, high in zip(
                        table["reversed"], table["low"], table["high"], strict=True
                    )
                ],
                "neither": 100 * table["neither"],
            }
        ),
        key="verified",
        hide_index=True,
        height="content",
        placeholder="–",
        column_config={
            "p_flip": st.column_config.TextColumn(width=85),
            "judged": number(width=60),
            "expected": number(format="%.0f %%", width=70, help="Mean p_flip of these pairs"),
            "found reversed, 95 %": st.column_config.TextColumn(width=120),
            "neither": number(format="%.0f %%", width=60),
        },
    )


def _judged(check: BlindCheck, who: str) -> list[str]:
    """The pairs of the check that the person has judged, in that order."""
    verdicts = check.verdicts()
    shown = {pair.pair_id for pair in check.shown()}
    return [name for name in verdicts.loc[verdicts["who"] == who, "pair_id"] if name in shown]


def _html(folder: AuditFolder, pair: Shown) -> str:
    """Prompt and both answers, side by side as they were drawn."""
    row = row_of(folder, pair.pair_id)
    if row is None:
        raise RunError("The blind check has a pair that the audit lacks.")
    texts = texts_of(folder, row)
    sides = ["chosen", "rejected"] if pair.chosen_left else ["rejected", "chosen"]
    first, second = (text_of(texts.get(side)) for side in sides)
    answers = marked(first, second)
    columns = "".join(
        f'<div><div class="plc-role">answer {number}</div>{html}</div>'
        for number, html in enumerate(answers[:2], start=1)
    )
    prompt = prompt_turns(texts.get("prompt"))
    note = f'<div class="plc-note">{answers.note}</div>' if "<mark>" in columns else ""
    return f'<div class="plc-prompt">{prompt}</div><div class="plc-answers">{columns}</div>{note}'


def _apply() -> None:
    """Keep what was pressed in the browser, each on the pair that was shown there."""
    if problem := take_new(KEY, _take).problem:
        st.session_state[_PROBLEM] = problem


def _take(entry: Entry) -> None:
    check = open_audit(runs_root(), str(entry.get("run"))).check
    pair_id, who, action = (str(entry.get(name, "")) for name in ("pair", "who", "action"))
    if pair_id not in {pair.pair_id for pair in check.shown()}:
        raise RunError("Other pairs were drawn meanwhile; this pair is not among them.")
    if action == "undo":
        check.take_back(pair_id, who)
    for verdict in VERDICTS:
        if action == verdict:
            check.add(pair_id, verdict, who)
