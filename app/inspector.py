"""The inspector: `streamlit run app/inspector.py -- --runs runs` (or PLC_RUNS=runs).

It reads run folders below that directory and writes nothing. Pages draw what
`plc_core.analysis` computes; no statistic is made here.
"""

import streamlit as st
from reading import runs_root
from selection import restore

from plc_core.listing import list_runs

st.set_page_config(page_title="PLC-DPO inspector", layout="wide")
page = st.navigation(
    [
        st.Page("views/runs.py", title="Runs", default=True),
        st.Page("views/pairs.py", title="Pairs", url_path="pairs"),
        st.Page("views/ties.py", title="Ties", url_path="ties"),
    ],
    position="top",
)
restore()
root = runs_root()
if list_runs(root):
    page.run()
else:
    what = "holds no run yet" if root.is_dir() else "does not exist"
    st.title("No runs to show")
    st.text(
        f"The runs directory {root} {what}. Make runs with `make demo`, or start the inspector "
        "on another directory: streamlit run app/inspector.py -- --runs DIRECTORY"
    )
