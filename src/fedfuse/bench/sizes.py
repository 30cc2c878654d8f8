"""How large the measured problems are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes of all measurements; ``seconds`` is about how long each contestant runs.

    Parameters
    ----------
    m, d, share
        Devices, parameters and active share of the server step that races the textbook.
    large
        Devices of the server step that is compared with the memory's bandwidth.
    triad
        Numbers in each of the three arrays of the bandwidth test.
    sgemm
        Side of the square matrices whose product tells the rate of arithmetic.
    """

    m: int = 100
    d: int = 610
    share: float = 0.3
    large: int = 1000
    triad: int = 64_000_000
    sgemm: int = 1536
    seconds: float = 2.0


FULL = Sizes()
QUICK = Sizes(m=40, d=210, large=200, triad=8_000_000, sgemm=512, seconds=0.3)
