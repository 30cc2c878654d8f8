"""Data sets by name, and files by path: what the command line calls DATASET."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfuse.data.directory import absent, data_directory, directory_with
from fedfuse.data.federation import Federation, Goal
from fedfuse.data.files import SUFFIXES, read_table
from fedfuse.data.housing import FILES, housing_bodyfat
from fedfuse.data.images import FILES as IMAGE_FILES
from fedfuse.data.images import digits, fashion_mnist, mnist
from fedfuse.data.synthetic import SCENARIOS, SIZES, FeatureLaw, synthetic
from fedfuse.data.tables import federation_from_frame
from fedfuse.errors import FedfuseError, guess
from fedfuse.utils.files import NUMBER, check_fields

_SYNTHETIC = "synthetic:"
_HOUSING = "housing-bodyfat"
_GROUPS = {
    "S1": "100 devices in 4 equal groups",
    "S2": "100 devices in groups of 10, 40, 10, 40",
    "S3": "100 devices in 2 equal groups",
    "S4": "50 devices, all alike",
    "S5": "50 devices, all different",
}
_ROTATED = ":rotated"
_IMAGES = {"mnist": "28 x 28", "fashion-mnist": "28 x 28", "digits": "8 x 8"}
_MAKERS: dict[str, Callable[..., Federation]] = {"mnist": mnist, "fashion-mnist": fashion_mnist, "digits": digits}
TEST = 0.2


@dataclass(frozen=True)
class Source:
    """A data set that has a name.

    Attributes
    ----------
    name, description
        What to call it, and what it is.
    files
        What it needs below the data directory; nothing for data that are computed.
    present
        Whether those files are there.
    """

    name: str
    description: str
    files: tuple[str, ...] = ()
    present: bool = True


def available(data_dir: str | Path | None = None) -> list[Source]:
    """Return the data sets with names, and whether their files are there.

    >>> [source.name for source in available()][:2]
    ['synthetic:S1', 'synthetic:S2']
    """
    directory = data_directory(data_dir)
    computed = [Source(_SYNTHETIC + s, f"{_GROUPS[s]}; 10 classes") for s in SCENARIOS]
    text = "regression; 6 devices with housing, 2 with body fat"
    housing = Source(_HOUSING, text, FILES, not absent(FILES, directory))
    return [*computed, housing, *_image_sources(directory)]


def _image_sources(directory: Path) -> list[Source]:
    sources = []
    for name, size in _IMAGES.items():
        files = IMAGE_FILES.get(name, ())
        here = not absent(files, directory)
        sources.append(Source(name, f"images of {size}, 4 groups of 5 by swapped labels", files, here))
        sources.append(Source(name + _ROTATED, f"images of {size}, 4 groups of 5 by rotation", files, here))
    return sources


def load(
    dataset: str,
    *,
    features: FeatureLaw = "uniform",
    device: str | None = None,
    target: str | None = None,
    goal: Goal | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    test: float = TEST,
    validation: float = 0.2,
) -> Federation:
    """Return the federation that a name or a file stands for.

    Parameters
    ----------
    dataset
        ``synthetic:S1`` … ``synthetic:S5``, ``housing-bodyfat``, ``mnist``, ``fashion-mnist``, ``digits`` (these
        three also as ``mnist:rotated`` …), or the path of a .csv, .csv.gz or .parquet file.
    features
        For synthetic data: ``"uniform"`` or ``"normal"``.
    device, target
        For files, and needed there: the column that says which device a row is of, and the one to predict.
    goal
        For files: ``"classification"`` or ``"regression"``; told from the target when not given.
    seed
        Draws the data, where they are drawn, and the split.
    data_dir
        Where the files of named data sets are; see `data_directory`.
    test, validation
        Shares: of a device's rows for the test, and of the rest for validation. MNIST and Fashion-MNIST have
        test images of their own.

    Examples
    --------
    >>> load("synthetic:S4", seed=1)
    Federation(50 devices, 86,835 rows (250 to 18,460 each), 60 features, 10 classes)
    """
    shares = {"test": test, "validation": validation}
    is_file = _is_file(dataset)
    if not is_file:
        check_name(dataset)
        _refuse_columns(dataset, device=device, target=target, goal=goal)
    if not dataset.startswith(_SYNTHETIC) and features != "uniform":
        raise FedfuseError(f"features={features!r} is for synthetic data only, not for {dataset!r}; leave it out")
    if is_file:
        return _load_file(dataset, device, target, goal, seed, shares)
    if dataset == _HOUSING:
        return housing_bodyfat(directory_with(FILES, _HOUSING, "put it there", data_dir), seed=seed, **shares)
    if dataset.removesuffix(_ROTATED) in _MAKERS:
        return _load_images(dataset, seed, shares, data_dir)
    return synthetic(dataset.removeprefix(_SYNTHETIC), features, seed=seed, **shares)


SAVED = {"dataset": str, "features": str, "seed": int} | dict.fromkeys(
    ("device", "target", "goal", "data_dir"), (str, type(None))
)
SHARES = {"test": NUMBER, "validation": NUMBER}  # Saved where they were given.


def load_again(source: Any, where: object) -> Federation:
    """Load what a file of a run directory says that the data were."""
    known = check_fields(source, SAVED, f"the source in {where}")
    check_fields(source, SHARES, f"the source in {where}", whole=False)
    return load(**{name: known[name] for name in (*SAVED, *SHARES) if name in known})


def absolute(dataset: str) -> str:
    """Return a file's full path, so that it is found again from anywhere; a name as it is."""
    path = Path(dataset).expanduser()
    return str(path.absolute()) if path.is_file() else dataset


def _is_file(dataset: str) -> bool:
    # an existing file with another ending is refused by read_table, which says what it can read
    return dataset.lower().endswith(SUFFIXES) or Path(dataset).expanduser().is_file()


def check_name(dataset: str) -> None:
    """Refuse a name that no data set has."""
    if dataset.startswith(_SYNTHETIC) and SIZES.fullmatch(dataset.removeprefix(_SYNTHETIC)):
        return
    known = [source.name for source in available()]
    if dataset not in known:
        raise FedfuseError(
            f"no data set is called {dataset!r}; {guess(dataset, known)}known are {', '.join(known)}, synthetic:5,5 "
            f"(groups of so many devices), and files ending in {', '.join(SUFFIXES)}"
        )


def _refuse_columns(dataset: str, **given: str | None) -> None:
    for word, value in given.items():
        if value is not None:
            raise FedfuseError(
                f"{word}={value!r} is for tables only, but {dataset!r} has its own devices and target; leave it out"
            )


def _load_file(
    path: str,
    device: str | None,
    target: str | None,
    goal: Goal | None,
    seed: int,
    shares: dict[str, float],
) -> Federation:
    frame = read_table(path)
    if device is None or target is None:
        lacking = " and ".join(w for w, v in (("device", device), ("target", target)) if v is None)
        raise FedfuseError(
            f"for the table {path!r} say which column is the {lacking} (--device, --target); "
            f"its columns are {', '.join(map(repr, map(str, frame.columns)))}"
        )
    return federation_from_frame(frame, device=device, target=target, goal=goal, seed=seed, **shares)


def _load_images(dataset: str, seed: int, shares: dict[str, float], data_dir: str | Path | None) -> Federation:
    name = dataset.removesuffix(_ROTATED)
    options: dict[str, Any] = {"groups": "swap" if name == dataset else "rotate", "validation": shares["validation"]}
    if name not in IMAGE_FILES:
        return _MAKERS[name](seed, test=shares["test"], **options)
    if shares["test"] != TEST:
        raise FedfuseError(f"test={shares['test']:g} was given, but {name} has test images of its own; leave it out")
    return _MAKERS[name](seed, data_dir=data_dir, **options)
