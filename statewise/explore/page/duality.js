"use strict";
// One head of a selective system, h_t = a_t h_{t-1} + dt_t x_t B_t, y_t = C_t . h_t: its matrix, and three ways to apply it.
// Each counts its multiplications as it goes.
(function (S) {
  const L = S.linear;

  // A head whose step sizes are large at a few times and small between them, as selection makes them
  function madeUp(length, n, seed) {
    const uniform = L.random(seed);
    const log_a = new Float64Array(length), dt = new Float64Array(length), x = new Float64Array(length);
    const B = L.zeros(length, n), C = L.zeros(length, n);
    for (let t = 0; t < length; t++) {
      dt[t] = uniform() < 0.25 ? 0.5 + uniform() : 0.05 + 0.1 * uniform();
      log_a[t] = -dt[t];
      x[t] = L.normal(uniform);
      for (let i = 0; i < n; i++) {
        B[t][i] = L.normal(uniform) / Math.sqrt(n);
        C[t][i] = L.normal(uniform) / Math.sqrt(n);
      }
    }
    return { log_a, dt, B, C, x };
  }

  const length = (head) => head.log_a.length;

  // M_ts = C_t . B_s dt_s e^(log a_{s+1} + ... + log a_t)
  function matrix(head) {
    const T = length(head), M = L.zeros(T, T);
    for (let s = 0; s < T; s++) {
      let decay = 0;
      for (let t = s; t < T; t++) {
        if (t > s) decay += head.log_a[t];
        let sum = 0;
        for (let i = 0; i < head.B[s].length; i++) sum += head.C[t][i] * head.B[s][i];
        M[t][s] = sum * head.dt[s] * Math.exp(decay);
      }
    }
    return M;
  }

  // The states after each step, and y: a step after the other
  function recurrent(head) {
    const T = length(head), n = head.B[0].length, states = [], y = new Float64Array(T);
    let h = new Float64Array(n), multiplications = 0;
    for (let t = 0; t < T; t++) {
      const a = Math.exp(head.log_a[t]), value = head.dt[t] * head.x[t];
      h = h.map((number, i) => a * number + value * head.B[t][i]);
      for (let i = 0; i < n; i++) y[t] += head.C[t][i] * h[i];
      states.push(h);
      multiplications += 3 * n + 1;
    }
    return { y, states, multiplications, sequential: T };
  }

  // Attention: every pair of times, at once
  function quadratic(head) {
    const T = length(head), n = head.B[0].length, y = new Float64Array(T), M = matrix(head);
    for (let t = 0; t < T; t++) for (let s = 0; s <= t; s++) y[t] += M[t][s] * head.x[s];
    // for each pair C.B, times the mask, times x; and dt x once for each time
    return { y, multiplications: ((T * (T + 1)) / 2) * (n + 2) + T, sequential: 1 };
  }

  // Attention within chunks; one state passes from chunk to chunk
  function chunked(head, size) {
    const T = length(head), n = head.B[0].length, y = new Float64Array(T);
    let h = new Float64Array(n), multiplications = T, sequential = 0; // T: dt x
    for (let start = 0; start < T; start += size) {
      const end = Math.min(start + size, T);
      const decay = new Float64Array(end - start); // from the chunk's start up to and with t
      for (let t = start; t < end; t++) decay[t - start] = (t > start ? decay[t - start - 1] : 0) + head.log_a[t];
      const next = h.map((number) => number * Math.exp(decay[end - 1 - start]));
      if (start) multiplications += n;
      for (let t = start; t < end; t++) {
        for (let s = start; s <= t; s++) {
          let sum = 0;
          for (let i = 0; i < n; i++) sum += head.C[t][i] * head.B[s][i];
          y[t] += sum * Math.exp(decay[t - start] - decay[s - start]) * head.dt[s] * head.x[s];
          multiplications += n + 2;
        }
        if (start) { // what the chunks before this one left
          const factor = Math.exp(decay[t - start]);
          for (let i = 0; i < n; i++) y[t] += head.C[t][i] * factor * h[i];
          multiplications += n + 1;
        }
        if (end < T) { // what this one leaves
          const factor = Math.exp(decay[end - 1 - start] - decay[t - start]) * head.dt[t] * head.x[t];
          for (let i = 0; i < n; i++) next[i] += factor * head.B[t][i];
          multiplications += n + 1;
        }
      }
      h = next;
      sequential += 1;
    }
    return { y, multiplications, sequential };
  }

  // Singular values up to this share of the largest one of the matrix count as zero, as statewise.semiseparable
  function rank(block, scale, T) {
    const threshold = T * 2.220446049250313e-16 * scale;
    return L.singularValues(block).filter((value) => value > threshold).length;
  }

  // The blocks that a chunk size cuts the lower triangle into, with the rank of each
  function blocks(M, size) {
    const T = M.length, scale = L.singularValues(M)[0], found = [];
    for (let row = 0; row < T; row += size) {
      for (let column = 0; column <= row; column += size) {
        const rows = Math.min(size, T - row), columns = Math.min(size, T - column);
        const block = M.slice(row, row + rows).map((r) => r.slice(column, column + columns));
        found.push({ row, column, rows, columns, diagonal: row === column, rank: rank(block, scale, T) });
      }
    }
    return found;
  }

  S.duality = { madeUp, matrix, recurrent, quadratic, chunked, blocks, rank };
})((globalThis.statewise = globalThis.statewise || {}));
