"use strict";
// Selection: what a trained model makes of a text, piece by piece.
(function (S) {
  const { $, app } = { $: S.app.$, app: S.app };
  const TEXT = 'def total(self, values):\n    """Return the sum of the values."""\n    return sum(values)\n';
  const MOST = 8; // bits at which a colour is full
  let found = null, info = null, chosen = 1, asked = 0, attention = null, said = "";

  const head = app.slider("selection-head", (h) => `${h + 1}`, () => matrix());
  const say = app.speaker($("#selection-said"));
  const layer = () => Number($("#selection-layer").value);
  const seen = () => found.layers.find((one) => one.layer === layer());
  const visible = S.visible = (piece) => piece.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");

  async function start() {
    if (info) return;
    info = await S.mind.info();
    info.layers.forEach((one, i) => one.selects && $("#selection-layer").add(new Option(`${i + 1}: ${one.name}`, i)));
    if (!$("#selection-text").value) $("#selection-text").value = TEXT;
    await read();
  }

  // As much of a text as a panel reads
  const LONGEST = 400;
  S.beginning = (where) => {
    const text = $(where).value, last = text.charCodeAt(LONGEST - 1);
    return text.slice(0, LONGEST - (text.length > LONGEST && last >= 0xd800 && last < 0xdc00 ? 1 : 0)); // no half of a sign
  };
  S.leftOut = (where) => {
    const n = $(where).value.length;
    return n > LONGEST ? ` Only the first ${LONGEST} of these ${n.toLocaleString("en")} characters are read.` : "";
  };

  // Only the newest text counts: an answer that comes late is dropped
  async function read() {
    const text = S.beginning("#selection-text"), mine = ++asked;
    try {
      const answer = await S.mind.analyse({ text });
      if (mine !== asked) return;
      found = answer;
      chosen = Math.min(Math.max(1, chosen), found.pieces.length - 1);
      if (found.layers.length) await matrix();
      else show();
    } catch (error) {
      $("#selection-total").textContent = error.message;
    }
  }

  async function matrix() {
    const one = seen();
    if (!one) return;
    head.limit(one.dt.length - 1);
    const mine = asked, question = { text: S.beginning("#selection-text"), layer: layer(), head: head() };
    const answer = await S.mind.attention(question);
    if (mine !== asked || question.head !== head() || question.layer !== layer()) return;
    attention = answer;
    show();
  }

  function show() {
    if (!found) return start();
    pieces();
    const selects = found.layers.length > 0;
    $("#selection-none").hidden = selects;
    for (const part of document.querySelectorAll("[data-selects]")) part.hidden = !selects;
    if (selects) strip();
    if (selects && attention) looks();
    next();
    S.panel_selection = { found, attention, chosen, layer: layer(), head: head() };
  }

  function pieces() {
    const bits = found.bits.slice(1), sum = bits.reduce((a, b) => a + b, 0);
    const left = S.leftOut("#selection-text");
    $("#selection-total").innerHTML = bits.length
      ? `<b>${(sum / found.n_bytes).toFixed(3)}</b> bits per byte over ${found.n_bytes} bytes.${left}` : "Type some text.";
    if (left && left !== said) say(left.trim());
    said = left;
    const from = S.chart.variable("--card"), place = $("#selection-shown");
    place.innerHTML = found.pieces.map((piece, t) => {
      if (!t) return "";
      const share = Math.round(100 * Math.min(1, found.bits[t] / MOST));
      const text = S.chart.escape(piece.replace(/\n/g, "↵\n").replace(/\t/g, "⇥"));
      return `<span data-t="${t}" class="${t === chosen ? "chosen" : ""}" style="background:color-mix(in srgb, rgb(var(--surprise)) ${share}%, ${from})">${text}</span>`;
    }).join("");
    place.setAttribute("aria-valuemin", 1);
    place.setAttribute("aria-valuemax", found.pieces.length - 1);
    place.setAttribute("aria-valuenow", chosen);
    if (chosen > 0 && found.bits[chosen] !== null && found.bits[chosen] !== undefined) {
      place.setAttribute("aria-valuetext", `${visible(found.pieces[chosen])}, ${found.bits[chosen].toFixed(1)} bits`);
    }
  }

  function strip() {
    const kind = $("#selection-strip").value, rows = seen()[kind].map((numbers) => numbers.slice(1));
    const canvas = $("#selection-heads");
    if (!rows[0] || !rows[0].length) return;
    const logs = rows.map((numbers) => Array.from(numbers, (v) => Math.log(Math.max(v, 1e-6))));
    const all = logs.flat(), low = Math.min(...all), high = Math.max(...all);
    S.chart.heat(canvas, logs, (v) => (v - low) / (high - low || 1));
    canvas.style.height = `${Math.min(220, Math.max(22, 220 / rows.length) * rows.length)}px`;
    const cell = $("#selection-cell"), percent = (part, of) => `${(100 * part) / of}%`;
    Object.assign(cell.style, {
      left: percent(chosen - 1, rows[0].length), width: percent(1, rows[0].length),
      top: percent(Math.min(head(), rows.length - 1), rows.length), height: percent(1, rows.length),
    });
    const value = rows[Math.min(head(), rows.length - 1)][chosen - 1];
    const what = kind === "dt" ? "Step sizes: strong where a head takes in much and forgets what was" : "Half-lives: strong where a head keeps what it has for long";
    $("#selection-strip-caption").textContent = `${what}. A row for each of ${rows.length} heads, a column for each piece of text, from ${S.chart.shown(Math.exp(low))} to ${S.chart.shown(Math.exp(high))}. Head ${head() + 1} at “${visible(found.pieces[chosen])}”: ${S.chart.shown(value)}.`;
  }

  function looks() {
    const most = S.chart.largest(attention), T = attention.length;
    S.chart.heat($("#selection-attention"), attention, (v) => Math.sign(v) * Math.sqrt(Math.abs(v) / most));
    const mark = $("#selection-mark");
    mark.style.top = `${(100 * chosen) / T}%`;
    mark.style.height = `${Math.max(100 / T, 0.8)}%`;
    mark.style.width = `${(100 * (chosen + 1)) / T}%`;
    const row = attention[Math.min(chosen, T - 1)];
    const order = row.map((v, s) => [Math.abs(v), s]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([v]) => v > 0);
    $("#selection-looks").textContent = `From “${visible(found.pieces[chosen])}” it looks most at ${order.map(([, s]) => `“${visible(found.pieces[s])}”${chosen === s ? " itself" : ` ${chosen - s} back`}`).join(", ")}.`;
  }

  function next() {
    const before = chosen > 0 ? chosen - 1 : 0, rows = found.next[before], it = found.pieces[chosen];
    const bits = found.bits[chosen];
    $("#selection-next-title").textContent = chosen > 0 ? `What was expected where “${visible(it)}” came` : "What comes first";
    $("#selection-next").innerHTML = S.bars(rows, it);
    if (bits !== null && bits !== undefined) say(`${visible(it)}: ${bits.toFixed(1)} bits. Expected: ${rows.slice(0, 3).map(([piece, p]) => `${visible(piece)} ${Math.round(100 * p)} percent`).join(", ")}.`);
  }

  // Candidates as bars: [piece, probability]; `mark` the one that came; `before` what they were earlier
  S.bars = (rows, mark = null, before = null) =>
    rows.slice(0, 10).map(([piece, p]) => {
      const old = before ? before.find(([other]) => other === piece) : null;
      const ghost = old ? `<i class="before" style="width:${(100 * old[1]).toFixed(1)}%"></i>` : "";
      const text = S.chart.escape(visible(piece));
      return `<code>${piece === mark ? `<b>${text}</b>` : text}</code><div><i style="width:${(100 * p).toFixed(1)}%${piece === mark ? ";background:var(--c2)" : ""}"></i>${ghost}</div><span>${(100 * p).toFixed(1)} %</span>`;
    }).join("");

  function pick(t) {
    chosen = Math.min(Math.max(1, t), found.pieces.length - 1);
    show();
  }
  $("#selection-shown").addEventListener("click", (event) => {
    const t = event.target.dataset && event.target.dataset.t;
    if (t) pick(Number(t));
  });
  $("#selection-shown").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -1e6, End: 1e6 }[event.key];
    if (step === undefined || !found) return;
    event.preventDefault();
    pick(chosen + step);
  });
  $("#selection-attention").closest(".square").addEventListener("click", (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    pick(Math.floor(((event.clientY - box.top) / box.height) * attention.length));
  });
  let typing = 0;
  $("#selection-text").addEventListener("input", () => {
    clearTimeout(typing);
    chosen = 1e6; // what was typed last
    typing = setTimeout(read, S.mind.kind === "page" ? 60 : 250);
  });
  $("#selection-layer").addEventListener("change", matrix);
  $("#selection-strip").addEventListener("change", show);
  app.panels.selection = { show };
})(globalThis.statewise);
