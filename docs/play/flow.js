/* The sliced-Wasserstein flow of points in the plane: project, sort, match, move.

   The same algorithm as src/sliceflow/engine/flow.py with the transport `Sorted`: a test compares them.
   n points are a Float64Array of 2n numbers: all first coordinates, then all second ones. Nothing here
   changes its arguments, draws random numbers or knows the page. */
"use strict";

const Flow = (() => {
  const GAP_RATIO = 8; // a gap this much wider than the gaps beside it is jumped over

  /** z = θ₀x + θ₁y of all points. */
  function project(points, theta0, theta1) {
    const n = points.length / 2;
    const z = new Float64Array(n);
    for (let i = 0; i < n; i++) z[i] = theta0 * points[i] + theta1 * points[n + i];
    return z;
  }

  /** The numbers of the values z, from the smallest to the largest. */
  function order(z) {
    return Uint32Array.from(z, (_, i) => i).sort((i, j) => z[i] - z[j]);
  }

  /** T(z) = F_q⁻¹(F_p(z)) at every particle, for ascending particles p and data q.

      A sample sits at the middle of its mass, so that any numbers of particles and data match. Tied
      particles share the middle of theirs. Between two data F_q⁻¹ is linear, but it jumps over a gap
      that is far wider than the gaps beside it. */
  function match(p, q) {
    const m = p.length, n = q.length, last = n - 1;
    const out = new Float64Array(m);
    const gap = (i) => (i < 0 || i >= last ? 0 : q[i + 1] - q[i]);
    for (let first = 0, after; first < m; first = after) {
      after = first + 1;
      while (after < m && p[after] === p[first]) after++;
      const level = (first + after) / (2 * m);
      let position = Math.min(Math.max(level * n - 0.5, 0), last);
      const i = Math.max(0, Math.min(Math.floor(position), last - 1));
      if (n > 2 && gap(i) > GAP_RATIO * Math.max(gap(i - 1), gap(i + 1))) {
        position = i + (level * n - 0.5 - i > 0.5 ? 1 : 0);
      }
      out.fill(q[i] + (position - i) * gap(i), first, after);
    }
    return out;
  }

  /** max(0, 1 − κσ²(1/m + 1/n)/c): how far a map with mean square c may move m particles. */
  function shrunk(strength, variance, m, n, cost) {
    const noise = strength * variance * (1 / m + 1 / n);
    return cost > noise ? 1 - noise / cost : 0;
  }

  /** The variance of the values z; of several classes, the sum of theirs. */
  function variance(z, codes) {
    const classes = codes ? [...new Set(codes)] : [null];
    return classes.reduce((sum, c) => {
      const own = codes ? z.filter((_, i) => codes[i] === c) : z, n = own.length;
      const mean = own.reduce((a, b) => a + b, 0) / n;
      return sum + own.reduce((a, b) => a + (b - mean) ** 2, 0) / n;
    }, 0);
  }

  /** One step: x + s·Θᵀ(T(z) − z), z = Θx, for the directions θ and its perpendicular.

      frame: [θ₀, θ₁, θ′₀, θ′₁], the two rows of Θ. size: s. shrinkage: κ.
      condition: null, or { points, data, offsets }: class numbers of points and of data, and for both
      directions the offset ξ·θ_y of each class, so that z = Θx + ξ·θ_y.
      Returns the moved points, and the sliced distance before the step. */
  function step(points, data, frame, size = 1, shrinkage = 0, condition = null) {
    const m = points.length / 2, n = data.length / 2;
    const moved = points.slice();
    let total = 0;
    for (const d of [0, 1]) {
      const [theta0, theta1] = [frame[2 * d], frame[2 * d + 1]];
      const z = project(points, theta0, theta1), q = project(data, theta0, theta1);
      if (condition) {
        for (let i = 0; i < m; i++) z[i] += condition.offsets[d][condition.points[i]];
        for (let i = 0; i < n; i++) q[i] += condition.offsets[d][condition.data[i]];
      }
      const by = order(z);
      const p = Float64Array.from(by, (i) => z[i]);
      const squares = shrinkage > 0 ? variance(condition ? q : z, condition && condition.data) : 0;
      const target = match(p, q.sort());
      let cost = 0;
      for (let k = 0; k < m; k++) cost += (target[k] - p[k]) ** 2 / m;
      const factor = size * (shrinkage > 0 ? shrunk(shrinkage, squares, m, n, cost) : 1);
      for (let k = 0; k < m; k++) {
        const dz = factor * (target[k] - p[k]);
        moved[by[k]] += theta0 * dz;
        moved[m + by[k]] += theta1 * dz;
      }
      total += cost / 2;
    }
    return { points: moved, distance: Math.sqrt(total) };
  }

  /** The size of step k of n: 1, and falling to 0 over the last share `taper` of them. */
  function sizeOf(k, n, taper = 0.5) {
    return taper > 0 ? Math.min(1, (1 - k / n) / taper) : 1;
  }

  return { project, order, match, shrunk, step, sizeOf };
})();

if (typeof module !== "undefined") module.exports = Flow;
