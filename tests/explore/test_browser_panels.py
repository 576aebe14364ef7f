"""Each panel of the page used in Chromium as a person would, and what it shows held against Python's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from in_browser import close, drag, set_slider, shown

import statewise as sw
from statewise import hippo
from statewise.data.tokenizers import ByteTokenizer
from statewise.explore.mind import Mind
from statewise.explore.page import own_model
from statewise.reproduce.h3_at_work.by_hand import trace
from statewise.systems import ContinuousSystem, discretize, mass_spring_damper

pytestmark = pytest.mark.browser


def test_memory(open_page: Any) -> None:
    """A signal is drawn, N, window and time are moved, and every measure remembers what Python says."""
    page = open_page("memory")
    page.select_option("#memory-signal", "flat")
    drag(page, "#memory-plot", [(0.1, 0.4), (0.3, 0.1), (0.5, 0.7), (0.8, 0.25)])
    set_slider(page, "memory-n", 24)
    set_slider(page, "memory-theta", 0.3)
    set_slider(page, "memory-now", 400)
    for measure in ("fourier", "lagt", "tlagt", "fourier_diag"):
        page.check(f'#memory-measures input[value="{measure}"]')
    found = shown(page, "memory")
    u = torch.tensor(found["u"], dtype=torch.float64)
    assert u[20] == 0
    assert u[60:370].abs().max() > 0.8  # the stroke has arrived
    assert [one["measure"] for one in found["found"]] == ["legs", "legt", "fourier", "lagt", "tlagt", "fourier_diag"]
    for one in found["found"]:
        measure, theta = one["measure"], None
        if measure != "legs":
            theta = 0.3 / {"lagt": 8, "tlagt": 3}.get(measure, 1)
        wanted, _ = hippo.project(u[None, :400], measure, 24, at=[-1], theta=theta, dt=1 / 512)
        close(one["numbers"], wanted[0, 0])
        elapsed = {"elapsed": 400 / 512} if measure == "legs" else {}
        ages = torch.tensor(one["ages"], dtype=torch.float64)
        close(one["past"], hippo.reconstruct(wanted[0, 0], measure, ages, theta=theta, **elapsed))
    assert page.locator("#memory-errors tbody tr").count() == 6


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
    shown(page, "system")
    assert "The rule made a stable system grow" in page.locator("#system-verdict").inner_text()
    for preset in ("one", "two", "butterworth"):
        page.select_option("#system-preset", preset)
        check_system(shown(page, "system"))


def test_poles_on_the_border(open_page: Any) -> None:
    """Neither stable nor growing by themselves; two at one place grow."""
    page = open_page("system")

    def verdict(damping: float, stiffness: float) -> str:
        set_slider(page, "system-damping", damping)
        set_slider(page, "system-stiffness", stiffness)
        shown(page, "system")
        return str(page.locator("#system-verdict").inner_text())

    page.select_option("#system-method", "zoh")
    assert verdict(1, 9).startswith("Continuous: stable. Discrete: stable.")
    for damping, stiffness in ((0, 9), (1, 0)):
        text = verdict(damping, stiffness)
        assert text.startswith("Continuous: at the border. Discrete: at the border.")
        assert "is_stable counts this as stable" in text
    text = verdict(0, 0)
    assert text.startswith("Continuous: unstable, at the border. Discrete: unstable, at the border.")
    assert "Two poles at one place" in text
    page.select_option("#system-method", "euler")
    assert "made a system at the border grow" in verdict(0, 9)


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


def test_a_long_text_is_cut_and_said_to_be(open_page: Any) -> None:
    page = open_page("selection")
    page.fill("#selection-text", "x" * 10_000)
    words = "Only the first 400 of these 10,000 characters are read."
    page.wait_for_function("(w) => document.querySelector('#selection-total').textContent.includes(w)", arg=words)
    assert len(shown(page, "selection")["found"]["pieces"]) == 401
    page.fill("#selection-text", "x")
    page.wait_for_function("(w) => !document.querySelector('#selection-total').textContent.includes(w)", arg=words)
    page.click("#tab-surgery")
    page.wait_for_selector("#surgery-picture button")
    page.fill("#surgery-prompt", "y" * 500)
    page.wait_for_function(
        "(w) => document.querySelector('#surgery-left-out').textContent.includes(w)", arg="400 of these 500"
    )
    page.click("#surgery-read")
    page.wait_for_function("() => document.querySelector('#surgery-text').textContent.length === 400")


def test_a_text_is_text(open_page: Any) -> None:
    """What is typed, or what a model says, never becomes a part of the page."""
    page = open_page("selection")
    text = "<img src=x onerror=alert(1)>&<b>"
    page.fill("#selection-text", text)
    page.wait_for_function("(n) => statewise.panel_selection?.found.pieces.length === n", arg=len(text) + 1)
    page.click("#tab-surgery")
    page.fill("#surgery-prompt", text)
    page.wait_for_selector("#surgery-picture button")
    page.click("#surgery-read")
    page.click("#surgery-save")
    page.wait_for_function("(text) => document.querySelector('#surgery-text').textContent === text", arg=text)
    assert page.locator("main img").count() == 0


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
    for text, words in (
        ("a3 nonsense", "“n” at place 3 is no key: keys are a, b, c, d."),
        ("a9 b1 a?", "“9” at place 2 is no value: values are 1, 2, 3, 4."),
        ("z9 z8 z?", "“z” at place 1 is no key"),
        ("A3 B1 A?", "Keys are small letters."),
        ("a3 ? b1", "“?” at place 3 comes too early"),
        ("a3 b1", "After b1 a key is missing"),
        ("a3 <b", "“<” at place 3 is no key"),
        ("", "Write pairs"),
    ):
        page.fill("#lookup-text", text)
        page.wait_for_function("(w) => document.querySelector('#lookup-answer').textContent.includes(w)", arg=words)
        page.wait_for_function("(w) => document.querySelector('#lookup-said').textContent.includes(w)", arg=words)
    page.click("#lookup-shuffle")
    shown(page, "lookup")
    assert "is right" in page.locator("#lookup-answer").inner_text()
