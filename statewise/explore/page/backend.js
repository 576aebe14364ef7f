"use strict";
// Who computes with the language model: this page itself, or Python behind the local server. Both answer alike.
(function (S) {
  const TOP = 12; // pieces listed as candidates for the next one
  const SIDE = 16; // a state's picture has at most this many rows and columns

  // What a byte looks like; 256 begins a document
  function piece(id) {
    if (id === 256) return "⟨start⟩";
    const printable = (id >= 32 && id < 127) || id === 9 || id === 10;
    return printable ? String.fromCharCode(id) : "\\x" + id.toString(16).toUpperCase().padStart(2, "0");
  }

  function candidates(logits) {
    const p = S.model.softmax(logits);
    const order = Array.from(p.keys()).sort((a, b) => p[b] - p[a]).slice(0, TOP);
    return order.map((id) => [piece(id), p[id]]);
  }

  // Root mean squares of the parts of a (rows, columns) matrix, cut into at most SIDE x SIDE
  function pooled(values, rows, columns) {
    const high = Math.min(rows, SIDE), wide = Math.min(columns, SIDE);
    const sums = S.linear.zeros(high, wide), counts = S.linear.zeros(high, wide);
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const a = Math.floor((i * high) / rows), b = Math.floor((j * wide) / columns);
        sums[a][b] += values[i * columns + j] ** 2;
        counts[a][b] += 1;
      }
    }
    return sums.map((row, i) => Array.from(row, (sum, j) => Math.sqrt(sum / counts[i][j])));
  }

  function local(spec) {
    const model = S.model.build(spec), states = new Map();
    const encoder = new TextEncoder();
    const start = 256;
    let last = 0;

    const keep = (reading) => {
      const id = String(++last);
      states.set(id, reading);
      return id;
    };
    const size = (layer) => layer.convolution.length + layer.h.length;
    const described = (id, more = {}) => {
      const { logits, state, text } = states.get(id);
      const bytes = 4 * state.layers.reduce((sum, layer) => sum + size(layer), 0);
      return { state: id, position: state.position - 1, bytes, text, next: candidates(logits), ...more };
    };
    // A reading: the state, the logits of what comes next, and the state and the piece that led to them
    const step = (previous, last, tokens) => ({ ...model.step(previous, last), previous, last, tokens });
    // Reads tokens behind a reading, or behind the document's start
    function read(before, tokens) {
      let reading = before || step(model.initial(), start, []);
      for (const token of tokens) reading = step(reading.state, token, [...reading.tokens, token]);
      return reading;
    }
    const decoder = (tokens) => new TextDecoder().decode(Uint8Array.from(tokens));
    const withText = (reading) => ({ ...reading, text: decoder(reading.tokens) });
    // A surgery changes the state before the last piece, which is then read again: so what comes next changes too
    const again = (reading, layers) =>
      described(keep(withText(step({ ...reading.previous, layers }, reading.last, reading.tokens))));

    // What the model makes of a text. Where it begins as the last one did, only the rest is read
    let analysed = { tokens: [], record: spec.layers.map(() => []), readings: [] };
    function analyse(text) {
      const tokens = [start, ...encoder.encode(text)];
      let same = 0;
      while (same < tokens.length && tokens[same] === analysed.tokens[same]) same++;
      const record = analysed.record.map((steps) => steps.slice(0, same)), readings = analysed.readings.slice(0, same);
      for (const token of tokens.slice(same)) {
        readings.push(model.step(readings.length ? readings.at(-1).state : model.initial(), token, record));
      }
      analysed = { tokens, record, readings };
      return { tokens, record, logits: readings.map((reading) => reading.logits) };
    }

    return {
      kind: "page",
      async info() {
        const layers = spec.layers.map(() => ({ name: "Mamba-2", selects: true, edits: true }));
        return { name: spec.name, layers, d_model: spec.d_model, unit: "byte", grows: false };
      },
      async analyse({ text }) {
        const { tokens, record, logits } = analyse(text);
        const bits = tokens.map((token, t) => (t ? -Math.log2(S.model.softmax(logits[t - 1])[token]) : null));
        const layers = record.map((steps, layer) => {
          const heads = Array.from(steps[0].dt.keys());
          return {
            layer,
            dt: heads.map((h) => steps.map((step) => step.dt[h])),
            half_life: heads.map((h) => steps.map((step) => -Math.LN2 / step.log_a[h])),
          };
        });
        const n_bytes = tokens.length - 1;
        return { pieces: tokens.map(piece), bits, n_bytes, next: logits.map(candidates), layers };
      },
      // The layer's hidden attention, y_t = sum_s M[t][s] x_s, for one head
      async attention({ text, layer, head }) {
        const { record } = analyse(text), { n_heads, n_groups, d_state } = spec.layers[layer].mixer;
        const group = Math.floor((head * n_groups) / n_heads) * d_state;
        const steps = record[layer];
        const of = (name) => steps.map((step) => step[name].subarray(group, group + d_state));
        const numbers = (name) => Float64Array.from(steps, (step) => step[name][head]);
        return S.duality.matrix({ log_a: numbers("log_a"), dt: numbers("dt"), B: of("B"), C: of("C") }).map((row) => Array.from(row));
      },
      async read({ state, text }) {
        const before = state ? states.get(state) : null;
        return described(keep(withText(read(before, Array.from(encoder.encode(text))))));
      },
      async generate({ state, count, temperature, seed }) {
        let reading = states.get(state);
        const pieces = [];
        for (let i = 0; i < count; i++) {
          const logits = reading.logits.map((z) => z / Math.max(temperature, 1e-6));
          // the number drawn belongs to the place in the text: after a rewind the same seed writes the same again
          let chance = S.linear.random(seed * 100003 + reading.state.position)();
          const p = S.model.softmax(logits);
          let token = p.indexOf(Math.max(...p));
          if (temperature > 0) {
            for (token = 0; token < p.length - 1 && chance >= p[token]; token++) chance -= p[token];
          }
          if (token === start) break;
          pieces.push(piece(token));
          reading = read(reading, [token]);
        }
        return described(keep(withText(reading)), { pieces });
      },
      // A copy of a state with one head of one layer multiplied by a number
      async edit({ state, layer, head, factor }) {
        const reading = states.get(state), { d_head, d_state } = spec.layers[layer].mixer;
        const layers = reading.previous.layers.map((old, i) => {
          if (i !== layer) return old;
          const h = Float64Array.from(old.h), size = d_head * d_state;
          for (let k = head * size; k < (head + 1) * size; k++) h[k] *= factor;
          return { ...old, h };
        });
        return again(reading, layers);
      },
      // The first state with these layers of the second
      async splice({ first, second, layers }) {
        const a = states.get(first), b = states.get(second);
        return again(a, a.previous.layers.map((layer, i) => (layers.includes(i) ? b.previous.layers[i] : layer)));
      },
      async picture({ state }) {
        return states.get(state).state.layers.map((layer, i) => {
          const { n_heads, d_head, d_state } = spec.layers[i].mixer, size = d_head * d_state;
          return Array.from({ length: n_heads }, (_, h) => pooled(layer.h.subarray(h * size, (h + 1) * size), d_head, d_state));
        });
      },
    };
  }

  // The same calls, answered by Python
  function remote(address) {
    const call = (name) => async (question = {}) => {
      const answer = await fetch(`${address}/${name}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(question),
      });
      const result = await answer.json();
      if (!answer.ok) throw new Error(result.error || answer.statusText);
      return result;
    };
    const names = ["info", "analyse", "attention", "read", "generate", "edit", "splice", "picture"];
    return { kind: "server", ...Object.fromEntries(names.map((name) => [name, call(name)])) };
  }

  S.backend = { local, remote };
})((globalThis.statewise = globalThis.statewise || {}));
