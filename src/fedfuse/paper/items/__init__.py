"""Every table and figure of the paper, one file each: data, methods, settings, the printed numbers."""

from __future__ import annotations

from importlib import import_module

from fedfuse.errors import FedfuseError, guess
from fedfuse.paper.experiment import Item

FILES = (
    "table1", "table2", "table3", "table_e1", "table_e2", "table_e3", "table_e4", "figure1", "distances", "tsne",
    "curves_mnist", "curves_fmnist", "cost", "tuning", "attacks_synthetic", "attacks_mnist", "attacks_fmnist",
    "asynchronous", "strategies", "starts", "lam", "epochs", "xi",
)  # fmt: skip


def items() -> dict[str, Item]:
    """Return all items by name, in the order of the paper."""
    found = [import_module(f"{__name__}.{file}").ITEM for file in FILES]
    return {item.name: item for item in found}


def chosen(names: list[str]) -> list[Item]:
    """Return the items of these names, in capitals or not; ``all`` are all."""
    known = items()
    if names == ["all"]:
        return list(known.values())
    names = [next((own for own in known if own.lower() == name.lower()), name) for name in names]
    for name in names:
        if name not in known:
            words = f"{guess(name, known)}known: {', '.join(known)}, or all, list, page"
            raise FedfuseError(f"the paper has no {name!r}; {words}")
    return [known[name] for name in dict.fromkeys(names)]
