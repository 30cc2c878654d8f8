"""The colours of all pictures, in one place, so that people with colour-blindness can tell them apart everywhere.

Those on paper are Okabe and Ito's (https://jfly.uni-koeln.de/color/). The report's are their hues, made darker for a
light page and lighter for a dark one, until each stands out from it by at least 3 to 1; a number beside it always says
the same as the colour.
"""

from __future__ import annotations

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ON_LIGHT = ("#0072B2", "#CB5800", "#00805C", "#AE4F86", "#8F6A00", "#3D8FC6", "#6A4FA3", "#5A646D")
ON_DARK = ("#5CB8F0", "#FF8F52", "#35C79E", "#EBA0CC", "#F0C24D", "#A6D8F7", "#BBA3F2", "#B4BEC7")


def tone(cluster: int) -> str:
    """Return the name of a cluster's colour on a page; after eight, they come again.

    >>> tone(0), tone(9)
    ('g0', 'g1')
    """
    return f"g{cluster % len(ON_LIGHT)}"


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours (#rrggbb) as WCAG defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    dark, light = sorted(map(_luminance, (first, second)))
    return round((light + 0.05) / (dark + 0.05), 6)


def _luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
