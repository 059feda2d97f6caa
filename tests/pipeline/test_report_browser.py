"""The report's pages in Chromium: no error, no request, readable at every width and in the dark."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_run import QUESTIONS, make_run
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from slipway.config.paths import ResultPaths
from slipway.report.runs_table import write_comparison
from slipway.report.settings_view import flat
from slipway.report.stage import write_partial_report, write_report

pytestmark = pytest.mark.browser

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PAGES = ("demo/report.html", "slow/report.partial.html", "compare.html")
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "laptop": (1366, 768)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        # playwright gives each launch a new, empty profile
        launched = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    paths = ResultPaths(root)
    demo, slow = make_run(root), make_run(root, "slow", seed=1, better_by=0.02)
    write_report(paths, demo)
    write_report(paths, slow)
    write_comparison(paths, {run.name: flat(run.run.model_dump()) for run in (demo, slow)})
    (root / "slow/eval/final.json").unlink()
    write_partial_report(paths, slow)
    return root


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_page(browser: Browser, results: Path, name: str, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    requests: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(_text(message)))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    address = (results / name).as_uri()
    page.goto(address)
    for summary in page.locator("summary").all():
        summary.click()
    assert troubles == []
    # the empty icon is a data address, not a load
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (_brightness(page) < 60) == (scheme == "dark")
    assert _contrast(page) >= 4.5
    assert _smallest_text(page) >= 8
    page.close()


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
