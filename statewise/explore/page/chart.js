"use strict";
// Line charts as SVG and heat maps on canvas. Colours come from the style sheet, so both follow light and dark.
(function (S) {
  const escape = (text) =>
    String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

  // Round numbers from low to high, about `count` of them; `whole`: no fractions
  function ticks(low, high, count = 5, whole = false) {
    if (!(high > low)) return [low];
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const fine = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw) * power;
    const step = whole ? Math.max(1, Math.ceil(fine)) : fine;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  }

  // Powers of ten, thinned where there are many
  function logTicks(low, high) {
    const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((to - from + 1) / 6));
    const found = [];
    for (let k = from; k <= to; k += every) found.push(10 ** k);
    return found;
  }

  function shown(x) {
    if (x === 0 || Math.abs(x) < 1e-12) return "0";
    const size = Math.abs(x);
    if (size >= 1e5 || size < 1e-3) {
      const power = Math.floor(Math.log10(size) + 1e-9), digits = x / 10 ** power;
      const times = Math.abs(digits - 1) < 1e-9 ? "" : `${+digits.toFixed(1)}×`;
      return `${times}10${String(power).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)])}`;
    }
    return String(+x.toPrecision(3)).replace("-", "−");
  }

  const margin = { left: 52, right: 14, top: 12, bottom: 40 };

  // An SVG as wide as its place. options: x, y ([low, high]), xlabel, ylabel, logx, logy, under and over (SVG text drawn
  // by functions of the scales), series: [{ x, y, kind: 1..5, dash, dots, stems }]
  function lines(svg, options) {
    const width = Math.max(260, svg.clientWidth || 600), height = options.height || 260;
    const box = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
    const scale = (range, log, from, to) => {
      const [low, high] = log ? range.map(Math.log10) : range;
      return (v) => from + (((log ? Math.log10(v) : v) - low) / (high - low || 1)) * (to - from);
    };
    const X = scale(options.x, options.logx, box.left, box.right);
    const Y = scale(options.y, options.logy, box.bottom, box.top);
    const xs = options.logx ? logTicks(...options.x) : ticks(...options.x, width < 420 ? 4 : 7, options.whole);
    const ys = options.logy ? logTicks(...options.y) : ticks(...options.y, 4);
    const parts = [];
    for (const v of ys) {
      parts.push(`<line class="grid" x1="${box.left}" x2="${box.right}" y1="${Y(v)}" y2="${Y(v)}"/>`);
      parts.push(`<text class="tick" x="${box.left - 7}" y="${Y(v) + 4}" text-anchor="end">${shown(v)}</text>`);
    }
    for (const v of xs) {
      parts.push(`<line class="grid faint" x1="${X(v)}" x2="${X(v)}" y1="${box.top}" y2="${box.bottom}"/>`);
      parts.push(`<text class="tick" x="${X(v)}" y="${box.bottom + 16}" text-anchor="middle">${shown(v)}</text>`);
    }
    parts.push(`<text class="axis" x="${(box.left + box.right) / 2}" y="${height - 5}" text-anchor="middle">${escape(options.xlabel || "")}</text>`);
    parts.push(`<text class="axis" transform="translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)" text-anchor="middle">${escape(options.ylabel || "")}</text>`);
    const clip = `clip-${svg.id}`;
    parts.push(`<clipPath id="${clip}"><rect x="${box.left}" y="${box.top - 4}" width="${box.right - box.left}" height="${box.bottom - box.top + 8}"/></clipPath>`);
    parts.push(`<g clip-path="url(#${clip})">`);
    if (options.under) parts.push(options.under(X, Y, box));
    for (const one of options.series || []) parts.push(drawn(one, X, Y, box));
    if (options.over) parts.push(options.over(X, Y, box));
    parts.push("</g>");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    let layer = svg.querySelector("g.layer");
    if (!layer) {
      layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
      layer.setAttribute("class", "layer");
      svg.prepend(layer);
    }
    layer.innerHTML = parts.join("");
    return { X, Y, box, width, height };
  }

  function drawn(one, X, Y, box) {
    const limit = (v) => Math.max(-1e4, Math.min(1e4, v));
    const points = [];
    for (let i = 0; i < one.x.length; i++) {
      if (Number.isFinite(one.y[i])) points.push([X(one.x[i]), limit(Y(one.y[i]))]);
    }
    const kind = `series s${one.kind || 1}${one.dash ? " dashed" : ""}${one.thin ? " thin" : ""}`;
    if (one.stems) {
      const base = Math.min(box.bottom, Math.max(box.top, Y(0)));
      const stems = points.map(([x, y]) => `M${x.toFixed(1)} ${base.toFixed(1)}V${y.toFixed(1)}`).join("");
      return `<path class="${kind} thin" d="${stems}"/>${dots(points, one.kind)}`;
    }
    if (one.dots) return dots(points, one.kind);
    return `<path class="${kind}" d="M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}"/>`;
  }

  // One path for all: a line of no length with round ends is a dot
  const dots = (points, kind) =>
    `<path class="dots s${kind}" d="${points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("")}"/>`;

  // Lowest and highest number, with some room; at least `least` apart
  function range(arrays, { least = 1e-9, zero = false, room = 0.08 } = {}) {
    let low = zero ? 0 : Infinity, high = zero ? 0 : -Infinity;
    for (const array of arrays) {
      for (const value of array) {
        if (!Number.isFinite(value)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (!(high >= low)) [low, high] = [0, 1];
    const extra = Math.max((high - low) * room, (least - (high - low)) / 2, 0);
    return [low - extra, high + extra];
  }

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (name) => variable(name).split(/\s+/).map(Number);

  // A colour of a diverging scale (v in -1..1) or a sequential one (0..1), from the style sheet's three ends
  function palette() {
    const low = rgb("--low"), middle = rgb("--middle"), high = rgb("--high");
    return (v) => {
      const end = v < 0 ? low : high, share = Math.min(1, Math.abs(v));
      return middle.map((m, i) => Math.round(m + (end[i] - m) * share));
    };
  }

  // A matrix (rows of numbers) on a canvas, one pixel a number, stretched by the style sheet. value: number -> -1..1
  function heat(canvas, rows, value) {
    const height = rows.length, width = rows[0].length;
    canvas.width = width;
    canvas.height = height;
    const image = new ImageData(width, height), colour = palette();
    for (let i = 0; i < height; i++) {
      for (let j = 0; j < width; j++) {
        const [r, g, b] = colour(value(rows[i][j], i, j));
        image.data.set([r, g, b, 255], 4 * (i * width + j));
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  const largest = (rows) => rows.reduce((most, row) => row.reduce((m, x) => Math.max(m, Math.abs(x)), most), 0) || 1;

  S.chart = { lines, heat, range, ticks, shown, escape, largest, palette, variable };
})((globalThis.statewise = globalThis.statewise || {}));
