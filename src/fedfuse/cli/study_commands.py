"""Commands of many runs and of measurements: compare, bench, paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fedfuse.cli import arguments as args
from fedfuse.cli.arguments import Arg, Opt
from fedfuse.cli.console import INTERRUPTED_STATUS, Answers, console, fail
from fedfuse.cli.display import compare_and_show
from fedfuse.errors import FedfuseError


@args.with_data_options
def compare(
    dataset: args.Dataset,
    *,
    methods: Annotated[str, Opt(help="paper, clustered, personal, all, or names separated by commas.")] = "paper",
    over: Annotated[str | None, Opt(help="Run methods with each value of a setting, e.g. lam=0.1,0.2,0.4.")] = None,
    seeds: Annotated[str, Opt(help="How many seeds (3), or which (0,5,7).")] = "3",
    rounds: args.Rounds = None,
    metric: args.Metric = None,
    class_weight: args.ClassWeight = None,
    jobs: args.Jobs = None,
    data: args.DataOptions,
    out: args.StudyOut = None,
    set_: Annotated[list[str], Opt("--set", help="key=value or method.key=value, e.g. fpfc.lam=0.6.")] = [],  # noqa: B006
    json_: args.Json = False,
) -> None:
    """Compare methods, or values of a setting, over several seeds on the same data."""
    from fedfuse.studies.compare import compare

    if rounds is not None:
        args.refuse_key("rounds", set_, f"--rounds {rounds} is given too; leave one of them out")
    place, numbers = out or args.next_directory(dataset, "compare"), args.read_seeds(seeds)
    words = args.words_of(set_, metric=metric, class_weight=class_weight)
    how: dict[str, Any] = {"rounds": rounds, "out": place, "words": words, "over": over, "jobs": jobs, **data.source()}
    compare_and_show(lambda watcher: compare(dataset, methods, numbers, watcher=watcher, **how), place, json_)


def bench(
    out: Annotated[Path, Opt(help="Where to write the figures.")] = Path("bench.json"),
    quick: Annotated[bool, Opt(help="Small sizes, for a first impression.")] = False,
    only: Annotated[str, Opt(help="Parts to measure, e.g. server,local (default: all).")] = "",
) -> None:
    """Measure fedfuse against textbook loops, plain NumPy, plain PyTorch and this machine's limits, in one process."""
    from fedfuse.bench import FULL, QUICK, chosen, run_all

    run_all(out, QUICK if quick else FULL, console=Answers(), only=chosen(only))


def paper(
    names: Annotated[list[str], Arg(metavar="NAME", help="list, all, page, or names shown by list.")],
    quick: Annotated[bool, Opt("--quick", help="Less data, fewer rounds and seeds: minutes.")] = False,
    middle: Annotated[bool, Opt("--middle", help="All data, one seed, fewer rounds: an hour or two.")] = False,
    out: Annotated[Path, Opt(help="Where runs, tables and figures are stored.")] = Path("runs/paper"),
    page: Annotated[Path, Opt(help="Where 'paper page' writes.")] = Path("docs/reproduction.md"),
    jobs: args.Jobs = None,
    data_dir: args.DataDir = None,
) -> None:
    """Reproduce a table or figure of the paper and show the printed numbers beside ours; finished runs are reused."""
    from fedfuse.cli.paper_commands import SPECIAL_NAMES, make, show_list, write_page
    from fedfuse.report.plots import check_picture

    if quick and middle:
        raise FedfuseError("--quick and --middle exclude each other: give only one")
    place = str(data_dir.absolute()) if data_dir else None
    special = [name for name in names if name in (*SPECIAL_NAMES, "all")]
    if special and len(names) > 1:
        raise FedfuseError(f"{special[0]} cannot be combined with other names, got {' '.join(names)}")
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
        fail("interrupted; run the same command again to continue", INTERRUPTED_STATUS)
