"use strict";
// A linear system by its poles: controllable form, discretised by the rules of statewise.systems, and its responses.
(function (S) {
  const L = S.linear, C = L.complex;
  const METHODS = ["zoh", "bilinear", "euler", "backward_euler", "gbt", "foh", "dirac", "mamba"];
  const ALPHA = { euler: 0, bilinear: 0.5, backward_euler: 1 };

  // [re, im] of every pole: a group with im > 0 is a pole and its conjugate, `twice` two real poles in one place
  const listed = (groups) =>
    groups.flatMap(({ re, im, pair }) => (pair ? [[re, im], [re, -im]] : [[re, 0]]));

  // Coefficients of prod (s - p_i), highest power first; the conjugates make them real
  function polynomial(poles) {
    let result = [[1, 0]];
    for (const pole of poles) {
      const next = [...result, [0, 0]];
      for (let i = 0; i < result.length; i++) next[i + 1] = C.subtract(next[i + 1], C.multiply(pole, result[i]));
      result = next;
    }
    return result.map(([re]) => re);
  }

  // gain / prod (s - p_i) as x' = A x + B u, y = C x
  function canonical(poles, gain) {
    const n = poles.length, a = polynomial(poles);
    const A = L.zeros(n, n), B = new Float64Array(n), output = new Float64Array(n);
    for (let i = 0; i < n - 1; i++) A[i][i + 1] = 1;
    for (let j = 0; j < n; j++) A[n - 1][j] = -a[n - j];
    B[n - 1] = 1;
    output[0] = gain;
    return { A, B, C: output };
  }

  // phi_k(dt A) B for k = 1, 2 beside e^(dt A): the exponential of [[dt A, B, 0], [0, 0, 1], [0, 0, 0]]
  function integrals(A, B, dt) {
    const n = A.length, larger = L.zeros(n + 2, n + 2);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) larger[i][j] = A[i][j] * dt;
      larger[i][n] = B[i];
    }
    larger[n][n + 1] = 1;
    const result = L.exponential(larger);
    return {
      A: result.slice(0, n).map((row) => row.slice(0, n)),
      first: Float64Array.from({ length: n }, (_, i) => result[i][n]),
      second: Float64Array.from({ length: n }, (_, i) => result[i][n + 1]),
    };
  }

  // x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k; first-order hold reads the state before its input. null: singular
  function discretize(system, dt, method, alpha) {
    const { A, B } = system, n = A.length;
    const found = { C: system.C, D: 0, before: method === "foh" };
    const share = method === "gbt" ? alpha : ALPHA[method];
    if (share !== undefined) {
      const left = L.identity(n), right = L.zeros(n, n + 1);
      for (let i = 0; i < n; i++) {
        for (let j = 0; j < n; j++) {
          left[i][j] -= share * dt * A[i][j];
          right[i][j] = (i === j ? 1 : 0) + (1 - share) * dt * A[i][j];
        }
        right[i][n] = dt * B[i];
      }
      const both = L.solve(left, right);
      if (!both) return null;
      return { ...found, A: both.map((row) => row.slice(0, n)), B: Float64Array.from(both, (row) => row[n]) };
    }
    const { A: held, first, second } = integrals(A, B, dt);
    if (method === "zoh") return { ...found, A: held, B: first.map((x) => x * dt) };
    if (method === "mamba") return { ...found, A: held, B: Float64Array.from(B, (x) => x * dt) };
    if (method === "dirac") return { ...found, A: held, B: Float64Array.from(B) };
    const direct = second.map((x) => x * dt); // what the newest input adds at once
    const again = integrals(A, first, dt).first; // phi_1 phi_1 B
    return { ...found, A: held, B: again.map((x) => x * dt), D: dot(system.C, direct) };
  }

  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

  // The outputs of a discrete system for inputs u
  function simulate(system, u) {
    let x = new Float64Array(system.A.length);
    return Float64Array.from(u, (input) => {
      const next = L.times(system.A, x);
      for (let i = 0; i < next.length; i++) next[i] += system.B[i] * input;
      const read = system.before ? x : next;
      x = next;
      return dot(system.C, read) + system.D * input;
    });
  }

  // C e^(A t) B at k dt, k < count
  function continuousImpulse(system, dt, count) {
    const { A: step } = integrals(system.A, system.B, dt);
    let x = Float64Array.from(system.B);
    return Float64Array.from({ length: count }, () => {
      const y = dot(system.C, x);
      x = L.times(step, x);
      return y;
    });
  }

  // The output after u = 1 from time 0, at k dt, k < count
  function continuousStep(system, dt, count) {
    const { A: step, first } = integrals(system.A, system.B, dt);
    let x = new Float64Array(system.B.length);
    return Float64Array.from({ length: count }, () => {
      const y = dot(system.C, x);
      x = L.times(step, x);
      for (let i = 0; i < x.length; i++) x[i] += dt * first[i];
      return y;
    });
  }

  // gain / prod (i omega - p)
  const continuousResponse = (poles, gain, omega) =>
    poles.reduce((value, pole) => C.divide(value, C.subtract([0, omega], pole)), [gain, 0]);

  // The z-transform of the impulse response h at e^(i omega dt), as a function of omega. With the poles z_i it is
  // (n_0 + n_1/z + ...) / prod (1 - z_i/z), and the numerator is the product of that denominator's coefficients with h.
  function discreteResponse(system, dt, poles) {
    const n = poles.length, kick = new Float64Array(n + 1);
    kick[0] = 1;
    const h = simulate(system, kick), d = polynomial(poles);
    const numerator = h.map((_, k) => {
      let sum = 0;
      for (let j = 0; j <= k; j++) sum += d[j] * h[k - j];
      return sum;
    });
    return (omega) => {
      const back = [Math.cos(omega * dt), -Math.sin(omega * dt)]; // 1/z
      let top = [0, 0];
      for (let k = n; k >= 0; k--) top = C.add(C.multiply(top, back), [numerator[k], 0]);
      return poles.reduce((value, pole) => C.divide(value, C.subtract([1, 0], C.multiply(pole, back))), top);
    };
  }

  // Where a rule puts a pole of the plane of s in that of z
  function mapped(pole, dt, method, alpha) {
    const z = [pole[0] * dt, pole[1] * dt];
    const share = method === "gbt" ? alpha : ALPHA[method];
    if (share === undefined) return C.exp(z);
    const top = [1 + (1 - share) * z[0], (1 - share) * z[1]];
    return C.divide(top, [1 - share * z[0], -share * z[1]]);
  }

  S.systems = {
    METHODS, listed, canonical, discretize, simulate, continuousImpulse, continuousStep, continuousResponse,
    discreteResponse, mapped,
  };
})((globalThis.statewise = globalThis.statewise || {}));
