"use strict";
// Memory: a signal, and what each HiPPO measure remembers of it.
(function (S) {
  const { $, app } = { $: S.app.$, app: S.app };
  const LENGTH = 512, DT = 1 / LENGTH, POINTS = 240;
  const KINDS = { legs: 1, legt: 2, fourier: 3, lagt: 4, fourier_diag: 5, tlagt: 6 };
  const NAMES = { legs: "LegS", legt: "LegT", fourier: "FouT", lagt: "LagT", fourier_diag: "FouD", tlagt: "TLagT" };
  const unit = (measure, theta) => theta / ({ lagt: 8, tlagt: 3 }[measure] || 1);

  const SIGNALS = {
    waves: (x) => 0.6 * Math.sin(2 * Math.PI * 3 * x) + 0.35 * Math.sin(2 * Math.PI * 7.3 * x + 1),
    steps: (x) => [0.2, 0.8, -0.5, 0.4, -0.9, 0.6, 0][Math.floor(x * 7)],
    chirp: (x) => 0.8 * Math.sin(2 * Math.PI * (1 + 9 * x) * x),
    spike: (x) => Math.exp(-(((x - 0.55) / 0.02) ** 2)) - 0.6 * Math.exp(-(((x - 0.3) / 0.05) ** 2)),
    flat: () => 0,
  };

  function signal(name) {
    if (name !== "noise") return Float64Array.from({ length: LENGTH }, (_, k) => SIGNALS[name]((k + 0.5) * DT));
    const uniform = S.linear.random(7);
    let low = 0, lower = 0;
    return Float64Array.from({ length: LENGTH }, () => {
      low += 0.06 * (S.linear.normal(uniform) * 3 - low);
      lower += 0.1 * (low - lower);
      return Math.max(-1.15, Math.min(1.15, lower));
    });
  }

  let u = signal("waves"), brush = 200, scales = null;
  const tables = new Map(), bases = new Map();

  // Both depend on measure, N and the window alone, so a stroke of the pointer costs only sums
  function cached(store, key, make) {
    if (!store.has(key)) {
      if (store.size > 24) store.clear();
      store.set(key, make());
    }
    return store.get(key);
  }

  // What a measure knows at `count` steps: its N numbers, and the past that they stand for
  function remembered(measure, n, theta, count) {
    const window = unit(measure, theta);
    const span = measure === "legs" ? count * DT : Math.min(measure === "lagt" ? theta * 1.5 : theta, count * DT);
    const table = measure === "legs" ? null
      : cached(tables, [measure, n, window].join(), () => S.hippo.responses(measure, n, window, DT, LENGTH));
    const numbers = S.hippo.project(u, measure, n, { theta: window, dt: DT, count, table });
    const ages = Float64Array.from({ length: POINTS + 1 }, (_, i) => (i * span) / POINTS);
    const functions = cached(bases, [measure, n, window, span].join(), () =>
      S.hippo.basis(measure, n, ages, { theta: window, elapsed: count * DT }));
    const past = S.hippo.reconstruct(numbers, functions);
    let wrong = 0, size = 0;
    ages.forEach((age, i) => {
      const at = u[Math.max(0, Math.min(count - 1, Math.floor((count * DT - age) / DT - 1e-9)))];
      wrong += (past[i] - at) ** 2;
      size += at * at;
    });
    return { numbers, ages, past, span, error: Math.sqrt(wrong / Math.max(size, 1e-12)) };
  }

  const draw = app.eachFrame(show);
  const n = app.slider("memory-n", (x) => `${x} numbers`, draw);
  const theta = app.slider("memory-theta", (x) => x.toFixed(2), draw);
  const now = app.slider("memory-now", (x) => (x * DT).toFixed(2), draw);
  const say = app.speaker($("#memory-said"));
  const ticked = () => [...document.querySelectorAll("#memory-measures input:checked")].map((input) => input.value);

  function show() {
    const count = now(), chosen = ticked();
    const found = chosen.map((measure) => ({ measure, ...remembered(measure, n(), theta(), count) }));
    S.panel_memory = { found, u, count }; // for the browser's test
    const x = Float64Array.from({ length: LENGTH }, (_, k) => (k + 0.5) * DT);
    scales = S.chart.lines($("#memory-plot"), {
      height: 330, x: [0, 1], y: [-1.5, 1.5], xlabel: "time", ylabel: "signal",
      under: (X, Y, box) => {
        const left = X(Math.max(0, count * DT - theta()));
        return chosen.some((m) => m !== "legs")
          ? `<rect class="window" x="${left}" y="${box.top}" width="${X(count * DT) - left}" height="${box.bottom - box.top}"/>` : "";
      },
      series: [
        { x, y: u, kind: "0 signal" },
        ...found.map((one) => ({ x: one.ages.map((age) => count * DT - age), y: one.past, kind: KINDS[one.measure], dash: one.measure !== "legs" })),
      ],
      over: (X, Y, box) =>
        `<rect class="later" x="${X(count * DT)}" y="${box.top}" width="${Math.max(0, box.right - X(count * DT))}" height="${box.bottom - box.top}"/>` +
        `<line class="now" x1="${X(count * DT)}" x2="${X(count * DT)}" y1="${box.top}" y2="${box.bottom}"/>` +
        `<text class="mark" x="${X(count * DT) + (count > 470 ? -6 : 6)}" y="${box.top + 14}" text-anchor="${count > 470 ? "end" : "start"}">now</text>` +
        (document.activeElement === $("#memory-plot") ? `<line class="brush" x1="${X(brush * DT)}" x2="${X(brush * DT)}" y1="${box.top}" y2="${box.bottom}"/>` : ""),
    });
    numbers(found[0]);
    $("#memory-errors tbody").innerHTML = found
      .map((one) => `<tr><td><b style="color:var(--c${KINDS[one.measure]})">${NAMES[one.measure]}</b></td><td>the last ${one.span.toFixed(2)}</td><td>${(100 * one.error).toFixed(1)} %</td></tr>`)
      .join("") || '<tr><td colspan="3">Tick a measure.</td></tr>';
    say(found.map((one) => `${NAMES[one.measure]}: error ${(100 * one.error).toFixed(0)} percent`).join(", "));
  }

  function numbers(one) {
    const values = one ? one.numbers : [];
    $("#memory-count").textContent = one ? `${NAMES[one.measure]}, ${values.length} numbers, for ${now()} samples read` : "none is ticked";
    S.chart.lines($("#memory-numbers"), {
      height: 230, whole: true, x: [-0.7, values.length - 0.3], y: S.chart.range([values], { zero: true, least: 0.2 }), xlabel: "which number", ylabel: "its value",
      under: (X, Y) => Array.from(values, (v, i) => {
        const width = Math.max(1.5, (X(1) - X(0)) * 0.7);
        return `<rect class="dot s${KINDS[one.measure]}" x="${X(i) - width / 2}" y="${Math.min(Y(0), Y(v))}" width="${width}" height="${Math.abs(Y(v) - Y(0))}"/>`;
      }).join(""),
    });
  }

  // A stroke: straight between the places that the pointer reported
  let before = null;
  app.dragged($("#memory-plot"), (px, py, begin) => {
    if (!scales) return false;
    const { box } = scales;
    const k = Math.max(0, Math.min(LENGTH - 1, Math.floor(((px - box.left) / (box.right - box.left)) * LENGTH)));
    const value = Math.max(-1.5, Math.min(1.5, 1.5 - (3 * (py - box.top)) / (box.bottom - box.top)));
    if (begin) before = null;
    const [from, at] = before || [k, value];
    for (let i = Math.min(from, k); i <= Math.max(from, k); i++) u[i] = from === k ? value : at + ((value - at) * (i - from)) / (k - from);
    before = [k, value];
    brush = k;
    draw();
  });
  $("#memory-plot").addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 32 : 6;
    if (event.key === "ArrowLeft") brush = Math.max(0, brush - step);
    else if (event.key === "ArrowRight") brush = Math.min(LENGTH - 1, brush + step);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const more = event.key === "ArrowUp" ? 0.12 : -0.12;
      u = u.map((value, k) => Math.max(-1.5, Math.min(1.5, value + more * Math.exp(-(((k - brush) / 14) ** 2)))));
    } else return;
    event.preventDefault();
    draw();
  });
  $("#memory-plot").addEventListener("focus", draw);
  $("#memory-plot").addEventListener("blur", draw);
  $("#memory-signal").addEventListener("change", (event) => {
    u = signal(event.target.value);
    draw();
  });
  $("#memory-measures").addEventListener("change", draw);

  app.panels.memory = { show };
})(globalThis.statewise);
