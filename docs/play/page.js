/* The page: data that are painted or picked, particles that play, pause, step and go
   back. */
"use strict";

(() => {
  const TAU = 2 * Math.PI;
  const REACH = 3.2; // the canvas shows [−REACH, REACH] in both coordinates
  const MAX_ROWS = 2000; // that can be painted: more would be slow
  const N_COLORS = 4;
  const N_AXIS_STEPS = 2; // at the end, along the axes
  const ENTROPY_UNIT = 0.01; // of the slider
  const MAX_MEASURED = 1000; // particles of a class: all of them would take long
  const MIN_MEASURED_ROWS = 10; // with fewer rows the measures say nothing
  const MILLISECONDS_BETWEEN_MEASURES = 250;
  const MAX_FRAME_MILLISECONDS = 250; // a page in the background does not catch up
  const BRUSH_SPREAD = 0.08;
  const POINTS_PER_TOUCH = 3;
  const KEYBOARD_STEP = 0.15;
  const ARROWS = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, 1],
    ArrowDown: [0, -1],
  };

  const canvas = find("canvas");
  const pen = canvas.getContext("2d");
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  let rows = []; // the data: [x, y, class]
  // One for each color that has rows: { color, rows, data, size, rowDistances }. Its
  // particles, `size` of them, flow onto `data`, which are draws around the rows.
  let classes = [];
  // history[k]: { points (one array for each class), distance } after k steps.
  let history = [];
  let shownStep = 0;
  let isPlaying = false;
  let stepsDue = 0; // a fraction is the way to the next step
  let lastFrameTime = 0;
  let lastMeasureTime = 0;
  let brush = null; // where the keyboard paints
  let isPainting = false; // whether the mouse is down
  let colors = {}; // of the present scheme, light or dark

  function find(id) {
    return document.getElementById(id);
  }

  // Sliders

  function valueOf(id) {
    return Number(find(id).value);
  }

  function totalSteps() {
    return valueOf("steps") + N_AXIS_STEPS;
  }

  /** ξ; the end of its slider is ∞. */
  function amplifier() {
    const value = valueOf("amplifier");
    return value < Number(find("amplifier").max) ? value : Infinity;
  }

  // Random numbers and shapes

  /** A seeded source of uniform and normal numbers (mulberry32, Box and Muller). */
  function makeRandom(seed) {
    let state = Math.imul(seed + 1, 0x9e3779b1);
    const uniform = () => {
      state = (state + 0x6d2b79f5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    const normal = () => {
      const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
      return radius * Math.cos(TAU * uniform());
    };
    return { uniform, normal };
  }

  /** A Laplace number of variance 1/n, as the engine draws directions of n classes. */
  function laplace(uniform, n) {
    const u = uniform() - 0.5;
    return (-Math.sign(u) * Math.log(1 - 2 * Math.abs(u))) / Math.sqrt(2 * n);
  }

  function moons({ uniform, normal }) {
    const points = [];
    for (let i = 0; i < 400; i++) {
      const t = Math.PI * uniform();
      const isUpper = i % 2 === 1;
      const x = isUpper ? Math.cos(t) : 1 - Math.cos(t);
      const y = isUpper ? Math.sin(t) : 0.5 - Math.sin(t);
      const color = isUpper ? 0 : 1;
      points.push([
        1.4 * (x - 0.5) + 0.08 * normal(),
        1.8 * (y - 0.25) + 0.08 * normal(),
        color,
      ]);
    }
    return points;
  }

  function spiral({ uniform, normal }) {
    const points = [];
    for (let i = 0; i < 400; i++) {
      const t = Math.sqrt(uniform()) * 2.2 * TAU;
      const x = 0.16 * t * Math.cos(t) + 0.04 * normal();
      const y = 0.16 * t * Math.sin(t) + 0.04 * normal();
      points.push([x, y, 0]);
    }
    return points;
  }

  function checkerboard({ uniform }) {
    const points = [];
    for (let i = 0; i < 600; i++) {
      const column = Math.floor(4 * uniform());
      const row = 2 * Math.floor(2 * uniform()) + (column % 2);
      const x = 1.1 * (column - 2 + uniform());
      const y = 1.1 * (row - 2 + uniform());
      points.push([x, y, 0]);
    }
    return points;
  }

  function digits() {
    return DIGITS.map(([x, y, digit]) => [x / 100, y / 100, digit]);
  }

  const SHAPES = { moons, spiral, checkerboard, digits, own: () => [] };

  // The flow

  /** Points [[x, y], …] in the layout of flow.js. */
  function asArray(points) {
    const x = points.map((point) => point[0]);
    const y = points.map((point) => point[1]);
    return Float64Array.from([...x, ...y]);
  }

  /** The first coordinates (d = 0) or the second ones of points. */
  function coordinates(points, d) {
    const n = points.length / 2;
    return points.subarray(d * n, (d + 1) * n);
  }

  /** Several clouds of points as one. */
  function joinClouds(clouds) {
    const values = [];
    for (const d of [0, 1]) {
      for (const cloud of clouds) {
        values.push(...coordinates(cloud, d));
      }
    }
    return Float64Array.from(values);
  }

  /** One cloud as several, which have the sizes of others. */
  function splitCloud(points, like) {
    let first = 0;
    return like.map((cloud) => {
      const after = first + cloud.length / 2;
      const x = coordinates(points, 0).subarray(first, after);
      const y = coordinates(points, 1).subarray(first, after);
      first = after;
      return Float64Array.from([...x, ...y]);
    });
  }

  /** The class of every point of several clouds. */
  function classCodes(clouds) {
    return clouds.flatMap((cloud, code) => Array(cloud.length / 2).fill(code));
  }

  /** New particles for the present rows; their flow is at step 0. */
  function restart() {
    const random = makeRandom(1);
    classes = [];
    for (let color = 0; color < N_COLORS; color++) {
      const ofColor = rows.filter((row) => row[2] === color);
      if (ofColor.length) {
        classes.push(makeClass(color, ofColor, random));
      }
    }
    const start = makeRandom(0);
    const points = classes.map(({ size }) =>
      Float64Array.from({ length: 2 * size }, start.normal),
    );
    history = [{ points, distance: NaN }];
    shownStep = 0;
    stepsDue = 0;
    writePython();
    show();
  }

  function makeClass(color, ofColor, random) {
    const real = asArray(ofColor);
    const shareOfRows = ofColor.length / rows.length;
    const size = Math.max(1, Math.round(valueOf("particles") * shareOfRows));
    const data = Measures.smoothed(real, valueOf("smoothing"), size, random.normal);
    const rowDistances = ofColor.length > 1 ? Measures.nearest(real, real) : [];
    return { color, rows: real, data, size, rowDistances };
  }

  /** Show the next step. Returns false at the end. */
  function advance() {
    if (shownStep >= totalSteps() || !classes.length) {
      return false;
    }
    if (shownStep + 1 === history.length) {
      history.push(computeStep(shownStep));
    }
    shownStep++;
    return true;
  }

  /** The state after a step. Its random numbers depend on its index alone, so that Back
      and Step repeat it. */
  function computeStep(index) {
    const random = makeRandom(1000 + index);
    const angle = TAU * random.uniform();
    const isAxisStep = index >= valueOf("steps");
    const options = { frame: [1, 0, 0, 1], size: 1, shrinkage: 0, isAxisStep };
    let noise = 0; // its standard deviation
    if (!isAxisStep) {
      const c = Math.cos(angle);
      const s = Math.sin(angle);
      options.frame = [c, s, -s, c];
      options.size = Flow.sizeOf(index, valueOf("steps"));
      options.shrinkage = valueOf("shrinkage");
      noise = Math.sqrt(4 * ENTROPY_UNIT * valueOf("entropy") * options.size);
    }
    const before = history[index].points;
    const isPerClass = amplifier() === Infinity;
    const state = isPerClass
      ? moveEachClass(before, options)
      : moveTogether(before, options, random);
    if (noise > 0) {
      state.points = state.points.map((cloud) =>
        cloud.map((x) => x + noise * random.normal()),
      );
    }
    return state;
  }

  /** A step of one flow for each class: ξ = ∞. */
  function moveEachClass(before, { frame, size, shrinkage }) {
    let squares = 0;
    let count = 0;
    const points = classes.map(({ data }, i) => {
      const moved = Flow.step(before[i], data, frame, size, shrinkage);
      const m = moved.points.length / 2;
      squares += m * moved.distance ** 2;
      count += m;
      return moved.points;
    });
    return { points, distance: Math.sqrt(squares / count) };
  }

  /** A step of one flow of all classes. Axis steps ignore them, as in Python. */
  function moveTogether(before, { frame, size, shrinkage, isAxisStep }, random) {
    const data = classes.map((one) => one.data);
    const drawOffsets = () =>
      classes.map(() => amplifier() * laplace(random.uniform, classes.length));
    const offsets = [drawOffsets(), drawOffsets()];
    let condition = null;
    if (!isAxisStep && amplifier() > 0) {
      condition = { points: classCodes(before), data: classCodes(data), offsets };
    }
    const all = joinClouds(before);
    const moved = Flow.step(all, joinClouds(data), frame, size, shrinkage, condition);
    return { points: splitCloud(moved.points, before), distance: moved.distance };
  }

  // The picture

  function readColors() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["c0", "c1", "c2", "c3", "soft"]) {
      colors[name] = style.getPropertyValue(`--${name}`);
    }
  }

  /** Give the canvas as many pixels as it has on the screen. */
  function fitCanvas() {
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (side && canvas.width !== side) {
      canvas.width = side;
      canvas.height = side;
    }
  }

  /** Where a point is on the canvas, in pixels. */
  function toPixels(x, y) {
    const side = canvas.width;
    const unit = side / (2 * REACH);
    return [side / 2 + unit * x, side / 2 - unit * y];
  }

  /** Add a circle to the path of the pen. */
  function addCircle(x, y, radius) {
    const [u, v] = toPixels(x, y);
    pen.moveTo(u + radius, v);
    pen.arc(u, v, radius, 0, TAU);
  }

  /** Draw the shown step, or a share of the way to it from the step before. */
  function draw(share = 1) {
    const side = canvas.width;
    const radius = Math.max(1.3, side / 330);
    pen.clearRect(0, 0, side, side);
    pen.lineWidth = Math.max(1, side / 700);
    pen.globalAlpha = 0.55;
    for (const { color, rows: real } of classes) {
      drawRings(real, 1.7 * radius, colors[`c${color}`]);
    }
    pen.globalAlpha = 0.8;
    const now = history[shownStep];
    const before = history[shownStep - 1] || now;
    classes.forEach(({ color }, i) => {
      const from = before.points[i];
      const points = now.points[i].map((x, k) => from[k] + share * (x - from[k]));
      drawDots(points, radius, colors[`c${color}`]);
    });
    pen.globalAlpha = 1;
    if (brush && document.activeElement === canvas) {
      const [u, v] = toPixels(...brush);
      pen.strokeStyle = colors.soft;
      pen.strokeRect(u - 6 * radius, v - 6 * radius, 12 * radius, 12 * radius);
    }
  }

  function drawRings(points, radius, color) {
    traceCircles(points, radius);
    pen.strokeStyle = color;
    pen.stroke();
  }

  function drawDots(points, radius, color) {
    traceCircles(points, radius);
    pen.fillStyle = color;
    pen.fill();
  }

  function traceCircles(points, radius) {
    const n = points.length / 2;
    pen.beginPath();
    for (let i = 0; i < n; i++) {
      addCircle(points[i], points[n + i], radius);
    }
  }

  // The numbers

  function measure() {
    const { points, distance } = history[shownStep];
    find("number").textContent = `${shownStep} of ${totalSteps()}`;
    find("distance").textContent = Number.isNaN(distance) ? "–" : distance.toFixed(3);
    const sampleDistances = [];
    const rowDistances = [];
    classes.forEach((one, i) => {
      if (one.rowDistances.length) {
        sampleDistances.push(...Measures.nearest(someOf(points[i]), one.rows));
        rowDistances.push(...one.rowDistances);
      }
    });
    let ratio = "–";
    let copies = "–";
    if (rowDistances.length >= MIN_MEASURED_ROWS && Measures.median(rowDistances) > 0) {
      ratio = Measures.ratio(sampleDistances, rowDistances).toFixed(2);
      copies = Measures.copies(sampleDistances, rowDistances).toFixed(2);
    }
    find("ratio").textContent = ratio;
    find("copies").textContent = copies;
  }

  /** At most a thousand of the points, at equal distances. */
  function someOf(points) {
    const m = points.length / 2;
    const stride = Math.ceil(m / MAX_MEASURED);
    const chosen = [];
    for (let i = 0; i < m; i += stride) {
      chosen.push([points[i], points[m + i]]);
    }
    return asArray(chosen);
  }

  function show() {
    measure();
    draw();
    find("back").disabled = shownStep === 0;
    find("step").disabled = shownStep >= totalSteps() || !classes.length;
    find("play").disabled = !classes.length;
  }

  function say(text) {
    find("status").textContent = text;
  }

  function describeStep() {
    const number = find("number").textContent;
    const distance = find("distance").textContent;
    return `Step ${number}, distance ${distance}.`;
  }

  // Playing

  /** Draw a frame of the animation; `time` is in milliseconds. */
  function tick(time) {
    if (!isPlaying) {
      return;
    }
    const elapsed = Math.min(time - lastFrameTime, MAX_FRAME_MILLISECONDS);
    lastFrameTime = time;
    stepsDue += (elapsed / 1000) * valueOf("rate");
    let hasAdvanced = true;
    while (stepsDue >= 1 && hasAdvanced) {
      hasAdvanced = advance();
      stepsDue--;
    }
    if (!hasAdvanced || shownStep >= totalSteps()) {
      pause("The flow is done.");
      return;
    }
    const isSmooth = !reducedMotion.matches && shownStep > 0;
    draw(isSmooth ? stepsDue : 1);
    if (time - lastMeasureTime > MILLISECONDS_BETWEEN_MEASURES) {
      lastMeasureTime = time;
      measure();
      find("back").disabled = shownStep === 0;
    }
    requestAnimationFrame(tick);
  }

  function play() {
    if (shownStep >= totalSteps()) {
      restart();
    }
    isPlaying = true;
    find("play").textContent = "Pause";
    find("step").disabled = false;
    say("Playing.");
    lastFrameTime = performance.now();
    advance();
    requestAnimationFrame(tick);
  }

  function pause(reason = "Paused.") {
    isPlaying = false;
    stepsDue = 0;
    find("play").textContent = "Play";
    show();
    say(`${reason} ${describeStep()}`);
  }

  function pauseIfPlaying() {
    if (isPlaying) {
      pause();
    }
  }

  // The data

  function pickShape(name) {
    rows = SHAPES[name](makeRandom(7));
    find("shape").value = name;
    if (!rows.length) {
      pauseIfPlaying();
    }
    restart();
    say(rows.length ? `${rows.length} data.` : "No data: paint some.");
  }

  function clampToCanvas(value) {
    return Math.min(REACH, Math.max(-REACH, value));
  }

  /** Add some rows around a place. */
  function paint(x, y) {
    if (rows.length >= MAX_ROWS) {
      say(`${MAX_ROWS} data are the most that this page takes.`);
      return;
    }
    const { normal } = makeRandom(rows.length);
    const color = Number(document.querySelector("[name=color]:checked").value);
    for (let i = 0; i < POINTS_PER_TOUCH; i++) {
      const u = clampToCanvas(x + BRUSH_SPREAD * normal());
      const v = clampToCanvas(y + BRUSH_SPREAD * normal());
      rows.push([u, v, color]);
    }
    find("shape").value = "own";
    restart();
    if (!isPlaying) {
      say(`${rows.length} data.`);
    }
  }

  /** The place under the mouse. */
  function placeOf(event) {
    const box = canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width;
    const y = (event.clientY - box.top) / box.height;
    return [REACH * (2 * x - 1), REACH * (1 - 2 * y)];
  }

  function moveBrush([dx, dy]) {
    const x = clampToCanvas(brush[0] + KEYBOARD_STEP * dx);
    const y = clampToCanvas(brush[1] + KEYBOARD_STEP * dy);
    brush = [x, y];
  }

  function drawIfPaused() {
    if (!isPlaying) {
      draw();
    }
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) {
      return;
    }
    isPainting = true;
    brush = null;
    paint(...placeOf(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (isPainting && event.isPrimary) {
      paint(...placeOf(event));
    }
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    addEventListener(kind, () => {
      isPainting = false;
    });
  }
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!arrow && event.key !== "Enter") {
      return;
    }
    event.preventDefault();
    brush = brush || [0, 0];
    if (arrow) {
      moveBrush(arrow);
    } else {
      paint(...brush);
    }
    drawIfPaused();
  });
  canvas.addEventListener("focus", () => {
    if (canvas.matches(":focus-visible")) {
      brush = brush || [0, 0];
    }
    drawIfPaused();
  });
  canvas.addEventListener("blur", drawIfPaused);

  // Python

  /** A number with three decimals at most. */
  function rounded(value) {
    return Number(value.toFixed(3));
  }

  /** A list of Python over several lines of some 100 characters. */
  function wrapList(items) {
    const wrapped = items.join(", ").replace(/(.{80,100}?,) /g, "$1\n    ");
    return `np.array([\n    ${wrapped}\n])`;
  }

  /** Python lines that fit the same data in the same way. */
  function pythonLines() {
    const hasClasses = classes.length > 1;
    const xi = amplifier() === Infinity ? "math.inf" : amplifier();
    const options = `smoothing=${valueOf("smoothing")}, shrinkage=${valueOf("shrinkage")}`;
    const lines = [];
    if (hasClasses) {
      lines.push("import math", "");
    }
    lines.push("import numpy as np");
    lines.push("from sliceflow import SlicedWassersteinFlow, VectorOptions", "");
    const points = rows.map(([x, y]) => `[${rounded(x)}, ${rounded(y)}]`);
    lines.push(`X = ${wrapList(points)}`);
    if (hasClasses) {
      lines.push(`y = ${wrapList(rows.map((row) => row[2]))}`);
    }
    lines.push("flow = SlicedWassersteinFlow(");
    lines.push(`    n_particles=${valueOf("particles")},`);
    lines.push(`    n_steps=${valueOf("steps")},`);
    if (hasClasses) {
      lines.push(`    amplifier=${xi},`);
    }
    lines.push(`    entropy=${rounded(ENTROPY_UNIT * valueOf("entropy"))},`);
    lines.push("    standardize=False,");
    lines.push(`    options=VectorOptions(${options}),`);
    lines.push("    random_state=0,");
    lines.push(hasClasses ? ").fit(X, y)" : ").fit(X)");
    lines.push("particles = flow.particles_  # what the page shows at the end");
    lines.push("new = flow.sample(1000, random_state=1)", "");
    return lines.join("\n");
  }

  function writePython() {
    if (find("python").open) {
      find("lines").textContent = pythonLines();
    }
  }

  find("python").addEventListener("toggle", writePython);
  find("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pythonLines());
      say("Copied.");
    } catch {
      say("The browser does not allow to copy: select the lines.");
    }
  });

  // For other scripts and for tests: what is shown, and the steps that led to it.
  window.Play = {
    shown: () => ({
      rows,
      colors: classes.map((one) => one.color),
      steps: history.slice(0, shownStep + 1),
    }),
  };

  // Controls

  find("play").addEventListener("click", () => {
    if (isPlaying) {
      pause();
    } else {
      play();
    }
  });
  find("step").addEventListener("click", () => {
    pauseIfPlaying();
    advance();
    show();
    say(describeStep());
  });
  find("back").addEventListener("click", () => {
    pauseIfPlaying();
    shownStep = Math.max(0, shownStep - 1);
    show();
    say(describeStep());
  });
  find("reset").addEventListener("click", () => {
    pauseIfPlaying();
    restart();
    say("At step 0.");
  });
  find("clear").addEventListener("click", () => pickShape("own"));
  find("shape").addEventListener("change", (event) => pickShape(event.target.value));

  /** Show the value of a slider beside it. */
  function showValue(slider) {
    const isInfinite = slider.id === "amplifier" && amplifier() === Infinity;
    const output = document.querySelector(`output[for=${slider.id}]`);
    output.textContent = isInfinite ? "∞" : slider.value;
  }

  for (const slider of document.querySelectorAll(".controls [type=range]")) {
    showValue(slider);
    slider.addEventListener("input", () => {
      showValue(slider);
      if (slider.id !== "rate") {
        restart();
      }
    });
  }

  function redraw() {
    fitCanvas();
    readColors();
    drawIfPaused();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  fitCanvas();
  readColors();
  pickShape("moons");
  new ResizeObserver(redraw).observe(canvas);
  if (!reducedMotion.matches) {
    play();
  }
  if (location.protocol === "file:") {
    // There the other pages are not built.
    for (const link of document.querySelectorAll("a[href^='../']")) {
      link.href = link.getAttribute("href").replace(/html$/, "md");
    }
  }
})();
