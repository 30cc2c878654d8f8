"""``fedfuse report``: a run or a comparison as one page that opens from disk without a network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from fedfuse._version import __version__
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.report.palette import COLOURS, COLOURS_ON_DARK, tone
from fedfuse.results.result import Result
from fedfuse.results.run_directory import RunDirectory
from fedfuse.studies.compare import is_comparison
from fedfuse.training.evaluation import Baselines
from fedfuse.utils.files import atomic_write, make_directory, naming_damage

FILE = "report.html"
TEMPLATES = Path(__file__).parent / "templates"
NO_DEVICES: dict[str, Any] = {"names": [], "groups": [], "pairs": None}  # For the script of pages without devices.


def write_report(
    directory: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    federation: Federation | None = None,
    baselines: bool = True,
) -> Path:
    """Write the page of a finished run or of a comparison to ``out`` (by default ``report.html`` in its directory).

    ``baselines`` says whether to fit local and pooled models to compare with, where that was not done yet. It needs the
    data: those of a run from Python are its ``federation``, those with a name are found without it.
    """
    place = Path(directory)
    page = Path(out) if out is not None else place / FILE
    if page.is_dir():
        raise FedfuseError(f"the page is a file, but {page} is a directory; give a name such as {page / FILE}")
    text = render(place, federation=federation, baselines=baselines)
    make_directory(page.parent)
    with atomic_write(page) as file:
        file.write(text.encode())
    return page


def render(directory: Path, *, federation: Federation | None = None, baselines: bool = True) -> str:
    """Return the page as text."""
    if is_comparison(directory):
        from fedfuse.report.comparison_page import comparison_page

        return page_of("comparison.html.j2", comparison_page(directory))
    from fedfuse.methods.registry import METHODS, from_config
    from fedfuse.report.run_page import run_page

    with naming_damage(directory):
        config = Result.load(directory).method
        if config["method"] in METHODS:
            from_config(config)  # Refuses settings that the method cannot have.
        return page_of("run.html.j2", run_page(directory, *fitted_baselines(directory, federation, wanted=baselines)))


def fitted_baselines(
    directory: Path, federation: Federation | None = None, *, wanted: bool = True
) -> tuple[Baselines | None, str]:
    """Return local and pooled models beside a run, fitted where they are missing; or why there are none.

    Where rows are loaded for it, the run gets its `Result.intervals`, too.
    """
    if (known := Baselines.load(directory)) is not None:
        return known, ""
    result = Result.load(directory)
    if not wanted and result.compared:
        return None, ""
    if not result.model.convex:
        return None, "Local and pooled models to compare with are fitted for linear and softmax models only."
    if not wanted:
        return None, "Local and pooled models to compare with were not fitted."
    try:
        profile, federation = result.profile, federation or RunDirectory(directory).federation()
        fitted = Baselines.of(federation, result.model, profile.metric, profile.class_weights)
    except (FedfuseError, OSError) as problem:
        return None, f"Local and pooled models to compare with are missing: {problem}."
    fitted.save(directory)
    with suppress(FedfuseError):  # There are too many coefficients for intervals.
        replace(result, intervals=result.infer(federation)).save_coefficients(directory)
    return fitted, ""


def page_of(template: str, content: dict[str, Any]) -> str:
    """Fill a template; all text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from fedfuse.report import explanations

    loader = FileSystemLoader(TEMPLATES)
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    pages.globals |= {"tone": tone, "words": explanations}
    style = Markup(pages.get_template("style.css").render(colours=COLOURS, colours_on_dark=COLOURS_ON_DARK))
    script = Markup((TEMPLATES / "page.js").read_text(encoding="utf-8"))
    content |= {"data": {**content["data"], "colours": len(COLOURS)}}
    return pages.get_template(template).render(content, style=style, script=script, version=__version__)
