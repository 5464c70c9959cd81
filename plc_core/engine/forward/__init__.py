"""Packed rows of many pairs, and the log-probs of their responses.

packing          pairs to rows, rows to forwards, and the order of visits
attention        each response sees its own prompt and itself; `pair_attention` on CPUs
logprobs         a forward's log-probs, and whether they are those of a plain forward
vocabulary       log-softmax tile by tile, so that no logits are kept
"""
