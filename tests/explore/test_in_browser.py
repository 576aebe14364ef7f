"""The page in Chromium: each panel used as a person would, and what it shows held against Python's numbers.

`make browser` runs these; with STATEWISE_PICTURES=docs/pictures it draws the pictures of docs/explore.md again.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise import hippo
from statewise.data.tokenizers import ByteTokenizer
from statewise.explore.mind import Mind
from statewise.explore.page import own_model
from statewise.reproduce.h3_at_work.by_hand import trace
from statewise.systems import ContinuousSystem, discretize, mass_spring_damper

pytestmark = pytest.mark.browser

PANELS = ("memory", "system", "duality", "selection", "surgery", "lookup")
SLOWEST = 33.0  # milliseconds that the median frame of a drag may take to compute, on a busy machine


def shown(page: Any, panel: str) -> Any:
    """What the panel shows now, as numbers."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate(
        "(name) => JSON.parse(JSON.stringify(statewise[name], (_, v) => (ArrayBuffer.isView(v) ? Array.from(v) : v)))",
        f"panel_{panel}",
    )


def close(found: Any, wanted: torch.Tensor, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.array(found, float), wanted.detach().numpy(), rtol=tolerance, atol=tolerance)


def drag(page: Any, selector: str, places: list[tuple[float, float]], steps: int = 12) -> None:
    """From the first place to the last, in parts of the element's box."""
    page.locator(selector).scroll_into_view_if_needed()
    box = page.locator(selector).bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*at[0])
    page.mouse.down()
    for place in at[1:]:
        page.mouse.move(*place, steps=steps)
    page.mouse.up()


def set_slider(page: Any, name: str, value: float) -> None:
    page.locator(f"#{name}").fill(str(value))


# -- each panel -----------------------------------------------------------------------------------------------------------


def test_memory(open_page: Any) -> None:
    """A signal is drawn, N, window and time are moved, and every measure remembers what Python says."""
    page = open_page("memory")
    page.select_option("#memory-signal", "flat")
    drag(page, "#memory-plot", [(0.1, 0.4), (0.3, 0.1), (0.5, 0.7), (0.8, 0.25)])
    set_slider(page, "memory-n", 24)
    set_slider(page, "memory-theta", 0.3)
    set_slider(page, "memory-now", 400)
    for measure in ("fourier", "lagt", "fourier_diag"):
        page.check(f'#memory-measures input[value="{measure}"]')
    found = shown(page, "memory")
    u = torch.tensor(found["u"], dtype=torch.float64)
    assert u[20] == 0
    assert u[60:370].abs().max() > 0.8  # the stroke has arrived
    assert [one["measure"] for one in found["found"]] == ["legs", "legt", "fourier", "lagt", "fourier_diag"]
    for one in found["found"]:
        measure, theta = one["measure"], None
        if measure != "legs":
            theta = 0.3 / 8 if measure == "lagt" else 0.3
        wanted, _ = hippo.project(u[None, :400], measure, 24, at=[-1], theta=theta, dt=1 / 512)
        close(one["numbers"], wanted[0, 0])
        elapsed = {"elapsed": 400 / 512} if measure == "legs" else {}
        ages = torch.tensor(one["ages"], dtype=torch.float64)
        close(one["past"], hippo.reconstruct(wanted[0, 0], measure, ages, theta=theta, **elapsed))
    assert page.locator("#memory-errors tbody tr").count() == 5


def test_memory_by_keyboard(open_page: Any) -> None:
    page = open_page("memory")
    page.select_option("#memory-signal", "flat")
    page.focus("#memory-plot")
    for key in ("ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    u = np.array(shown(page, "memory")["u"])
    assert u.max() == pytest.approx(0.24)
    assert u.argmax() == 206


def test_system(open_page: Any) -> None:
    """The spring's pole is dragged, dt and the rule are changed: poles, responses and stability are Python's."""
    page = open_page("system")
    before = shown(page, "system")
    close(sorted(before["poles"]), torch.view_as_real(mass_spring_damper(1.0, 9.0, 1.0).poles()).sort(0).values)
    handle = page.locator("#system-s .pole").first.bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + 16
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 20, steps=8)
    page.mouse.up()
    moved = shown(page, "system")
    assert moved["poles"][0][0] < before["poles"][0][0] - 1
    assert float(page.locator("#system-damping").input_value()) == pytest.approx(-2 * moved["poles"][0][0], abs=0.03)
    for method in ("bilinear", "euler", "foh", "gbt", "backward_euler", "mamba", "zoh"):
        page.select_option("#system-method", method)
        for exponent in (-1.2, -0.4):
            set_slider(page, "system-dt", exponent)
            check_system(shown(page, "system"))
    page.select_option("#system-method", "euler")
    set_slider(page, "system-dt", 0.1)
    assert "The rule made a stable system grow" in page.locator("#system-verdict").inner_text()
    for preset in ("one", "two", "butterworth"):
        page.select_option("#system-preset", preset)
        check_system(shown(page, "system"))


def check_system(found: Any) -> None:
    A, B, C = (torch.tensor(found["system"][part], dtype=torch.float64) for part in "ABC")
    options = {"alpha": found["alpha"]} if found["method"] == "gbt" else {}
    discrete = discretize(ContinuousSystem(A, B, C), found["dt"], found["method"], **options)
    ours = np.sort_complex([complex(*pole) for pole in found["moved"]])
    np.testing.assert_allclose(ours, np.sort_complex(discrete.poles().numpy()), atol=1e-6)
    n = len(found["times"])
    scale = 1.0 if found["method"] == "dirac" else 1 / found["dt"]
    close(found["impulse"], scale * discrete.impulse_response(n), 1e-6)
    close(found["step"], discrete.simulate(torch.ones(n, dtype=torch.float64))[0], 1e-6)
    response = discrete.frequency_response(torch.tensor(found["omega"], dtype=torch.float64)).abs()
    close(found["sampled"], response)


def test_poles_by_keyboard(open_page: Any) -> None:
    page = open_page("system")
    pole = page.locator("#system-s .pole").first
    pole.focus()
    before = shown(page, "system")["poles"][0]
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    after = shown(page, "system")["poles"][0]
    assert after[0] == pytest.approx(before[0] + 0.8, abs=0.1)
    assert pole.evaluate("(element) => element === document.activeElement")
    assert "unstable" in page.locator("#system-verdict").inner_text()
    assert "i" in str(pole.get_attribute("aria-valuetext"))


def test_duality(open_page: Any) -> None:
    """The chunk is dragged and a row is pointed at; matrix, outputs, states and ranks are Python's."""
    page = open_page("duality")
    for source in ("made", "0", "2"):
        page.select_option("#duality-source", source)
        drag(page, "#duality-over", [(0.5, 0.1), (0.3, 0.1), (0.21, 0.1)])
        box = page.locator("#duality-over").bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + box["height"] * 0.63)
        found = shown(page, "duality")
        assert found["blocks"]["size"] == round(0.21 * 32)
        assert found["t"] == int(0.63 * 32)
        assert page.locator("#duality-t").inner_text() == str(found["t"])
        check_duality(found)
    for form in ("quadratic", "chunked", "recurrent"):
        page.check(f'#duality-forms input[value="{form}"]')
        text = page.locator("#duality-same").inner_text()
        assert float(text.split("difference is ")[1].rstrip(".").replace("−", "-")) < 1e-12


def check_duality(found: Any) -> None:
    layer = {name: torch.tensor(value, dtype=torch.float64) for name, value in found["layer"].items()}
    size = found["blocks"]["size"]
    log_a, dt = (layer[name][None, :, None] for name in ("log_a", "dt"))
    operator = sw.SSD(log_a, layer["B"][None, :, None], layer["C"][None, :, None], size, dt=dt)
    x, M = layer["x"][None, :, None], operator.matrix()[0, 0]
    close(found["M"], M, 1e-9)
    for form, answer in found["answers"].items():
        close(answer["y"], operator(x, form=form)[0][0, :, 0], 1e-9)
    close(found["answers"]["recurrent"]["states"], sw.insight.states(operator, x).h[0, :, 0], 1e-9)
    threshold = len(M) * torch.finfo(torch.float64).eps * torch.linalg.matrix_norm(M, ord=2)
    for block in found["blocks"]["list"]:
        rows = slice(block["row"], block["row"] + block["rows"])
        part = M[rows, block["column"] : block["column"] + block["columns"]]
        assert block["rank"] == int((torch.linalg.svdvals(part) > threshold).sum())


def python_mind() -> Mind:
    return Mind(own_model("bytes").double(), ByteTokenizer(), "small", [256])


def test_selection(open_page: Any) -> None:
    """A text is typed, a character chosen, layer and head changed: all numbers are the model's."""
    page = open_page("selection")
    page.fill("#selection-text", "")
    text = "for name in names:\n    print(name)"
    page.type("#selection-text", text)
    page.wait_for_function("(n) => statewise.panel_selection?.found.pieces.length === n", arg=len(text) + 1)
    page.select_option("#selection-layer", "1")
    set_slider(page, "selection-head", 2)
    page.locator('#selection-shown span[data-t="9"]').click()
    page.wait_for_function("() => statewise.panel_selection.layer === 1 && statewise.panel_selection.head === 2")
    found = shown(page, "selection")
    mind = python_mind()
    wanted = mind.analyse(text)
    assert found["chosen"] == 9
    assert found["found"]["pieces"] == wanted["pieces"]
    np.testing.assert_allclose(found["found"]["bits"][1:], wanted["bits"][1:], rtol=1e-6)
    for mine, theirs in zip(found["found"]["layers"], wanted["layers"]):
        for name in ("dt", "half_life"):
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6)
    np.testing.assert_allclose(found["attention"], mind.attention(text, 1, 2), atol=1e-7)
    rows = page.locator("#selection-next code").all_inner_texts()
    assert rows[0] == wanted["next"][8][0][0].replace(" ", "␣").replace("\n", "↵")
    bits = sum(wanted["bits"][1:]) / len(text)
    assert page.locator("#selection-total b").inner_text() == f"{bits:.3f}"
    page.focus("#selection-shown")
    page.keyboard.press("ArrowRight")
    assert shown(page, "selection")["chosen"] == 10
    assert page.locator("#selection-shown").get_attribute("aria-valuenow") == "10"


def test_state_surgery(open_page: Any) -> None:
    """Read, write, save, rewind, edit and splice; what comes next and the memory are Python's."""
    page = open_page("surgery")

    def act(button: str) -> Any:
        """What is shown after a click that changes the state."""
        before = page.evaluate("() => statewise.panel_surgery.now.state")
        page.click(button)
        page.wait_for_function("(old) => statewise.panel_surgery.now.state !== old", arg=before)
        return shown(page, "surgery")["now"]

    page.fill("#surgery-prompt", "class Stack:\n    def ")
    read = act("#surgery-read")
    mind = python_mind()
    begun = mind.read("class Stack:\n    def ")
    alike(read["next"], begun["next"])
    set_slider(page, "surgery-temperature", 0)
    written = "".join(act("#surgery-step")["text"][-1] for _ in range(6))
    answer = mind.generate(begun["state"], 6, 0, 0)
    assert written == "".join(answer["pieces"])
    page.click("#surgery-save")
    page.fill("#surgery-prompt", "import os\n")
    act("#surgery-read")
    page.click("#surgery-save")
    assert page.locator("#surgery-shelf li").count() == 2
    act("#surgery-shelf button >> nth=0")  # rewind
    page.click('#surgery-picture button[data-layer="1"][data-head="2"]')
    set_slider(page, "surgery-factor", 0.5)
    edited = act("#surgery-apply")
    alike(edited["next"], mind.edit(answer["state"], 1, 2, 0.5)["next"])
    act("#surgery-erase")
    for layer, wanted in ((0, True), (1, False), (2, True)):
        page.locator(f'#surgery-layers input[value="{layer}"]').set_checked(wanted)
    spliced = act("#surgery-join")
    other = mind.read("import os\n")
    alike(spliced["next"], mind.splice(answer["state"], other["state"], [0, 2])["next"])
    size = page.locator("#surgery-bytes").inner_text()
    page.click("#surgery-run")
    page.wait_for_timeout(700)
    page.click("#surgery-run")  # stop
    page.wait_for_timeout(200)
    later = shown(page, "surgery")["now"]
    assert later["position"] > spliced["position"] + 8
    assert later["bytes"] == read["bytes"] == begun["bytes"] // 2  # Python's is in float64 here
    assert page.locator("#surgery-bytes").inner_text() != size  # attention's cache has grown


def alike(found: Any, wanted: Any) -> None:
    """Candidates in one order, with the same probabilities."""
    assert [piece for piece, _ in found] == [piece for piece, _ in wanted]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in wanted], rtol=1e-6)


def test_lookup(open_page: Any) -> None:
    """Sequences are typed: the trained layer's signals are Python's, and those by hand are the article's."""
    page = open_page("lookup")
    model = own_model("recall")
    page.fill("#lookup-text", "b2 a4 c1 d3 b2 a4 b2 d3 c1 c1 a?")
    found = shown(page, "lookup")
    symbols = [".", *"abcd", *"1234", "=>"]
    ids = torch.tensor([[symbols.index(token) for token in found["tokens"]]])
    logits, _ = model(ids)
    np.testing.assert_allclose(found["found"]["logits"], logits[0, -1].detach(), atol=1e-4)
    signals = sw.insight.h3_trace(*sw.insight.layer_input(model, ids, 0))
    for name in ("Q", "K", "V", "shifted", "output"):
        np.testing.assert_allclose(
            [step[name] for step in found["found"]["record"]], getattr(signals, name)[0], atol=1e-5
        )
    assert "says 4. 4 is right." in page.locator("#lookup-answer").inner_text()
    page.select_option("#lookup-layer", "hand")
    page.fill("#lookup-text", "a3 b4 c1 a?")
    by_hand = shown(page, "lookup")["found"]
    assert "says 3. 3 is right." in page.locator("#lookup-answer").inner_text()
    wanted = trace("a3b4c1.a")  # the page's question mark is the article's dot
    rows = {name: np.array(steps) for name, steps, _ in by_hand["rows"]}
    np.testing.assert_array_equal(rows["shift(K)"], wanted.shifted)
    np.testing.assert_array_equal(rows["State"].reshape(8, 4, 4), wanted.state[..., :4])
    np.testing.assert_array_equal(rows["Q · state"], wanted.output[:, :4])
    page.fill("#lookup-text", "a3 nonsense")
    page.wait_for_function("() => document.querySelector('#lookup-answer').textContent.startsWith('Write pairs')")
    page.click("#lookup-shuffle")
    shown(page, "lookup")
    assert "is right" in page.locator("#lookup-answer").inner_text()


# -- the whole ----------------------------------------------------------------------------------------------------------


def test_a_model_behind_the_server(open_page: Any, served: str) -> None:
    """Selection and State surgery of a hybrid whose calls Python answers."""
    page = open_page("selection", address=served)
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
              .filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim() || e.closest('[hidden]')))
              .map((e) => e.outerHTML.slice(0, 80))"""
        )
        assert not nameless, nameless
        page.wait_for_function(
            "(panel) => document.querySelector(`#${panel}-said`).textContent || panel === 'surgery'", arg=panel
        )


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable(open_page: Any, dark: bool) -> None:
    """The contrast of WCAG's level AA, 4.5, for each colour of text."""
    page = open_page("memory", dark=dark)
    names = ("fg", "muted", "c1", "c2", "c3", "c4", "c5", "accent")
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


# A pointer that is somewhere else in every frame, for two seconds: the times of the frames, and how long each drawing took
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


# -- pictures -----------------------------------------------------------------------------------------------------------


def pictures() -> Path:
    return Path(os.environ.get("STATEWISE_PICTURES", "build/browser"))


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
        page.click("#surgery-run")
        page.wait_for_timeout(900)
        page.click("#surgery-run")
        page.wait_for_timeout(200)
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
def test_pictures(open_page: Any, panel: str, look: str) -> None:
    page = open_page(panel, dark=look == "dark", width=390 if look == "narrow" else 1240)
    scene(page, panel)
    path = pictures() / f"explore-{panel}-{look}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000
