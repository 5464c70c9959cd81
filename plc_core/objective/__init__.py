"""What one pair is worth, in torch and nothing else; it knows no other room.

base             the interface of every objective: log-probs of a batch in, one loss per pair out
state_losses     clean, flip and tie loss of a margin
plc, pairwise, coupled, gamma_po
                 the objectives; `build` makes one by its name
routing          `recipes`, energies, q, confidence; `margin_ema` standardises the
                 margin, `length_evidence` adds what the lengths say
flip_posterior   how likely a label is reversed, and the noise rate with its interval
reduction        statistics over the ranks

Names are loaded when they are used: that of an objective needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
