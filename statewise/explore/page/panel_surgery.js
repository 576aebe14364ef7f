"use strict";
// State surgery: a state is stopped, saved, rewound, edited and spliced.
(function (S) {
  const { $, app } = { $: S.app.$, app: S.app };
  let info = null, now = null, parts = [], grown = [], before = null, pictures = null, head = null, running = false;
  const shelf = [];

  const temperature = app.slider("surgery-temperature", (x) => x.toFixed(2));
  const factor = app.slider("surgery-factor", (x) => `× ${x}`);
  const say = app.speaker($("#surgery-said"));
  const seed = () => Math.max(0, Math.floor(Number($("#surgery-seed").value) || 0));
  const esc = S.chart.escape;
  const kilobytes = (bytes) => `${(bytes / 1024).toLocaleString("en", { maximumFractionDigits: bytes < 10240 ? 1 : 0 })} KiB`;

  async function start() {
    if (info) return;
    info = await S.mind.info();
    $("#surgery-prompt").value = "class Stack:\n    def push(self, item):\n";
    await begin();
  }

  // parts: [kind, text]: what was read, what was written, and marks of what was done to the state between them
  async function reach(answer, added, was = now) {
    before = was && added[0] === "did" ? was.next : null;
    now = answer;
    grown = [...grown.filter(([at]) => at < now.position), [now.position, now.bytes]];
    parts = [...parts, added];
    pictures = await S.mind.picture({ state: now.state });
    show();
    const likely = now.next.slice(0, 3).map(([piece, p]) => `${S.visible(piece)} ${Math.round(100 * p)} percent`);
    say(`${added[0]} ${added[1].slice(-60)}. Next: ${likely.join(", ")}.`);
  }

  async function begin() {
    const text = S.beginning("#surgery-prompt");
    parts = [];
    await reach(await S.mind.read({ text }), ["read", text], null);
  }

  async function generate(count) {
    const answer = await S.mind.generate({ state: now.state, count, temperature: temperature(), seed: seed() });
    await reach(answer, ["wrote", answer.pieces.join("")]);
    return answer.pieces.length === count;
  }

  async function run() {
    running = !running;
    $("#surgery-run").textContent = running ? "Stop" : "Generate";
    while (running) {
      if (!(await generate(4)) || now.position > 4000) running = false;
      await new Promise((done) => setTimeout(done, 20));
    }
    $("#surgery-run").textContent = "Generate";
  }

  function save(label = null) {
    const name = label || `state ${shelf.length + 1}`;
    shelf.push({ name, ...now, parts });
    say(`Saved as ${name}.`);
    show();
  }

  async function rewind(i) {
    running = false;
    const kept = shelf[i];
    parts = kept.parts;
    await reach(kept, ["did", `returned to ${kept.name}`], now);
  }

  async function edit(heads, what) {
    let answer = now;
    for (const [layer, number, times] of heads) answer = await S.mind.edit({ state: answer.state, layer, head: number, factor: times });
    await reach(answer, ["did", what]);
  }

  async function splice() {
    const [a, b] = ["first", "second"].map((name) => shelf[Number($(`#surgery-${name}`).value)]);
    const layers = [...document.querySelectorAll("#surgery-layers input:checked")].map((input) => Number(input.value));
    const answer = await S.mind.splice({ first: a.state, second: b.state, layers });
    parts = a.parts;
    await reach(answer, ["did", `${layers.length ? `layer ${layers.map((i) => i + 1).join(", ")}` : "nothing"} from ${b.name}`], a);
  }

  function show() {
    if (!now) return start();
    const place = $("#surgery-text");
    place.innerHTML = parts.map(([kind, text]) => (kind === "read" ? esc(text) : kind === "wrote" ? `<mark>${esc(text)}</mark>` : `<b> [${esc(text)}] </b>`)).join("");
    place.scrollTop = place.scrollHeight;
    $("#surgery-next").innerHTML = S.bars(now.next, null, before);
    $("#surgery-change").textContent = before ? "Outlined: what it was before." : "";
    picture();
    shelved();
    memory();
    S.panel_surgery = { now, parts, shelf, pictures };
  }

  function picture() {
    const place = $("#surgery-picture");
    const most = Math.max(...pictures.flat().map((rows) => (rows ? S.chart.largest(rows) : 0)), 1e-9);
    place.innerHTML = pictures.map((heads, i) => `<div><span>layer ${i + 1}</span>${heads.map((_, h) =>
      `<button type="button" data-layer="${i}" data-head="${h}" aria-pressed="${!!head && head[0] === i && head[1] === h}" aria-label="layer ${i + 1}, head ${h + 1}"><canvas></canvas></button>`).join("") || `<span style="width:auto">${esc(info.layers[i].name)}</span>`}</div>`).join("");
    for (const button of place.querySelectorAll("button")) {
      const rows = pictures[button.dataset.layer][button.dataset.head];
      S.chart.heat($("canvas", button), rows, (v) => Math.sqrt(v / most));
      button.addEventListener("click", () => {
        head = [Number(button.dataset.layer), Number(button.dataset.head)];
        show();
        $(`#surgery-picture button[data-layer="${head[0]}"][data-head="${head[1]}"]`).focus();
      });
    }
    $("#surgery-chosen").textContent = head ? `Layer ${head[0] + 1}, head ${head[1] + 1}:` : "No head chosen.";
    for (const id of ["apply", "erase"]) $(`#surgery-${id}`).disabled = !head;
  }

  function shelved() {
    const place = $("#surgery-shelf");
    place.innerHTML = shelf.map((kept, i) =>
      `<li><strong>${esc(kept.name)}</strong> · ${kilobytes(kept.bytes)} after ${kept.position.toLocaleString("en")} ${info.unit}s<code>…${esc(kept.text.slice(-70))}</code><button type="button" data-i="${i}">Rewind to it</button></li>`).join("")
      || '<li class="empty">Nothing saved yet. A saved state is a few kilobytes, however long its text.</li>';
    for (const button of place.querySelectorAll("button")) button.addEventListener("click", () => rewind(Number(button.dataset.i)));
    $("#surgery-splice").hidden = shelf.length < 2;
    for (const [name, other] of [["first", 0], ["second", 1]]) {
      const select = $(`#surgery-${name}`), value = select.value || String(other);
      select.innerHTML = shelf.map((kept, i) => `<option value="${i}">${esc(kept.name)}</option>`).join("");
      select.value = value;
    }
    const layers = $("#surgery-layers");
    if (!layers.children.length) {
      layers.innerHTML = info.layers.map((one, i) => (one.edits ? `<label><input type="checkbox" value="${i}"${i ? "" : " checked"}> layer ${i + 1}</label>` : "")).join("");
    }
  }

  // An attention cache of as many layers and this width: a key and a value of d_model numbers for each token and layer
  function memory() {
    const each = 2 * 4 * info.d_model * info.layers.length, read = Math.max(200, Math.ceil((now.position * 1.25) / 100) * 100);
    const x = [0, read], own = now.bytes / 1024, cache = (each * now.position) / 1024;
    S.chart.lines($("#surgery-memory"), {
      height: 220, x, y: [0, Math.max(own * 1.4, (each * read) / 1024)], xlabel: `${info.unit}s read`, ylabel: "KiB",
      series: [{ x: info.grows ? grown.map(([at]) => at) : x, y: info.grows ? grown.map(([, bytes]) => bytes / 1024) : [own, own], kind: 1 }, { x, y: [0, (each * read) / 1024], kind: 2, dash: true }],
      over: (X, Y, box) => `<line class="now" x1="${X(now.position)}" x2="${X(now.position)}" y1="${box.top}" y2="${box.bottom}" opacity="0.4"/>
        <circle class="dot s1" cx="${X(now.position)}" cy="${Y(own)}" r="5"/><circle class="dot s2" cx="${X(now.position)}" cy="${Y(cache)}" r="5"/>
        <text class="mark" x="${X(read) - 6}" y="${Y(own) - 7}" text-anchor="end" style="fill:var(--c1)">this state</text>
        <text class="mark" x="${X(read) - 6}" y="${Y(((each * read) / 1024) * 0.6)}" text-anchor="end" style="fill:var(--c2)">attention</text>`,
    });
    const kept = info.grows ? "which grows, as layers of this model keep what they have read" : "whatever was read";
    $("#surgery-bytes").textContent = `After ${now.position.toLocaleString("en")} ${info.unit}s: this state ${kilobytes(now.bytes)}, ${kept}; the keys and values of attention with as many layers and the same width, in float32: ${kilobytes(each * now.position)}.`;
  }

  // A call that fails is shown where the text is
  const trying = (action) => async () => {
    try {
      await action();
    } catch (error) {
      running = false;
      $("#surgery-change").textContent = error.message;
    }
  };
  $("#surgery-read").addEventListener("click", trying(begin));
  $("#surgery-prompt").addEventListener("input", () => ($("#surgery-left-out").textContent = S.leftOut("#surgery-prompt").trim()));
  $("#surgery-more").addEventListener("click", trying(async () => {
    const text = S.beginning("#surgery-prompt");
    await reach(await S.mind.read({ state: now.state, text }), ["read", text]);
  }));
  $("#surgery-run").addEventListener("click", trying(run));
  $("#surgery-step").addEventListener("click", trying(() => generate(1)));
  $("#surgery-save").addEventListener("click", () => save());
  $("#surgery-apply").addEventListener("click", trying(() => edit([[...head, factor()]], `layer ${head[0] + 1}, head ${head[1] + 1}: × ${factor()}`)));
  $("#surgery-erase").addEventListener("click", trying(() => edit(pictures[head[0]].map((_, h) => [head[0], h, 0]), `layer ${head[0] + 1} erased`)));
  $("#surgery-join").addEventListener("click", trying(splice));
  app.panels.surgery = { show };
})(globalThis.statewise);
