"use strict";
// Matrices as arrays of rows (Float64Array each), complex numbers as [re, im]: small sizes, plain loops.
(function (S) {
  const zeros = (rows, columns) => Array.from({ length: rows }, () => new Float64Array(columns));
  const identity = (n) => {
    const result = zeros(n, n);
    for (let i = 0; i < n; i++) result[i][i] = 1;
    return result;
  };
  const scaled = (A, factor) => A.map((row) => row.map((x) => x * factor));

  function product(A, B) {
    const result = zeros(A.length, B[0].length);
    for (let i = 0; i < A.length; i++) {
      const row = result[i];
      for (let k = 0; k < B.length; k++) {
        const a = A[i][k];
        if (a !== 0) for (let j = 0; j < row.length; j++) row[j] += a * B[k][j];
      }
    }
    return result;
  }

  function times(A, x) {
    const result = new Float64Array(A.length);
    for (let i = 0; i < A.length; i++) {
      let sum = 0;
      for (let j = 0; j < x.length; j++) sum += A[i][j] * x[j];
      result[i] = sum;
    }
    return result;
  }

  // A^-1 B by elimination with row exchanges; null if A is singular
  function solve(A, B) {
    const n = A.length;
    const left = A.map((row) => Float64Array.from(row));
    const right = B.map((row) => Float64Array.from(row));
    for (let k = 0; k < n; k++) {
      let pivot = k;
      for (let i = k + 1; i < n; i++) if (Math.abs(left[i][k]) > Math.abs(left[pivot][k])) pivot = i;
      if (left[pivot][k] === 0) return null;
      [left[k], left[pivot]] = [left[pivot], left[k]];
      [right[k], right[pivot]] = [right[pivot], right[k]];
      for (let i = k + 1; i < n; i++) {
        const factor = left[i][k] / left[k][k];
        if (factor === 0) continue;
        for (let j = k; j < n; j++) left[i][j] -= factor * left[k][j];
        for (let j = 0; j < right[i].length; j++) right[i][j] -= factor * right[k][j];
      }
    }
    for (let k = n - 1; k >= 0; k--) {
      for (let j = 0; j < right[k].length; j++) {
        let sum = right[k][j];
        for (let i = k + 1; i < n; i++) sum -= left[k][i] * right[i][j];
        right[k][j] = sum / left[k][k];
      }
    }
    return right;
  }

  // e^A by its series after scaling, then squaring
  function exponential(A) {
    let norm = 0;
    for (const row of A) norm = Math.max(norm, row.reduce((sum, x) => sum + Math.abs(x), 0));
    const squarings = Math.max(0, Math.ceil(Math.log2(norm || 1)) + 3);
    const small = scaled(A, 2 ** -squarings);
    let result = identity(A.length);
    for (let k = 14; k >= 1; k--) {
      result = scaled(product(small, result), 1 / k);
      for (let i = 0; i < A.length; i++) result[i][i] += 1;
    }
    for (let k = 0; k < squarings; k++) result = product(result, result);
    return result;
  }

  // Singular values, largest first, by one-sided Jacobi rotations
  function singularValues(A) {
    const transposed = A.length < A[0].length;
    const columns = [];
    const n = transposed ? A.length : A[0].length;
    const m = transposed ? A[0].length : A.length;
    for (let j = 0; j < n; j++) {
      columns.push(Float64Array.from({ length: m }, (_, i) => (transposed ? A[j][i] : A[i][j])));
    }
    for (let sweep = 0; sweep < 30; sweep++) {
      let rotated = false;
      for (let p = 0; p < n; p++) {
        for (let q = p + 1; q < n; q++) {
          let alpha = 0, beta = 0, gamma = 0;
          const x = columns[p], y = columns[q];
          for (let i = 0; i < m; i++) {
            alpha += x[i] * x[i];
            beta += y[i] * y[i];
            gamma += x[i] * y[i];
          }
          if (Math.abs(gamma) <= 1e-15 * Math.sqrt(alpha * beta) || gamma === 0) continue;
          rotated = true;
          const zeta = (beta - alpha) / (2 * gamma);
          const tangent = Math.sign(zeta || 1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta));
          const cosine = 1 / Math.sqrt(1 + tangent * tangent);
          const sine = cosine * tangent;
          for (let i = 0; i < m; i++) {
            const old = x[i];
            x[i] = cosine * old - sine * y[i];
            y[i] = sine * old + cosine * y[i];
          }
        }
      }
      if (!rotated) break;
    }
    return columns.map((c) => Math.sqrt(c.reduce((sum, x) => sum + x * x, 0))).sort((a, b) => b - a);
  }

  const complex = {
    add: (a, b) => [a[0] + b[0], a[1] + b[1]],
    subtract: (a, b) => [a[0] - b[0], a[1] - b[1]],
    multiply: (a, b) => [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]],
    divide: (a, b) => {
      const size = b[0] * b[0] + b[1] * b[1];
      return [(a[0] * b[0] + a[1] * b[1]) / size, (a[1] * b[0] - a[0] * b[1]) / size];
    },
    exp: (a) => [Math.exp(a[0]) * Math.cos(a[1]), Math.exp(a[0]) * Math.sin(a[1])],
    abs: (a) => Math.hypot(a[0], a[1]),
  };

  // Numbers of a seed, the same everywhere: mulberry32
  function random(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let z = state;
      z = Math.imul(z ^ (z >>> 15), z | 1);
      z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
      return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
    };
  }
  function normal(uniform) {
    return Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  S.linear = { zeros, identity, scaled, product, times, solve, exponential, singularValues, complex, random, normal };
})((globalThis.statewise = globalThis.statewise || {}));
