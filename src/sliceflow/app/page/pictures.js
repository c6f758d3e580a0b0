/* The tabs Pictures and Complete. */
"use strict";

(() => {
  const { find, ask, say, attempt, checkSize, opened } = App;
  const MOST = 16 * 2 ** 20; // bytes of an uploaded picture
  let loaded = null; // the names of the runs

  /** Buttons with pictures; the chosen one is pressed. */
  function show(id, pictures, name, choose) {
    find(id).replaceChildren(...pictures.map((source, i) => {
      const image = document.createElement("img");
      image.src = source;
      image.alt = name(i);
      if (!choose) return image;
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      button.append(image);
      button.addEventListener("click", () => {
        for (const other of find(id).children) other.setAttribute("aria-pressed", other === button);
        choose(i);
      });
      return button;
    }));
  }

  /** Fill the lists of models, once. */
  async function runs() {
    if (!loaded) {
      loaded = (await ask("runs")).runs;
      for (const list of document.querySelectorAll(".runs"))
        list.replaceChildren(...loaded.map((name, i) => new Option(name, i)));
    }
  }

  // Pictures

  let drawn = null; // what was asked for
  opened.pictures = () => {
    if (!drawn) attempt("pictures-status", "Loading the model. The first time takes some seconds.", async () => {
      await runs();
      return choose();
    });
  };
  async function choose() {
    const { classes } = await ask("about", { run: find("run").value });
    find("label").replaceChildren(new Option("all", ""), ...classes.map((name) => new Option(name, name)));
    return draw();
  }
  async function draw() {
    drawn = { run: find("run").value, label: find("label").value, seed: find("seed").value, n: find("many").value };
    const asked = drawn, began = performance.now(), { pictures, labels } = await ask("samples", asked);
    find("chosen").hidden = true;
    show("grid", pictures, (i) => `Sample ${i + 1}${labels ? `, class ${labels[i]}` : ""}`, (i) => follow(asked, i));
    return `${pictures.length} samples in ${((performance.now() - began) / 1000).toFixed(1)} s. Choose one to see where it comes from.`;
  }
  find("pictures-form").addEventListener("submit", (event) => {
    event.preventDefault();
    attempt("pictures-status", "Drawing.", draw);
  });
  find("run").addEventListener("change", () => attempt("pictures-status", "Loading the model.", choose));

  let frames = [];
  const follow = (asked, index) => attempt("pictures-status", "Following it from its start.", async () => {
    const { frames: found, nearest, data } = await ask("chosen", { ...asked, index });
    frames = found;
    find("chosen").hidden = false;
    find("time").max = frames.length - 1;
    find("time").value = frames.length - 1;
    at();
    find("nearest-text").textContent = nearest.length ? "The nearest first. A copy would look the same." : data;
    show("nearest", nearest, (i) => `Training picture ${i + 1}`);
    find("chosen").scrollIntoView({ block: "nearest" });
    return `Sample ${index + 1}.`;
  });
  function at() {
    const i = Number(find("time").value), share = `${Math.round((100 * i) / (frames.length - 1))} %`;
    find("way").src = frames[i];
    find("way-text").textContent = i ? (i < frames.length - 1 ? `${share} of the steps` : "the sample") : "the start";
    document.querySelector("output[for=time]").textContent = share;
  }
  find("time").addEventListener("input", at);

  // Complete

  const canvas = find("mask"), pen = canvas.getContext("2d");
  let about = null, picture = null, known = [], brush = null, hiding = false;
  const image = new Image();

  opened.complete = () => {
    if (!about) attempt("complete-status", "Loading the model. The first time takes some seconds.", async () => {
      await runs();
      return model();
    });
  };
  async function model() {
    about = await ask("about", { run: find("complete-run").value });
    const fixed = about.observed !== null;
    for (const id of ["hide-bottom", "show-all", "show-brush"]) find(id).disabled = fixed;
    [canvas.width, canvas.height] = [about.width, about.height];
    show("examples", about.examples, (i) => `Held-out picture ${i + 1}`, (i) => use(about.examples[i]));
    find("completions").replaceChildren();
    known = fixed ? about.observed.map((row) => row.map(Boolean)) : half();
    picture = null;
    if (about.examples.length) find("examples").firstChild.click();
    paint();
    if (fixed) return "This model completes what is hidden here; it was fitted with this mask.";
    return about.data || "Hide any part: completions come from the training pictures most like the rest.";
  }
  const half = () => Array.from({ length: about.height }, (_, y) => Array(about.width).fill(y < about.height / 2));
  find("complete-run").addEventListener("change", () => attempt("complete-status", "Loading the model.", model));

  function use(source) {
    picture = source;
    image.src = source;
    image.decode().then(paint, () => {});
  }
  find("file").addEventListener("change", () => attempt("complete-status", "Reading it.", async () => {
    const [file] = find("file").files;
    if (!file) return "";
    checkSize(file, MOST);
    use((await ask("picture", file, { run: find("complete-run").value })).picture);
    return `${file.name}, in the size of the model's pictures.`;
  }));

  function paint() {
    if (!about) return;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    if (picture && image.complete && image.naturalWidth) pen.drawImage(image, 0, 0);
    pen.fillStyle = "#7d8694";
    known.forEach((row, y) => row.forEach((seen, x) => seen || pen.fillRect(x, y, 1, 1)));
    if (brush && document.activeElement === canvas) {
      pen.fillStyle = "#e4007c";
      pen.fillRect(brush[0], brush[1], 1, 1);
    }
  }
  function hide(x, y) {
    if (!about || about.observed !== null) return;
    const reach = Math.max(0, Math.round(about.width / 20)), shown = find("show-brush").checked;
    for (let v = y - reach; v <= y + reach; v++)
      for (let u = x - reach; u <= x + reach; u++) if (known[v] && u >= 0 && u < about.width) known[v][u] = shown;
    paint();
  }
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor(((event.clientX - box.left) / box.width) * canvas.width), Math.floor(((event.clientY - box.top) / box.height) * canvas.height)];
  };
  let last = null; // where the mouse was: it may jump
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) return;
    [hiding, brush, last] = [true, null, place(event)];
    hide(...last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!hiding || !event.isPrimary) return;
    const [x, y] = place(event), far = Math.max(1, Math.abs(x - last[0]), Math.abs(y - last[1]));
    for (let i = 1; i <= far; i++) hide(Math.round(last[0] + (i / far) * (x - last[0])), Math.round(last[1] + (i / far) * (y - last[1])));
    last = [x, y];
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => (hiding = false));
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!about || (!arrow && event.key !== "Enter")) return;
    event.preventDefault();
    brush = brush || [Math.floor(about.width / 2), Math.floor(about.height / 2)];
    const most = [about.width - 1, about.height - 1];
    if (arrow) brush = brush.map((v, i) => Math.min(most[i], Math.max(0, v + arrow[i])));
    else hide(...brush);
    paint();
  });
  for (const moment of ["focus", "blur"]) canvas.addEventListener(moment, paint);
  find("hide-bottom").addEventListener("click", () => { known = half(); paint(); });
  find("show-all").addEventListener("click", () => { known = known.map((row) => row.fill(true)); paint(); });

  find("complete").addEventListener("click", () => attempt("complete-status", "Completing.", async () => {
    if (!picture) throw new Error("Choose or upload a picture first.");
    const asked = { run: find("complete-run").value, picture, mask: known, seed: find("complete-seed").value };
    const { pictures } = await ask("complete", asked);
    show("completions", [picture, ...pictures], (i) => (i ? `Completion ${i}` : "The original"));
    return `${pictures.length} completions. The first picture is the original.`;
  }));
})();
