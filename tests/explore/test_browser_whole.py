"""The page as a whole in Chromium: a model behind the server, keyboard, screen readers, narrow windows, speed.

With STATEWISE_PICTURES=docs/pictures it also draws the pictures of docs/explore.md.
"""

from __future__ import annotations

import json
import os
import statistics
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from in_browser import PANELS, set_slider
from PIL import Image

import statewise as sw

pytestmark = pytest.mark.browser

PICTURES = os.environ.get("STATEWISE_PICTURES", "")
SLOWEST = 33.0  # milliseconds that the median frame of a drag may take to compute, on a busy machine


def test_a_model_behind_the_server(open_page: Any, serve: Any) -> None:
    """Selection and State surgery of a hybrid whose calls Python answers."""
    mamba2, attention = sw.Mamba2Config(d_state=8, d_head=16), sw.AttentionConfig(n_heads=2)
    page = open_page("selection", address=serve(mamba2, attention, sw.MambaConfig(d_state=4)))
    page.fill("#selection-text", "abc")
    page.wait_for_function("() => statewise.panel_selection?.found.pieces.length === 4")
    assert page.locator("#selection-layer option").all_inner_texts() == ["1: Mamba2", "3: Mamba"]
    page.click("#tab-surgery")
    page.wait_for_selector("#surgery-picture button")
    assert page.locator("#surgery-picture").inner_text().count("Attention") == 1
    before = page.evaluate("() => statewise.panel_surgery.now.position")
    page.click("#surgery-step")
    page.wait_for_function("(n) => statewise.panel_surgery.now.position > n", arg=before)
    layers = page.locator("#surgery-layers label").all_inner_texts()
    assert [layer.strip() for layer in layers] == ["layer 1", "layer 3"]


def test_a_model_that_selects_nothing(open_page: Any, serve: Any) -> None:
    page = open_page("selection", address=serve(sw.S4DConfig(d_state=4), sw.AttentionConfig(n_heads=2)))
    page.fill("#selection-text", "abc")
    page.wait_for_function("() => statewise.panel_selection?.found.pieces.length === 4")
    assert page.locator("#selection-none").is_visible()
    assert not page.locator("#selection-heads").is_visible()
    assert page.locator("#selection-next code").count() == 10
    page.click("#tab-surgery")
    page.wait_for_function("() => document.querySelector('#surgery-bytes').textContent.includes('which grows')")


def test_tabs_and_colours_by_keyboard(open_page: Any) -> None:
    page = open_page("memory")
    page.focus("#tab-memory")
    for panel in (*PANELS[1:], "memory"):
        page.keyboard.press("ArrowRight")
        assert page.locator(f"#{panel}").is_visible()
        assert page.locator('[role="tabpanel"]:visible').count() == 1
    page.click("#theme")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_a_screen_reader_finds_its_way(open_page: Any) -> None:
    """Everything that takes input has a name; every figure has words; colours stand out from what is behind them."""
    page = open_page("memory")
    for panel in PANELS:
        page.click(f"#tab-{panel}")
        page.wait_for_timeout(300)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('main button, main select, main input, main textarea, [tabindex]')]
              .filter((e) => e.offsetParent !== null || e.closest('svg'))
              .filter((e) => !e.closest('[hidden]'))
              .filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()))
              .map((e) => e.outerHTML.slice(0, 80))"""
        )
        assert not nameless, nameless
        page.wait_for_function("(panel) => document.querySelector(`#${panel}-said`).textContent", arg=panel)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable(open_page: Any, dark: bool) -> None:
    """The contrast of WCAG's level AA, 4.5, for each colour of text."""
    page = open_page("memory", dark=dark)
    names = ("fg", "muted", "c1", "c2", "c3", "c4", "c5", "c6", "accent")
    colours = page.evaluate(
        "(names) => Object.fromEntries(names.map((name) => [name, statewise.chart.variable(`--${name}`)]))",
        [*names, "bg", "card"],
    )

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for behind in ("bg", "card"):
        for name in names:
            one, other = sorted((luminance(colours[name]), luminance(colours[behind])))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (name, behind)


@pytest.mark.parametrize("panel", PANELS)
def test_a_narrow_window_has_no_sideways_scroll(open_page: Any, panel: str) -> None:
    page = open_page(panel, width=390)
    page.wait_for_timeout(300)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


# A pointer that is somewhere else in every frame, for two seconds: the times of the frames, and what each drawing took
MOVES = """([selector, x, y]) => new Promise((done) => {
  const frames = [];
  statewise.drawn.length = 0;
  const each = (now) => {
    frames.push(now);
    const angle = (now - frames[0]) / 150;
    const place = { clientX: x + 50 * Math.sin(angle), clientY: y + 30 * Math.cos(angle) };
    document.querySelector(selector).dispatchEvent(
      new PointerEvent('pointermove', { ...place, pointerId: 1, bubbles: true, buttons: 1 }));
    if (now - frames[0] < 2000) requestAnimationFrame(each);
    else done([frames, [...statewise.drawn]]);
  };
  requestAnimationFrame(each);
})"""


def test_a_drag_is_smooth(open_page: Any) -> None:
    """Frames a second while a pointer moves, and how long each took to compute; printed."""
    found = {}
    for panel, selector, prepare in (
        ("memory", "#memory-plot", lambda page: set_slider(page, "memory-n", 64)),
        ("system", "#system-s", lambda page: page.select_option("#system-preset", "two")),
        ("duality", "#duality-over", lambda page: set_slider(page, "duality-length", 64)),
    ):
        page = open_page(panel)
        prepare(page)
        page.locator(selector).scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        box = page.locator(selector).bounding_box()
        begin = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        if panel == "system":
            handle = page.locator("#system-s .pole .hit").first.bounding_box()
            begin = (handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
        page.mouse.move(*begin)
        page.mouse.down()
        frames, drawn = page.evaluate(MOVES, [selector, *begin])
        page.mouse.up()
        seconds = (frames[-1] - frames[0]) / 1000
        found[panel] = {
            "frames a second": round((len(frames) - 1) / seconds, 1),
            "drawings a second": round(len(drawn) / seconds, 1),
            "milliseconds a drawing": round(statistics.median(drawn), 2),
        }
    print(json.dumps(found, indent=1))
    for panel, numbers in found.items():
        assert numbers["milliseconds a drawing"] < SLOWEST, (panel, numbers)


# -- pictures ---------------------------------------------------------------------------------------------------------


def scene(page: Any, panel: str) -> None:
    """Something to see in each panel."""
    if panel == "memory":
        page.check('#memory-measures input[value="fourier_diag"]')
    elif panel == "system":
        page.select_option("#system-method", "euler")
        set_slider(page, "system-dt", -0.65)
    elif panel == "duality":
        page.select_option("#duality-source", "made")
        page.check('#duality-forms input[value="chunked"]')
    elif panel == "selection":
        page.wait_for_function("() => statewise.panel_selection?.attention")
        page.locator('#selection-shown span[data-t="46"]').click()
        page.select_option("#selection-layer", "1")
    elif panel == "surgery":
        page.wait_for_selector("#surgery-picture button")
        for n in range(47):
            page.click("#surgery-step")
            page.wait_for_function("(n) => statewise.panel_surgery.now.position > n", arg=39 + n)
        page.click("#surgery-save")
        page.fill("#surgery-prompt", '    """Return a list of ')
        page.click("#surgery-read")
        page.wait_for_timeout(200)
        page.click("#surgery-save")
        page.click("#surgery-shelf button >> nth=0")
        page.wait_for_timeout(200)
        page.click('#surgery-picture button[data-layer="0"][data-head="1"]')
        page.click("#surgery-apply")
    page.wait_for_timeout(400)
    page.evaluate("() => scrollTo(0, 0)")
    page.mouse.move(2, 2)
    page.wait_for_timeout(100)


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
@pytest.mark.skipif(not PICTURES, reason="draws where STATEWISE_PICTURES says")
def test_pictures(open_page: Any, panel: str, look: str) -> None:
    page = open_page(panel, dark=look == "dark", width=390 if look == "narrow" else 1240)
    scene(page, panel)
    with Image.open(BytesIO(page.screenshot(full_page=True))) as image:
        image.convert("RGB").save(Path(PICTURES) / f"explore-{panel}-{look}.webp", lossless=True, method=6)
