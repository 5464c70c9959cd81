"""The paper's routing studies, one room each: run folders in, data frames and sentences out.

Everything is computed from `visits`, `pairs` and `scores` of the runs; no number is taken from
anywhere else but the published ones, which stand beside. No torch. Tables hold numbers with their
intervals and n; `…_shown` makes them readable.
"""
