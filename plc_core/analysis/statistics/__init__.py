"""The statistics of the audit: each with its n, its interval, and a text form.

    means            means and shares: Student, Wilson, the bootstraps
    ranks            Mann-Whitney with AUROC (DeLong), Spearman
    trends           Jonckheere-Terpstra, Page
    families         Holm
    text, words      numbers as text, tests as sentences

Notebook and app print the same objects, so a number reads the same wherever it is shown.
Missing values (NaN) are left out and counted; infinities are kept, as ranks can use them.
`scipy.stats`, which takes a second to import, is named in full: it is imported on first use.
A group without values gives "n/a (n=0)" and never an error; a p value below the smallest number
that a computer holds is printed as a bound, and kept as a power of ten.
"""

from plc_core.analysis.statistics.families import holm
from plc_core.analysis.statistics.means import (
    LEVEL,
    Floats,
    MeanInterval,
    bootstrap_benchmarks,
    bootstrap_mean,
    bootstrap_seeds,
    bootstrap_strata,
    mean_interval,
    paired_bootstrap,
    wilson,
)
from plc_core.analysis.statistics.ranks import (
    Auroc,
    MannWhitney,
    Side,
    Spearman,
    auroc,
    mann_whitney,
    spearman,
)
from plc_core.analysis.statistics.text import format_interval, format_number, format_p
from plc_core.analysis.statistics.trends import Jonckheere, Page, jonckheere, page
from plc_core.analysis.statistics.words import read_aloud

__all__ = [
    "LEVEL",
    "Auroc",
    "Floats",
    "Jonckheere",
    "MannWhitney",
    "MeanInterval",
    "Page",
    "Side",
    "Spearman",
    "auroc",
    "bootstrap_benchmarks",
    "bootstrap_mean",
    "bootstrap_seeds",
    "bootstrap_strata",
    "format_interval",
    "format_number",
    "format_p",
    "holm",
    "jonckheere",
    "mann_whitney",
    "mean_interval",
    "page",
    "paired_bootstrap",
    "read_aloud",
    "spearman",
    "wilson",
]
