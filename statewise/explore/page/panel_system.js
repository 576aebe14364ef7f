"use strict";
// System: poles to drag, a rule that makes the system discrete, and its responses.
(function (S) {
  const { $, app } = { $: S.app.$, app: S.app };
  const FINE = 320; // points of a smooth curve

  const PRESETS = {
    one: [{ re: -1, im: 0, pair: false }],
    two: [{ re: -0.35, im: 2, pair: true }, { re: -0.5, im: 5, pair: true }],
    butterworth: [{ re: -3, im: 0, pair: false }, { re: -1.5, im: 2.598, pair: true }],
  };
  let groups = [], held = null;

  const draw = app.eachFrame(show);
  const dtOf = app.slider("system-dt", (x) => S.chart.shown(+(10 ** x).toPrecision(3)), draw);
  const alpha = app.slider("system-alpha", (x) => x.toFixed(2), draw);
  const say = app.speaker($("#system-said"));
  const preset = () => $("#system-preset").value;
  const spring = () => preset() === "spring";
  const mass = app.slider("system-mass", (x) => x.toFixed(2), fromSpring);
  const stiffness = app.slider("system-stiffness", (x) => x.toFixed(1), fromSpring);
  const damping = app.slider("system-damping", (x) => x.toFixed(2), fromSpring);

  // The roots of m s^2 + c s + k
  function fromSpring() {
    const m = mass(), c = damping(), k = stiffness(), inside = c * c - 4 * m * k;
    if (inside < 0) groups = [{ re: -c / (2 * m), im: Math.sqrt(-inside) / (2 * m), pair: true }];
    else {
      const root = Math.sqrt(inside);
      groups = [-1, 1].map((sign) => ({ re: (-c + sign * root) / (2 * m), im: 0, pair: false }));
    }
    draw();
  }

  // The sliders after a pole was moved: the mass stays. False where no spring and damper of theirs has such poles
  function toSpring() {
    const [a, b] = S.systems.listed(groups), m = mass(), c = -m * (a[0] + b[0]), k = m * (a[0] * b[0] - a[1] * b[1]);
    if (!damping.fits(c) || !stiffness.fits(k)) return false;
    damping.set(c);
    stiffness.set(k);
    return true;
  }

  const gain = (poles) => (spring() ? 1 / mass() : poles.reduce((product, [re, im]) => product * (Math.hypot(re, im) || 1), 1));

  const outside = ([re, im]) => Math.hypot(re, im) > 1 + 1e-12;
  const cross = (x, y, r = 7) => `<path d="M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}"/>`;

  function planeScale(svg, reach, centre = 0) {
    const width = Math.max(240, svg.clientWidth || 400), height = Math.min(width, 330);
    const per = height / 2 / reach;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    return { width, height, per, X: (v) => width / 2 + (v - centre) * per, Y: (v) => height / 2 - v * per };
  }

  let plane = null;
  const REACH = 8, CENTRE = -3;

  function drawContinuous() {
    const svg = $("#system-s");
    plane = planeScale(svg, REACH, CENTRE);
    const { width, height, X, Y } = plane;
    const grid = S.chart.ticks(-20, 20, 20).map((v) =>
      `<line class="grid faint" x1="${X(v)}" x2="${X(v)}" y1="0" y2="${height}"/><line class="grid faint" x1="0" x2="${width}" y1="${Y(v)}" y2="${Y(v)}"/>`).join("");
    const labels = [-10, -8, -6, -4, -2, 2].map((v) => `<text class="tick" x="${X(v)}" y="${Y(0) + 15}" text-anchor="middle">${S.chart.shown(v)}</text>`).join("")
      + [-6, -4, -2, 2, 4, 6].map((v) => `<text class="tick" x="${X(0) + 5}" y="${Y(v) + 4}">${S.chart.shown(v)}i</text>`).join("");
    let back = svg.querySelector("g.back");
    if (!back) {
      svg.innerHTML = '<g class="back"></g><g class="poles"></g>';
      back = svg.querySelector("g.back");
    }
    back.innerHTML = `<rect class="unstable" x="${X(0)}" y="0" width="${Math.max(0, width - X(0))}" height="${height}"/>${grid}
      <line class="now" x1="${X(0)}" x2="${X(0)}" y1="0" y2="${height}"/><line class="grid" x1="0" x2="${width}" y1="${Y(0)}" y2="${Y(0)}"/>${labels}`;
    // One handle for each group, so that focus stays where it is while a pole moves
    const place = svg.querySelector("g.poles");
    while (place.children.length > groups.length) place.lastChild.remove();
    groups.forEach((group, i) => {
      let handle = place.children[i];
      if (!handle) {
        handle = document.createElementNS("http://www.w3.org/2000/svg", "g");
        handle.setAttribute("tabindex", "0");
        handle.setAttribute("role", "slider");
        handle.addEventListener("keydown", (event) => move(event, i));
        place.append(handle);
      }
      handle.setAttribute("class", `pole${group.re > 0 ? " outside" : ""}`);
      const text = `${S.chart.shown(group.re)}${group.pair ? ` ± ${S.chart.shown(group.im)} i` : ""}`;
      handle.setAttribute("aria-label", `Pole ${i + 1}. Arrow keys move it.`);
      handle.setAttribute("aria-valuenow", group.re);
      handle.setAttribute("aria-valuetext", text);
      const twin = group.pair ? `<g opacity="0.6">${cross(X(group.re), Y(-group.im))}</g>` : "";
      handle.innerHTML = `<circle class="hit" cx="${X(group.re)}" cy="${Y(group.im)}" r="15"/>${cross(X(group.re), Y(group.im))}${twin}`;
    });
  }

  function set(group, re, im) {
    const before = { ...group };
    group.re = Math.max(-9.5, Math.min(3.5, re));
    if (group.pair) group.im = Math.max(0, Math.min(7.8, im));
    if (Math.abs(group.re) < 0.06) group.re = 0;
    if (spring() && !toSpring()) Object.assign(group, before);
    draw();
  }

  function move(event, i) {
    const step = event.shiftKey ? 0.5 : 0.1;
    const [x, y] = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key] || [];
    if (x === undefined) return;
    event.preventDefault();
    set(groups[i], groups[i].re + x, groups[i].im + y);
  }

  app.dragged($("#system-s"), (px, py, begin) => {
    if (begin) {
      const near = groups.map((group) => Math.min(...[1, -1].map((sign) => Math.hypot(plane.X(group.re) - px, plane.Y(sign * group.im) - py))));
      held = near.indexOf(Math.min(...near));
      if (near[held] > 40) return false;
    }
    set(groups[held], CENTRE + (px - plane.width / 2) / plane.per, Math.abs((plane.height / 2 - py) / plane.per));
  });

  function drawDiscrete(poles) {
    const svg = $("#system-z"), { width, height, X, Y } = planeScale(svg, 1.75);
    const labels = [-1, 1].map((v) => `<text class="tick" x="${X(v) + 5}" y="${Y(0) + 15}">${S.chart.shown(v)}</text><text class="tick" x="${X(0) + 5}" y="${Y(v) - 5}">${v < 0 ? "−i" : "i"}</text>`).join("");
    const limit = (v, most) => Math.max(8, Math.min(most - 8, v));
    const marks = poles.map((pole) => `<g class="still${outside(pole) ? " outside" : ""}">${cross(limit(X(pole[0]), width), limit(Y(pole[1]), height))}</g>`).join("");
    svg.innerHTML = `<rect class="unstable" width="${width}" height="${height}"/><circle class="disc" cx="${X(0)}" cy="${Y(0)}" r="${X(1) - X(0)}"/>
      <line class="grid" x1="0" x2="${width}" y1="${Y(0)}" y2="${Y(0)}"/><line class="grid" x1="${X(0)}" x2="${X(0)}" y1="0" y2="${height}"/>${labels}${marks}`;
  }

  function responses(system, discrete, poles, moved, k, dt) {
    const slowest = Math.min(...poles.map(([re]) => Math.abs(re)).filter((r) => r > 0.02), 5);
    const end = Math.max(Math.min(20, 4.5 / slowest), 2, 8 * dt), steps = Math.min(400, Math.floor(end / dt) + 1), fine = end / FINE;
    const times = Array.from({ length: FINE + 1 }, (_, i) => i * fine), places = Array.from({ length: steps }, (_, i) => i * dt);
    const smooth = [S.systems.continuousImpulse(system, fine, FINE + 1), S.systems.continuousStep(system, fine, FINE + 1)];
    const kick = new Float64Array(steps);
    kick[0] = 1 / dt;
    const dots = discrete ? [S.systems.simulate(discrete, kick), S.systems.simulate(discrete, new Float64Array(steps).fill(1))] : [[], []];
    if (discrete && $("#system-method").value === "dirac") dots[0] = dots[0].map((v) => v * dt);
    ["impulse", "step"].forEach((name, i) => {
      const inside = (values) => Array.from(values).map((v) => Math.max(-1e6, Math.min(1e6, v)));
      const [low, high] = S.chart.range([smooth[i]], { zero: true, least: 0.02 }), room = (high - low) * 0.35;
      S.chart.lines($(`#system-${name}`), {
        height: 210, x: [0, end], y: [low - room, high + room], xlabel: "time", ylabel: "output",
        series: [{ x: times, y: smooth[i], kind: 1 }, { x: places, y: inside(dots[i]), kind: 2, dots: steps > 60, stems: steps <= 60 }],
      });
    });
    const nyquist = Math.PI / dt, from = Math.min(0.1, nyquist / 30), to = Math.max(nyquist, 20);
    const omega = Array.from({ length: 160 }, (_, i) => from * (to / from) ** (i / 159));
    const whole = omega.map((w) => S.linear.complex.abs(S.systems.continuousResponse(poles, k, w)));
    const below = Array.from({ length: 160 }, (_, i) => from * ((0.999 * nyquist) / from) ** (i / 159));
    const response = discrete && S.systems.discreteResponse(discrete, dt, moved);
    const sampled = discrete ? below.map((w) => S.linear.complex.abs(response(w))) : [];
    const peak = Math.max(...whole.filter(Number.isFinite));
    S.chart.lines($("#system-frequency"), {
      height: 210, logx: true, logy: true, x: [from, to], y: [peak / 3e3, peak * 3], xlabel: "radians per unit of time", ylabel: "gain",
      series: [{ x: omega, y: whole, kind: 1 }, { x: below, y: sampled, kind: 2, dash: true }],
      over: (X, Y, box) => `<line class="brush" x1="${X(nyquist)}" x2="${X(nyquist)}" y1="${box.top}" y2="${box.bottom}"/>`,
    });
    return { times: places, impulse: Array.from(dots[0]), step: Array.from(dots[1]), omega: below, sampled };
  }

  // An index of WORDS. beyond(pole): how far it is behind the border, below zero on the stable side
  const WORDS = ['<span class="good">stable</span>', "at the border", '<span class="bad">unstable, at the border</span>', '<span class="bad">unstable</span>'];
  function standing(poles, beyond) {
    if (poles.some((pole) => beyond(pole) > 1e-9)) return 3;
    const on = poles.filter((pole) => beyond(pole) >= -1e-9);
    const twice = on.some(([re, im], i) => on.slice(i + 1).some(([x, y]) => Math.hypot(re - x, im - y) < 1e-6));
    return twice ? 2 : on.length ? 1 : 0;
  }

  function show() {
    const method = $("#system-method").value, dt = 10 ** dtOf(), poles = S.systems.listed(groups), k = gain(poles);
    const system = S.systems.canonical(poles, k), discrete = S.systems.discretize(system, dt, method, alpha());
    const moved = poles.map((pole) => S.systems.mapped(pole, dt, method, alpha()));
    drawContinuous();
    drawDiscrete(moved);
    const found = responses(system, discrete, poles, moved, k, dt);
    const whole = standing(poles, ([re]) => re), still = discrete ? standing(moved, ([re, im]) => Math.hypot(re, im) - 1) : 3;
    const lost = whole < 2 && still > 1 ? ` The rule made a ${whole ? "system at the border" : "stable system"} grow: take a smaller dt, or another rule.`
      : whole > 1 && still < 2 ? " The rule hides that the system grows." : "";
    const border = whole === 2 || still === 2 ? " Two poles at one place of the border: what a kick leaves grows without end. Python's is_stable does not look for that, and counts all poles on the border as stable."
      : whole === 1 || still === 1 ? " At the border: what a kick leaves does not fade, and an input that fits the pole (a constant one, or a wave of its frequency) makes it grow without end. Python's is_stable counts this as stable." : "";
    const verdict = `Continuous: ${WORDS[whole]}. Discrete: ${WORDS[still]}.${lost}${border}`;
    if ($("#system-verdict").innerHTML !== verdict) $("#system-verdict").innerHTML = verdict;
    say($("#system-verdict").textContent);
    S.panel_system = { poles, gain: k, dt, method, alpha: alpha(), system, moved, ...found };
  }

  function choose() {
    $("#system-spring").hidden = !spring();
    if (spring()) return fromSpring();
    groups = PRESETS[preset()].map((group) => ({ ...group }));
    draw();
  }
  $("#system-preset").addEventListener("change", choose);
  $("#system-method").addEventListener("change", () => {
    $("#system-alpha-label").hidden = $("#system-method").value !== "gbt";
    draw();
  });
  choose();
  app.panels.system = { show };
})(globalThis.statewise);
