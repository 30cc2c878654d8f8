"""Randomness by key: every draw is a function of (seed, purpose, numbers), never of what was drawn before.

That is why a resumed run equals an uninterrupted one, and worker processes equal one process.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator that belongs to this seed, purpose and keys (a round, a device, …).

    >>> a = generator(0, "participation", 3).random()
    >>> b = generator(0, "participation", 3).random()
    >>> c = generator(0, "participation", 4).random()
    >>> bool(a == b), bool(a == c)
    (True, False)
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(crc32(purpose.encode()), *keys)))
