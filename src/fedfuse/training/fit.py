"""Start or resume a run: `fit` and `resume` put together what the training loop needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from os import PathLike
from typing import Any

from fedfuse._version import __version__
from fedfuse.data.federation import Federation
from fedfuse.engines.attacks import Attacks, draw_liars, flipped
from fedfuse.engines.base import Engine
from fedfuse.engines.factory import EngineSpec
from fedfuse.errors import FedfuseError, Terminated
from fedfuse.methods.fpfc import BaseFPFC
from fedfuse.methods.method import Method
from fedfuse.methods.one_model.fedavg import OneModel
from fedfuse.methods.personal.lg_fedavg import LGFedAvg
from fedfuse.methods.personal.local import Local
from fedfuse.methods.registry import METHODS, default_name
from fedfuse.methods.registry import from_config as method_from_config
from fedfuse.models import SHORT, Model, model_for
from fedfuse.models import from_config as model_from_config
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.training import checkpoint, progress
from fedfuse.training.loop import Callback, Run
from fedfuse.training.options import Options, build
from fedfuse.training.settings import Settings
from fedfuse.training.stages import default_rounds, stages_of

log = logging.getLogger(__name__)


def fit(
    federation: Federation,
    method: Method[Any] | str | None = None,
    model: Model[Any] | str | None = None,
    *,
    rounds: int | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    engine: str | Engine = "inprocess",
    workers: int | None = None,
    callbacks: Iterable[Callback] = (),
    dataset: str = "arrays",
    source: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Find which devices share a model, and train one per group.

    Parameters
    ----------
    federation
        The devices and their rows.
    method
        `FusionTree` by default; or a name, as on the command line: ``"fedavg"``, with work that suits the model.
    model
        Softmax regression for classes, linear regression for values and the paper's network for images by default; or a
        name: ``"softmax"``, ``"linear"``, ``"cnn"``, ``"mlp"``.
    rounds, seed
        At most so many rounds in all (500; networks: 60; more where settings are searched for); every random draw
        depends on the seed.
    out
        A new directory for checkpoints and results.
    engine, workers
        Where devices compute: ``"inprocess"``, ``"workers"`` for so many processes beside this one (by default
        one for each core), or ``"flower"`` for Flower's simulation engine. The result is the same to the bit. Or an
        engine of your own, which is closed at the end.
    callbacks
        Hooks into the run.
    dataset, source
        How the data are called in the summary, and how `resume` finds them again.
    **settings
        The other fields of `Settings`.

    Examples
    --------
    >>> import fedfuse as ff
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(6, 50, 2))
    >>> y = [x @ ([1, 2] if i < 3 else [-2, 1]) + 0.1 * rng.normal(size=50) for i, x in enumerate(X)]
    >>> fed = ff.Federation.from_arrays(list(zip(X, y)))
    >>> res = ff.fit(fed, ff.FPFC(lam=0.5, work=ff.Work(solver="exact")))
    >>> res.labels.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    method, model, chosen = prepared(federation, method, model, rounds, seed=seed, **settings)
    place = engine if isinstance(engine, Engine) else EngineSpec(engine, workers)
    run_directory = RunDirectory(out) if out is not None else None
    if run_directory:
        run_directory.check_free()
    run = _run(federation, model, method, chosen, place, run_directory, callbacks, dataset)
    with closing(run.engine):
        run.begin()  # What cannot be is refused before anything is written.
        if run_directory is None:
            return run.go()
        config = _config(run, source, EngineSpec() if isinstance(place, Engine) else place)
        with run_directory.lock():
            run_directory.create(config)
            return _finish(run)


def resume(
    directory: str | PathLike[str],
    federation: Federation | None = None,
    callbacks: Iterable[Callback] = (),
    model: Model[Any] | None = None,
    *,
    engine: str | Engine | None = None,
    workers: int | None = None,
) -> Result:
    """Resume an interrupted run from its last checkpoint; the result is the same to the bit.

    ``federation`` is needed only where the run was started from Python on data without a name, ``model`` only where
    it trains a module of your own (`TorchModel`): with the weights that it had, if some of them are frozen. ``engine``
    and ``workers`` are needed only to compute elsewhere than before, or where the run had an engine of its own.
    """
    run_directory = RunDirectory(directory)
    run_directory.config()  # A directory without a run is refused, and not made.
    with run_directory.lock():
        if not run_directory.finished:
            run = _saved(run_directory, federation, callbacks, model, engine, workers)
            with closing(run.engine):
                if not checkpoint.restore(run, run_directory):
                    run.begin()
                return _finish(run)
        run_directory.tidy()
    return Result.load(directory, model)


def _saved(
    run_directory: RunDirectory,
    federation: Federation | None,
    callbacks: Iterable[Callback],
    model: Model[Any] | None,
    engine: str | Engine | None,
    workers: int | None,
) -> Run:
    """Return the run that a directory's configuration asks for."""
    directory, config = run_directory.path, run_directory.config()
    try:
        settings, method = Settings(**config["settings"]), method_from_config(config["method"])
        model, dataset = model_from_config(config["model"], model), config["dataset"]
        spec = EngineSpec(**config.get("engine", {}))
    except KeyError as gap:
        raise FedfuseError(f"{directory} holds no run that can be resumed: config.json lacks {gap}") from None
    except (TypeError, AttributeError, ValueError) as problem:
        raise FedfuseError(f"{directory} holds no run that can be resumed: in config.json, {problem}") from None
    if config.get("version") != __version__:
        words = "the run in %s was started by fedfuse %s, this is %s: the last digits may differ"
        log.warning(words, directory, config.get("version"), __version__)
    federation = run_directory.federation(federation)
    model = model_for(federation, model)
    place: Engine | EngineSpec = spec if workers is None else replace(spec, workers=workers)
    if isinstance(engine, Engine):
        place = engine
    elif engine is not None and engine != spec.name:
        place = EngineSpec(engine, workers)
    return _run(federation, model, method, settings, place, run_directory, callbacks, dataset)


def prepared(
    federation: Federation,
    method: Method[Any] | str | None,
    model: Model[Any] | str | None,
    rounds: int | None,
    **settings: Any,
) -> tuple[Method[Any], Model[Any], Settings]:
    """Return the method, model and settings that are asked for, with defaults by the data; refuse what cannot be."""
    check_federation(federation)
    chosen = Settings.named(**settings)
    model = fitting_model(federation, model)
    method = fitting_method(method, model)
    chosen = replace(chosen, rounds=default_rounds(method, model) if rounds is None else rounds)
    if not model.convex and getattr(method, "inner", method).work.solver == "exact":
        raise FedfuseError(
            "a network has no exact solver: give work=Work(steps=5, lr=0.05, batch=10) or the like; on the command "
            "line, --set steps=5 --set lr=0.05 --set batch=10"
        )
    _check_noise(method, model, chosen)
    return method, model, chosen


def _run(
    federation: Federation,
    model: Model[Any],
    method: Method[Any],
    settings: Settings,
    engine: Engine | EngineSpec,
    run_directory: RunDirectory | None,
    callbacks: Iterable[Callback],
    dataset: str,
) -> Run:
    """Return a run, with an engine under the conditions of its settings and a record of its progress."""
    seed, class_weights = settings.seed, federation.class_weights(settings.class_weight)
    if isinstance(engine, Engine) and class_weights:
        raise FedfuseError("class_weight does not work with an engine of your own: give its federation weights instead")
    if isinstance(engine, EngineSpec):
        trained = federation.weighted(class_weights)
        if settings.attack == "label-flip":
            trained = flipped(trained, draw_liars(trained.m, settings.liars, seed))
        engine = engine.build(trained, model, seed, settings.dtype, settings.noise())
    if settings.attack is not None:
        how: dict[str, Any] = {"lies": settings.lies, "scope": settings.scope, "shared": model.fused.start}
        engine = Attacks(engine, settings.attack, m=federation.m, share=settings.liars, seed=seed, **how)
    hooks = [*([progress.Recorder(run_directory.path)] if run_directory else []), *callbacks]
    engine = settings.around(engine)
    return Run(federation, model, method, settings, engine, run_directory, hooks, dataset, class_weights)


def _finish(run: Run) -> Result:
    try:
        result = run.go()
    except (KeyboardInterrupt, Terminated):
        run.save()
        raise
    if run.directory:
        result.save(run.directory.path)
        run.directory.tidy()
    return result


def check_federation(given: Any) -> None:
    """Refuse what is no federation, and say how to make one."""
    if not isinstance(given, Federation):
        raise FedfuseError(
            f"fit needs a Federation, got {_kind(given)}; make one by Federation.from_arrays({{name: (X, y), …}}) or "
            "Federation.from_frame(frame, device=…, target=…)"
        )


def fitting_method(given: Any, model: Model[Any]) -> Method[Any]:
    """Return the method that is asked for, by name or as it is; without one, the fusion tree."""
    if given is None or isinstance(given, str):
        return build("arrays", given or default_name(), Options(), network=not model.convex)[0]
    if not isinstance(given, Method):
        raise FedfuseError(
            f"method must be one such as FusionTree() or a name ({', '.join(METHODS)}), got {_kind(given)}"
        )
    return given


def _kind(given: Any) -> str:
    """Say what was given in place of something else."""
    if isinstance(given, type):
        return f"the class {given.__name__}: give an instance, {given.__name__}()"
    short = isinstance(given, (int, float, complex))
    return "None" if given is None else f"{type(given).__name__}{f' {given!r}' if short else ''}"


def fitting_model(federation: Federation, model: Model[Any] | str | None) -> Model[Any]:
    """Return the model that is asked for, by name or as it is, or that suits the data; with their sizes."""
    if model is not None and not isinstance(model, (Model, str)):
        raise FedfuseError(
            f"model must be one such as SoftmaxRegression() or a name ({', '.join(SHORT)}), got {_kind(model)}"
        )
    return model_for(federation, model)


def _check_noise(method: Method[Any], model: Model[Any], settings: Settings) -> None:
    """Refuse a method that asks devices for more than changes of models, if these are to be protected."""
    if not settings.epsilon:
        return
    protected = (BaseFPFC, OneModel, Local, LGFedAvg)
    wrong = [s for s in stages_of(method, model, settings.rounds) if not isinstance(s.method, protected)]
    if wrong:
        raise FedfuseError(
            f"epsilon: {method.name} asks devices for more than changes of models ({wrong[-1].name}), which "
            "noise cannot protect: use fpfc with a lambda and refit=no, or fedavg"
        )


def _config(run: Run, source: dict[str, Any] | None, place: EngineSpec) -> dict[str, Any]:
    if callable(run.settings.participation):
        raise FedfuseError("a run directory needs a participation share: a function cannot be saved")
    return {
        "version": __version__,
        "dataset": run.dataset,
        "source": source,
        "fingerprint": run.federation.fingerprint,
        "model": run.model.to_config(),
        "method": run.method.to_config(),
        "settings": asdict(run.settings),
        "engine": asdict(place),
    }
