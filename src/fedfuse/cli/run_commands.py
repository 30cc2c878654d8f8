"""Commands that train: run, tune, resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedfuse.cli import arguments as args
from fedfuse.cli.arguments import Arg, Opt
from fedfuse.cli.console import Answers
from fedfuse.cli.display import compare_and_show, train_and_show

if TYPE_CHECKING:
    from fedfuse.results.result import Result
    from fedfuse.training.loop import Callback

# Written out: help and completion need not import the methods.
_METHOD = """fusion-tree, fpfc, fpfc-l1, local, fedavg, fedasync, lg-fedavg, per-fedavg, ifca, cfl, pacfl, fedprox,
scaffold, fedavg-ft, ditto, fedper, fedrep, pfedme, l2gd, fedamp, mocha, fedem, hypcluster, odcl-cc, odcl-km, fl-hc,
stocfl, network-lasso, oracle (default: fusion-tree; with --lam, fpfc)."""
_LAM = "Strength of FPFC's penalty, or how it is chosen: auto (along a path), or warmup or separate, as in the paper."


@args.with_data_options
def run(
    dataset: args.Dataset,
    *,
    method: Annotated[str | None, Opt(help=_METHOD)] = None,
    lam: Annotated[str | None, Opt(help=_LAM)] = None,
    rounds: args.Rounds = None,
    seed: args.Seed = 0,
    data: args.DataOptions,
    model: Annotated[str | None, Opt(help="softmax, linear, cnn or mlp (default: by target; cnn for images).")] = None,
    metric: args.Metric = None,
    class_weight: args.ClassWeight = None,
    engine: args.Engine = "inprocess",
    out: args.Out = None,
    set_: args.Set = [],  # noqa: B006
    baselines: Annotated[bool, Opt(help="Fit separate and pooled models for comparison.")] = True,
    report: Annotated[bool | None, Opt(help="Write report.html (default: unless --json).")] = None,
    json_: args.Json = False,
    explain: Annotated[bool, Opt("--explain", help="List what would be sent in each stage; train nothing.")] = False,
) -> None:
    """Train on a data set and show which devices form groups."""
    from fedfuse.data.catalog import absolute, load
    from fedfuse.methods.registry import default_name
    from fedfuse.results.run_directory import RunDirectory
    from fedfuse.training.fit import fit

    # Check everything first, then load, and write last.
    method = method or default_name(lam)
    words = args.words_of(set_, lam=lam, rounds=rounds, metric=metric, class_weight=class_weight)
    chosen, settings = args.method_and_settings(dataset, method, words, seed, engine, model)
    directory = out or args.next_directory(dataset, f"{method}-seed{seed}")
    RunDirectory(directory).check_free()
    # What finds the data now, and again when the run is resumed from another directory.
    source = {"dataset": absolute(dataset), "seed": seed, **data.source()}
    federation = load(**source)
    if explain:
        from fedfuse.training.explain import explain as explanation

        Answers().say(explanation(federation, chosen, model, **settings))
        return

    def train(callbacks: list[Callback]) -> Result:
        named: dict[str, Any] = {"dataset": dataset, "source": source}
        return fit(federation, chosen, model, out=directory, callbacks=callbacks, **named, **settings)

    train_and_show(train, directory, json_, federation if baselines else None, report)


@args.with_data_options
def tune(
    dataset: args.Dataset,
    *,
    strategy: Annotated[str, Opt(help="warmup or separate.")] = "warmup",
    method: Annotated[str, Opt(help="fpfc or fpfc-l1.")] = "fpfc",
    rounds: args.Rounds = None,
    seed: args.Seed = 0,
    data: args.DataOptions,
    metric: args.Metric = None,
    class_weight: args.ClassWeight = None,
    engine: args.Engine = "inprocess",
    out: args.Out = None,
    set_: args.Set = [],  # noqa: B006
    json_: args.Json = False,
) -> None:
    """Tune lambda on validation rows as in the paper, and train with it; same as run with --lam warmup or separate."""
    from fedfuse.errors import check_choice
    from fedfuse.grouping.lambda_path import Strategy

    args.refuse_key("lam", set_, "lambda is chosen here; --set grid=0,0.5,1 has the candidates")
    check_choice("strategy", strategy, Strategy)
    how: dict[str, Any] = {"rounds": rounds, "seed": seed, "metric": metric, "class_weight": class_weight}
    how |= {"engine": engine, "out": out, "set_": set_, "json_": json_, **vars(data)}
    run(dataset=dataset, method=method, lam=strategy, **how)


def resume(
    directory: Annotated[Path, Arg(help="The directory of an interrupted run or comparison.")],
    engine: Annotated[str | None, Opt(help="Where devices compute (default: as before).")] = None,
    json_: args.Json = False,
) -> None:
    """Continue an interrupted run or comparison; the result is the same as without the interruption."""
    from fedfuse.engines.factory import EngineSpec
    from fedfuse.studies.compare import is_comparison, resume_comparison
    from fedfuse.training.fit import resume as go_on

    if engine is not None:
        EngineSpec(engine)  # checks the name even if nothing is left to compute
    if is_comparison(directory):
        compare_and_show(lambda watcher: resume_comparison(directory, None, watcher), directory, json_)
        return

    def train(callbacks: list[Callback]) -> Result:
        return go_on(directory, callbacks=callbacks, engine=engine)

    train_and_show(train, directory, json_, None, None)
