"""The report's pages in Chromium at the sizes that people read them at.

As a program it keeps screenshots of a run's page: `python tests/pipeline/browser.py PAGE FOLDER` (make screenshots).
"""

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# CSS pixels; paper is A4 at 96 to the inch.
SIZES = {"phone": (390, 844), "laptop": (1366, 768), "print": (794, 1123)}
Scheme = Literal["light", "dark"]
# What docs/ shows: size, scheme, and the heading that the picture begins with (None: the verdict).
SCREENSHOTS: tuple[tuple[str, Scheme, str | None], ...] = (
    ("laptop", "light", None),
    ("laptop", "dark", "time-and-memory"),
    ("phone", "light", None),
    ("phone", "dark", "learning"),
    ("print", "light", None),
)
# Flat colours and their edges need no more; a picture stays below 100 kB.
PALETTE = 256


def chromium() -> str | None:
    """Return the path of the installed Chromium."""
    return shutil.which("chromium")


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield Chromium with a new, empty profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield browser
        browser.close()


def new_page(browser: Browser, size: str, scheme: Scheme) -> Page:
    """Return an empty page of a size; `print` lays it out as for paper."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    if size == "print":
        page.emulate_media(media="print", color_scheme=scheme)
    return page


def screenshot(browser: Browser, file: Path, size: str, scheme: Scheme, heading: str | None = None) -> bytes:
    """Return a PNG of one screen (of paper: one sheet) of a page, from its top or from the section `heading`."""
    page = new_page(browser, size, scheme)
    page.goto(file.absolute().as_uri())
    if heading is not None:
        page.evaluate("id => document.getElementById(id).scrollIntoView()", heading)
    taken = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    small = io.BytesIO()
    taken.convert("RGB").quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


def main() -> None:
    """Write the screenshots of docs/."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with launched() as browser:
        for size, scheme, heading in SCREENSHOTS:
            target = folder / f"{size}-{scheme}.png"
            target.write_bytes(screenshot(browser, file, size, scheme, heading))
            print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
