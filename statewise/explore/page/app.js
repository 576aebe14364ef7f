"use strict";
// What the panels share: finding elements, drawing once a frame, tabs, light and dark.
(function (S) {
  const $ = (selector, within = document) => within.querySelector(selector);
  const panels = {};

  // A function that runs `draw` once in the next frame, however often it is called before; times are kept
  function eachFrame(draw) {
    let waiting = false;
    return () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        const begun = performance.now();
        draw();
        S.drawn.push(performance.now() - begun);
        if (S.drawn.length > 1000) S.drawn.splice(0, 500);
      });
    };
  }

  // Tells a screen reader what a figure shows now, when it has been still for a moment
  function speaker(element) {
    let timer = 0;
    return (text) => {
      element.dataset.now = text;
      clearTimeout(timer);
      timer = setTimeout(() => (element.textContent = text), 400);
    };
  }

  // Follows the pointer from where it goes down until it goes up: move(x, y, begin), in the element's pixels
  function dragged(element, move, end = () => {}) {
    const at = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let held = false;
    element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      if (move(...at(event), true, event) === false) return;
      held = true;
      element.setPointerCapture(event.pointerId);
      event.preventDefault();
      element.focus({ preventScroll: true });
    });
    element.addEventListener("pointermove", (event) => {
      if (!held) return;
      for (const each of event.getCoalescedEvents?.().length ? event.getCoalescedEvents() : [event]) move(...at(each), false, event);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      element.addEventListener(name, () => {
        if (held) end();
        held = false;
      });
    }
  }

  // A range input with its number shown beside it: returns a function that reads it
  function slider(id, show = String, change = () => {}) {
    const input = $(`#${id}`), output = $(`output[for="${id}"]`);
    const update = () => {
      const text = show(Number(input.value));
      if (output) output.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    input.addEventListener("input", () => {
      update();
      change();
    });
    update();
    const read = () => Number(input.value);
    read.set = (value) => {
      input.value = value;
      update();
    };
    read.fits = (value) => value >= Number(input.min) && value <= Number(input.max);
    read.limit = (highest) => {
      input.max = highest;
      update();
    };
    return read;
  }

  function open(name, focus = false) {
    for (const tab of document.querySelectorAll('[role="tab"]')) {
      const chosen = tab.dataset.panel === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      $(`#${tab.dataset.panel}`).hidden = !chosen;
      if (chosen && focus) tab.focus();
      if (chosen) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.clientWidth / 2 + tab.offsetWidth / 2;
    }
    history.replaceState(null, "", `#show=${name}`); // no element has this id, so nothing scrolls
    scrollTo(0, 0);
    panels[name].show();
  }

  const current = () => $('[role="tab"][aria-selected="true"]').dataset.panel;

  function theme(name) {
    document.documentElement.dataset.theme = name;
    $("#theme").textContent = name === "dark" ? "Light" : "Dark";
    $("#theme").setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colours`);
  }

  function begin() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    theme(dark.matches ? "dark" : "light");
    dark.addEventListener("change", () => {
      theme(dark.matches ? "dark" : "light");
      panels[current()].show();
    });
    $("#theme").addEventListener("click", () => {
      theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
      panels[current()].show();
    });
    const tabs = [...document.querySelectorAll('[role="tab"]')];
    for (const tab of tabs) {
      tab.addEventListener("click", () => open(tab.dataset.panel));
      tab.addEventListener("keydown", (event) => {
        const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -tabs.indexOf(tab), End: tabs.length - 1 - tabs.indexOf(tab) };
        if (!(event.key in steps)) return;
        event.preventDefault();
        const next = (tabs.indexOf(tab) + steps[event.key] + tabs.length) % tabs.length;
        open(tabs[next].dataset.panel, true);
      });
    }
    addEventListener("resize", eachFrame(() => panels[current()].show()));
    const wanted = location.hash.replace("#show=", "");
    open(panels[wanted] ? wanted : "memory");
  }

  const data = (id) => JSON.parse($(`#${id}`).textContent);

  S.drawn = [];
  S.app = { $, panels, eachFrame, speaker, dragged, slider, open, begin, data };
})((globalThis.statewise = globalThis.statewise || {}));
