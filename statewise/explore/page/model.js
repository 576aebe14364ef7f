"use strict";
// Small trained models that run in the page, step by step: Mamba-2 on bytes, and the layer of H3.
(function (S) {
  const silu = (x) => x / (1 + Math.exp(-x));
  const softplus = (x) => (x > 30 ? x : Math.log1p(Math.exp(x)));
  const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));

  // base64 of little-endian float32 -> numbers
  function numbers(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return Float64Array.from(new Float32Array(bytes.buffer));
  }

  // W x + b, W row by row
  function linear(weight, x, bias) {
    const rows = weight.length / x.length, result = new Float64Array(rows);
    for (let i = 0, at = 0; i < rows; i++) {
      let sum = bias ? bias[i] : 0;
      for (let j = 0; j < x.length; j++) sum += weight[at++] * x[j];
      result[i] = sum;
    }
    return result;
  }

  function rmsNorm(x, weight, eps, groups = 1) {
    const width = x.length / groups, result = new Float64Array(x.length);
    for (let g = 0; g < groups; g++) {
      let sum = 0;
      for (let i = g * width; i < (g + 1) * width; i++) sum += x[i] * x[i];
      const scale = 1 / Math.sqrt(sum / width + eps);
      for (let i = g * width; i < (g + 1) * width; i++) result[i] = x[i] * scale * weight[i];
    }
    return result;
  }

  function layerNorm(x, weight, bias, eps) {
    const mean = x.reduce((a, b) => a + b, 0) / x.length;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    return x.map((value, i) => ((value - mean) / Math.sqrt(variance + eps)) * weight[i] + bias[i]);
  }

  const add = (x, y) => x.map((value, i) => value + y[i]);

  function softmax(logits) {
    const largest = logits.reduce((a, b) => Math.max(a, b));
    const powers = logits.map((z) => Math.exp(z - largest));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((p) => p / sum);
  }

  // One Mamba-2 layer: statewise.mixers.mamba2
  function mamba2(spec, weights, prefix) {
    const w = (name) => weights[`${prefix}.${name}`];
    const { n_heads: H, d_head: P, d_state: N, n_groups: G, n_taps: K } = spec;
    const inner = H * P, channels = inner + 2 * G * N;
    const decay = w("dynamics.A_log").map((x) => -Math.exp(x));
    return {
      initial: () => ({ convolution: new Float64Array((K - 1) * channels), h: new Float64Array(H * P * N) }),
      step(u, state, record) {
        const all = linear(w("in_proj.weight"), u, w("in_proj.bias"));
        const z = all.subarray(0, inner), newest = all.subarray(inner, inner + channels);
        const taps = w("convolution.weight"), bias = w("convolution.bias");
        const mixed = new Float64Array(channels);
        for (let c = 0; c < channels; c++) {
          let sum = (bias ? bias[c] : 0) + taps[c * K] * newest[c]; // taps: newest first; the state: newest last
          for (let k = 1; k < K; k++) sum += taps[c * K + k] * state.convolution[(K - 1 - k) * channels + c];
          mixed[c] = silu(sum);
        }
        const convolution = new Float64Array(state.convolution.length);
        convolution.set(state.convolution.subarray(channels));
        convolution.set(newest, convolution.length - channels);
        const dt = new Float64Array(H), log_a = new Float64Array(H), h = new Float64Array(state.h.length);
        const y = new Float64Array(inner), B = mixed.subarray(inner, inner + G * N), C = mixed.subarray(inner + G * N);
        for (let head = 0; head < H; head++) {
          dt[head] = softplus(all[inner + channels + head] + w("dynamics.dt_bias")[head]);
          log_a[head] = dt[head] * decay[head];
          const a = Math.exp(log_a[head]), group = Math.floor((head * G) / H) * N, skip = w("dynamics.D")[head];
          for (let p = 0; p < P; p++) {
            const x = mixed[head * P + p], value = dt[head] * x, at = (head * P + p) * N;
            let sum = skip * x;
            for (let n = 0; n < N; n++) {
              const number = a * state.h[at + n] + value * B[group + n];
              h[at + n] = number;
              sum += C[group + n] * number;
            }
            y[head * P + p] = sum * silu(z[head * P + p]);
          }
        }
        if (record) record.push({ dt, log_a, B: Float64Array.from(B), C: Float64Array.from(C) });
        const out = linear(w("out_proj.weight"), rmsNorm(y, w("norm.weight"), spec.norm_eps, spec.norm_groups));
        return [out, { convolution, h }];
      },
    };
  }

  // H3 with heads of one number: statewise.mixers.h3. Its discrete systems come ready-made
  function h3(spec, weights, prefix) {
    const w = (name) => weights[`${prefix}.${name}`];
    const { d_model: D, d_shift: K, n_pairs: N } = spec;
    return {
      initial: () => ({ keys: new Float64Array((K - 1) * D), re: new Float64Array(D * N), im: new Float64Array(D * N) }),
      step(u, state, record) {
        const all = linear(w("in_proj.weight"), u, w("in_proj.bias"));
        const Q = all.subarray(0, D), key = all.subarray(D, 2 * D), V = all.subarray(2 * D);
        const shifted = new Float64Array(D), entering = new Float64Array(D), stored = new Float64Array(D);
        const re = new Float64Array(D * N), im = new Float64Array(D * N);
        const taps = w("taps"), A = w("A"), B = w("B"), C = w("C"), skip = w("D");
        for (let c = 0; c < D; c++) {
          shifted[c] = taps[c * K] * key[c];
          for (let k = 1; k < K; k++) shifted[c] += taps[c * K + k] * state.keys[(K - 1 - k) * D + c];
          entering[c] = shifted[c] * V[c];
          stored[c] = skip[c] * entering[c];
          for (let n = 0; n < N; n++) {
            const i = c * N + n, a = 2 * i, b = a + 1;
            re[i] = A[a] * state.re[i] - A[b] * state.im[i] + B[a] * entering[c];
            im[i] = A[a] * state.im[i] + A[b] * state.re[i] + B[b] * entering[c];
            stored[c] += 2 * (C[a] * re[i] - C[b] * im[i]);
          }
        }
        const output = stored.map((value, c) => value * Q[c]);
        const keys = new Float64Array(state.keys.length);
        keys.set(state.keys.subarray(D));
        keys.set(key, keys.length - D);
        if (record) {
          const copy = { Q: Float64Array.from(Q), K: Float64Array.from(key), V: Float64Array.from(V) };
          record.push({ ...copy, shifted, entering, state: stored, output });
        }
        return [linear(w("out_proj.weight"), output, w("out_proj.bias")), { keys, re, im }];
      },
    };
  }

  const MIXERS = { mamba2, h3 };

  function norm(kind, weights, prefix, eps) {
    const weight = weights[`${prefix}.weight`], bias = weights[`${prefix}.bias`];
    return (x) => (kind === "rms" ? rmsNorm(x, weight, eps) : layerNorm(x, weight, bias, eps));
  }

  // A language model of a spec that statewise.explore.weights wrote
  function build(spec) {
    const weights = {};
    for (const [name, text] of Object.entries(spec.tensors)) weights[name] = numbers(text);
    const blocks = spec.layers.map((layer, i) => {
      const prefix = `layers.${i}`, mlp = layer.mlp;
      return {
        mixer: MIXERS[layer.mixer.type](layer.mixer, weights, `${prefix}.mixer`),
        before: norm(layer.norm, weights, `${prefix}.mixer_norm`, layer.norm_eps),
        beforeMlp: mlp ? norm(layer.norm, weights, `${prefix}.mlp_norm`, layer.norm_eps) : null,
        mlp: mlp ? (x) => {
          const hidden = linear(weights[`${prefix}.mlp.in_proj.weight`], x, weights[`${prefix}.mlp.in_proj.bias`]);
          return linear(weights[`${prefix}.mlp.out_proj.weight`], hidden.map(gelu), weights[`${prefix}.mlp.out_proj.bias`]);
        } : null,
      };
    });
    const last = norm(spec.norm, weights, "norm", spec.norm_eps);
    const width = spec.d_model;
    return {
      spec,
      initial: () => ({ position: 0, layers: blocks.map((block) => block.mixer.initial()) }),
      // One token: the logits of the next, and the new state; the old one stays as it was
      step(state, token, record) {
        let x = weights["embedding.weight"].slice(token * width, (token + 1) * width);
        const layers = blocks.map((block, i) => {
          const seen = record ? [] : null;
          const [y, next] = block.mixer.step(block.before(x), state.layers[i], seen);
          if (record) (record[i] = record[i] || []).push(seen[0]);
          x = add(x, y);
          if (block.mlp) x = add(x, block.mlp(block.beforeMlp(x)));
          return next;
        });
        return { logits: linear(weights["head.weight"] || weights["embedding.weight"], last(x)), state: { position: state.position + 1, layers } };
      },
    };
  }

  S.model = { build, softmax };
})((globalThis.statewise = globalThis.statewise || {}));
