"use strict";
// Lookup: how an H3 layer stores a value with its key and recalls it, trained and by hand.
(function (S) {
  const { $, app } = { $: S.app.$, app: S.app };
  const spec = app.data("data-lookup"), model = S.model.build(spec);
  const KEYS = "abcd", VALUES = "1234", ASK = "=>";
  const ids = Object.fromEntries([...KEYS].map((key, i) => [key, 1 + i]).concat([...VALUES].map((value, i) => [value, 5 + i]), [[ASK, 9]]));
  const say = app.speaker($("#lookup-said"));
  const draw = app.eachFrame(show);

  // "a3 b1 a?" -> { tokens: a 3 b 1 => a }, or { wrong }, which says what is wrong with it
  function parsed(text) {
    const signs = [...text.replace(/[\s.,]/g, "")], asks = signs.at(-1) === "?";
    if (asks) signs.pop();
    const at = signs.findIndex((sign, i) => !(i % 2 ? VALUES : KEYS).includes(sign));
    const how = "Write pairs such as a3 b1, then a key and a question mark: a?";
    if (at >= 0) return { wrong: `${refused(signs[at], at)} ${how}` };
    if (signs.length < 3) return { wrong: how };
    if (signs.length % 2 === 0) return { wrong: `After ${signs.at(-2)}${signs.at(-1)} a key is missing that is asked for. ${how}` };
    return { tokens: [...signs.slice(0, -1), ASK, signs.at(-1)] };
  }

  function refused(sign, at) {
    const place = `“${sign}” at place ${at + 1}`;
    if (sign === "?") return `${place} comes too early: the question mark is the last sign.`;
    if (at % 2) return `${place} is no value: values are ${[...VALUES].join(", ")}.`;
    const small = KEYS.includes(sign.toLowerCase()) ? " Keys are small letters." : "";
    return `${place} is no key: keys are ${[...KEYS].join(", ")}.${small}`;
  }

  // The layer whose weights are zeros and ones, each key a head: statewise.reproduce.h3_at_work.by_hand
  function byHand(tokens) {
    const one = (token, known) => [...known].map((name) => (name === token ? 1 : 0));
    const K = tokens.map((token) => one(token, KEYS)), V = tokens.map((token) => one(token, VALUES));
    const shifted = K.map((_, t) => (t ? K[t - 1] : [0, 0, 0, 0]));
    const pair = (k, v) => k.flatMap((a) => v.map((b) => a * b));
    const entering = tokens.map((_, t) => pair(shifted[t], V[t]));
    const state = [];
    entering.forEach((now, t) => state.push(now.map((x, i) => x + (t ? state[t - 1][i] : 0))));
    const output = tokens.map((_, t) => V[t].map((_, v) => K[t].reduce((sum, q, k) => sum + q * state[t][k * 4 + v], 0)));
    const answer = output.at(-1), total = answer.reduce((a, b) => a + b, 0) || 1;
    const pairs = [...KEYS].flatMap((key) => [...VALUES].map((value) => key + value));
    const rows = [
      ["K", K, [...KEYS]], ["shift(K)", shifted, [...KEYS]], ["V", V, [...VALUES]], ["K′V", entering, pairs],
      ["State", state, pairs], ["Q", K, [...KEYS]], ["Q · state", output, [...VALUES]],
    ];
    return { rows, chances: answer.map((x) => x / total), hand: true };
  }

  function trained(tokens) {
    const record = [];
    let state = model.initial(), logits = null;
    for (const token of tokens) ({ logits, state } = model.step(state, ids[token], record));
    const steps = record[spec.layer], heads = spec.heads;
    const of = (name) => steps.map((step) => heads.map((h) => step[name][h]));
    const names = heads.map((h) => `head ${h + 1}`);
    const p = S.model.softmax(logits), values = [...VALUES].map((value) => p[ids[value]]);
    const rows = [["K", "K"], ["shift(K)", "shifted"], ["V", "V"], ["K′V", "entering"], ["State", "state"], ["Q", "Q"], ["Q · state", "output"]]
      .map(([label, name]) => [label, of(name), names]);
    return { rows, chances: values, record: steps, logits: Array.from(logits), hand: false };
  }

  function show() {
    const text = $("#lookup-text").value, { tokens, wrong } = parsed(text);
    $("#lookup-text").setAttribute("aria-invalid", !tokens);
    if (!tokens) {
      $("#lookup-answer").innerHTML = `<span class="bad">${S.chart.escape(wrong)}</span>`;
      say(wrong);
      return;
    }
    const found = $("#lookup-layer").value === "hand" ? byHand(tokens) : trained(tokens);
    table(tokens, found);
    const asked = tokens.at(-1), wanted = lastValue(tokens, asked);
    const best = found.chances.indexOf(Math.max(...found.chances)), said = found.chances[best] > 0 ? VALUES[best] : "nothing";
    const right = wanted === null ? `${asked} was not given a value, so any answer is a guess.`
      : said === wanted ? `<span class="good">${wanted} is right.</span>` : `<span class="bad">The last value of ${asked} is ${wanted}.</span>`;
    $("#lookup-answer").innerHTML = `What was the value of <b>${asked}</b>? The layer says <b>${said}</b>. ${right}`;
    $("#lookup-bars").innerHTML = S.bars([...VALUES].map((value, i) => [value, found.chances[i]]).sort((a, b) => b[1] - a[1]), wanted);
    $("#lookup-caption").textContent = found.hand
      ? "A row inside each block for a key, a value or a pair; stronger where its number is larger."
      : `The ${spec.heads.length} heads that the trained layer needs most, a row each; blue below zero, orange above, each row by its own largest number. ${spec.note}`;
    say($("#lookup-answer").textContent);
    S.panel_lookup = { tokens, found };
  }

  function lastValue(tokens, key) {
    for (let t = tokens.length - 4; t >= 0; t -= 2) if (tokens[t] === key) return tokens[t + 1];
    return null;
  }

  function table(tokens, found) {
    const asked = tokens.at(-1), marked = (t) => t === tokens.length - 1 || tokens[t] === asked || (t > 0 && tokens[t - 1] === asked);
    const cells = tokens.map((token, t) => `<td class="${marked(t) ? "asked" : ""}">${token === ASK ? "?" : token}</td>`).join("");
    $("#lookup-trace").innerHTML = `<table><tr class="tokens"><th scope="row"></th>${cells}</tr>${found.rows
      .map(([label]) => `<tr><th scope="row">${label}</th><td colspan="${tokens.length}" style="padding:0"><canvas aria-hidden="true"></canvas></td></tr>`).join("")}</table>`;
    const canvases = document.querySelectorAll("#lookup-trace canvas");
    found.rows.forEach(([, steps, names], i) => {
      const rows = names.map((_, h) => steps.map((step) => step[h]));
      const most = rows.map((row) => Math.max(...row.map(Math.abs)) || 1);
      S.chart.heat(canvases[i], rows, (v, h) => v / most[h]);
      canvases[i].style.height = `${names.length * (names.length > 8 ? 6 : 10)}px`;
    });
  }

  $("#lookup-text").addEventListener("input", draw);
  $("#lookup-layer").addEventListener("change", draw);
  let shuffled = 0;
  $("#lookup-shuffle").addEventListener("click", () => {
    const uniform = S.linear.random(100 + ++shuffled), any = (from) => from[Math.floor(uniform() * from.length)];
    const value = Object.fromEntries([...KEYS].map((key) => [key, any(VALUES)]));
    const pairs = Array.from({ length: 10 }, () => any(KEYS)).map((key) => key + value[key]);
    $("#lookup-text").value = `${pairs.join(" ")} ${any(pairs)[0]}?`;
    draw();
  });
  app.panels.lookup = { show };
})(globalThis.statewise);
