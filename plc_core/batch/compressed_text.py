"""Bytes as text of a page in UTF-8, an eighth of it lost, where base64 loses a quarter."""

from __future__ import annotations

import gzip

import numpy as np

UNSAFE = (0x00, 0x0D, 0x3C)
"""Signs that a page changes or reads as markup: NUL, the carriage return, and `<`."""

_SAFE = 0x100


def packed(text: str) -> str:
    """`text`, compressed by gzip, as signs that may stand within a `<script>`.

    A sign holds seven bits, the first of a byte first, in the lowest seven of its code point: it is
    an ASCII one, save that of `UNSAFE` the one 256 code points on is written. Zeros fill the last.
    """
    data = np.frombuffer(gzip.compress(text.encode(), mtime=0), np.uint8)
    bits = np.unpackbits(data)
    sevens = np.append(bits, np.zeros(-len(bits) % 7, np.uint8)).reshape(-1, 7)
    signs = (np.packbits(sevens, axis=1)[:, 0] >> 1).astype("<u4")
    signs[np.isin(signs, UNSAFE)] += _SAFE
    return signs.tobytes().decode("utf-32-le")
