"""One module a question of the paper: the parameters of its notebook, its runs, its tables.

`study` holds what all of them share; `win_rate_study` what those with win rates share. They know
all of `plc_core`; only the notebooks know them.
"""
