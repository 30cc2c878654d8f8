"""The pages in a real browser: nothing goes wrong, everything can be reached by keys, and it can be read by all."""

import base64
import re

import pytest

from fedfuse.report import FILE

WIDTHS = (390, 1200)


def violations(browser):
    axe = pytest.importorskip("axe_core_python.selenium")
    found = axe.Axe().run(browser, options={"resultTypes": ["violations"]})["violations"]
    return [
        (v["id"], v["impact"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")
    ]


def pixels(browser, css):
    """The picture that a canvas shows, as text."""
    return browser.execute_script("return document.querySelector(arguments[0]).toDataURL()", css)


def keys(browser, css, *words):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.find_element(By.CSS_SELECTOR, css).send_keys(*(getattr(Keys, word, word) for word in words))


def hover(browser, css, x=0, y=0):
    """Bring the pointer to a place in an element, counted from its middle."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    element = browser.find_element(By.CSS_SELECTOR, css)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element_with_offset(element, x, y).perform()


def tip(browser):
    return browser.execute_script("const t = document.getElementById('tip'); return t.hidden ? null : t.textContent")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_a_thousand_devices_on_every_screen(large_run, opened, width, scheme):
    browser = opened(large_run[0] / FILE, width, scheme)
    assert "1,000 devices" in browser.title or "1,000 devices" in browser.find_element("tag name", "h1").text
    assert violations(browser) == []
    # nothing sticks out to the side
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(re.findall(r"\d+", background)[0])
    assert (red < 60) == (scheme == "dark")


def test_letters_are_large_enough_on_a_phone(large_run, opened):
    browser = opened(large_run[0] / FILE, 390)
    script = """return Math.min(...[...document.querySelectorAll('body *')].filter(e => e.children.length == 0
        && e.textContent.trim() && e.getClientRects().length && !e.closest('svg, script, style'))
        .map(e => parseFloat(getComputedStyle(e).fontSize)))"""
    assert browser.execute_script(script) >= 12


def test_the_slider_moves_both_pictures(large_run, opened):
    browser = opened(large_run[0] / FILE)
    last, where = pixels(browser, "#heat"), browser.find_element("id", "where").text
    spots = "return [...document.querySelectorAll('#map circle')].map(c => c.getAttribute('cx')).join()"
    end = browser.execute_script(spots)
    keys(browser, "#round", "HOME")
    assert browser.find_element("id", "where").text.startswith("After round 0, the start")
    assert browser.find_element("id", "where").text != where
    assert pixels(browser, "#heat") != last
    assert browser.execute_script(spots) != end
    assert browser.find_element("id", "round").get_attribute("aria-valuetext").startswith("After round 0")
    keys(browser, "#round", "END")
    assert pixels(browser, "#heat") == last
    assert browser.execute_script(spots) == end


def test_playing_goes_from_the_first_round_to_the_last(table_run, opened):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened(table_run[0] / FILE)
    browser.find_element("id", "play").click()
    assert browser.find_element("id", "where").text.startswith("After round 0")
    wait = WebDriverWait(browser, 60)
    wait.until(lambda b: "the end" in b.find_element("id", "where").text)
    wait.until(lambda b: "Play" in b.find_element("id", "play").text)


def test_the_pointer_reads_off_pairs_devices_and_curves(large_run, opened):
    path, result = large_run
    browser = opened(path / FILE)
    hover(browser, "#heat", -200, 200)
    words = tip(browser)
    assert re.search(r"device \d+.*\(group 1\)", words)
    assert "distance" in words
    assert result.labels[int(re.findall(r"device (\d+)", words)[0])] in range(4)
    spot = browser.execute_script("""const b = document.querySelector('#map circle').getBoundingClientRect(),
        m = document.querySelector('#map').getBoundingClientRect();
        return [b.x + b.width / 2 - m.x - m.width / 2, b.y + b.height / 2 - m.y - m.height / 2]""")
    hover(browser, "#map", *map(round, spot))
    name, group = tip(browser).split("\n")
    assert group == f"group {result.group_numbers[result.index(name)]}"
    hover(browser, "#scores .plot")
    assert "a separate model per device" in tip(browser)
    hover(browser, "#communication .plot")
    assert "numbers sent so far" in tip(browser)


def test_all_of_it_by_keys(table_run, opened):
    """The tab key comes to every part; arrows read it off; Escape closes."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened(table_run[0] / FILE)
    seen = []
    for _ in range(80):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        name = browser.execute_script(
            "const e = document.activeElement; if (e === document.body) return null;"
            "return e.id || e.getAttribute('aria-label') || e.textContent"
        )
        if name is None or (seen and name == seen[0]):
            break
        seen.append(name)
    assert seen[0] == "Skip to content"
    for part in ("theme", "round", "play", "heat", "map", "Scores by group", "Coefficients by group"):
        assert part in seen, seen
    keys(browser, "#heat", "ARROW_DOWN", "ARROW_RIGHT")
    assert "distance" in tip(browser)
    keys(browser, "#heat", "ESCAPE")
    assert tip(browser) is None
    keys(browser, "#map", "ARROW_RIGHT")
    assert "group" in tip(browser)
    keys(browser, "#communication .plot", "END")
    assert "round" in tip(browser)


def test_the_theme_is_remembered(table_run, opened):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened(table_run[0] / FILE)
    button = browser.find_element("id", "theme")
    dark = "return getComputedStyle(document.documentElement).colorScheme"
    assert button.text == "Theme: auto"
    button.click()
    button.click()
    assert button.text == "Theme: dark"
    assert browser.execute_script(dark) == "dark"
    browser.refresh()
    button = browser.find_element("id", "theme")
    WebDriverWait(browser, 10).until(lambda _: button.text == "Theme: dark")
    button.click()
    assert browser.execute_script(dark) == "light"


def test_devices_are_found_and_sorted(large_run, opened):
    path, result = large_run
    browser = opened(path / FILE)
    browser.find_element("css selector", "#all-devices summary").click()
    keys(browser, "#find", "device 77")
    assert browser.find_element("id", "found").text == "11 of 1000"  # 77 and 770 to 779
    keys(browser, "#find", *["BACKSPACE"] * 9)
    heads = browser.find_elements("css selector", "#devices thead button")
    next(h for h in heads if h.text == "test").click()
    first = browser.find_element("css selector", "#devices tbody td.name").text
    assert result.scores["test"][result.index(first)] == result.scores["test"].min()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
def test_names_are_never_code(table_run, opened, width, scheme):
    browser = opened(table_run[0] / FILE, width, scheme)
    assert browser.title.startswith("<i>stay<img>.csv")
    assert browser.find_elements("css selector", "main img, main script, main b b, main h1 i, th b") == []
    assert "{{ 7 * 7 }}" in browser.find_element("id", "groups").text
    hover(browser, "#heat", -100, 100)
    assert browser.find_elements("css selector", "#tip *") == []
    assert violations(browser) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison(comparison, opened, width):
    browser = opened(comparison / FILE, width)
    assert violations(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert len(browser.find_elements("css selector", "#table tbody tr")) == 4
    assert len(browser.find_elements("css selector", "#spread .lane")) == 4
    assert [e.text for e in browser.find_elements("css selector", "#codes .codes > span:first-of-type")][:1] == [
        "truth"
    ]


def test_it_can_be_printed(table_run, opened):
    browser = opened(table_run[0] / FILE, scheme="dark")
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 15
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not browser.find_element("id", "theme").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_run_is_watched_until_it_ends(tmp_path, opened):
    """The page follows the run, and ends as its report."""
    import threading

    from selenium.webdriver.support.ui import WebDriverWait

    import fedfuse as ff
    from fedfuse.report.watch import LiveServer
    from support.planted import planted

    class Stop(ff.Callback):
        def on_round(self, run, row):
            if run.k == 9:
                raise KeyboardInterrupt

    federation, common = planted(), {"rounds": 30, "tol": 0, "evaluate_every": 2, "dataset": "<b>d</b>"}
    with pytest.raises(KeyboardInterrupt):
        ff.fit(federation, ff.FPFC(lam=0.4, refit=False), out=tmp_path / "run", callbacks=[Stop()], **common)
    with LiveServer(tmp_path / "run") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            browser = opened(server.url)
            assert "<b>d</b> · FPFC is running" in browser.find_element("tag name", "h1").text
            assert violations(browser) == []
            ff.resume(tmp_path / "run", federation)
            there = "return (document.querySelector('h1') || {}).textContent || ''"
            WebDriverWait(browser, 120).until(lambda b: "6 devices form 2 groups" in b.execute_script(there))
        finally:
            server.shutdown()
            thread.join()
