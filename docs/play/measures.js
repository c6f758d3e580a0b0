/* What the page says about particles and data: NN ratio and copies; and draws around rows
   (smoothing).

   Formulas: docs/how-to/evaluate.md and docs/method.md. Points are laid out as in
   flow.js. */
"use strict";

const Measures = (() => {
  // The share of rows that count as copies of others.
  const COPY_LEVEL = 0.01;
  // With fewer neighbors a covariance says nothing.
  const MIN_NEIGHBORS = 3;
  // Points whose covariance has a relative determinant below this are on a line.
  const MIN_DETERMINANT = 1e-9;

  /** The distance of each point to its nearest row.

      If the points are the rows themselves, to the nearest other row. */
  function nearest(points, rows) {
    const m = points.length / 2;
    const n = rows.length / 2;
    const areRows = points === rows;
    const distances = new Float64Array(m);
    for (let i = 0; i < m; i++) {
      let least = Infinity;
      for (let j = 0; j < n; j++) {
        const dx = rows[j] - points[i];
        const dy = rows[n + j] - points[m + i];
        const squared = dx ** 2 + dy ** 2;
        const isItself = areRows && i === j;
        if (squared < least && !isItself) {
          least = squared;
        }
      }
      distances[i] = Math.sqrt(least);
    }
    return distances;
  }

  /** The value at a rank of ascending numbers; 0 is the first, 0.5 between two. */
  function valueAtRank(sorted, rank) {
    const last = sorted.length - 1;
    const position = Math.min(Math.max(rank, 0), last);
    const i = Math.floor(position);
    const j = Math.min(i + 1, last);
    return sorted[i] + (position - i) * (sorted[j] - sorted[i]);
  }

  function median(values) {
    return valueAtRank(Float64Array.from(values).sort(), (values.length - 1) / 2);
  }

  /** The share of values for which a test holds. */
  function share(values, test) {
    let count = 0;
    for (const value of values) {
      if (test(value)) {
        count++;
      }
    }
    return count / values.length;
  }

  /** Median distance of samples to rows, over that of rows to other rows: 1 is ideal. */
  function ratio(sampleDistances, rowDistances) {
    return median(sampleDistances) / median(rowDistances);
  }

  /** Share of samples nearer to a row than the nearest 1 % of rows are to others.

      .01 is ideal. Distances that are equal to the limit count in part. */
  function copies(sampleDistances, rowDistances) {
    const sorted = Float64Array.from(rowDistances).sort();
    const limit = valueAtRank(sorted, COPY_LEVEL * (sorted.length + 1) - 1);
    const isBelow = (distance) => distance < limit;
    const isTied = (distance) => distance === limit;
    const tiedRows = share(rowDistances, isTied);
    let partOfTied = 0;
    if (tiedRows > 0) {
      partOfTied = (COPY_LEVEL - share(rowDistances, isBelow)) / tiedRows;
    }
    return share(sampleDistances, isBelow) + partOfTied * share(sampleDistances, isTied);
  }

  // Symmetric 2×2 matrices are [a, b, d] for [[a, b], [b, d]].

  /** The symmetric square root of a positive matrix. */
  function squareRoot([a, b, d]) {
    const s = Math.sqrt(Math.max(0, a * d - b * b));
    const t = Math.sqrt(a + d + 2 * s) || 1;
    return [(a + s) / t, b / t, (d + s) / t];
  }

  function inverse([a, b, d]) {
    const determinant = a * d - b * b;
    return [d / determinant, -b / determinant, a / determinant];
  }

  /** The product A·B·A. */
  function sandwich([a, b, d], [e, f, h]) {
    const ab00 = a * e + b * f;
    const ab01 = a * f + b * h;
    const ab10 = b * e + d * f;
    const ab11 = b * f + d * h;
    return [ab00 * a + ab01 * b, ab00 * b + ab01 * d, ab10 * b + ab11 * d];
  }

  /** The mean of points, and their covariance [a, b, d]. */
  function moments(points) {
    const n = points.length / 2;
    const mean = [0, 0];
    const covariance = [0, 0, 0];
    for (let i = 0; i < n; i++) {
      mean[0] += points[i] / n;
      mean[1] += points[n + i] / n;
    }
    for (let i = 0; i < n; i++) {
      const x = points[i] - mean[0];
      const y = points[n + i] - mean[1];
      covariance[0] += (x * x) / n;
      covariance[1] += (x * y) / n;
      covariance[2] += (y * y) / n;
    }
    return { mean, covariance };
  }

  /** About `count` draws around the rows, along each row's k nearest, itself among them.

      xᵢ + h·Σⱼ wⱼ(xⱼ − x̄ᵢ) with wⱼ ~ N(0, 1/(k − 1)), then moved linearly to the rows'
      mean and covariance. drawNormal: gives standard normal numbers. */
  function smoothed(rows, h, count, drawNormal, k = 20) {
    const n = rows.length / 2;
    const nNeighbors = Math.min(k, n);
    if (h <= 0 || nNeighbors < MIN_NEIGHBORS) {
      return rows;
    }
    const drawsPerRow = Math.max(1, Math.round(count / n));
    const m = n * drawsPerRow;
    const scale = h / Math.sqrt(nNeighbors - 1);
    const draws = new Float64Array(2 * m);
    for (let i = 0; i < n; i++) {
      const neighbors = neighborsOf(rows, i, nNeighbors);
      for (let t = 0; t < drawsPerRow; t++) {
        const weights = neighbors.map(drawNormal);
        const [dx, dy] = weightedOffset(rows, i, neighbors, weights);
        draws[i * drawsPerRow + t] = rows[i] + scale * dx;
        draws[m + i * drawsPerRow + t] = rows[n + i] + scale * dy;
      }
    }
    return withMomentsOf(rows, draws);
  }

  /** The indices of the k rows nearest to row i, itself among them. */
  function neighborsOf(rows, i, k) {
    const n = rows.length / 2;
    const squared = new Float64Array(n);
    for (let j = 0; j < n; j++) {
      squared[j] = (rows[j] - rows[i]) ** 2 + (rows[n + j] - rows[n + i]) ** 2;
    }
    const indices = Array.from({ length: n }, (_, j) => j);
    indices.sort((a, b) => squared[a] - squared[b]);
    return indices.slice(0, k);
  }

  /** Σⱼ (wⱼ − w̄)(xⱼ − xᵢ) over the neighbors of row i. */
  function weightedOffset(rows, i, neighbors, weights) {
    const n = rows.length / 2;
    const mean = weights.reduce((sum, weight) => sum + weight) / weights.length;
    let dx = 0;
    let dy = 0;
    neighbors.forEach((j, c) => {
      dx += (weights[c] - mean) * (rows[j] - rows[i]);
      dy += (weights[c] - mean) * (rows[n + j] - rows[n + i]);
    });
    return [dx, dy];
  }

  /** Draws that are moved linearly to the mean and covariance of the rows. */
  function withMomentsOf(rows, draws) {
    const wanted = moments(rows);
    const found = moments(draws);
    const [a, b, d] = wanted.covariance;
    if (a * d - b ** 2 <= MIN_DETERMINANT * a * d) {
      return draws; // the rows are on a line
    }
    const root = squareRoot(found.covariance);
    const middle = squareRoot(sandwich(root, wanted.covariance));
    const map = sandwich(inverse(root), middle);
    const m = draws.length / 2;
    const moved = new Float64Array(2 * m);
    for (let i = 0; i < m; i++) {
      const x = draws[i] - found.mean[0];
      const y = draws[m + i] - found.mean[1];
      moved[i] = wanted.mean[0] + map[0] * x + map[1] * y;
      moved[m + i] = wanted.mean[1] + map[1] * x + map[2] * y;
    }
    return moved;
  }

  return { nearest, median, ratio, copies, smoothed };
})();
