"""From trained policies to win rates; it knows `engine` and `analysis`.

benchmarks       prompts by name or file
generate         answers, by the `policies` of a model or of a server (`chat_api`)
judges           what an answer is worth; `judges.named` finds one by its name
chain            all of it for many runs; `completeness` says what is there, `judged` reads it
win_rate, sides, comparison
                 one comparison: of two series, of a cell, of all; `length_control` at equal
                 lengths
divergence       the KL of a policy to its start
results, win_tables, summary
                 what a reader sees
"""
