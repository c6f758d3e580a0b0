/* The tabs Pictures and Complete. */
"use strict";

/* What both tabs use. */
const Pictures = (() => {
  const { find, ask, attempt } = App;
  let runsAreLoaded = false;

  /** Fill both lists of models, once. */
  async function loadRuns() {
    if (runsAreLoaded) {
      return;
    }
    const { runs } = await ask("runs");
    for (const list of document.querySelectorAll(".runs")) {
      list.replaceChildren(...runs.map((name, i) => new Option(name, i)));
    }
    runsAreLoaded = true;
  }

  /** Fill the lists of models, then open the chosen one, when a tab is first shown. */
  function openFirst(status, openModel) {
    const text = "Loading the model. The first time takes some seconds.";
    attempt(status, text, async () => {
      await loadRuns();
      return openModel();
    });
  }

  function makeImage(source, alt) {
    const image = document.createElement("img");
    image.src = source;
    image.alt = alt;
    return image;
  }

  /** Show pictures in an element. describe(i) is the text of picture i. */
  function showPictures(id, sources, describe) {
    const images = sources.map((source, i) => makeImage(source, describe(i)));
    find(id).replaceChildren(...images);
  }

  /** Show pictures as buttons, of which the chosen one is pressed. */
  function showChoices(id, sources, describe, choose) {
    const buttons = sources.map((source, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      button.append(makeImage(source, describe(i)));
      button.addEventListener("click", () => {
        for (const other of find(id).children) {
          other.setAttribute("aria-pressed", other === button);
        }
        choose(i);
      });
      return button;
    });
    find(id).replaceChildren(...buttons);
  }

  return { openFirst, showPictures, showChoices };
})();

/* The tab Pictures: samples, and one of them on its way. */
(() => {
  const { find, ask, attempt, onOpen } = App;
  const STATUS = "pictures-status";
  let hasSamples = false;
  let snapshots = []; // the chosen sample on its way

  onOpen.pictures = () => {
    if (hasSamples) {
      return;
    }
    Pictures.openFirst(STATUS, openModel);
  };

  async function openModel() {
    const { classes } = await ask("about", { run: find("run").value });
    const options = classes.map((name) => new Option(name, name));
    find("label").replaceChildren(new Option("all", ""), ...options);
    return drawSamples();
  }

  async function drawSamples() {
    hasSamples = true;
    const wanted = {
      run: find("run").value,
      label: find("label").value,
      seed: find("seed").value,
      n: find("many").value,
    };
    const startedAt = performance.now();
    const { pictures, labels } = await ask("samples", wanted);
    const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
    const describe = (i) => {
      const name = `Sample ${i + 1}`;
      return labels ? `${name}, class ${labels[i]}` : name;
    };
    find("chosen").hidden = true;
    Pictures.showChoices("grid", pictures, describe, (i) => followSample(wanted, i));
    return `${pictures.length} samples in ${seconds} s. Choose one to see where it comes from.`;
  }

  function followSample(wanted, index) {
    attempt(STATUS, "Following it from its start.", async () => {
      const answer = await ask("chosen", { ...wanted, index });
      snapshots = answer.snapshots;
      find("chosen").hidden = false;
      find("time").max = snapshots.length - 1;
      find("time").value = snapshots.length - 1;
      showFrame();
      const hasNeighbors = answer.nearest.length > 0;
      find("nearest-text").textContent = hasNeighbors
        ? "The nearest first. A copy would look the same."
        : answer.data;
      Pictures.showPictures("nearest", answer.nearest, (i) => `Training picture ${i + 1}`);
      find("chosen").scrollIntoView({ block: "nearest" });
      return `Sample ${index + 1}.`;
    });
  }

  /** Show the frame that the slider says. */
  function showFrame() {
    const last = snapshots.length - 1;
    const index = Number(find("time").value);
    const share = `${Math.round((100 * index) / last)} %`;
    let text = `${share} of the steps`;
    if (index === 0) {
      text = "the start";
    } else if (index === last) {
      text = "the sample";
    }
    find("way").src = snapshots[index];
    find("way-text").textContent = text;
    document.querySelector("output[for=time]").textContent = share;
  }

  find("pictures-form").addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(STATUS, "Drawing.", drawSamples);
  });
  find("run").addEventListener("change", () => {
    attempt(STATUS, "Loading the model.", openModel);
  });
  find("time").addEventListener("input", showFrame);
})();

/* The tab Complete: a picture whose hidden part is painted, and completions. */
(() => {
  const { find, ask, attempt, checkSize, onOpen } = App;
  const STATUS = "complete-status";
  const MAX_BYTES = 16 * 2 ** 20; // of an uploaded picture; the server has the same limit
  const HIDDEN_COLOR = "#7d8694";
  const BRUSH_COLOR = "#e4007c";
  const ARROWS = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
  };
  const canvas = find("mask");
  const pen = canvas.getContext("2d");
  const image = new Image(); // the picture, to draw it
  let about = null; // what the server says of the model
  let picture = null; // the address of the picture
  let known = []; // known[y][x]: whether a pixel is known
  let brush = null; // the pixel where the keyboard paints
  let isPainting = false; // whether the mouse is down
  let lastPixel = null; // where the mouse was: it may jump

  onOpen.complete = () => {
    if (about) {
      return;
    }
    Pictures.openFirst(STATUS, openModel);
  };

  async function openModel() {
    about = await ask("about", { run: find("complete-run").value });
    const hasOwnPart = about.known !== null;
    for (const id of ["hide-bottom", "show-all", "show-brush"]) {
      find(id).disabled = hasOwnPart;
    }
    canvas.width = about.width;
    canvas.height = about.height;
    const describe = (i) => `Held-out picture ${i + 1}`;
    const choose = (i) => usePicture(about.examples[i]);
    Pictures.showChoices("examples", about.examples, describe, choose);
    find("completions").replaceChildren();
    known = hasOwnPart ? about.known.map((row) => row.map(Boolean)) : upperHalf();
    picture = null;
    if (about.examples.length) {
      find("examples").firstChild.click();
    }
    paint();
    if (hasOwnPart) {
      return "This model completes what is hidden here; it was fitted for this part.";
    }
    return (
      about.data ||
      "Hide any part: completions come from the training pictures most like the rest."
    );
  }

  /** The upper half is known. */
  function upperHalf() {
    const rows = [];
    for (let y = 0; y < about.height; y++) {
      rows.push(Array(about.width).fill(y < about.height / 2));
    }
    return rows;
  }

  function usePicture(source) {
    picture = source;
    image.src = source;
    image.decode().then(paint, () => {}); // one that is replaced meanwhile is no error
  }

  /** Draw the picture, what is hidden of it, and the brush of the keyboard. */
  function paint() {
    if (!about) {
      return;
    }
    pen.clearRect(0, 0, canvas.width, canvas.height);
    if (picture && image.complete && image.naturalWidth) {
      pen.drawImage(image, 0, 0);
    }
    pen.fillStyle = HIDDEN_COLOR;
    for (let y = 0; y < about.height; y++) {
      for (let x = 0; x < about.width; x++) {
        if (!known[y][x]) {
          pen.fillRect(x, y, 1, 1);
        }
      }
    }
    if (brush && document.activeElement === canvas) {
      pen.fillStyle = BRUSH_COLOR;
      pen.fillRect(brush[0], brush[1], 1, 1);
    }
  }

  /** Hide the pixels around one, or show them if the brush does that. */
  function touch(x, y) {
    if (!about || about.known !== null) {
      return;
    }
    const radius = Math.round(about.width / 20);
    const isKnown = find("show-brush").checked;
    const left = Math.max(0, x - radius);
    const right = Math.min(about.width - 1, x + radius);
    const top = Math.max(0, y - radius);
    const bottom = Math.min(about.height - 1, y + radius);
    for (let v = top; v <= bottom; v++) {
      for (let u = left; u <= right; u++) {
        known[v][u] = isKnown;
      }
    }
    paint();
  }

  /** Touch all pixels on the line from one to another. */
  function touchLine([x0, y0], [x1, y1]) {
    const length = Math.max(1, Math.abs(x1 - x0), Math.abs(y1 - y0));
    for (let i = 1; i <= length; i++) {
      const share = i / length;
      const x = Math.round(x0 + share * (x1 - x0));
      const y = Math.round(y0 + share * (y1 - y0));
      touch(x, y);
    }
  }

  /** The pixel of the picture under the mouse. */
  function pixelAt(event) {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * canvas.width;
    const y = ((event.clientY - box.top) / box.height) * canvas.height;
    return [Math.floor(x), Math.floor(y)];
  }

  function moveBrush([dx, dy]) {
    const x = Math.min(about.width - 1, Math.max(0, brush[0] + dx));
    const y = Math.min(about.height - 1, Math.max(0, brush[1] + dy));
    brush = [x, y];
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) {
      return;
    }
    isPainting = true;
    brush = null;
    lastPixel = pixelAt(event);
    touch(...lastPixel);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!isPainting || !event.isPrimary) {
      return;
    }
    const pixel = pixelAt(event);
    touchLine(lastPixel, pixel);
    lastPixel = pixel;
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    addEventListener(kind, () => {
      isPainting = false;
    });
  }
  canvas.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (!about || (!arrow && event.key !== "Enter")) {
      return;
    }
    event.preventDefault();
    if (!brush) {
      brush = [Math.floor(about.width / 2), Math.floor(about.height / 2)];
    }
    if (arrow) {
      moveBrush(arrow);
    } else {
      touch(...brush);
    }
    paint();
  });
  canvas.addEventListener("focus", paint);
  canvas.addEventListener("blur", paint);

  find("hide-bottom").addEventListener("click", () => {
    known = upperHalf();
    paint();
  });
  find("show-all").addEventListener("click", () => {
    known = known.map((row) => row.map(() => true));
    paint();
  });
  find("complete-run").addEventListener("change", () => {
    attempt(STATUS, "Loading the model.", openModel);
  });
  find("file").addEventListener("change", () => {
    attempt(STATUS, "Reading it.", async () => {
      const [file] = find("file").files;
      if (!file) {
        return "";
      }
      checkSize(file, MAX_BYTES);
      const answer = await ask("picture", file, { run: find("complete-run").value });
      usePicture(answer.picture);
      return `${file.name}, in the size of the model's pictures.`;
    });
  });
  find("complete").addEventListener("click", () => {
    attempt(STATUS, "Completing.", async () => {
      if (!picture) {
        throw new Error("Choose or upload a picture first.");
      }
      const { pictures } = await ask("complete", {
        run: find("complete-run").value,
        picture,
        known,
        seed: find("complete-seed").value,
      });
      const describe = (i) => (i === 0 ? "The original" : `Completion ${i}`);
      Pictures.showPictures("completions", [picture, ...pictures], describe);
      return `${pictures.length} completions. The first picture is the original.`;
    });
  });
})();
