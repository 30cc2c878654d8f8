"""How large the measured problems are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchSizes:
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
    rounds
        Rounds of the whole run.
    over_m, over_d, over_rows
        Where growth is measured: devices, parameters, rows of a device.
    images
        Rows of each of the four devices that train the paper's network for an epoch.
    """

    m: int = 100
    d: int = 610
    share: float = 0.3
    large: int = 1000
    triad: int = 64_000_000
    sgemm: int = 1536
    seconds: float = 2.0
    rounds: int = 200
    over_m: tuple[int, ...] = (50, 100, 200, 400, 800)
    over_d: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)
    over_rows: tuple[int, ...] = (30, 100, 300, 1000, 3000)
    images: int = 500


FULL = BenchSizes()
QUICK = BenchSizes(
    m=40, d=210, large=200, triad=8_000_000, sgemm=512, seconds=0.3, rounds=20, over_m=(20, 40, 80),
    over_d=(50, 100, 200), over_rows=(20, 40, 80), images=100)  # fmt: skip
