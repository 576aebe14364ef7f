"use strict";
// Duality: the matrix of a selective head, cut into chunks, and three ways to multiply by it.
(function (S) {
  const { $, app } = { $: S.app.$, app: S.app };
  const FORMS = { recurrent: "recurrence", quadratic: "attention", chunked: "chunks" };
  const TEXT = "def area(self, width):\n    return self.height * width\n\ndef main():\n";
  const spec = app.data("data-model");

  const draw = app.eachFrame(show);
  const n = app.slider("duality-n", String, change);
  const length = app.slider("duality-length", String, change);
  const head = app.slider("duality-head", (h) => `${h + 1}`, change);
  const chunk = app.slider("duality-chunk", String, draw);
  const row = app.slider("duality-row", String, draw);
  const say = app.speaker($("#duality-said"));
  let layer = null, M = null, answers = null, blocks = { size: 0 };

  spec.layers.forEach((_, i) => $("#duality-source").add(new Option(`layer ${i + 1} of ${spec.name}`, String(i))));

  // A head of the small trained model, reading a few lines
  function trained(number) {
    const model = S.model.build(spec), record = [];
    let { state } = model.step(model.initial(), 256, record);
    for (const token of new TextEncoder().encode(TEXT).slice(0, length() - 1)) state = model.step(state, token, record).state;
    const steps = record[number], { n_heads, n_groups, d_state } = spec.layers[number].mixer, h = head();
    const group = Math.floor((h * n_groups) / n_heads) * d_state, uniform = S.linear.random(5);
    return {
      log_a: Float64Array.from(steps, (s) => s.log_a[h]),
      dt: Float64Array.from(steps, (s) => s.dt[h]),
      B: steps.map((s) => s.B.slice(group, group + d_state)),
      C: steps.map((s) => s.C.slice(group, group + d_state)),
      x: Float64Array.from(steps, () => S.linear.normal(uniform)),
    };
  }

  function change() {
    const source = $("#duality-source").value, made = source === "made";
    $("#duality-n").closest("label").hidden = !made;
    $("#duality-head-label").hidden = made;
    if (!made) head.limit(spec.layers[Number(source)].mixer.n_heads - 1);
    chunk.limit(length());
    row.limit(length() - 1);
    layer = made ? S.duality.madeUp(length(), n(), 11) : trained(Number(source));
    M = S.duality.matrix(layer);
    blocks = { size: 0 };
    answers = { recurrent: S.duality.recurrent(layer), quadratic: S.duality.quadratic(layer) };
    heat();
    draw();
  }

  function heat() {
    const most = S.chart.largest(M);
    S.chart.heat($("#duality-heat"), M, (v) => Math.sign(v) * Math.sqrt(Math.abs(v) / most));
  }

  const form = () => $('#duality-forms input:checked').value;

  function show() {
    if (!layer) return change();
    const T = length(), size = chunk(), t = row(), states = answers.recurrent.states;
    if (blocks.size !== size) blocks = { size, list: S.duality.blocks(M, size) };
    answers.chunked = S.duality.chunked(layer, size);
    const svg = $("#duality-over"), side = svg.clientWidth || 500, per = side / T;
    svg.setAttribute("viewBox", `0 0 ${side} ${side}`);
    svg.innerHTML = blocks.list.map((b) => {
      const box = `x="${b.column * per}" y="${b.row * per}" width="${b.columns * per}" height="${b.rows * per}"`;
      if (b.diagonal) return `<rect class="block" ${box}/>`;
      const font = Math.min(17, b.columns * per * 0.55, b.rows * per * 0.7);
      const label = font < 7 ? "" : `<text class="rank" font-size="${font}" x="${(b.column + b.columns / 2) * per}" y="${(b.row + b.rows / 2) * per + font * 0.36}">${b.rank}</text>`;
      return `<rect class="low" ${box}/>${label}`;
    }).join("") + `<rect class="row" x="1" y="${t * per}" width="${(t + 1) * per}" height="${per}"/>`;
    carried(t, states);
    const counted = Object.entries(FORMS).map(([name, label]) => {
      const { multiplications, sequential } = answers[name];
      return `<tr><td>${name === form() ? `<b>${label}</b>` : label}</td><td>${multiplications.toLocaleString("en")}</td><td>${sequential}</td></tr>`;
    }).join("");
    $("#duality-counts tbody").innerHTML = counted;
    outputs(T);
    const low = blocks.list.filter((b) => !b.diagonal), most = Math.max(0, ...low.map((b) => b.rank));
    say(`Chunks of ${size}: ${low.length} blocks below the diagonal, ranks at most ${most}, state of ${layer.B[0].length} numbers.`);
    S.panel_duality = { layer, M, blocks, answers, t };
  }

  function carried(t, states) {
    const h = states[t], N = h.length, y = answers.recurrent.y[t];
    $("#duality-t").textContent = t;
    S.chart.lines($("#duality-state"), {
      height: 170, x: [-0.6, N - 0.4], whole: true, y: S.chart.range(states, { zero: true, least: 0.1 }), xlabel: "which number of the state", ylabel: "h",
      under: (X, Y) => Array.from(h, (v, i) => {
        const width = Math.min(46, (X(1) - X(0)) * 0.7);
        return `<rect class="bar${v < 0 ? " negative" : ""}" x="${X(i) - width / 2}" y="${Math.min(Y(0), Y(v))}" width="${width}" height="${Math.abs(Y(v) - Y(0))}"/>`;
      }).join(""),
    });
    $("#duality-equation").innerHTML = `These ${N} numbers are all that rows from ${t} on know of x<sub>0</sub> … x<sub>${t}</sub>. Decay at this step: a = ${Math.exp(layer.log_a[t]).toFixed(3)}, step size Δ = ${layer.dt[t].toFixed(3)}; y = C·h = ${y.toFixed(4)}.`;
  }

  function outputs(T) {
    const x = Array.from({ length: T }, (_, i) => i), chosen = answers[form()].y;
    const apart = Object.keys(FORMS).filter((name) => name !== form())
      .map((name) => chosen.reduce((most, value, i) => Math.max(most, Math.abs(value - answers[name].y[i])), 0));
    S.chart.lines($("#duality-y"), {
      height: 170, whole: true, x: [-0.5, T - 0.5], y: S.chart.range([answers.recurrent.y], { zero: true }), xlabel: "t", ylabel: "y",
      series: [{ x, y: chosen, kind: Object.keys(FORMS).indexOf(form()) + 1, stems: true }],
      over: (X, Y, box) => `<line class="now" x1="${X(row())}" x2="${X(row())}" y1="${box.top}" y2="${box.bottom}" opacity="0.35"/>`,
    });
    $("#duality-same").textContent = `y by ${FORMS[form()]}. The other two give the same numbers: the largest difference is ${Math.max(...apart).toExponential(0).replace("-", "−")}.`;
  }

  const over = $("#duality-over");
  app.dragged(over, (px, py, begin) => chunk.set(Math.max(1, Math.min(length(), Math.round((px / over.clientWidth) * length())))) || draw());
  over.addEventListener("pointermove", (event) => {
    if (event.buttons) return;
    const box = over.getBoundingClientRect();
    row.set(Math.max(0, Math.min(length() - 1, Math.floor(((event.clientY - box.top) / box.height) * length()))));
    draw();
  });
  over.addEventListener("keydown", (event) => {
    const [size, t] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [];
    if (size === undefined) return;
    event.preventDefault();
    chunk.set(Math.max(1, chunk() + size));
    row.set(Math.max(0, row() + t));
    draw();
  });
  $("#duality-forms").addEventListener("change", draw);
  $("#duality-source").addEventListener("change", change);
  app.panels.duality = { show: () => { if (layer) heat(); draw(); } };
})(globalThis.statewise);
