"""Run directories: what a run is asked, its checkpoint, and its result, as plain files.

``config.json`` says what was asked for, ``checkpoint/latest.npz`` is there during the run, and `Result.save`
writes the rest. Every file is written whole or not at all. Nothing is pickled, so nothing is executed when a directory
is read. Files may have been edited by hand: all are checked here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils import files
from fedfuse.utils.files import NOTHING, NUMBER, Kinds, check_fields, read_arrays, read_json

if TYPE_CHECKING:
    from fedfuse.data.federation import Federation
    from fedfuse.models import Model

# Of methods and settings in version 0.1.0.
REMOVED_FIELDS = ("collapse", "memory", "spill", "backend", "blocks", "near", "overselect", "screen", "cap")
CONFIG: dict[str, Kinds] = {
    "dataset": str, "source": (dict, NOTHING), "fingerprint": str, "model": (dict, str), "method": dict,
    "settings": dict, "engine": dict, "version": str,
}  # fmt: skip
SUMMARY: dict[str, Kinds] = {
    "dataset": str, "method": str, "seed": int, "lam": (*NUMBER, NOTHING), "rounds": int, "metric": str,
    "cost_floats": int, "seconds": NUMBER, "labels": list[int], "version": str, "converged": bool, "chosen": dict,
    "refused": dict[str, int], "orders": dict[str, int], "stability": (*NUMBER, NOTHING), "suspects": list,
}  # fmt: skip
# Not in every summary.
SOMETIMES: dict[str, Kinds] = {"stages": list, "refit_rounds": int, "trouble": dict, "privacy": dict}
SOMETIMES |= {"certificate": dict, "left_out": dict[str, str], "capped": dict[str, int]}
STAGE: dict[str, Kinds] = {"name": str, "rounds": int, "floats": int}
PROFILE: dict[str, Kinds] = {
    "model": (dict, str), "method": dict, "names": list[str], "goal": str, "classes": list, "features": list[str],
    "counts": list[int], "truth": (list[int], NOTHING), "encoder": (dict, NOTHING),
}  # fmt: skip
# Fields of a result that a summary has as they are.
AS_SUMMARISED = (
    "dataset", "seed", "converged", "orders", "cost_floats", "refused", "seconds", "stability", "chosen", "trouble",
    "privacy", "left_out", "capped",
)  # fmt: skip
INTERVALS = ["cluster", "group", "against", "output", "feature", "estimate", "se", "df", "low", "high", "p", "p_holm"]
INTERVALS += ["detectable"]
_META = "meta"
CHECKPOINT, ROUNDS = "checkpoint", "rounds.jsonl"  # Of an unfinished run: a folder, and its history so far.


class RunDirectory:
    """A run directory."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.path = Path(directory)

    def check_free(self) -> None:
        """Refuse a directory that holds a run already."""
        if self.path.exists() and not self.path.is_dir():
            raise FedfuseError(f"{self.path} is a file; a run needs a directory")
        if self.started:
            advice = "choose another directory"
            if not self.finished:
                advice = f"go on with it by 'fedfuse resume {self.path}' or {advice}"
            raise FedfuseError(f"{self.path} already holds a run: {advice}")

    def create(self, config: dict[str, Any]) -> None:
        """Write what the run is asked; refuse to write over another run."""
        self.check_free()
        files.make_directory(self.path)
        files.write_json(self.path / "config.json", config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the directory, which is made if there is none."""
        files.make_directory(self.path)
        files.check_no_link(self.path / CHECKPOINT)
        with files.directory_lock(self.path):
            yield

    def config(self) -> dict[str, Any]:
        """Return what the run was asked."""
        path = self.path / "config.json"
        config = check_fields(read_json(path), CONFIG, path, whole=False)
        if "method" in config:
            config["method"] = modern_config(config["method"])
        if "settings" in config:  # One that was switched on cannot be left out: the run would end elsewhere.
            config["settings"] = {k: v for k, v in config["settings"].items() if v or k not in REMOVED_FIELDS}
        return config

    def federation(self, given: Federation | None = None) -> Federation:
        """Return the federation of the run, loaded again where it is not given; refuse one with other rows."""
        from fedfuse.data.catalog import load_again

        config = self.config()
        if given is None and config.get("source") is None:
            raise FedfuseError(
                f"the run in {self.path} was started from Python on unnamed data: resume it there with "
                "fedfuse.resume(directory, federation)"
            )
        federation = given or load_again(config["source"], self.path / "config.json")
        if federation.fingerprint != config.get("fingerprint"):
            raise FedfuseError(f"the run in {self.path} belongs to another federation: the data differ")
        return federation

    @property
    def started(self) -> bool:
        return (self.path / "config.json").exists() or self.finished

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def save_checkpoint(self, meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Replace the last checkpoint."""
        files.make_directory(self._checkpoint.parent)
        text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        files.write_arrays(self._checkpoint, {_META: text, **arrays})

    def load_checkpoint(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
        """Return the last checkpoint, or None if there is none yet."""
        if not self._checkpoint.exists():
            return None
        try:
            arrays = read_arrays(self._checkpoint)
            return json.loads(arrays.pop(_META).tobytes()), arrays
        except FedfuseError as problem:
            raise FedfuseError(f"{problem}; remove it to start the run again") from None
        except (KeyError, ValueError):
            raise FedfuseError(f"{self._checkpoint} is not a checkpoint of fedfuse") from None

    def tidy(self) -> None:
        """Remove what a finished run needs no more, and what a killed process left half-written."""
        for folder in (CHECKPOINT, "snapshots"):  # The latter is of unfinished runs of older versions.
            shutil.rmtree(self.path / folder, ignore_errors=True)
        for rest in (self.path / ROUNDS, *self.path.glob(f".*{files._HALF}")):
            rest.unlink(missing_ok=True)

    @property
    def _checkpoint(self) -> Path:
        return self.path / CHECKPOINT / "latest.npz"


def modern_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a method's configuration as it is written today."""
    old = "collapse" in config  # In version 0.1.0 FPFC had this option, and with lam="auto" it was the fusion tree.
    config = {name: value for name, value in config.items() if name not in REMOVED_FIELDS}
    if isinstance(config.get("inner"), dict):
        config["inner"] = modern_config(config["inner"])
    if not old or config.get("method") != "fpfc" or config.get("lam") != "auto":
        return config
    common = ("start", "work", "rows", "robust")
    return {"method": "fusion-tree", **{name: config[name] for name in common if name in config}}


def read_run(directory: str | PathLike[str], model: Model[Any] | None = None) -> dict[str, Any]:
    """Return the fields of the result of a finished run; ``model`` is a module of the user's own."""
    path = Path(directory)
    if (path / "config.json").exists() and not (path / "summary.json").exists():
        raise FedfuseError(f"the run in {path} is not finished: continue it with 'fedfuse resume {path}'")
    summary = check_fields(read_json(path / "summary.json"), SUMMARY, path / "summary.json")
    check_fields(summary, SOMETIMES, path / "summary.json", whole=False)
    profile = check_fields(read_json(path / "profile.json"), PROFILE, path / "profile.json")
    arrays = read_arrays(path / "models.npz")
    more = {name: path / f"{name}.npz" for name in ("kept", "sums")}
    also = {name: read_arrays(file) if file.exists() else {} for name, file in more.items()}
    with files.naming_damage(path):
        _check_lists(summary, profile, path)
        _check_arrays(arrays, len(profile["names"]))
        _check_arrays(also["sums"], len(profile["names"]))
        if missing := {"models", "test"} - arrays.keys():
            raise FedfuseError(f"models.npz lacks {' and '.join(sorted(missing))}")
        return {**_fields(summary, profile, arrays, model, path), **also}


def read_history(directory: Path) -> Any:
    """Return the rows of a finished run as a data frame: all columns but the names of stages have numbers."""
    path = directory / "history.csv"
    history = files.read_csv(path)
    words = [name for name in history.columns.difference(["stage"]) if history[name].dtype.kind not in "biuf"]
    if "round" not in history or words or not np.isfinite(history["round"]).all():
        raise FedfuseError(f"{path} is not as fedfuse writes it: {(words or ['round'])[0]!r} must be numbers")
    return history


def _fields(
    summary: dict[str, Any],
    profile: dict[str, Any],
    arrays: dict[str, npt.NDArray[Any]],
    model: Model[Any] | None,
    path: Path,
) -> dict[str, Any]:
    from fedfuse.core.certificate import Certificate
    from fedfuse.models import from_config
    from fedfuse.results.profile import Profile

    known, saved = Profile.from_json(profile), profile["model"]
    method = modern_config(profile["method"])
    shape = saved.get("shape") if isinstance(saved, dict) else None
    used = from_config(saved, model).sized(len(known.features), len(known.classes), tuple(shape) if shape else None)
    models = arrays.pop("models")
    if not np.isfinite(models).all():
        raise FedfuseError(f"{path / 'models.npz'} has models that are not finite and cannot predict")
    if models.shape != (len(known.names), used.d):
        raise FedfuseError(f"models.npz has models of shape {models.shape}, which does not match profile.json")
    if known.encoder is not None and known.encoder.features != known.features:
        raise FedfuseError("profile.json is not as fedfuse writes it: features are not those of its encoder")
    intervals = path / "intervals.csv"
    who = {name: [known.names.index(device) for device in summary.get(name, [])] for name in ("who", "suspects")}
    return {
        **{name: summary[name] for name in AS_SUMMARISED if name in summary},
        "certificate": Certificate.from_json(summary["certificate"]) if "certificate" in summary else None,
        "profile": known, "model": used, "method": method, "models": models,
        "labels": np.array(summary["labels"], dtype=np.int64),
        "confidence": arrays.pop("confidence", None),
        "unheard": arrays.pop("unheard", np.empty(0, np.int64)),
        "alternatives": files.within("alternative.", arrays),
        "compared": files.within("compared.", arrays),
        "verdict": summary.get("verdict") if "alternative.personal" in arrays else None,
        "scores": {name: array for name, array in arrays.items() if "." not in name},
        "history": read_history(path),
        "intervals": files.read_csv(intervals, text=("output", "feature"))[INTERVALS] if intervals.exists() else None,
        "attack": {**{k: summary[k] for k in ("attack", "lies")}, "who": who["who"]} if "attack" in summary else None,
        "suspects": np.array(who["suspects"], dtype=np.int64),
        "rounds": summary["rounds"] + summary.get("refit_rounds", 0),
        "stages": tuple(summary.get("stages", ())),
        "lam": None if method["method"] == "fusion-tree" else summary["lam"],
    }  # fmt: skip


def _check_lists(summary: dict[str, Any], profile: dict[str, Any], path: Path) -> None:
    check_fields(profile["method"], {"method": str}, f"the method in {path / 'profile.json'}")
    for stage in summary.get("stages", ()):
        check_fields(stage, STAGE, f"a stage in {path / 'summary.json'}")
    wrong, m = "is not as fedfuse writes it", len(profile["names"])
    if not all(isinstance(label, (str, *NUMBER)) for label in profile["classes"]):
        raise FedfuseError(f"profile.json {wrong}: 'classes' must be text or numbers")
    if profile["goal"] not in ("classification", "regression"):
        raise FedfuseError(f"profile.json {wrong}: 'goal' is {profile['goal']!r}")
    for name, values in (("counts", profile["counts"]), ("truth", profile["truth"]), ("labels", summary["labels"])):
        if values is not None and (len(values) != m or min(values, default=0) < 0):
            raise FedfuseError(f"{path} {wrong}: {name!r} must be {m} numbers from 0 on")
    if max(summary["labels"], default=0) >= max(m, 1):
        raise FedfuseError(f"{path} {wrong}: 'labels' names group {max(summary['labels'])} of {m} devices")


def _check_arrays(arrays: dict[str, npt.NDArray[Any]], m: int) -> None:
    """Refuse arrays of other devices than the profile has."""
    unheard = arrays.get("unheard", np.empty(0, np.int64))
    if unheard.dtype.kind != "i" or unheard.ndim != 1 or not np.isin(unheard, range(m)).all():
        raise FedfuseError(f"models.npz has {unheard.tolist()} for devices never heard, profile.json names {m}")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise FedfuseError(f"models.npz has {name} as {array.dtype}, not as numbers")
        if name != "unheard" and array.shape[:1] != (m,):
            n = len(array) if array.ndim else 0
            raise FedfuseError(f"models.npz has {name} for {n} devices, profile.json names {m}")
