"""Commands of many runs and of measurements: compare, sweep, path, bench, paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedfuse.cli import arguments as args
from fedfuse.cli.arguments import Arg, DataOptions, Opt
from fedfuse.cli.console import INTERRUPTED_STATUS, Answers, console, fail
from fedfuse.cli.display import compare_and_show
from fedfuse.errors import FedfuseError

if TYPE_CHECKING:
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.jobs import Watcher


def _study(
    dataset: str, what: str, *, seeds: str, rounds: int | None, out: Path | None, words: list[str], data: DataOptions
) -> dict[str, Any]:
    """Return what `compare` and `sweep` are given besides methods; all of it checked."""
    if rounds is not None:
        args.refuse_key("rounds", words, f"--rounds {rounds} is given too; leave one of them out")
    place = out or args.next_directory(dataset, what)
    return {"seeds": args.read_seeds(seeds), "rounds": rounds, "out": place, "words": words, **data.source()}


@args.with_data_options
def compare(
    dataset: args.Dataset,
    *,
    methods: Annotated[str, Opt(help="paper, clustered, personal, all, or names separated by commas.")] = "paper",
    seeds: Annotated[str, Opt(help="How many (3), or which (0,5,7).")] = "3",
    rounds: args.Rounds = None,
    metric: args.Metric = None,
    class_weight: args.ClassWeight = None,
    jobs: args.Jobs = None,
    data: args.DataOptions,
    out: args.StudyOut = None,
    set_: Annotated[list[str], Opt("--set", help="key=value or method.key=value, e.g. fpfc.lam=0.6.")] = [],  # noqa: B006
    json_: args.Json = False,
) -> None:
    """Compare methods by mean and spread over seeds, with the same data for all."""
    from fedfuse.studies.compare import compare

    words = args.words_of(set_, metric=metric, class_weight=class_weight)
    how = _study(dataset, "compare", seeds=seeds, rounds=rounds, out=out, words=words, data=data)
    compare_and_show(lambda watcher: compare(dataset, methods, jobs=jobs, watcher=watcher, **how), how["out"], json_)


@args.with_data_options
def sweep(
    dataset: args.Dataset,
    *,
    over: Annotated[str, Opt(help="A setting and its values, e.g. lam=0.1,0.2,0.4; or start=50 for random starts.")],
    method: Annotated[str, Opt(help="Names separated by commas.")] = "fpfc",
    seeds: Annotated[str, Opt(help="How many (1), or which (0,5,7).")] = "1",
    rounds: args.Rounds = None,
    jobs: args.Jobs = None,
    data: args.DataOptions,
    out: args.StudyOut = None,
    plot: args.Plot = None,
    set_: args.Set = [],  # noqa: B006
    json_: args.Json = False,
) -> None:
    """Show how much a setting matters: the same runs for each of its values, or from random starts."""
    from fedfuse.report.plots import check_picture, save_picture
    from fedfuse.studies.sweep import Over, sweep

    key = Over.read(over).key
    if plot:
        check_picture(plot)
    how = _study(dataset, f"sweep-{key}", seeds=seeds, rounds=rounds, out=out, words=set_, data=data)

    def work(watcher: Watcher) -> Comparison:
        found = sweep(dataset, over, method, jobs=jobs, watcher=watcher, **how)
        if plot:
            save_picture(found.plot(), plot)
        return found.comparison

    compare_and_show(work, how["out"], json_)


@args.with_data_options
def path(
    *,
    out: Annotated[Path, Opt(help="The picture (.png, .svg or .pdf).")],
    dataset: Annotated[str | None, Arg(help="As for run; without it, the paper's toy example (its Figure 1).")] = None,
    penalty: Annotated[str, Opt(help="smoothed-scad, scad, mcp, l1 or l2.")] = "smoothed-scad",
    grid: Annotated[str | None, Opt(help="Increasing lambdas, e.g. 0,0.5,1 (default: from distances).")] = None,
    seed: args.Seed = 0,
    data: args.DataOptions,
) -> None:
    """Draw how devices' models meet as lambda grows, each device's problem solved exactly."""
    from fedfuse.report.plots import check_picture, plot_figure1, save_picture
    from fedfuse.studies.solution_path import check_penalty, solution_path

    check_picture(out)
    check_penalty(penalty)
    lambdas = None if grid is None else args.read_grid(grid)
    if dataset is None:
        with console.status("the toy example under four penalties …"):
            axes = plot_figure1()
    else:
        federation = args.load_data(data.source_of(dataset, seed))
        with console.status("following the devices' models along lambda …"):
            found = solution_path(federation, penalty, lambdas)
        Answers().say(repr(found))
        axes = found.plot()
    save_picture(axes, out)
    Answers().say(f"picture: {out}")


def bench(
    out: Annotated[Path, Opt(help="Where to write the figures.")] = Path("bench.json"),
    quick: Annotated[bool, Opt(help="Small sizes, for a first look.")] = False,
    only: Annotated[str, Opt(help="Parts to measure, as server,local (default: all).")] = "",
    history: Annotated[Path | None, Opt(help="Append the figures to this file, as one line of JSON.")] = Path(
        "bench-history.jsonl"
    ),
    page: Annotated[Path | None, Opt(help="Write a page in Markdown, with a picture beside it.")] = None,
) -> None:
    """Measure fedfuse against textbook loops, plain NumPy, plain PyTorch and this machine's limits, in one process."""
    from fedfuse.bench import FULL, QUICK, chosen, run_all

    run_all(out, QUICK if quick else FULL, console=Answers(), only=chosen(only), history=history, page=page)


def paper(
    names: Annotated[list[str], Arg(metavar="NAME", help="list, all, page, or names as list shows them.")],
    quick: Annotated[bool, Opt("--quick", help="Less data, fewer rounds and seeds: minutes.")] = False,
    middle: Annotated[bool, Opt("--middle", help="All data, one seed, fewer rounds: an hour or two.")] = False,
    out: Annotated[Path, Opt(help="Where runs are kept, and tables and figures written.")] = Path("runs/paper"),
    page: Annotated[Path, Opt(help="Where 'paper page' writes.")] = Path("docs/reproduction.md"),
    jobs: args.Jobs = None,
    data_dir: args.DataDir = None,
) -> None:
    """Reproduce a table or figure of the paper, its numbers beside ours; finished runs are reused."""
    from fedfuse.cli.paper_commands import SPECIAL_NAMES, make, show_list, write_page
    from fedfuse.report.plots import check_picture

    if quick and middle:
        raise FedfuseError("--quick and --middle are two sizes: give one of them")
    place = str(data_dir.absolute()) if data_dir else None
    special = [name for name in names if name in (*SPECIAL_NAMES, "all")]
    if special and len(names) > 1:
        raise FedfuseError(f"{special[0]} stands alone, got {' '.join(names)}")
    if jobs is not None and jobs < 1:
        raise FedfuseError(f"--jobs must be at least 1, got {jobs}")
    if names == ["list"]:
        show_list(out, place, Answers())
        return
    check_picture("figure.svg")
    if names == ["page"]:
        write_page(page, out, place, Answers())
        return
    try:
        make(names, "quick" if quick else "middle" if middle else "full", out, place, jobs, console, Answers())
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on where it was", INTERRUPTED_STATUS)
