"""The page of the docs about speed, from what was measured: no number in it is written by hand.

    python benchmarks/speed.py docs/benchmarks.md bench.json [another.json …]

``bench.json`` is what `fedfuse bench` writes (several, if parts were measured apart). The picture goes beside the page.
Sections that `benchmarks/scale.py` and `benchmarks/bandwidth.py` have written stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse.bench.measurement import Curve, cells, readable

HEAD = """# Speed

How fast is fedfuse? `fedfuse bench` measures it against textbook loops, plain NumPy, plain PyTorch and the machine's
own limits, all in one process, so that the ratios carry over to other machines. Times are the best of many repetitions,
because other processes only make things slower. The whole run is the best of three, and the first call happens only
once. Measured by

```
{commands}
```

on {date}, fedfuse {version}, {cores} cores of {processor}, {memory}, load {load:.1f} at the start.

| figure | what | measured | against | ratio | goal |
| --- | --- | --- | --- | --- | --- |
"""
# Headings of `benchmarks/scale.py` and `benchmarks/bandwidth.py`.
KEPT = ("Many devices", "Whole runs", "What bounds the server's step")
GROWTH = """
## How cost grows

![Time over devices, parameters and rows]({picture})

| | over | | exponent |
| --- | --- | --- | --- |
"""


def write_page(contents: list[dict[str, Any]], path: Path) -> None:
    """Write the page, and its picture beside it."""
    content, machine = contents[-1], contents[-1]["machine"]
    commands = [f"fedfuse bench{' --quick' * each['quick']} --only {','.join(each['parts'])}" for each in contents]
    text = HEAD.format(
        commands="\n".join(commands),
        date=content["date"][:10],
        version=content["versions"]["fedfuse"],
        cores=machine["cores"],
        processor=machine["processor"],
        memory=readable(machine["memory_bytes"] or 0, "bytes"),
        load=machine["load"] or 0.0,
    )
    text += "".join(_row(figure) for each in contents for figure in each["figures"])
    if growth := [curve for each in contents for curve in each["growth"]]:
        curves = [Curve(c["what"], c["over"], tuple(c["sizes"]), tuple(c["seconds"])) for c in growth]
        picture = path.with_name(f"{path.stem}-growth.png")
        draw(curves, picture)
        lines = (f"| {c.what} | {c.over} | {c.points} | {c.exponent:.2f} |\n" for c in curves)
        text += GROWTH.format(picture=picture.name) + "".join(lines)
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    kept = [section for section in old.split("\n## ")[1:] if section.startswith(KEPT)]
    path.write_text(text + "".join(f"\n## {section.rstrip()}\n" for section in kept), encoding="utf-8")


def _row(figure: dict[str, Any]) -> str:
    measured, reference, ratio, goal = cells(figure)
    ratio += " (missed)" if figure["met"] is False else ""
    return (
        f"| {figure['name']} | {figure['what']} | {measured} | {reference}: {figure['against']} | {ratio} | {goal} |\n"
    )


def draw(curves: list[Curve], path: Path) -> None:
    """Draw all curves on logarithmic axes, with their exponents."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.4), layout="constrained", squeeze=False)
    for ax, curve in zip(axes[0], curves, strict=True):
        ax.loglog(curve.sizes, np.array(curve.seconds) * 1e3, marker="o", label=f"exponent {curve.exponent:.2f}")
        ax.set(xlabel=curve.over, ylabel="milliseconds", title=curve.what.split(",")[0])
        ax.set_xticks(curve.sizes, [f"{size:,}" for size in curve.sizes])
        ax.set_xticks([], minor=True)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:.0e}"[0] in "25" else "")
        ax.grid(alpha=0.3)
        ax.legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    write_page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[2:]], Path(sys.argv[1]))
