"""Data sets by name, and files by path: what the command line calls DATASET."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedfuse.data.download import directory_with, files_of, missing_files
from fedfuse.data.federation import Federation
from fedfuse.data.housing import housing_bodyfat
from fedfuse.data.images import Groups, digits, mnist
from fedfuse.data.readers import SUFFIXES, is_table, read_table
from fedfuse.data.synthetic import GROUP_SIZES, FeatureDistribution, synthetic
from fedfuse.data.tables import federation_from_frame
from fedfuse.errors import FedfuseError, guess
from fedfuse.utils.files import NUMBER, check_fields

_SYNTHETIC, _HOUSING, _ROTATED = "synthetic:", "housing-bodyfat", ":rotated"
_IMAGES = {"mnist": "28 x 28", "fashion-mnist": "28 x 28", "digits": "8 x 8"}
_DESCRIPTIONS = {
    "synthetic:S1": "100 devices in 4 equal groups; 10 classes",
    "synthetic:S2": "100 devices in groups of 10, 40, 10, 40; 10 classes",
    "synthetic:S3": "100 devices in 2 equal groups; 10 classes",
    "synthetic:S4": "50 devices, all alike; 10 classes",
    "synthetic:S5": "50 devices, all different; 10 classes",
    "housing-bodyfat": "regression; 6 devices with housing, 2 with body fat",
    **{
        name + suffix: f"images of {size}, 4 groups of 5 by {rule}"
        for name, size in _IMAGES.items()
        for suffix, rule in (("", "swapped labels"), (_ROTATED, "rotation"))
    },
}
TEST_SHARE = 0.2


class Source(NamedTuple):
    """A data set that has a name, the files that it needs below the data directory, and whether they are there."""

    name: str
    description: str
    files: tuple[str, ...]
    present: bool


def available(data_dir: str | Path | None = None) -> list[Source]:
    """Return the data sets with names, and whether their files are there."""
    return [
        Source(name, text, files_of(name), not missing_files(name, data_dir)) for name, text in _DESCRIPTIONS.items()
    ]


def load(
    dataset: str,
    *,
    features: FeatureDistribution = "uniform",
    device: str | None = None,
    target: str | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    test: float = TEST_SHARE,
    validation: float = 0.2,
    **of_table: Any,
) -> Federation:
    """Return the federation that a name or a file stands for.

    ``dataset`` is ``synthetic:S1`` … ``synthetic:S5``, ``housing-bodyfat``, ``mnist``, ``fashion-mnist``, ``digits``
    (these three also as ``mnist:rotated`` …), or the path of a file that `read_table` reads. ``features``,
    ``"uniform"`` or ``"normal"``, is for synthetic data; ``data_dir`` is where the files of named data sets are (see
    `data_directory`). Files need ``device`` and ``target``; ``goal``, ``split_by``, ``min_rows`` and ``weight`` are as
    in `federation_from_frame`. MNIST and Fashion-MNIST have test images of their own.

    Examples
    --------
    >>> load("synthetic:S4", seed=1)
    Federation(50 devices, 86,835 rows (250 to 18,460 each), 60 features, 10 classes)
    """
    shares: dict[str, Any] = {"seed": seed, "test": test, "validation": validation}
    if not dataset.startswith(_SYNTHETIC) and features != "uniform":
        raise FedfuseError(f"features={features!r} is for synthetic data only, not for {dataset!r}; leave it out")
    # An existing file with another ending is refused by read_table, which says what it can read.
    if is_table(dataset) or Path(dataset).expanduser().is_file():
        frame = read_table(dataset)
        if device is None or target is None:
            lacking = " and which the ".join(w for w, v in (("device", device), ("target", target)) if v is None)
            raise FedfuseError(
                f"for the table {dataset!r} say which column is the {lacking} (--device, --target); "
                f"its columns are {', '.join(map(repr, map(str, frame.columns)))}"
            )
        return federation_from_frame(frame, device=device, target=target, **of_table, **shares)
    check_name(dataset)
    for word, value in {"device": device, "target": target, **of_table}.items():
        if value is not None and (word, value) != ("min_rows", 1):
            why = f"{dataset!r} has its own devices and target; leave it out"
            raise FedfuseError(f"{word}={value!r} is for tables only, but {why}")
    if dataset == _HOUSING:
        return housing_bodyfat(directory_with(_HOUSING, data_dir), **shares)
    if dataset.startswith(_SYNTHETIC):
        return synthetic(dataset.removeprefix(_SYNTHETIC), features, **shares)
    name = dataset.removesuffix(_ROTATED)
    rule: Groups = "swap" if name == dataset else "rotate"
    if name == "digits":
        return digits(groups=rule, **shares)
    if test != TEST_SHARE:
        raise FedfuseError(f"test={test:g} was given, but {name} has test images of its own; leave it out")
    return mnist(seed, name=name, data_dir=data_dir, groups=rule, validation=validation)


_SAVED = {"dataset": str, "features": str, "seed": int} | dict.fromkeys(
    ("device", "target", "goal", "data_dir"), (str, type(None))
)
# Saved where they were given.
_SAVED_SPLITS = {"test": NUMBER, "validation": NUMBER, "split_by": str, "min_rows": int, "weight": str}


def load_again(source: Any, where: object) -> Federation:
    """Load the data that a file of a run directory describes."""
    known = check_fields(source, _SAVED, f"the source in {where}")
    check_fields(source, _SAVED_SPLITS, f"the source in {where}", whole=False)
    return load(**{name: known[name] for name in (*_SAVED, *_SAVED_SPLITS) if name in known})


def absolute(dataset: str) -> str:
    """Return the full path of a file, so that it is found again from anywhere; return a name unchanged."""
    path = Path(dataset).expanduser()
    return str(path.absolute()) if path.is_file() else dataset


def check_name(dataset: str) -> None:
    """Refuse a name that no data set has."""
    if dataset.startswith(_SYNTHETIC) and GROUP_SIZES.fullmatch(dataset.removeprefix(_SYNTHETIC)):
        return
    if dataset not in _DESCRIPTIONS:
        raise FedfuseError(
            f"no data set is called {dataset!r}; {guess(dataset, _DESCRIPTIONS)}known: {', '.join(_DESCRIPTIONS)}, "
            f"synthetic:5,5 (groups of so many devices), and files ending in {', '.join(SUFFIXES)}"
        )
