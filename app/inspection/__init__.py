"""Questions to one run's files, answered without holding its tables: for runs of any size.

    tally      what all visits say of each pair, of each step, and of values over training
    digest     the tally of one run kept in the cache, brought up to date as the run goes on
    preparing  the digest of a large run, made in a process of its own
    queries    filters, orders, samples and columns, by DuckDB over the digest
    searching  a search in all texts, whose finds are there before its end
    steps      the metrics of a long run, and its estimate of the noise
    ranking    precision at k; bench: any measure between any two groups; answers: judged ones
    pair       the one pair on the screen: its texts and its visits, where they lie

No torch, and nothing is written into a run.
"""
