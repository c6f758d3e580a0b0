/* What the page says about particles and data: NN ratio and copies; and draws around rows (smoothing).

   Formulas: docs/how-to/evaluate.md and docs/method.md. Points are laid out as in flow.js. */
"use strict";

const Measures = (() => {
  /** Distance of each point to its nearest row; to its nearest other row, if the points are the rows. */
  function nearest(points, rows) {
    const m = points.length / 2, n = rows.length / 2, themselves = points === rows;
    const out = new Float64Array(m);
    for (let i = 0; i < m; i++) {
      const x = points[i], y = points[m + i];
      let least = Infinity;
      for (let j = 0; j < n; j++) {
        const d = (rows[j] - x) ** 2 + (rows[n + j] - y) ** 2;
        if (d < least && !(themselves && i === j)) least = d;
      }
      out[i] = Math.sqrt(least);
    }
    return out;
  }

  /** The value at a share of ascending numbers; `rank` counts from 0, and may be between two. */
  function at(sorted, rank) {
    const last = sorted.length - 1, position = Math.min(Math.max(rank, 0), last);
    const i = Math.floor(position), j = Math.min(i + 1, last);
    return sorted[i] + (position - i) * (sorted[j] - sorted[i]);
  }

  const median = (values) => at(Float64Array.from(values).sort(), (values.length - 1) / 2);
  const share = (values, test) => values.reduce((count, v) => count + test(v), 0) / values.length;

  /** Median distance of samples to their nearest row, over that of rows to other rows: 1 is ideal. */
  function ratio(made, real) {
    return median(made) / median(real);
  }

  /** Share of samples nearer to a row than the nearest 1 % of rows are to others: .01 is ideal. */
  function copies(made, real) {
    const limit = at(Float64Array.from(real).sort(), 0.01 * (real.length + 1) - 1);
    const tied = share(real, (d) => d === limit);
    const part = tied ? (0.01 - share(real, (d) => d < limit)) / tied : 0;
    return share(made, (d) => d < limit) + part * share(made, (d) => d === limit);
  }

  // Symmetric 2×2 matrices [a, b, d] = [[a, b], [b, d]].
  function root([a, b, d]) {
    const s = Math.sqrt(Math.max(0, a * d - b * b)), t = Math.sqrt(a + d + 2 * s) || 1;
    return [(a + s) / t, b / t, (d + s) / t];
  }

  function inverse([a, b, d]) {
    const det = a * d - b * b;
    return [d / det, -b / det, a / det];
  }

  /** A·B·A */
  function around([a, b, d], [e, f, h]) {
    const p = a * e + b * f, q = a * f + b * h, r = b * e + d * f, s = b * f + d * h;
    return [p * a + q * b, p * b + q * d, r * b + s * d];
  }

  function moments(points) {
    const n = points.length / 2, mean = [0, 0], covariance = [0, 0, 0];
    for (let i = 0; i < n; i++) {
      mean[0] += points[i] / n;
      mean[1] += points[n + i] / n;
    }
    for (let i = 0; i < n; i++) {
      const x = points[i] - mean[0], y = points[n + i] - mean[1];
      covariance[0] += (x * x) / n;
      covariance[1] += (x * y) / n;
      covariance[2] += (y * y) / n;
    }
    return { mean, covariance };
  }

  /** About `count` draws around the rows, along each row's k nearest, itself among them.

      xᵢ + h·Σⱼ wⱼ(xⱼ − x̄ᵢ) with wⱼ ~ N(0, 1/(k − 1)), then moved linearly to the rows' mean and
      covariance. normal: gives standard normal numbers. */
  function smoothed(rows, h, count, normal, k = 20) {
    const n = rows.length / 2, times = Math.max(1, Math.round(count / n));
    k = Math.min(k, n);
    if (h <= 0 || k < 3) return rows;
    const draws = new Float64Array(2 * n * times), m = n * times;
    const numbers = Array.from({ length: n }, (_, j) => j), distance = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) distance[j] = (rows[j] - rows[i]) ** 2 + (rows[n + j] - rows[n + i]) ** 2;
      const near = numbers.slice().sort((a, b) => distance[a] - distance[b]).slice(0, k);
      for (let t = 0; t < times; t++) {
        const w = near.map(normal), mean = w.reduce((a, b) => a + b) / k;
        let x = 0, y = 0;
        near.forEach((j, c) => {
          x += (w[c] - mean) * (rows[j] - rows[i]);
          y += (w[c] - mean) * (rows[n + j] - rows[n + i]);
        });
        draws[i * times + t] = rows[i] + (h * x) / Math.sqrt(k - 1);
        draws[m + i * times + t] = rows[n + i] + (h * y) / Math.sqrt(k - 1);
      }
    }
    const was = moments(rows), now = moments(draws), [a, , d] = was.covariance;
    if (a * d - was.covariance[1] ** 2 <= 1e-9 * a * d) return draws; // points on a line
    const half = root(now.covariance), back = inverse(half);
    const map = around(back, root(around(half, was.covariance)));
    for (let i = 0; i < m; i++) {
      const x = draws[i] - now.mean[0], y = draws[m + i] - now.mean[1];
      draws[i] = was.mean[0] + map[0] * x + map[1] * y;
      draws[m + i] = was.mean[1] + map[1] * x + map[2] * y;
    }
    return draws;
  }

  return { nearest, median, ratio, copies, moments, smoothed };
})();

if (typeof module !== "undefined") module.exports = Measures;
