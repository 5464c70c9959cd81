"""Which labels are wrong, how many, and what speaks against each: evidence read out of fold.

The room knows `data` and, for hidden states alone, `engine`. `auditing` joins it, by the parameters
of `config`: `evidence` gathers columns (`probe` reads hidden states, `bag_of_words` the texts),
`posterior` adds them up and turns them into probabilities, `reasons` says them, and `result` is
what a person gets.
"""
