"""How log-probs are made and weights move: tokens, packed rows, reference cache, trainer."""
