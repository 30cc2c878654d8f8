"""What the pages say, without a browser: words, sizes, self-containedness, and what is missing is said."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import fedfuse as ff
from fedfuse.core.certificate import Certificate
from fedfuse.report import FILE, write_report
from fedfuse.report.charts import Axis, Chart
from fedfuse.report.comparison_page import _headline
from fedfuse.report.distance_charts import (
    MAX_FRAMES,
    DendrogramChart,
    PairFrame,
    average_linkage,
    by_group,
    chosen,
)
from fedfuse.report.explanations import doubt, headline, supporting, tried_lambdas, verdict
from fedfuse.report.palette import COLOURS, COLOURS_ON_DARK
from fedfuse.report.run_page import to_the_end
from fedfuse.report.terminal import show
from fedfuse.results.formatting import NOTHING, exposed
from fedfuse.results.result import Result
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.training.evaluation import Baselines
from support.planted import planted


class Links(HTMLParser):
    """All that a page would load or lead to."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [
            (tag, value) for name, value in attributes if name in ("src", "href", "srcset", "action", "poster")
        ]


def links(page):
    parser = Links()
    parser.feed(page)
    return parser.found


@pytest.fixture
def small(tmp_path):
    federation = planted(m=8, groups=2)
    result = ff.fit(federation, ff.FusionTree(personal=False), out=tmp_path / "run", dataset="small")
    return federation, result, tmp_path / "run"


def test_a_thousand_devices_in_less_than_three_megabytes(large_run):
    path, result = large_run
    page = (path / FILE).read_text()
    assert (path / FILE).stat().st_size < 3_000_000
    for name in ("device 0", "device 999"):
        assert name in page
    assert f"{result.n_clusters} groups" in page


@pytest.mark.parametrize("fixture", ["table_run", "large_run", "comparison"])
def test_a_page_needs_nothing_from_elsewhere(fixture, request):
    place = request.getfixturevalue(fixture)
    page = ((place if fixture == "comparison" else place[0]) / FILE).read_text()
    assert all(value.startswith(("#", "data:")) for _, value in links(page)), links(page)
    styles = "".join(re.findall(r"<style>(.*?)</style>", page, re.S))
    assert "url(" not in styles
    assert "@import" not in styles
    scripts = "".join(re.findall(r"<script>(.*?)</script>", page, re.S))
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket", scripts)
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_names_are_escaped_wherever_they_stand(table_run):
    page = (table_run[0] / FILE).read_text()
    assert "&lt;script&gt;document.title" in page
    assert "<script>document.title" not in page
    assert "<img src=x" not in page
    assert "age &lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>x</b>" not in page


def test_numbers_are_those_of_the_run(table_run):
    path, result = table_run
    page = (path / FILE).read_text()
    assert f"{result.score('test'):.4g}" in page
    assert f"{result.cost_floats:,}" in page
    effect = result.coefficients()["age <b>x</b>"].iloc[0]
    assert f"{effect:+.3g}".replace("-", "\N{MINUS SIGN}") in page


def test_without_data_the_page_says_what_is_missing(small):
    _, _, path = small
    page = write_report(path).read_text()
    assert "started from Python on unnamed data" in page
    assert not (path / "baselines.npz").exists()
    assert "one model for all" not in page


def test_with_data_local_and_pooled_models_are_fitted_once(small, monkeypatch):
    federation, _, path = small
    page = write_report(path, federation=federation).read_text()
    assert "with a separate model per device and" in page
    from fedfuse import report

    monkeypatch.setattr(report.Baselines, "of", lambda *_: pytest.fail("fitted again"))
    assert write_report(path).read_text() == page


def test_a_result_that_was_saved_alone_has_a_page(small, tmp_path):
    _, result, _ = small
    result.save(tmp_path / "alone")
    page = write_report(tmp_path / "alone", tmp_path / "pages" / "here.html")
    assert page == tmp_path / "pages" / "here.html"
    assert "8 devices form 2 groups" in page.read_text()


@pytest.mark.parametrize("method", [ff.Local(), ff.FedAvg(), ff.IFCA(n_models=2), ff.PACFL(threshold=10.0)])
def test_other_methods_have_pages(method, tmp_path):
    federation = planted("classification", m=6)
    result = ff.fit(federation, method, rounds=5, out=tmp_path / "run")
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert headline(result) in page.replace("&#39;", "'")
    assert ("The groups</h2>" in page) == method.finds_groups


def test_one_device_and_one_round(tmp_path):
    federation = planted(m=1, groups=1)
    ff.fit(federation, ff.FPFC(lam=0.1, refit=False), rounds=1, out=tmp_path / "run")
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert "There is only one device." in page
    assert "There are too few rounds" in page


def test_liars_are_on_the_page(tmp_path):
    federation = planted(m=12, n=80)
    result = ff.fit(federation, attack="gaussian", liars=0.25, out=tmp_path / "run")
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert "3 devices simulated an attack (gaussian)" in page
    assert result.suspects.size
    assert "gave implausible replies" in page


def test_liars_are_no_groups(tmp_path):
    """Groups, tiles, cards and means are of honest devices; who lies is in one list."""
    federation = planted(m=12, n=80)
    result = ff.fit(federation, attack="gaussian", liars=0.25, out=tmp_path / "run")
    assert result.suspects.tolist() == result.attack["who"] == result.apart.tolist()
    assert result.n_clusters == 5
    sizes = np.bincount(result.labels)
    assert sorted(sizes[result.groups]) == sorted(sizes)[-2:]
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert headline(result) == "9 devices form 2 groups; 3 belong to none."
    assert "among 9 devices; 3 in no group" in page
    assert "In no group: 3 devices" in page
    assert page.count('<article class="card group') == 2
    assert ">the 9 honest devices</th>" in page
    assert "all 3 liars found, nobody else accused" in page
    assert json.loads(re.findall(r'"groups": ?(\[[\d, ]+\])', page)[-1])[-1] == len(result.groups)  # of the slider
    assert f"{result.compared['alone'][result.honest].mean():.4g} with a separate model per device" in page


def test_devices_are_called_what_the_table_calls_them(table_run):
    page = (table_run[0] / FILE).read_text()
    assert headline(table_run[1]) == "10 sites form 2 groups, each with its own model."
    own = replace(table_run[1], verdict="personal")
    drawn = "a personal model, shrunk towards the others."
    assert headline(own) == f"10 sites form 2 groups; each site has {drawn}"
    assert headline(replace(own, stability=0.1)) == f"Each of the 10 sites has {drawn}"
    assert "a separate model per site" in page
    assert "Table of all 10 sites" in page
    assert "Dendrogram of the local models" in page
    assert "distance at which groups merge" in page
    assert "lambda" not in page[page.index("<main") : page.index("</main>")]


def test_the_verdict_names_the_best_model(small):
    _, result, _ = small
    test = result.scores["test"]
    best = verdict(result, {"local": 2 * test, "pooled": 3 * test})
    assert best.startswith("One model per group predicts best: mean test RMSE ")
    assert "with a separate model per device and" in best
    assert verdict(result, {"local": test, "pooled": 3 * test}).startswith(
        "One model per group predicts about as well as a separate model per device: "
    )
    assert verdict(result, {"local": test / 2, "pooled": test}).startswith(
        "A separate model per device predicts better here than one model per group: "
    )


@pytest.mark.parametrize("used", ["groups", "personal", "alone"])
def test_the_verdict_says_what_is_used(used, tmp_path):
    federation = planted(m=8, groups=2)
    result = ff.fit(federation, out=tmp_path / "run")
    assert result.verdict == "groups"
    said = verdict(replace(result, verdict=used, scores={"test": result.compared[used]}), {})
    first = {
        "groups": "One model per group",
        "personal": "A personal model per device",
        "alone": "A separate model per device",
    }
    assert said.startswith(first[used])
    assert f"RMSE {result.comparison()[used]:.4g}, against" in said
    assert said.endswith("with one model for all.")
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert "Coloured dots show the model that is used: one model per group." in page
    assert page.count(f"{result.comparison()['personal']:.4g}") >= 2


def test_where_a_score_is_unknown_nothing_is_compared(tmp_path):
    """A site with rows of one class has no AUC."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 80, 1))
    y = (np.repeat([3, -3], 3)[:, None] * x[:, :, 0] + rng.logistic(size=(6, 80)) > 0).astype(int)
    y[0] = 1
    federation = ff.Federation.from_arrays([*zip(x, y, strict=True)], goal="classification")
    result = ff.fit(federation, metric="auc", out=tmp_path / "run")
    assert np.isnan(result.scores["test"][0]).all()
    page = write_report(tmp_path / "run", federation=federation).read_text(encoding="utf-8")
    assert NOTHING in page
    assert f"({NOTHING})" not in page


def test_the_reason_for_doubt_is_said(small):
    """Many unsure devices are a reason, also where groupings agree fully."""
    _, result, _ = small
    unsure = replace(result, stability=1.0, confidence=np.array([0.5] * 3 + [1.0] * 5))
    assert doubt(unsure) == "The grouping is uncertain: 3 of 8 devices fit two groups about equally well"
    unstable = replace(result, stability=0.4, confidence=np.ones(8))
    assert doubt(unstable).endswith("other groupings are plausible too (stability 0.40 of 1)")


def test_groups_are_numbered_by_size():
    result = ff.fit(planted(m=9, groups=2))
    sizes = np.bincount(result.group_numbers)[1:]
    assert (np.diff(sizes) <= 0).all()
    assert result.devices()["group"].tolist() == result.group_numbers.tolist()


def test_colours_are_distinguishable():
    """Every two groups of twenty differ in OKLab by four just noticeable differences (0.02) or more."""
    for colours in (COLOURS, COLOURS_ON_DARK):
        lab = np.array([oklab(c) for c in colours])
        apart = np.linalg.norm(lab[:, None] - lab, axis=2) + 9 * np.eye(len(lab))
        assert apart.min() > 0.08


def oklab(colour):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    axes = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return axes @ np.cbrt(cones @ linear)


def test_a_page_when_nobody_answers(tmp_path):
    federation = planted()
    method = ff.FPFC(lam=0.3, refit=False)
    result = ff.fit(federation, method, rounds=4, lossy="lost:1", out=tmp_path / "run")
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert result.groups.size == 0
    assert headline(result) == "No groups were found: all 6 devices gave implausible replies or never answered in time."
    assert headline(result) in page
    assert "In no group: 6 devices" in page
    assert "6 devices never answered in time and have no models of their own." in page


def test_whom_the_suspects_are():
    result = ff.fit(planted(m=12, n=80), attack="gaussian", liars=0.25)
    liars = result.attack["who"]
    honest = np.setdiff1d(range(12), liars)[:2]
    some = replace(result, suspects=np.sort([*liars[:2], *honest]))
    assert exposed(some) == "2 of 3 liars found; 2 honest devices accused"
    assert exposed(replace(result, attack=None)) == ""


def test_lambda_is_shown_where_the_method_has_one(tmp_path):
    federation = planted()
    ff.fit(federation, ff.FusionTree(), out=tmp_path / "tree")
    ff.fit(federation, ff.FPFC(lam=0.5, refit=False), rounds=3, out=tmp_path / "given")
    pages = {name: write_report(tmp_path / name, baselines=False).read_text() for name in ("tree", "given")}
    tile = "<dt>lambda</dt><dd><b>0.5</b><small>strength of the penalty</small>"
    assert "<dt>lambda</dt>" not in pages["tree"]
    assert tile in pages["given"]


def test_the_certificate_of_the_grouping_is_shown_where_there_is_one():
    result = ff.fit(planted(), ff.FPFC(lam=0.5), rounds=3)
    for certificate, told in ((Certificate(0.1, 2.0), "0.5 was used."), (Certificate(2.0, 0.1), "No lambda is sure")):
        assert any(told in line for line in supporting(replace(result, certificate=certificate), {}))
    assert not any("stationary" in line for line in supporting(result, {}))


@pytest.mark.parametrize("rounds", [5, None])
def test_a_search_that_was_cut_short_says_so(rounds):
    federation = planted("classification")
    result = ff.fit(federation, ff.FusionTree(), rounds=rounds)
    told = "Fusion tree stopped after 5 rounds, before it had finished: allow more (--rounds)."
    said = told in supporting(result, {})
    assert result.cut_short == said == (rounds == 5)


def test_a_network_has_a_page(tmp_path):
    pytest.importorskip("torch")
    federation = planted("classification", m=6, n=40)
    ff.fit(federation, model="mlp", rounds=4, out=tmp_path / "run", evaluate_every=1)
    page = write_report(tmp_path / "run", federation=federation).read_text()
    assert "are fitted for linear and softmax models only" in page


def test_what_was_tuned_is_shown(tmp_path):
    federation, method = planted(), ff.FPFC(lam="warmup", grid=(0, 0.4, 20.0), work=ff.Work(solver="exact"))
    result = ff.fit(federation, method, rounds=110, out=tmp_path / "run")
    page = write_report(tmp_path / "run", federation=federation).read_text()
    rows = re.findall(
        r"<tr( class=\"best\")?><td class=\"num\">([^<]+)</td>", page.split('id="tuning"')[1].split("</section>")[0]
    )
    assert [(bool(best), float(lam)) for best, lam in rows] == [
        (bool(row.chosen), row.lam) for row in tried_lambdas(result).itertuples()
    ]


def test_newcomers_appear(fedfuse, here, table_run, newcomers):
    shutil.copytree(table_run[0], "run")
    newcomers.to_csv("late.csv", index=False)
    for _ in range(2):  # who comes again is there once
        status, out, err = fedfuse("join", "run", "late.csv")
        assert status == 0, err
    status, out, err = fedfuse("report", "run")
    assert (status, out.strip()) == (0, "run/report.html")
    page = (here / "run" / FILE).read_text()
    assert page.count('<td class="name">&lt;b&gt;late&lt;/b&gt;</td>') == 1
    assert "<b>late" not in page


def test_the_command_line(fedfuse, tables, here):
    status, out, err = fedfuse("run", "stay.csv", "--device", "site", "--target", "stay", "--out", "r")
    assert status == 0, err
    assert "report: r/report.html" in out
    assert "a separate model per site" in (here / "r" / FILE).read_text()
    fedfuse("run", "stay.csv", "--device", "site", "--target", "stay", "--out", "s", "--json")
    assert not (here / "s" / FILE).exists()
    status, out, err = fedfuse("report", "s", "--out", "s.html")  # the table is found again
    assert status == 0, err
    assert "a separate model per site" in (here / "s.html").read_text()
    fedfuse("run", "stay.csv", "--device", "site", "--target", "stay", "--out", "t", "--no-report")
    assert not (here / "t" / FILE).exists()


def test_no_run_no_page(refused, here):
    assert "config.json" in refused("report", "nothing") or "holds no run" in refused("report", "nothing")


def test_an_unfinished_run_is_told_so(refused, here):
    class Stop(ff.Callback):
        def on_round(self, run, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ff.fit(planted(), ff.FPFC(lam=0.4), out="run", callbacks=[Stop()])
    assert "fedfuse resume run" in refused("report", "run")


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours (#rrggbb) as WCAG defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    dark, light = sorted(map(_luminance, (first, second)))
    return round((light + 0.05) / (dark + 0.05), 6)


def _luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_stand_out():
    assert min(contrast(c, "#ffffff") for c in COLOURS) >= 3
    assert min(contrast(c, "#181e25") for c in COLOURS_ON_DARK) >= 3
    assert len(set(COLOURS)) == len(set(COLOURS_ON_DARK)) == 20


def test_pictures_are_few_and_the_last_is_among_them():
    rng = np.random.default_rng(0)
    many = [DistanceSnapshot.of(k, rng.normal(size=(9, 2)), np.arange(9)) for k in range(40)]
    few = chosen(many)
    assert len(few) <= MAX_FRAMES
    assert (few[0], few[-1]) == (many[0], many[-1])
    still = [DistanceSnapshot(k, many[0].levels, 1.0, many[0].labels, many[0].devices) for k in range(5)]
    assert [s.round for s in chosen(still)] == [4]


def test_heat_maps_keep_groups_together_and_maps_keep_distances():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60)
    points = np.array([[0.0, 0.0, 0.0], [10.0, 0.0, 0.0], [0.0, 7.0, 0.0]])[labels]
    pairs = PairFrame.of(
        [DistanceSnapshot.of(0, np.zeros((60, 3)), labels), DistanceSnapshot.of(9, points, labels)], labels
    )
    shown = labels[pairs.devices]
    assert len(np.flatnonzero(np.diff(shown))) == 2
    sizes = np.bincount(labels)[shown]
    assert (np.diff(sizes) <= 0).all()
    flat = pairs.places[-1]
    apart = np.linalg.norm(flat[:, None] - flat, axis=2)
    true = np.linalg.norm(points[pairs.devices][:, None] - points[pairs.devices], axis=2)
    ratio = apart[true > 0] / true[true > 0]
    assert ratio.max() / ratio.min() < 1.02  # three points lie in a plane: nothing is lost but a byte's rounding
    assert apart[true == 0].max() < 1e-6


def test_many_devices_share_cells():
    labels = np.repeat([0, 1], 500)
    pairs = PairFrame.of([DistanceSnapshot.of(0, np.where(labels, 1.0, -1.0)[:, None], labels)], labels)
    n = len(pairs.cells)
    assert n == 300
    heat = np.zeros((n, n))
    heat[np.tril_indices(n)] = pairs.heat[0]
    assert heat[10, 5] == 0
    assert heat[290, 5] == 255


def test_the_tree_has_the_colours_of_the_groups():
    points = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 11.0])[:, None]
    labels = np.array([0, 0, 0, 1, 1, 2])
    tree = DendrogramChart.of(DistanceSnapshot.of(0, points, np.arange(6)), labels + 1)
    assert sorted(tree.leaves.tolist()) == list(range(6))
    assert {tone for tone, _ in tree.paths} == {"g0", "g1", "g2", "between"}
    assert DendrogramChart.of(DistanceSnapshot.of(0, np.zeros((4, 2)), np.arange(4)), np.ones(4, int)) is None


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (1e3, 1e7, ["1,000", "10 k", "100 k", "1 M", "10 M"]),
        (152_933, 349_811, ["200 k"]),
        (1.2e5, 1.8e5, ["120 k", "140 k", "160 k", "180 k"]),
        (3e4, 6e5, ["50 k", "100 k", "200 k", "500 k"]),
    ],
)
def test_marks_of_a_logarithmic_axis_are_round(low, high, marks):
    words = [tick.words for tick in Axis(low, high, log=True).ticks()]
    assert set(marks) <= set(words)
    assert all(len(word) <= 6 for word in words)


def test_there_is_no_half_a_group():
    assert [tick.words for tick in Axis(-0.1, 2.1, whole=True).ticks()] == ["0", "1", "2"]


def test_a_comparison_says_what_has_no_place_on_it(comparison):
    """Nothing is sent by local; a score alone is bold; so few devices cannot tell four methods apart."""
    page = (comparison / FILE).read_text()
    assert page.count("(local sends nothing.)") == 1
    assert "powers of ten" not in page
    assert page.count('class="num best"') == 1
    assert '<tr class="best"' not in page
    assert "Means and standard deviations over seeds. The best score is bold." in page


def test_the_headline_of_a_comparison_names_who_does_about_as_well():
    """Both find the two groups of 24 devices; one model for all is worse; the oracle does not compete."""
    rng, truth = np.random.default_rng(0), np.repeat([0, 1], 12)
    data = []
    for group in truth:
        X = rng.normal(size=(20, 5))
        data.append((X, X @ np.array([3.0, 3.0, 3.0, -3.0, -3.0]) * (-1) ** group + 2 * rng.normal(size=20)))
    federation = ff.Federation.from_arrays(data, truth=truth)
    found = ff.compare(federation, ["fpfc", "fusion-tree", "fedavg", "oracle"], seeds=1)
    best, *equal = found.table.index[found.table["best"]]
    (other,) = {"fpfc", "fusion-tree"} - {best}
    assert equal in ([], [other])
    said = rf"{best} is the best of 3 methods, with a mean test RMSE of [\d.]+; {other} does about as well\."
    assert re.fullmatch(said, _headline(found))


def test_with_one_seed_there_are_no_means(tmp_path):
    methods = {f"local-{k}": ff.Local() for k in range(9)} | {"fedavg": ff.FedAvg(), "again": ff.FedAvg()}
    ff.compare(planted(m=4), methods, seeds=1, rounds=4, jobs=1, out=tmp_path, evaluate_every=1)
    page = write_report(tmp_path).read_text()
    assert "Means and population" not in page
    assert "4 devices are too few for a paired test of 11 methods." in page
    assert "≈" not in page
    key = page[page.index('id="cost"') :]
    assert "local-0</span>" not in key[: key.index("</figure>")]


def test_lines_of_more_methods_than_colours_are_dashed(tmp_path):
    methods = {f"fedavg-{k}": ff.FedAvg() for k in range(len(COLOURS) + 1)}
    ff.compare(planted(m=4), methods, seeds=1, rounds=2, jobs=1, out=tmp_path, evaluate_every=1)
    page = write_report(tmp_path).read_text()
    assert page.count('class="thin g0 second"') == 1
    assert page.count('class="thin g0"') == 1


def test_order_by_group():
    labels = np.array([0, 1, 1, 0, 1])
    order = by_group(labels, average_linkage(DistanceSnapshot.of(0, np.arange(5.0)[:, None], labels)))
    assert labels[order].tolist() == [1, 1, 1, 0, 0]


def test_a_chart_draws_what_is_finite():
    chart = Chart("", Axis(0, 10), Axis(0, 1))
    chart.add("line", [0, 5, 10], [0, np.nan, 1], "g0", "one")
    chart.add("dots", [5], [0.5], "g1", "two")
    assert chart.path(chart.layers[0]) == "M0 1000L1000 0"
    assert chart.path(chart.layers[1]) == "M500.0 500.0h0"
    assert [layer.name for layer in chart.key] == ["one", "two"]


def test_axes():
    axis = Axis.around([1e-6, 1.0, np.nan], log=True)
    assert [t.words for t in axis.ticks()] == ["1e-06", "0.0001", "0.01", "1"]
    assert Axis.around([3.0, 3.0]).low < 3 < Axis.around([3.0, 3.0]).high
    assert Axis.around([]).low < Axis.around([]).high


def test_the_gap_that_groups_were_read_off_is_said():
    result = ff.fit(planted(m=6), ff.FPFC(lam=0.4), rounds=60)
    (sentence,) = [line for line in supporting(result, {}) if "||theta||" in line]
    below, above = result.kept["gap"]
    assert f"at most {below:.2g} within groups and at least {above:.2g} between them" in sentence
    assert not [s for s in supporting(ff.fit(planted(m=6), ff.FPFC(lam=0.4, nu=0.1), rounds=60), {}) if "theta" in s]


def test_intervals_are_on_the_page_where_rows_are_at_hand(table_run, small):
    page = (table_run[0] / FILE).read_text()
    intervals = Result.load(table_run[0]).intervals
    age = intervals[intervals["feature"].str.startswith("age") & (intervals["group"] == 1)].iloc[0]
    assert f"{age['estimate']:.3g} [{age['low']:.3g}, {age['high']:.3g}]***" in page
    assert "the difference found with 80 % power" in page
    _, _, path = small
    assert "95 % confidence intervals" not in write_report(path).read_text()


def test_one_group_says_why_it_is_not_quite_one_model_for_all(tmp_path, capsys):
    federation = planted(m=5, groups=1)
    result = ff.fit(federation, ff.FusionTree(personal=False), out=tmp_path / "run")
    assert result.n_clusters == 1
    assert "the other has a fixed ridge" in write_report(tmp_path / "run", federation=federation).read_text()
    show(result, Baselines.load(tmp_path / "run").scores, Console())
    assert "the other has a fixed ridge" in capsys.readouterr().out


def test_curves_end_at_the_scores_of_the_result():
    """Every tenth round is evaluated, the last one rarely among them."""
    result = ff.fit(planted("classification", m=4, n=30), "fedavg", rounds=15)
    ended = to_the_end(result)
    assert np.isnan(result.history["test"].iloc[-1])
    assert ended["test"].iloc[-1] == result.score("test")
    assert ended["n_clusters"].iloc[-1] == result.n_clusters
    pd.testing.assert_frame_equal(ended[:-1], result.history[:-1])


@pytest.mark.parametrize("personal", [True, False])
def test_without_test_rows_no_score_is_shown(personal, tmp_path):
    result = ff.fit(planted(m=6, n=40, test=0), ff.FusionTree(personal=personal), out=tmp_path / "run")
    said = supporting(result, {})
    assert "There are no test rows." in said[0]
    assert NOTHING not in said[0]
    page = write_report(tmp_path / "run").read_text()
    assert "test RMSE" not in page
    assert "In brackets" not in page
    console = Console(record=True, width=100)
    show(result, {}, console)
    assert "mean over" not in console.export_text()
