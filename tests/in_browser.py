"""The page in a browser: what a panel shows as numbers, and what a hand does to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

PANELS = ("memory", "system", "duality", "selection", "surgery", "lookup")


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
