"""The inspector: `streamlit run app/inspector.py -- --runs runs` (or PLC_RUNS=runs).

It reads run folders below that directory, and writes people's decisions and verdicts into them and
nothing else. Pages draw what `plc_core.analysis` computes; no statistic is made here.
"""

import streamlit as st
from elements import STYLE, save_format
from marking import plain
from reading import runs_root
from selection import follow_click, restore

from plc_core.runs.listing import list_runs
from plc_core.storage.files import RunError

# Drawn here: an icon by name would be fetched from a server of fonts.
ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'>"
    "<path d='M12 3 22 20H2Z' fill='none' stroke='#44546A' stroke-width='2'/>"
    "<circle cx='12' cy='14' r='3' fill='#44546A'/></svg>"
)

st.set_page_config(page_title="PLC-DPO inspector", page_icon=ICON, layout="wide")
runs_page = st.Page("views/runs.py", title="Runs", url_path="runs")
page = st.navigation(
    [
        st.Page("views/verdict.py", title="Verdict", default=True),
        runs_page,
        st.Page("views/routing.py", title="Routing", url_path="routing"),
        st.Page("views/pairs.py", title="Pairs", url_path="pairs"),
        st.Page("views/ties.py", title="Ties", url_path="ties"),
        st.Page(
            "views/human_disagreement.py", title="Human disagreement", url_path="human_disagreement"
        ),
        st.Page("views/corruption.py", title="Corruption", url_path="corruption"),
        st.Page("views/tests.py", title="Tests", url_path="tests"),
        st.Page("views/label_audit.py", title="Label audit", url_path="label_audit"),
        st.Page("views/wins.py", title="Win rates", url_path="wins"),
    ],
    position="top",
)
st.html(STYLE)
restore()
follow_click()
if page.url_path == "" and "show" in st.query_params:
    st.switch_page(runs_page, query_params={k: st.query_params.get_all(k) for k in st.query_params})
root = runs_root()
try:
    runs = list_runs(root)
except RunError as error:  # the directory itself may not be read
    st.error(plain(str(error)))
    st.stop()
if runs:
    page.run()
    if page.url_path:  # the first page has no chart
        save_format()
else:
    what = "holds no run yet" if root.is_dir() else "does not exist"
    st.title("No runs to show")
    st.text(
        f"The runs directory {root} {what}. Make runs with `make demo`, or start the inspector "
        "on another directory: streamlit run app/inspector.py -- --runs DIRECTORY"
    )
