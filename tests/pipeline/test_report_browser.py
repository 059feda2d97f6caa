"""The report's pages in Chromium: no error, no request, readable at every width and in the dark."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import SCREENSHOTS, SIZES, Scheme, chromium, launched, new_page, screenshot
from made_run import QUESTIONS, make_run, publish
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page

from slipway.config.paths import ResultPaths
from slipway.report.runs_table import write_comparison
from slipway.report.settings_view import comparable
from slipway.report.stage import write_partial_report, write_report

pytestmark = pytest.mark.browser

PAGES = ("demo/report.html", "slow/report.partial.html", "compare.html")
SCREENS = ("phone", "laptop", "print")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    paths = ResultPaths(root)
    terms = {"context of the trainer": 2 << 30, "weights": 9 << 30, "one pass": 30 << 30, "rollout engine": 20 << 30}
    update = {"name": "log-probabilities", "terms": terms, "trainer_allocated": 39 << 30, "trainer_reserved": 39 << 30}
    forecast = {"gpu": 80 << 30, "band": 0.15, "phases": [update]}
    publish("preflight", root / "demo/preflight", {}, {"memory": forecast}, to=root / "demo/preflight.json")
    demo, slow = make_run(root), make_run(root, "slow", seed=1, better_by=0.02)
    write_report(paths, demo)
    write_report(paths, slow)
    write_comparison(paths, {run.name: comparable(run) for run in (demo, slow)})
    (root / "slow/eval/final.json").unlink()
    write_partial_report(paths, slow)
    return root


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_page(browser: Browser, results: Path, name: str, size: str, scheme: Scheme) -> None:
    width, _ = SIZES[size]
    page = new_page(browser, size, scheme)
    requests: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(_text(message)))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    address = (results / name).as_uri()
    page.goto(address)
    for summary in page.locator("summary").locator("visible=true").all():
        summary.click()
    assert troubles == []
    # the empty icon is a data address, not a load
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # paper is white, whatever the screen is
    assert (_brightness(page) < 60) == (scheme == "dark" and size != "print")
    assert _contrast(page) >= 4.5
    assert _smallest_text(page) >= 8
    page.close()


def test_sections_fold_and_unfold(browser: Browser, results: Path) -> None:
    page = new_page(browser, "laptop", "light")
    page.goto((results / "demo/report.html").as_uri())
    for title, inside in (("All settings", "grpo"), ("Figures behind the curves", "step,critic/score/mean")):
        fold = page.locator("details").filter(has_text=title)
        content = fold.locator("div, pre").first
        assert not content.is_visible()
        fold.locator("summary").click()
        assert content.is_visible()
        assert inside.lower() in content.inner_text().lower()
        fold.locator("summary").click()
        assert not content.is_visible()
    page.close()


def test_the_verdict_is_on_the_first_screen(browser: Browser, results: Path) -> None:
    for size in SCREENS:
        page = new_page(browser, size, "light")
        page.goto((results / "demo/report.html").as_uri())
        for text in page.locator(".verdict, .headline dd").all():
            box = text.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= SIZES[size][1]
        page.close()


def test_no_chart_is_cut_off_by_its_neighbours(browser: Browser, results: Path) -> None:
    """Drawings may overflow their frame by a label's width; no two texts of two drawings lie on one another."""
    script = """() => {
      const boxes = [...document.querySelectorAll('figure svg')].map(svg => [...svg.querySelectorAll('text')]
        .filter(text => text.textContent.trim()).map(text => text.getBoundingClientRect()));
      const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
      let count = 0;
      for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++)
        for (const a of boxes[i]) for (const b of boxes[j]) count += meet(a, b);
      return count;
    }"""
    for name in PAGES:
        for size in SCREENS:
            page = new_page(browser, size, "light")
            page.goto((results / name).as_uri())
            assert page.evaluate(script) == 0
            page.close()


def test_a_phone_shows_tables_as_lists(browser: Browser, results: Path) -> None:
    page = new_page(browser, "phone", "light")
    for name in ("demo/report.html", "compare.html"):
        page.goto((results / name).as_uri())
        assert page.locator("table.cards").count() >= 1
        for table in page.locator("table.cards").all():
            assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    page.close()


def test_screenshots_show_the_page(browser: Browser, results: Path) -> None:
    pictures = []
    for size, scheme, heading in SCREENSHOTS:
        taken = screenshot(browser, results / "demo/report.html", size, scheme, heading)
        picture = Image.open(io.BytesIO(taken))
        assert picture.size == SIZES[size]
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
        assert len(taken) < 150_000
        pictures.append(taken)
    assert len(set(pictures)) == len(SCREENSHOTS)


def test_samples_are_searched(browser: Browser, results: Path) -> None:
    page = browser.new_page()
    page.goto((results / "demo/report.html").as_uri())
    samples = page.locator(".sample")
    everything = samples.count()
    shown = samples.locator("visible=true").count()
    assert 0 < shown < everything == QUESTIONS
    # the prompt of question 5 (made_run.py)
    page.get_by_label("Search").fill("ADD UP: 185 +")
    assert samples.locator("visible=true").count() == 1
    assert "185 + 12" in samples.locator("visible=true").inner_text()
    assert page.locator("output").inner_text() == f"1 of {everything} shown"
    page.get_by_label("Search").fill("no such text")
    assert samples.locator("visible=true").count() == 0
    page.get_by_label("Search").fill("")
    page.get_by_label("Kind").select_option("newly right")
    kinds = {sample.get_attribute("data-kind") for sample in samples.locator("visible=true").all()}
    assert kinds == {"newly right"}
    page.get_by_label("Kind").select_option("")
    assert samples.locator("visible=true").count() == shown
    page.close()


def test_readable_without_javascript_and_in_print(browser: Browser, results: Path) -> None:
    page = browser.new_context(java_script_enabled=False, color_scheme="dark").new_page()
    page.goto((results / "demo/report.html").as_uri())
    assert page.locator("figure svg").count() > 10
    assert page.get_by_text("Better", exact=False).first.is_visible()
    assert len(page.pdf(format="A4")) > 20_000
    page.close()


def _text(message: ConsoleMessage) -> str:
    return f"{message.type}: {message.text}"


def _brightness(page: Page) -> float:
    script = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
    red, green, blue = map(float, page.evaluate(script))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(page: Page) -> float:
    """Return the lowest contrast ratio (WCAG 2) of a chart's text against the page."""
    script = """() => {
      const linear = c => { c /= 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4 };
      const luminance = colour => {
        const [r, g, b] = colour.match(/\\d+/g).map(Number);
        return .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
      };
      const paper = luminance(getComputedStyle(document.body).backgroundColor);
      const texts = [...document.querySelectorAll('svg text')].filter(text => text.textContent.trim());
      return Math.min(...texts.map(text => {
        const ink = luminance(getComputedStyle(text).fill);
        return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
      }));
    }"""
    return float(page.evaluate(script))


def _smallest_text(page: Page) -> float:
    """Return the height in CSS pixels of the smallest text in a chart, as it is shown."""
    script = """() => Math.min(...[...document.querySelectorAll('svg text')].map(text =>
      parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a), 99)"""
    return float(page.evaluate(script))
