"""A pair's tokens: by the model's chat template, kept by content.

tokenized        pairs with their tokens, and what a maximum length cuts
templates        chat templates: one answer's boundary, system turns, special tokens
encoding         texts to ids, in processes of their own
token_cache      ids that were made once
"""
