"""Colours of all pictures: twenty for groups, on white and on a dark page.

The first seven have the hues of Okabe and Ito (https://jfly.uni-koeln.de/color/). The others were chosen to be as far
as possible from all before them in OKLab, also as seen with deuteranopia and protanopia. Each has a contrast of at
least 3 to 1 to its background. A number beside a colour always says the same as the colour.
"""

from __future__ import annotations

# fmt: off
COLOURS = (
    "#0072B2", "#CB5800", "#00805C", "#AE4F86", "#8F6A00", "#6A4FA3", "#5A646D", "#AC0620", "#0D99EC", "#739F4D",
    "#CC6CD9", "#462D00", "#005900", "#F26086", "#0639AC", "#590086", "#9F8CA6", "#003359", "#6C0039", "#796CEC",
)
COLOURS_ON_DARK = (
    "#5CB8F0", "#FF8F52", "#35C79E", "#EBA0CC", "#F0C24D", "#BBA3F2", "#B4BEC7", "#EC534D", "#007993", "#4D934D",
    "#994DBF", "#936613", "#8CF993", "#BF8680", "#8680FF", "#F2D9FF", "#D26CD2", "#266CDF", "#AC5373", "#8080AC",
)
# fmt: on
# The class and the colour of devices in no group, and of what joins groups.
NO_GROUP, GREY = "between", "#777777"


def tone(group: int) -> str:
    """Return the CSS class with the colour of a group, counted from 1; 0 is for devices in no group.

    >>> tone(1), tone(22), tone(0)
    ('g0', 'g1', 'between')
    """
    return f"g{(group - 1) % len(COLOURS)}" if group else NO_GROUP


def colour(group: int) -> str:
    """Return the colour on white of a group, counted from 1; 0 is for devices in no group."""
    return COLOURS[(group - 1) % len(COLOURS)] if group else GREY
