"""The page of the docs about speed, from what was measured: no number in it is written by hand.

    python benchmarks/speed.py docs/benchmarks.md bench.json [another.json …]

``bench.json`` is what `fedfuse bench` writes (several, if parts were measured apart).
Sections that `benchmarks/scale.py` and `benchmarks/bandwidth.py` have written stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fedfuse.bench.measurement import cells, readable

HEAD = """# Speed

`fedfuse bench` measures fedfuse against textbook loops, plain NumPy, plain PyTorch and the machine's own limits, all in
one process, so that ratios mean something on any machine. Times are the best of many, since other processes only ever
make things slower; those of the whole run are the best of three, and the first call happens once. Measured by

```
{commands}
```

on {date}, fedfuse {version}, {cores} cores of {processor}, {memory}, load {load:.1f} at the start.

| figure | what | measured | against | ratio | goal |
| --- | --- | --- | --- | --- | --- |
"""
# Headings of `benchmarks/scale.py` and `benchmarks/bandwidth.py`.
KEPT = ("Many devices", "Whole runs", "What bounds the server's step")


def write_page(contents: list[dict[str, Any]], path: Path) -> None:
    """Write the page."""
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
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    kept = [section for section in old.split("\n## ")[1:] if section.startswith(KEPT)]
    path.write_text(text + "".join(f"\n## {section.rstrip()}\n" for section in kept), encoding="utf-8")


def _row(figure: dict[str, Any]) -> str:
    measured, reference, ratio, goal = cells(figure)
    ratio += " (missed)" if figure["met"] is False else ""
    return (
        f"| {figure['name']} | {figure['what']} | {measured} | {reference}: {figure['against']} | {ratio} | {goal} |\n"
    )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    write_page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[2:]], Path(sys.argv[1]))
