"""Runs to make pages of, and a browser to look at them."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.report import write_report
from support.planted import planted, visits

HOSTILE = (
    "<script>document.title = 'taken'</script>",
    '"><img src=x onerror="document.title = \'taken\'">',
    "</script><script>document.title = 'taken'</script>",
    "O'Brien & Sons",
    "{{ 7 * 7 }}",
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder for runs that several tests look at."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def table_run(runs):
    """A table with two groups, ten devices and words that would like to be code."""
    frame = visits()
    frame["site"] = [HOSTILE[s] if s < len(HOSTILE) else f"site {s}" for s in frame["site"]]
    frame = frame.rename(columns={"age": "age <b>x</b>", "ward": "\"'&ward"}).drop(columns="outcome")
    federation = ff.Federation.from_frame(frame, device="site", target="stay")
    result = ff.fit(federation, out=runs / "table", dataset="<i>stay<img>.csv", evaluate_every=3)
    write_report(runs / "table", federation=federation)
    return runs / "table", result


@pytest.fixture(scope="session")
def large_run(runs):
    """A thousand devices in four groups."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2, 3], [400, 300, 200, 100])
    weights = 2 * rng.normal(size=(4, 3))
    data = {}
    for i, group in enumerate(truth):
        X = rng.normal(size=(20, 3))
        data[f"device {i}"] = (X, X @ weights[group] + 0.3 * rng.normal(size=20))
    federation = ff.Federation.from_arrays(data, truth=truth)
    method = ff.FPFC(lam=0.5, refit=False, work=ff.Work(solver="exact"))
    result = ff.fit(federation, method, rounds=12, out=runs / "large", dataset="large", evaluate_every=2)
    write_report(runs / "large", federation=federation)
    return runs / "large", result


@pytest.fixture(scope="session")
def comparison(runs):
    methods = {"tree": ff.FusionTree(), "ifca": ff.IFCA(n_models=2), "fedavg": ff.FedAvg(), "local": ff.Local()}
    ff.compare(planted(m=8), methods, seeds=2, rounds=15, jobs=1, out=runs / "comparison")
    write_report(runs / "comparison")
    return runs / "comparison"


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium without a network."""
    selenium = pytest.importorskip("selenium")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium with its chromedriver is installed (Debian: apt install chromium chromium-driver)")
    assert selenium
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")  # nothing may come from elsewhere
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.command_executor.client_config.timeout = 600  # the machine may be busy with other things
    chrome.set_script_timeout(600)
    yield chrome
    chrome.quit()


@pytest.fixture
def opened(browser):
    """Open a page at a width, light or dark; at the end the console must be silent."""

    def open_page(page, width=1200, scheme="light"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(page if str(page).startswith("http") else page.as_uri())
        return browser

    yield open_page
    assert browser.get_log("browser") == []


@pytest.fixture(scope="session")
def newcomers():
    """Rows of two devices that the table's run does not know."""
    frame = visits(400, seed=9)
    frame["site"] = np.where(frame["site"] < 6, "<b>late</b>", "later")
    renamed: pd.DataFrame = frame.rename(columns={"age": "age <b>x</b>", "ward": "\"'&ward"}).drop(columns="outcome")
    return renamed
