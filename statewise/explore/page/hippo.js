"use strict";
// HiPPO as in statewise.hippo: matrices, projection, bases, reconstruction.
(function (S) {
  const L = S.linear;

  // x' = A x + B u of a measure whose window, or unit of time, is theta: statewise.hippo.transition
  function transition(measure, n, theta) {
    const A = L.zeros(n, n), B = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        const root = Math.sqrt((2 * i + 1) * (2 * j + 1));
        if (measure === "legs") A[i][j] = i > j ? -root : i === j ? -(i + 1) : 0;
        else if (measure === "legt") A[i][j] = -root * (i >= j || (i + j) % 2 === 0 ? 1 : -1);
        else if (measure === "lagt") A[i][j] = i > j ? -1 : i === j ? -0.5 : 0;
        else if (measure === "tlagt") A[i][j] = i >= j ? -1 : 0; // beta = 1
      }
      if (measure === "legs" || measure === "legt") B[i] = Math.sqrt(2 * i + 1);
      else if (measure === "lagt" || measure === "tlagt") B[i] = 1;
      else B[i] = i % 2 ? 0 : i ? Math.SQRT2 : 1;
    }
    if (measure === "fourier" || measure === "fourier_diag") {
      const period = measure === "fourier" ? 2 : 1;
      for (let k = 0; k < n / 2; k++) {
        A[2 * k + 1][2 * k] = (2 * Math.PI * k) / period;
        A[2 * k][2 * k + 1] = (-2 * Math.PI * k) / period;
      }
      for (let i = 0; i < n; i++) {
        if (measure === "fourier_diag") A[i][i] -= 0.5;
        else for (let j = 0; j < n; j++) A[i][j] -= B[i] * B[j];
      }
    }
    const published = measure === "fourier" ? 2 : 1;
    const speed = theta === undefined ? 1 : published / theta;
    return { A: L.scaled(A, speed), B: B.map((x) => x * speed) };
  }

  // Columns B, A B, A^2 B, ... of the system discretised by zero-order hold: what an input of each age adds
  function responses(measure, n, theta, dt, length) {
    const { A, B } = transition(measure, n, theta);
    const larger = A.map((row, i) => Float64Array.from([...row, B[i]].map((x) => x * dt)));
    larger.push(new Float64Array(n + 1));
    const step = L.exponential(larger);
    const held = step.slice(0, n).map((row) => row.slice(0, n));
    const columns = [Float64Array.from({ length: n }, (_, i) => step[i][n])];
    while (columns.length < length) columns.push(L.times(held, columns[columns.length - 1]));
    return columns;
  }

  // P_0(z) to P_{n-1}(z)
  function legendre(n, z) {
    const values = new Float64Array(n);
    values[0] = 1;
    if (n > 1) values[1] = z;
    for (let k = 1; k < n - 1; k++) values[k + 1] = ((2 * k + 1) * z * values[k] - k * values[k - 1]) / (k + 1);
    return values;
  }

  // The coefficients of LegS for an input that is held over each of its steps, in closed form: statewise.hippo.scaled
  function legs(u, n, count) {
    const result = new Float64Array(n);
    let before = legendre(n + 1, -1);
    for (let k = 0; k < count; k++) {
      const x = (k + 1) / count;
      const after = legendre(n + 1, 2 * x - 1);
      result[0] += u[k] / count;
      for (let i = 1; i < n; i++) {
        result[i] += (u[k] * (after[i + 1] - before[i + 1] - after[i - 1] + before[i - 1])) / (2 * Math.sqrt(2 * i + 1));
      }
      before = after;
    }
    return result;
  }

  // The coefficients after the first `count` inputs; theta in the unit of dt. `table`: of responses, if at hand
  function project(u, measure, n, { theta, dt, count = u.length, table } = {}) {
    if (measure === "legs") return legs(u, n, count);
    const columns = table || responses(measure, n, theta, dt, count);
    const result = new Float64Array(n);
    for (let age = 0; age < count; age++) {
      const column = columns[age], input = u[count - 1 - age];
      if (input !== 0) for (let i = 0; i < n; i++) result[i] += column[i] * input;
    }
    return result;
  }

  function fourier(n, x) {
    const values = new Float64Array(n);
    for (let k = 0; k < n / 2; k++) {
      values[2 * k] = k ? Math.SQRT2 * Math.cos(2 * Math.PI * k * x) : 1;
      values[2 * k + 1] = Math.SQRT2 * Math.sin(2 * Math.PI * k * x);
    }
    return values;
  }

  // The inverse of the inner products of the damped Fourier functions on [0, infinity)
  function dual(n) {
    const products = L.zeros(n, n);
    const omega = (i) => 2 * Math.PI * Math.floor(i / 2);
    const scale = (i) => (i === 0 ? Math.SQRT1_2 : 1);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        const plus = omega(i) + omega(j), minus = omega(i) - omega(j);
        const even = 1 / (1 + plus * plus), odd = 1 / (1 + minus * minus);
        if (i % 2 === j % 2) products[i][j] = i % 2 ? odd - even : odd + even;
        else products[i][j] = i % 2 ? plus * even + minus * odd : plus * even - minus * odd;
        products[i][j] *= scale(i) * scale(j);
      }
    }
    products[1][1] = 1;
    const inverse = L.solve(products, L.identity(n));
    inverse[1][1] = 0;
    return inverse;
  }

  // The functions g_i with u(t - age) = sum_i c_i g_i(age): rows of n values for each age. statewise.hippo.basis
  function basis(measure, n, ages, { theta = 1, elapsed = 1 } = {}) {
    const length = measure === "legs" ? elapsed : theta;
    const inverse = measure === "fourier_diag" ? dual(n) : null;
    return Array.from(ages, (age) => {
      const x = age / length;
      if (measure === "legs" || measure === "legt") {
        return legendre(n, 1 - 2 * x).map((value, i) => value * Math.sqrt(2 * i + 1));
      }
      if (measure === "lagt" || measure === "tlagt") {
        const values = new Float64Array(n);
        values[0] = measure === "lagt" ? Math.exp(-x / 2) : 1;
        if (n > 1) values[1] = (1 - x) * values[0];
        for (let k = 1; k < n - 1; k++) values[k + 1] = ((2 * k + 1 - x) * values[k] - k * values[k - 1]) / (k + 1);
        return values;
      }
      const values = fourier(n, x);
      return inverse ? L.times(inverse, values.map((value) => value * Math.exp(-x / 2))) : values;
    });
  }

  const reconstruct = (coefficients, functions) =>
    Float64Array.from(functions, (row) => row.reduce((sum, value, i) => sum + value * coefficients[i], 0));

  S.hippo = { transition, responses, project, basis, reconstruct };
})((globalThis.statewise = globalThis.statewise || {}));
