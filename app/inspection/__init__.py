"""Questions to one run's files, answered without holding its tables: for runs of any size.

    aggregate        what all visits say of each pair, of each step, and of values over training
    digest           that of one run kept in the cache, brought up to date as the run goes on
    preparing        the digest of a large run, made in a process of its own
    queries          filters, orders, samples and columns, by DuckDB over the digest
    text_search      a search in all texts, whose finds are there before its end
    step_metrics     the metrics of a long run, its estimate of the noise
    results          what a run came to, for a list of runs
    verdicts         five questions, each answered by one interval
    rerouting        where stored margins would go under other settings (it alone loads torch)
    precision_at_k   a ranking's first k; group_tests: any measure between any two groups
    judged_answers   judgements, KLs and the one answer on the screen
    pair             the one pair on the screen, and the beginnings of many

Nothing is written into a run.
"""
