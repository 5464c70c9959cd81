"""What only the notebooks call, in folders beside them.

studies      the question of each notebook: its parameters, its runs, its tables
figures      the figures that the app does not show
replication  many small runs of one recipe, whose results are data/results
evidence     the claims of the paper against those results
overhead     what training costs, beside TRL
"""
