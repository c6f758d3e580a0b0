/* The page: data that are painted or picked, particles that play, pause, step and go back. */
"use strict";

(() => {
  const find = (id) => document.getElementById(id);
  const canvas = find("canvas"), pen = canvas.getContext("2d");
  const REACH = 3.2; // the canvas shows [−REACH, REACH] in both coordinates
  const MOST = 2000; // data that can be painted
  const AXES = 2; // steps along the axes at the end
  const TAU = 2 * Math.PI;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  /** A seeded source of uniform and normal numbers (mulberry32, Box and Muller). */
  function numbers(seed) {
    let state = Math.imul(seed + 1, 0x9e3779b1);
    const uniform = () => {
      state = (state + 0x6d2b79f5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(TAU * uniform());
    return { uniform, normal };
  }

  const SHAPES = {
    moons({ uniform, normal }) {
      const rows = [];
      for (let i = 0; i < 400; i++) {
        const t = Math.PI * uniform(), upper = i % 2;
        const x = upper ? Math.cos(t) : 1 - Math.cos(t), y = upper ? Math.sin(t) : 0.5 - Math.sin(t);
        rows.push([1.4 * (x - 0.5) + 0.08 * normal(), 1.8 * (y - 0.25) + 0.08 * normal(), 1 - upper]);
      }
      return rows;
    },
    spiral({ uniform, normal }) {
      return Array.from({ length: 400 }, () => {
        const t = Math.sqrt(uniform()) * 2.2 * TAU;
        return [0.16 * t * Math.cos(t) + 0.04 * normal(), 0.16 * t * Math.sin(t) + 0.04 * normal(), 0];
      });
    },
    checkerboard({ uniform }) {
      return Array.from({ length: 600 }, () => {
        const column = Math.floor(4 * uniform()), row = 2 * Math.floor(2 * uniform()) + (column % 2);
        return [column - 2 + uniform(), row - 2 + uniform(), 0].map((v, i) => (i < 2 ? 1.1 * v : v));
      });
    },
    digits: () => DIGITS.map(([x, y, digit]) => [x / 100, y / 100, digit]),
    own: () => [],
  };

  let rows = []; // [x, y, class]
  let classes = []; // { colour, rows, data, apart }, one for each colour that has rows
  let history = []; // history[k]: { points (one array for each class), distance } after k steps
  let at = 0; // the step shown
  let playing = false, passed = 0, before = 0, measured = 0;
  let brush = null; // where the keyboard paints

  const value = (id) => Number(find(id).value);
  const total = () => value("steps") + AXES;
  const amplifier = () => (value("amplifier") < Number(find("amplifier").max) ? value("amplifier") : Infinity);

  /** New particles for the present rows; their flow is at step 0. */
  function restart() {
    const m = value("particles"), random = numbers(1);
    classes = [0, 1, 2, 3].map((colour) => ({ colour, own: rows.filter((r) => r[2] === colour) }))
      .filter(({ own }) => own.length)
      .map(({ colour, own }) => {
        const real = Float64Array.from([...own.map((r) => r[0]), ...own.map((r) => r[1])]);
        const size = Math.max(1, Math.round((m * own.length) / rows.length));
        const data = Measures.smoothed(real, value("smoothing"), size, random.normal);
        return { colour, rows: real, data, size, apart: own.length > 1 ? Measures.nearest(real, real) : [] };
      });
    const start = numbers(0);
    const points = classes.map(({ size }) => Float64Array.from({ length: 2 * size }, start.normal));
    history = [{ points, distance: NaN }];
    at = passed = 0;
    writeLines();
    show();
  }

  /** A Laplace number of variance 1/n, as the engine draws the directions of n classes. */
  function laplace(uniform, n) {
    const u = uniform() - 0.5;
    return (-Math.sign(u) * Math.log(1 - 2 * Math.abs(u))) / Math.sqrt(2 * n);
  }

  /** Several clouds as one, and back. */
  const joined = (clouds) => Float64Array.from([0, 1].flatMap((d) => clouds.flatMap((x) => [...half(x, d)])));
  const half = (x, d) => x.subarray((d * x.length) / 2, ((d + 1) * x.length) / 2);
  function parted(all, like) {
    let first = 0;
    return like.map(({ length }) => {
      const own = [0, 1].flatMap((d) => [...half(all, d).subarray(first, first + length / 2)]);
      first += length / 2;
      return Float64Array.from(own);
    });
  }

  /** The next state; the numbers of a step depend on its number alone, so Back and Step repeat it. */
  function advance() {
    if (at >= total() || !classes.length) return false;
    if (at + 1 === history.length) {
      const random = numbers(1000 + at), angle = TAU * random.uniform();
      const c = Math.cos(angle), s = Math.sin(angle), last = at >= value("steps");
      const frame = last ? [1, 0, 0, 1] : [c, s, -s, c];
      const size = last ? 1 : Flow.sizeOf(at, value("steps"));
      const spread = last ? 0 : Math.sqrt(4 * 0.01 * value("entropy") * size);
      const shrinkage = last ? 0 : value("shrinkage"), before = history[at].points;
      let points, squares = 0, m = 0;
      if (amplifier() === Infinity) {
        points = classes.map(({ data }, i) => {
          const moved = Flow.step(before[i], data, frame, size, shrinkage);
          squares += (moved.distance ** 2 * moved.points.length) / 2;
          m += moved.points.length / 2;
          return moved.points;
        });
      } else { // one flow of all classes; steps along the axes ignore them, as in Python
        const data = classes.map((one) => one.data), codes = (clouds) => clouds.flatMap((x, c) => Array(x.length / 2).fill(c));
        const offsets = [0, 1].map(() => classes.map(() => amplifier() * laplace(random.uniform, classes.length)));
        const condition = last || !amplifier() ? null : { points: codes(before), data: codes(data), offsets };
        const moved = Flow.step(joined(before), joined(data), frame, size, shrinkage, condition);
        [points, squares, m] = [parted(moved.points, before), moved.distance ** 2, 1];
      }
      if (spread) points = points.map((cloud) => cloud.map((x) => x + spread * random.normal()));
      history.push({ points, distance: Math.sqrt(squares / m) });
    }
    at++;
    return true;
  }

  // Pictures

  let colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(["c0", "c1", "c2", "c3", "soft"].map((c) => [c, style.getPropertyValue("--" + c)]));
  }

  function fit() {
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (side && canvas.width !== side) canvas.width = canvas.height = side;
  }

  /** Draw step `at`, or a share of the way to it from the step before. */
  function draw(part = 1) {
    const side = canvas.width, unit = side / (2 * REACH), dot = Math.max(1.3, side / 330);
    const place = (x, y) => [side / 2 + unit * x, side / 2 - unit * y];
    pen.clearRect(0, 0, side, side);
    pen.lineWidth = Math.max(1, side / 700);
    for (const { colour, rows: own } of classes) {
      const n = own.length / 2;
      pen.beginPath();
      for (let i = 0; i < n; i++) {
        const [x, y] = place(own[i], own[n + i]);
        pen.moveTo(x + 1.7 * dot, y);
        pen.arc(x, y, 1.7 * dot, 0, TAU);
      }
      pen.globalAlpha = 0.55;
      pen.strokeStyle = colours["c" + colour];
      pen.stroke();
    }
    const now = history[at], old = history[at - 1] || now;
    classes.forEach(({ colour }, c) => {
      const a = old.points[c], b = now.points[c], m = b.length / 2;
      pen.beginPath();
      for (let i = 0; i < m; i++) {
        const [x, y] = place(a[i] + part * (b[i] - a[i]), a[m + i] + part * (b[m + i] - a[m + i]));
        pen.moveTo(x + dot, y);
        pen.arc(x, y, dot, 0, TAU);
      }
      pen.globalAlpha = 0.8;
      pen.fillStyle = colours["c" + colour];
      pen.fill();
    });
    pen.globalAlpha = 1;
    if (brush && document.activeElement === canvas) {
      const [x, y] = place(...brush);
      pen.strokeStyle = colours.soft;
      pen.strokeRect(x - 6 * dot, y - 6 * dot, 12 * dot, 12 * dot);
    }
  }

  // Numbers

  function measure() {
    find("number").textContent = `${at} of ${total()}`;
    const { points, distance } = history[at];
    find("distance").textContent = Number.isNaN(distance) ? "–" : distance.toFixed(3);
    const made = [], real = [];
    classes.forEach(({ rows: own, apart }, c) => {
      if (!apart.length) return;
      // Some hundreds of particles tell it: all of them would take long.
      const p = points[c], m = p.length / 2, each = Math.ceil(m / 1000);
      const some = Array.from({ length: Math.ceil(m / each) }, (_, i) => i * each);
      made.push(...Measures.nearest(Float64Array.from([...some.map((i) => p[i]), ...some.map((i) => p[m + i])]), own));
      real.push(...apart);
    });
    const enough = real.length >= 10 && Measures.median(real) > 0;
    find("ratio").textContent = enough ? Measures.ratio(made, real).toFixed(2) : "–";
    find("copies").textContent = enough ? Measures.copies(made, real).toFixed(2) : "–";
  }

  function show() {
    measure();
    draw();
    find("back").disabled = at === 0;
    find("step").disabled = at >= total() || !classes.length;
    find("play").disabled = !classes.length;
  }

  function say(text) {
    find("status").textContent = text;
  }

  const summary = () => `Step ${find("number").textContent}, distance ${find("distance").textContent}.`;

  // Time

  function tick(time) {
    if (!playing) return;
    passed += (Math.min(time - before, 250) / 1000) * value("rate");
    before = time;
    let more = true;
    for (; passed >= 1 && more; passed--) more = advance();
    if (!more || at >= total()) {
      pause("The flow is done.");
      return;
    }
    draw(calm.matches || at === 0 ? 1 : passed);
    if (time - measured > 250) {
      measured = time;
      measure();
      find("back").disabled = at === 0;
    }
    requestAnimationFrame(tick);
  }

  function play() {
    if (at >= total()) restart();
    playing = true;
    find("play").textContent = "Pause";
    find("step").disabled = false;
    say("Playing.");
    before = performance.now();
    advance();
    requestAnimationFrame(tick);
  }

  function pause(why = "Paused.") {
    playing = false;
    passed = 0;
    find("play").textContent = "Play";
    show();
    say(`${why} ${summary()}`);
  }

  // Data

  function pick(shape) {
    rows = SHAPES[shape](numbers(7));
    find("shape").value = shape;
    if (playing && !rows.length) pause();
    restart();
    say(rows.length ? `${rows.length} data.` : "No data: paint some.");
  }

  /** Some points around a place of the canvas. */
  function paint(x, y) {
    if (rows.length >= MOST) {
      say(`${MOST} data are the most that this page takes.`);
      return;
    }
    const { normal } = numbers(rows.length), colour = Number(document.querySelector("[name=colour]:checked").value);
    const inside = (v) => Math.min(REACH, Math.max(-REACH, v));
    for (let i = 0; i < 3; i++) rows.push([inside(x + 0.08 * normal()), inside(y + 0.08 * normal()), colour]);
    find("shape").value = "own";
    restart();
    if (!playing) say(`${rows.length} data.`);
  }

  function placeOf(event) {
    const box = canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    return [REACH * (2 * x - 1), REACH * (1 - 2 * y)];
  }

  let painting = false;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) return;
    painting = true;
    brush = null;
    paint(...placeOf(event));
  });
  canvas.addEventListener("pointermove", (event) => painting && event.isPrimary && paint(...placeOf(event)));
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => (painting = false));
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!arrow && event.key !== "Enter") return;
    event.preventDefault();
    brush = brush || [0, 0];
    if (arrow) brush = brush.map((v, i) => Math.min(REACH, Math.max(-REACH, v + 0.15 * arrow[i])));
    else paint(...brush);
    if (!playing) draw();
  });
  canvas.addEventListener("focus", () => {
    if (canvas.matches(":focus-visible")) brush = brush || [0, 0];
    if (!playing) draw();
  });
  canvas.addEventListener("blur", () => playing || draw());

  // Python

  /** Python lines that fit the same data in the same way. */
  function lines() {
    const several = classes.length > 1, number = (v) => Number(v.toFixed(3));
    const wrapped = (items) => items.join(", ").replace(/(.{80,100}?,) /g, "$1\n    ");
    const options = [["smoothing", value("smoothing")], ["shrinkage", value("shrinkage")]].map(([k, v]) => `${k}=${v}`);
    return [
      ...(several ? ["import math", ""] : []),
      "import numpy as np",
      "from sliceflow import SlicedWassersteinFlow, VectorOptions",
      "",
      `X = np.array([\n    ${wrapped(rows.map(([x, y]) => `[${number(x)}, ${number(y)}]`))}\n])`,
      ...(several ? [`y = np.array([\n    ${wrapped(rows.map((r) => r[2]))}\n])`] : []),
      "flow = SlicedWassersteinFlow(",
      `    n_particles=${value("particles")},`,
      `    n_steps=${value("steps")},`,
      ...(several ? [`    amplifier=${amplifier() === Infinity ? "math.inf" : amplifier()},`] : []),
      `    entropy=${number(value("entropy") / 100)},`,
      "    standardize=False,",
      `    options=VectorOptions(${options.join(", ")}),`,
      "    random_state=0,",
      `).fit(X${several ? ", y" : ""})`,
      "particles = flow.particles_  # what the page shows at the end",
      "new = flow.sample(1000, random_state=1)",
      "",
    ].join("\n");
  }

  find("python").addEventListener("toggle", writeLines);
  function writeLines() {
    if (find("python").open) find("lines").textContent = lines();
  }
  find("copy").addEventListener("click", () =>
    navigator.clipboard.writeText(lines()).then(() => say("Copied."), () => say("The browser does not allow to copy: select the lines.")));

  /** For other scripts of a page: what is shown, and the steps that led to it. */
  window.Play = {
    lines,
    shown: () => ({ rows, colours: classes.map((c) => c.colour), steps: history.slice(0, at + 1), reach: REACH }),
  };

  // Controls

  find("play").addEventListener("click", () => (playing ? pause() : play()));
  find("step").addEventListener("click", () => {
    if (playing) pause();
    advance();
    show();
    say(summary());
  });
  find("back").addEventListener("click", () => {
    if (playing) pause();
    at = Math.max(0, at - 1);
    show();
    say(summary());
  });
  find("reset").addEventListener("click", () => {
    if (playing) pause();
    restart();
    say("At step 0.");
  });
  find("clear").addEventListener("click", () => pick("own"));
  find("shape").addEventListener("change", (event) => pick(event.target.value));
  for (const slider of document.querySelectorAll("[type=range]")) {
    const output = document.querySelector(`output[for=${slider.id}]`);
    const tell = () => (output.textContent = slider.id === "amplifier" && amplifier() === Infinity ? "∞" : slider.value);
    tell();
    slider.addEventListener("input", () => {
      tell();
      if (slider.id !== "rate") restart();
    });
  }

  const redraw = () => {
    fit();
    readColours();
    if (!playing) draw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  fit();
  readColours();
  pick("moons");
  new ResizeObserver(redraw).observe(canvas);
  if (!calm.matches) play();
  if (location.protocol === "file:") // there the other pages are not built
    for (const link of document.querySelectorAll("a[href^='../']")) link.href = link.getAttribute("href").replace(/html$/, "md");
})();
