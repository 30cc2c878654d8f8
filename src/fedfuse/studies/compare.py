"""`compare`: methods x seeds, each an ordinary run; and `resume_comparison` for one that was interrupted."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from fedfuse._version import __version__
from fedfuse.data.catalog import absolute
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.grouping.refit import Oracle
from fedfuse.methods.method import Method
from fedfuse.methods.registry import FAMILIES, from_config, method_called, methods_of
from fedfuse.models import Model, model_called
from fedfuse.results.run_directory import RunDirectory
from fedfuse.studies.comparison import Comparison
from fedfuse.studies.jobs import Job, Watcher, finished_run, load_seed, run_jobs
from fedfuse.training.options import build, common_words, keys, options_by_method
from fedfuse.training.presets import preset
from fedfuse.training.settings import Settings
from fedfuse.utils.files import directory_lock, make_directory, read_json, write_json
from fedfuse.utils.threads import usable_cores

log = logging.getLogger(__name__)
FILE = "compare.json"
RUNS = "runs"
DATA_OPTIONS = (
    "features", "device", "target", "goal", "data_dir", "test", "validation", "split_by", "min_rows", "weight",
)  # fmt: skip
Methods: TypeAlias = str | Sequence[str | Method[Any]] | Mapping[str, Method[Any]]


def compare(
    data: Federation | str,
    methods: Methods = "paper",
    seeds: int | Iterable[int] = 3,
    *,
    model: Model[Any] | None = None,
    out: str | PathLike[str] | None = None,
    jobs: int | None = 1,
    rounds: int | None = None,
    words: Sequence[str] = (),
    over: str | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Comparison:
    """Compare methods, or values of a setting, on the same data, by mean and spread over seeds.

    Parameters
    ----------
    data
        The name of a data set or a file, as on the command line: a seed then changes the data (how they are drawn, or
        split) and the algorithm. Or a federation: all seeds then share its data, and all runs are in this process.
    methods
        Names; methods; or a family: ``"paper"`` (the paper's tables, the fusion tree), ``"clustered"``, ``"personal"``
        or ``"all"``, with the oracle where groups are known. A dictionary names several variants of one method.
    seeds
        How many, from 0 on, or which.
    model
        As for `fit`.
    out
        A directory for the runs and the tables. Calling again with the same directory continues the comparison; seeds
        and methods may be added then. (Methods of your own cannot be loaded by name: leave it out for them.)
    jobs
        Runs at a time, each in its own process; None for one per core. With more than one, a script must call this
        below ``if __name__ == "__main__":``.
    rounds, **settings
        As for `fit`, for all methods. Without them, those of `training.presets.preset` for the data set. For data with
        a name also ``device``, ``target``, ``features`` and what else `data.load` takes.
    words
        ``key=value`` or ``method.key=value``, as of ``--set``, for methods given by name; they override the settings.
    over
        A key of ``words`` and its values, ``"lam=0.1,0.2,0.4"``: methods that have it are run with each of them.
    watcher
        Sees the progress of the runs.

    Examples
    --------
    >>> import numpy as np, fedfuse as ff
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(6, 50, 2))
    >>> y = [x @ ([1, 2] if i < 3 else [-2, 1]) + 0.1 * rng.normal(size=50) for i, x in enumerate(X)]
    >>> fed = ff.Federation.from_arrays(list(zip(X, y)))
    >>> found = ff.compare(fed, {"alone": ff.FPFC(lam=0.0), "fused": ff.FPFC(lam=0.5)}, seeds=2, rounds=30)
    >>> found.table["n_clusters"].to_dict()
    {'alone': 6.0, 'fused': 2.0}
    """
    columns = {name: settings.pop(name) for name in DATA_OPTIONS if name in settings}
    source = _source(data, {name: value for name, value in columns.items() if value is not None})
    if jobs is not None and (not isinstance(jobs, Integral) or jobs < 1):
        raise FedfuseError(f"jobs must be a whole number of at least 1, got {jobs!r}")
    if source is None and jobs not in (None, 1):
        raise FedfuseError("a federation from Python cannot be built again in other processes: leave out jobs")
    given = settings if rounds is None else {**settings, "rounds": rounds}
    dataset = data if isinstance(data, str) else "arrays"
    entries = entries_of(methods, dataset, words, given, over)
    numbers, directory = seeds_of(seeds), None if out is None else Path(out)
    before = Request.load(directory) if directory and is_comparison(directory) else None
    if directory and not before:
        RunDirectory(directory).check_free()
    witness = before.witness if before else numbers[0]
    federation = data if isinstance(data, Federation) else load_seed(source or {}, witness)
    if methods in FAMILIES and any(isinstance(e.method, Oracle) for e in entries.values()) and federation.truth is None:
        log.warning("the oracle is left out, because the true groups of these data are unknown")
        entries = {label: entry for label, entry in entries.items() if not isinstance(entry.method, Oracle)}
    request = Request(
        dataset, source, witness, federation.fingerprint, None if model is None else type(model).__name__,
        common_words(words) | given, entries, numbers,
    )  # fmt: skip
    if before and directory:
        request = before.extended(request, directory)
    return _run(request, directory, model, jobs, watcher, None if source else federation)


def resume_comparison(
    directory: str | PathLike[str], jobs: int | None = 1, watcher: Watcher | None = None
) -> Comparison:
    """Continue the comparison in a directory, as `compare` does when it is called again."""
    path = Path(directory)
    request = Request.load(path)
    if request.source is None:
        raise FedfuseError(
            f"the comparison in {path} was started from Python on unnamed data: continue it there with "
            "fedfuse.compare(federation, …, out=directory)"
        )
    if load_seed(request.source, request.witness).fingerprint != request.fingerprint:
        raise FedfuseError(f"the comparison in {path} belongs to another federation: the data differ")
    return _run(request, path, None if request.model is None else model_called(request.model), jobs, watcher)


def is_comparison(directory: str | PathLike[str]) -> bool:
    """Whether a directory is that of a comparison."""
    return (Path(directory) / FILE).exists()


def _source(data: Any, columns: dict[str, Any]) -> dict[str, Any] | None:
    """Return what `data.load` needs besides the seed, with absolute paths; None for a federation."""
    if isinstance(data, str):
        if "data_dir" in columns:
            columns["data_dir"] = str(Path(columns["data_dir"]).absolute())
        unset = dict.fromkeys(("device", "target", "goal", "data_dir"))
        return {"dataset": absolute(data), "features": "uniform", **unset, **columns}
    if not isinstance(data, Federation):
        raise FedfuseError(f"data must be a Federation or the name of a data set, got {type(data).__name__}")
    for word, value in columns.items():
        raise FedfuseError(f"{word}={value!r} is for data sets given by name")
    return None


def _run(
    request: Request,
    directory: Path | None,
    model: Model[Any] | None,
    jobs: int | None,
    watcher: Watcher | None,
    federation: Federation | None = None,
) -> Comparison:
    """Load the runs that are finished, run the others, and write the tables."""
    processes = 1 if federation else jobs or usable_cores()
    with ExitStack() as stack:
        home, advice = directory, ""
        if directory is not None:
            make_directory(directory)
            write_json(directory / FILE, request.to_json())
            stack.enter_context(directory_lock(directory))
            advice = f"go on with: fedfuse resume {shlex.quote(str(directory))}"
        elif processes > 1:  # Workers hand over their results in directories.
            home = Path(stack.enter_context(TemporaryDirectory(prefix="fedfuse-")))
        if home is not None:
            (home / RUNS).mkdir(exist_ok=True)
        every = [_job(request, label, seed, model, home) for seed in request.seeds for label in request.methods]
        rest = [job for job in every if job.directory is None or not RunDirectory(job.directory).finished]
        found = run_jobs(rest, processes, watcher or Watcher(), federation, advice)
        outcomes = {(job.label, job.seed): outcome for job, outcome in zip(rest, found, strict=True)}
        for job in every:
            if job.directory is not None and (job.label, job.seed) not in outcomes:
                outcomes[job.label, job.seed] = finished_run(job.directory)
    try:
        comparison = Comparison.of(request, outcomes)
    except FedfuseError:
        _withdraw(directory)
        raise
    if directory is not None:
        comparison.save(directory)
    return comparison


def _job(request: Request, label: str, seed: int, model: Model[Any] | None, home: Path | None) -> Job:
    entry, place = request.methods[label], None if home is None else request.run_directory(home, (label, seed))
    return Job(label, seed, entry.method, entry.settings, request.dataset, request.source, model, place)


def _withdraw(directory: Path | None) -> None:
    """Remove a comparison without any started run, so that the corrected command can use its directory."""
    if directory is None or any((directory / RUNS).iterdir()):
        return
    (directory / RUNS).rmdir()
    (directory / FILE).unlink(missing_ok=True)
    if not any(directory.iterdir()):
        directory.rmdir()


@dataclass(frozen=True)
class Entry:
    """A method of a comparison, and the settings of its runs (all but the seed)."""

    method: Method[Any]
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        if callable(Settings.named(**self.settings).participation):
            raise FedfuseError("a comparison needs a participation share: a function cannot be saved")


@dataclass(frozen=True)
class Request:
    """What a comparison is asked for, as ``compare.json`` has it: methods x seeds on one data set."""

    dataset: str  # its name in tables
    source: dict[str, Any] | None  # what `data.load` needs besides the seed; None: a federation built in Python
    witness: int  # the seed whose data have this fingerprint: shows whether the data have changed
    fingerprint: str
    model: str | None  # its name, where one was given
    common: dict[str, Any]  # settings that were given to all methods alike
    methods: dict[str, Entry]  # by their names in the table
    seeds: tuple[int, ...]  # increasing

    @property
    def runs(self) -> list[tuple[str, int]]:
        """All runs, as (method, seed), method by method."""
        return [(label, seed) for label in self.methods for seed in self.seeds]

    @staticmethod
    def run_directory(directory: str | PathLike[str], run: tuple[str, int]) -> Path:
        """Return the directory of one run of a comparison."""
        return Path(directory) / RUNS / f"{run[0]}-seed{run[1]}"

    def extended(self, other: Request, directory: Path) -> Request:
        """Return the request of a directory with the methods and seeds of another; all the rest must agree."""
        shared = self.methods.keys() & other.methods
        difference = _first_difference(self._fixed(shared), other._fixed(shared))
        if difference:
            raise FedfuseError(f"{directory} holds another comparison: {difference}; choose another directory")
        return replace(self, methods=self.methods | other.methods, seeds=tuple(sorted({*self.seeds, *other.seeds})))

    def _fixed(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return what a continued comparison may not change."""
        data = self.to_json()
        names = ["source", "model", "common", "fingerprint", *(["dataset"] if self.source is None else [])]
        return {name: data[name] for name in names} | {"methods": {label: data["methods"][label] for label in labels}}

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-ready data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        methods = {k: {"method": e.method.to_config(), "settings": e.settings} for k, e in self.methods.items()}
        return {"version": __version__, **plain, "methods": methods, "seeds": list(self.seeds)}

    @classmethod
    def load(cls, directory: Path) -> Request:
        """Read ``compare.json``."""
        data = read_json(directory / FILE)
        try:
            entries = {label: Entry(from_config(e["method"]), e["settings"]) for label, e in data["methods"].items()}
            saved = {**data, "methods": entries, "seeds": tuple(data["seeds"])}
            return cls(**{f.name: saved[f.name] for f in fields(cls)})
        except (KeyError, TypeError, AttributeError) as gap:
            raise FedfuseError(f"{directory / FILE} is not a comparison of fedfuse: {gap}") from None


def entries_of(
    methods: Methods,
    dataset: str,
    words: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    over: str | None = None,
) -> dict[str, Entry]:
    """Return the methods of a comparison by their names in the table; see `compare`."""
    chosen = _by_label(methods)
    names = [label for label, method in chosen.items() if method is None]
    if (words or over) and not names:
        raise FedfuseError("key=value words are for methods given by name; set the fields of the others themselves")
    key, values = _read_over(over) if over else ("", [""])
    options = {value: options_by_method([*words, *([f"{key}={value}"] if over else [])], names) for value in values}
    entries = {}
    for label, method in chosen.items():
        if method is not None:
            entries[label] = Entry(method, {**preset(dataset, method.name).settings, **(settings or {})})
            continue
        for value, found in options.items():
            varied = f"{label}-{key}={re.sub(r'[^A-Za-z0-9.+-]+', '_', value)}" if key in keys(label) else label
            entries[varied] = Entry(*build(dataset, label, found[label], settings=settings))
    return entries


def _read_over(text: str) -> tuple[str, list[str]]:
    """Read a key and its values; schedules have commas of their own.

    >>> _read_over("steps=10,decay(9,0.9,5)")
    ('steps', ['10', 'decay(9,0.9,5)'])
    """
    key, _, rest = (part.strip() for part in text.partition("="))
    values = [part.strip() for part in re.split(r",(?![^(]*\))", rest)]
    if not key or not all(values) or len(set(values)) < len(values):
        raise FedfuseError(f"over takes key=value,value,… with every value once, got {text!r}")
    return key, values


def seeds_of(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Return seeds in increasing order: this many from 0 on, or these."""
    numbers = list(range(int(seeds)) if isinstance(seeds, Integral) else seeds)  # type: ignore[arg-type]
    if not numbers or not all(isinstance(n, Integral) and n >= 0 for n in numbers):
        raise FedfuseError(f"seeds must be how many (at least 1) or a list of whole numbers from 0 on, got {seeds!r}")
    if len(set(numbers)) < len(numbers):
        raise FedfuseError(f"each seed may be given only once, got {', '.join(map(str, numbers))}")
    return tuple(sorted(int(n) for n in numbers))


def _by_label(methods: Methods) -> dict[str, Method[Any] | None]:
    """Return methods by their names in the table; None for those given by name, which are still to be built."""
    if isinstance(methods, str):
        methods = methods_of(methods) if methods in FAMILIES else [word.strip() for word in methods.split(",")]
    pairs: list[tuple[str, Method[Any] | None]]
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    else:
        pairs = [(m, None) if isinstance(m, str) else (m.name, m) for m in methods]
    if not pairs:
        raise FedfuseError("no method to compare; give names, or a family")
    found: dict[str, Method[Any] | None] = {}
    for label, method in pairs:
        if method is None:
            method_called(label)  # raises an error for an unknown name
        elif not re.fullmatch(r"[\w.+=-]+", label):
            raise FedfuseError(f"{label!r} cannot name a directory: use letters, digits and . + = - _")
        if label in found:
            advice = "in Python, {'a': FPFC(…), 'b': FPFC(…)} tells them apart"
            raise FedfuseError(f"method {label!r} is given twice; {advice}")
        found[label] = method
    return found


def _first_difference(old: Any, new: Any, name: str = "") -> str | None:
    """Say where two pieces of JSON differ first, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        found = (_first_difference(old.get(key), new.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
        return next(filter(None, found), None)
    same = list(old) == list(new) if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) else old == new
    if same:
        return None
    if name == "fingerprint":
        return "the data differ"
    before, after = ("not given" if value is None else value for value in (old, new))
    return f"{name.removeprefix('common.').removeprefix('source.')} was {before} and is now {after}"
