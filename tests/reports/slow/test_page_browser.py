"""The page in headless Chromium fits, sorts, filters, is legible in both schemes, has no error."""

import shutil

import pytest

from analysis.page.__main__ import write
from tests.reports.toy_page import write_results

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
QUIET = (
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MIN_CONTRAST = 4.5
"""WCAG 2.1, level AA, for text of normal size."""

# Every element whose own text stands out less than a limit from what is painted behind it.
FAINT = """(limit) => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([red, green, blue]) => {
    const curve = (part) => ((part + 0.055) / 1.055) ** 2.4;
    const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : curve(part);
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = channels(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(script)")) {
    const isText = (node) => node.nodeType === 3 && node.data.trim();
    const text = Array.from(element.childNodes).filter(isText);
    if (!text.length) continue;
    const [first, second] = [channels(getComputedStyle(element).color), behind(element)].map(light);
    const ratio = (Math.max(first, second) + 0.05) / (Math.min(first, second) + 0.05);
    if (ratio < limit) faint.push([element.className, text[0].data.trim().slice(0, 40), ratio]);
  }
  return faint;
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_results(results)
    return write("embedded", results)[0]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", *QUIET]
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, path):
    """`opened(width, height, scheme)` opens the page; nothing is fetched, and nothing complains."""
    pages, complaints, requests = [], [], []

    def open_page(width=1280, height=900, scheme="light", **options):
        size = {"width": width, "height": height}
        page = browser.new_page(viewport=size, color_scheme=scheme, **options)
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda one: requests.append(one.url))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}


def column(page, table, header):
    """The texts of a column, in the order of the visible rows."""
    script = """({table, header}) => {
      const heads = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent.trim());
      const rows = Array.from(table.tBodies[0].rows).filter((row) => row.offsetParent !== null);
      return rows.map((row) => row.cells[heads.indexOf(header)].textContent.trim());
    }"""
    handle = page.query_selector(f"#data-{table}")
    return page.evaluate(script, {"table": handle, "header": header})


@pytest.mark.parametrize(("width", "height", "scheme"), [(390, 844, "light"), (1280, 900, "dark")])
def test_the_page_fits_and_its_text_stands_out(opened, width, height, scheme):
    page = opened(width, height, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("document.querySelectorAll('.unfold').forEach((one) => { one.checked = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    wide = page.locator("#table1 .scroll").first
    assert wide.get_attribute("tabindex") == "0"
    assert wide.get_attribute("aria-label").startswith("Table: ")
    assert page.evaluate(FAINT, MIN_CONTRAST) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, background.removeprefix("rgb(").rstrip(")").split(","))) < 3 * 128
    assert is_dark == (scheme == "dark")


def test_what_names_a_row_stays_while_its_numbers_scroll(opened):
    """On a phone the last of the columns that name a row."""
    page = opened(390, 844)
    box = page.locator("#table1 .scroll").first
    box.evaluate("(box) => { box.scrollLeft = box.scrollWidth; }")
    assert box.evaluate("(box) => box.scrollLeft") > 0
    edges = box.bounding_box()
    named = box.locator("tbody tr:first-child th").last.bounding_box()
    assert edges["x"] <= named["x"]
    assert named["x"] + named["width"] < edges["x"] + 0.6 * edges["width"]


def test_numbers_are_sorted_as_numbers_and_text_as_text(opened):
    """By the first number of "6.0 [4.5, 7.5]"; as text 21.3 comes before 6.0. Gaps are last."""
    page = opened()
    assert column(page, "table1", "Tokens/s")[0] == "6.0 [4.5, 7.5]"
    button = page.locator("#data-table1 th", has_text="Tokens/s").first.locator("button")
    orders = {}
    for direction in ("ascending", "descending"):
        button.click()
        head = page.locator("#data-table1 th[aria-sort]")
        assert head.count() == 1 and head.get_attribute("aria-sort") == direction
        orders[direction] = [text.partition(" ")[0] for text in column(page, "table1", "Tokens/s")]
    assert orders["ascending"] == ["6.0", "6.0", "8.7", "21.3", "–", "–"]
    assert orders["descending"] == ["21.3", "8.7", "6.0", "6.0", "–", "–"]
    page.locator("#data-table1 th", has_text="Method").locator("button").focus()
    page.keyboard.press("Enter")
    names = column(page, "table1", "Method")
    assert names == sorted(names) and len(set(names)) == 3


def test_a_filter_keeps_the_rows_with_all_its_words(opened):
    page = opened()
    box = page.locator("#table1").get_by_label("Filter rows").first
    box.fill("resispec BIASED")
    assert column(page, "table1", "Method") == ["SpecInfer + ResiSpec"]
    assert page.locator("#table1 .tools output").first.text_content() == "1 of 6 rows"
    box.fill("")
    assert len(column(page, "table1", "Method")) == 6


def test_the_keyboard_skips_to_the_content_and_sees_where_it_is(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#data-table1 th button").first.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_without_scripts_everything_can_be_read(opened):
    page = opened(java_script_enabled=False)
    short = page.locator("#data-table1").inner_text()
    assert "SpecInfer + ResiSpec" in short and "[2.53, 2.89]" not in short and "4.67" not in short
    page.locator("#table1 .unfold").first.check()
    text = page.locator("#data-table1").inner_text()
    assert "2.67\n[2.53, 2.89]" in text and "4.67–4.69" in text
    assert page.locator("th button").count() == page.locator("input[type=search]").count() == 0
