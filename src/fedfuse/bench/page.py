"""The page of the docs about speed, from what was measured: no number in it is written by hand.

    python -m fedfuse.bench.page docs/benchmarks.md bench.json [another.json …] [--scale scale.json]

``bench.json`` is what `fedfuse bench` writes (several, if parts were measured apart), ``scale.json`` what
`benchmarks/scale.py --json` writes. The picture goes beside the page; that of scale.py is shown where it lies there as
benchmarks-scale.png.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fedfuse.bench.figure import readable
from fedfuse.bench.growth import Curve, draw, exponent

HEAD = """# Speed

`fedfuse bench` measures fedfuse against textbook loops, plain NumPy, plain PyTorch and the machine's own limits, all in
one process, so that ratios mean something on any machine. Times are the best of many, since other processes only ever
make things slower; those of the whole run are the best of three, and the first call happens once. Measured by

```
{commands}
```

on {date}, fedfuse {version}, {cores} cores of {processor}, {memory}, load {load:.1f} at the start.
"""
GROWTH = """
## How cost grows

![Time over devices, parameters and rows]({picture})

| | over | | exponent |
| --- | --- | --- | --- |
"""
SCALE = """
## Many devices

Devices in 10 groups, 30 % active, from local models to the groups and on, by `python benchmarks/scale.py`: exact local
work, so that nearly all is the server's. A step is all that happens between replies and the next anchors, and all steps
count. The start is apart: it bounds all distances and provides memory for the pairs within reach.

| devices | parameters | ARI | right after | start | median step | slowest step | pairs | peak of the process |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def write(contents: list[dict[str, Any]], path: Path, scale: list[dict[str, Any]] | None = None) -> None:
    """Write the page, and its pictures beside it."""
    content = contents[-1]
    machine, figures = content["machine"], [figure for each in contents for figure in each["figures"]]
    text = HEAD.format(
        commands="\n".join(map(_command, contents)),
        date=content["date"][:10],
        version=content["versions"]["fedfuse"],
        cores=machine["cores"],
        processor=machine["processor"],
        memory=readable(machine["memory_bytes"] or 0, "bytes"),
        load=machine["load"] or 0.0,
    )
    text += "\n| figure | what | measured | against | ratio | goal |\n| --- | --- | --- | --- | --- | --- |\n"
    text += "".join(_row(figure) for figure in figures)
    if curves := [Curve.from_dict(curve) for each in contents for curve in each["growth"]]:
        picture = path.with_name(f"{path.stem}-growth.png")
        draw(curves, picture)
        text += GROWTH.format(picture=picture.name) + "".join(_line(curve) for curve in curves)
    if scale:
        text += SCALE + "".join(_size(row) for row in scale) + _growth(scale)
        picture = path.with_name(f"{path.stem}-scale.png")
        text += f"\n![Time and memory over devices]({picture.name})\n" if picture.is_file() else ""
    path.write_text(text, encoding="utf-8")


def _command(content: dict[str, Any]) -> str:
    return f"fedfuse bench{' --quick' if content['quick'] else ''} --only {','.join(content['parts'])}"


def _row(figure: dict[str, Any]) -> str:
    reference = f"{readable(figure['reference'], figure['unit'])}: {figure['against']}"
    goal = "" if figure["goal"] is None else f"{figure['sense']} {figure['goal']:g}"
    missed = " (missed)" if figure["met"] is False else ""
    measured = readable(figure["value"], figure["unit"])
    return (
        f"| {figure['name']} | {figure['what']} | {measured} | {reference} | {figure['ratio']:.3g}{missed} | {goal} |\n"
    )


def _line(curve: Curve) -> str:
    points = [f"{size:,}: {readable(took, 's')}" for size, took in zip(curve.sizes, curve.seconds, strict=True)]
    return f"| {curve.what} | {curve.over} | {', '.join(points)} | {curve.exponent:.2f} |\n"


def _size(row: dict[str, Any]) -> str:
    times = " | ".join(readable(row[name], "s") for name in ("start", "median_step", "slowest_step"))
    memory = " | ".join(readable(row[name], "bytes") for name in ("pair_bytes", "peak_bytes"))
    return f"| {row['m']:,} | {row['d']} | {row['ari']:.3f} | {row['right_after']} | {times} | {memory} |\n"


def _growth(rows: list[dict[str, Any]]) -> str:
    """Say how time and memory of the last three sizes grow."""
    if len(rows) < 3:
        return ""
    m = [row["m"] for row in rows]
    names = {"median_step": "a step", "slowest_step": "the slowest", "pair_bytes": "pairs", "peak_bytes": "the peak"}
    parts = [f"{text} with exponent {exponent(m, [row[name] for row in rows]):.2f}" for name, text in names.items()]
    return f"\nFrom {m[-3]:,} to {m[-1]:,} devices, they grow like this: {', '.join(parts)}.\n"


def main() -> None:
    """Write the page from files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("bench", type=Path, nargs="+")
    parser.add_argument("--scale", type=Path)
    asked = parser.parse_args()
    scale = json.loads(asked.scale.read_text(encoding="utf-8")) if asked.scale else None
    write([json.loads(path.read_text(encoding="utf-8")) for path in asked.bench], asked.page, scale)


if __name__ == "__main__":
    main()
