/* The sliced-Wasserstein flow of points in the plane: project, sort, match, move.

   The same algorithm as src/sliceflow/engine/flow.py with the transport `SortedTransport`: a test
   compares them. n points are a Float64Array of 2n numbers: all first coordinates, then
   all second ones. Nothing here changes its arguments, draws random numbers or knows the
   page. */
"use strict";

const Flow = (() => {
  const GAP_RATIO = 8; // a gap this much wider than the gaps beside it is jumped over

  /** z = θ₀x + θ₁y of all points. */
  function project(points, theta0, theta1) {
    const n = points.length / 2;
    const z = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      z[i] = theta0 * points[i] + theta1 * points[n + i];
    }
    return z;
  }

  /** The indices that sort the values z. */
  function argsort(z) {
    return Uint32Array.from(z, (_, i) => i).sort((i, j) => z[i] - z[j]);
  }

  /** T(z) = F_q⁻¹(F_p(z)) at every particle, for ascending particles p and data q.

      A sample sits at the middle of its mass, so that any numbers of particles and data
      match. Tied particles share the middle of theirs. */
  function match(p, q) {
    const m = p.length;
    const target = new Float64Array(m);
    let first = 0; // of the particles that are tied
    while (first < m) {
      let after = first + 1;
      while (after < m && p[after] === p[first]) {
        after++;
      }
      const level = (first + after) / (2 * m);
      target.fill(quantile(q, level), first, after);
      first = after;
    }
    return target;
  }

  /** F_q⁻¹(level) of ascending data q.

      It is linear between two data, but jumps over a gap that is far wider than the gaps
      beside it. */
  function quantile(q, level) {
    const n = q.length;
    const last = n - 1;
    const rank = level * n - 0.5; // 0 is the first datum, 1 the second, …
    const i = Math.max(0, Math.min(Math.floor(rank), last - 1));
    const gap = gapAfter(q, i);
    let position = Math.min(Math.max(rank, 0), last);
    const gapBeside = Math.max(gapAfter(q, i - 1), gapAfter(q, i + 1));
    if (n > 2 && gap > GAP_RATIO * gapBeside) {
      position = rank - i > 0.5 ? i + 1 : i;
    }
    return q[i] + (position - i) * gap;
  }

  /** The distance from datum i to the next one; 0 outside the data. */
  function gapAfter(q, i) {
    if (i < 0 || i >= q.length - 1) {
      return 0;
    }
    return q[i + 1] - q[i];
  }

  /** max(0, 1 − κσ²(1/m + 1/n)/c): how far a map with mean square c may move m particles. */
  function shrinkageFactor(kappa, variance, m, n, cost) {
    const noise = kappa * variance * (1 / m + 1 / n);
    return cost > noise ? 1 - noise / cost : 0;
  }

  /** The variance of the values z. */
  function varianceOf(z) {
    const n = z.length;
    const mean = z.reduce((sum, value) => sum + value, 0) / n;
    return z.reduce((sum, value) => sum + (value - mean) ** 2, 0) / n;
  }

  /** The sum of the variances of the values z in each class. */
  function varianceWithinClasses(z, codes) {
    let sum = 0;
    for (const code of new Set(codes)) {
      sum += varianceOf(z.filter((_, i) => codes[i] === code));
    }
    return sum;
  }

  /** Add to each value the offset of its class. */
  function addOffsets(z, offsets, codes) {
    for (let i = 0; i < z.length; i++) {
      z[i] += offsets[codes[i]];
    }
  }

  /** One step: x + s·Θᵀ(T(z) − z), z = Θx, for the directions θ and its perpendicular.

      frame: [θ₀, θ₁, θ′₀, θ′₁], the two rows of Θ. size: s. shrinkage: κ.
      condition: null, or { points, data, offsets }: class numbers of points and of data,
      and for both directions the offset ξ·θ_y of each class, so that z = Θx + ξ·θ_y.
      Returns the moved points, and the sliced distance before the step. */
  function step(points, data, frame, size = 1, shrinkage = 0, condition = null) {
    const m = points.length / 2;
    const n = data.length / 2;
    const moved = points.slice();
    let totalCost = 0;
    for (const d of [0, 1]) {
      const theta0 = frame[2 * d];
      const theta1 = frame[2 * d + 1];
      const z = project(points, theta0, theta1);
      const q = project(data, theta0, theta1);
      let variance = 0;
      if (condition) {
        addOffsets(z, condition.offsets[d], condition.points);
        addOffsets(q, condition.offsets[d], condition.data);
        variance = varianceWithinClasses(q, condition.data);
      } else {
        variance = varianceOf(z);
      }
      const sorted = argsort(z);
      const p = Float64Array.from(sorted, (i) => z[i]);
      const target = match(p, q.sort());
      let cost = 0;
      for (let k = 0; k < m; k++) {
        cost += (target[k] - p[k]) ** 2 / m;
      }
      let factor = size;
      if (shrinkage > 0) {
        factor *= shrinkageFactor(shrinkage, variance, m, n, cost);
      }
      for (let k = 0; k < m; k++) {
        const dz = factor * (target[k] - p[k]);
        moved[sorted[k]] += theta0 * dz;
        moved[m + sorted[k]] += theta1 * dz;
      }
      totalCost += cost / 2;
    }
    return { points: moved, distance: Math.sqrt(totalCost) };
  }

  /** The size of step k of n: 1, and falling to 0 over the last share `taper` of them. */
  function sizeOf(k, n, taper = 0.5) {
    if (taper === 0) {
      return 1;
    }
    return Math.min(1, (1 - k / n) / taper);
  }

  return { step, sizeOf };
})();
