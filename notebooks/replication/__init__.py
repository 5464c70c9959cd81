"""The study: many small training runs on one real model, measured alike, and their results kept.

`python -m notebooks.replication run notebooks/recipes/study/smollm2.yaml …` runs a slice of it for
a given time and goes on where an earlier call stopped; `notebooks.evidence` reads what it leaves.
"""
