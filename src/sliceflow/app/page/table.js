/* The tab Table: shows what the server says about the table. */
"use strict";

(() => {
  const { find, ask, address, say, attempt, save, checkSize, onOpen } = App;
  const STATUS = "table-status";
  const MAX_BYTES = 64 * 2 ** 20; // of an uploaded table; the server has the same limit
  const MILLISECONDS_BETWEEN_LOOKS = 400;
  const KINDS = [
    "continuous",
    "integer",
    "boolean",
    "category",
    "ordered",
    "datetime",
    "identifier",
    "constant",
    "drop",
  ];
  let shown = {}; // the state that the page shows
  let timer = 0;

  /** Show a state of the server, and look again while it works. */
  function show(state) {
    const before = shown;
    shown = state;
    const isWorking = state.state === "reading" || state.state === "fitting";
    const isFitted = state.state === "fitted";
    find("working").hidden = !isWorking;
    find("understood").hidden = !state.columns;
    find("fitted").hidden = !isFitted;
    find("fit").disabled = isWorking;
    find("progress").value = state.state === "fitting" ? state.stage : 0;
    if (state.columns && !haveEqualColumns(state, before)) {
      listColumns(state.columns, state.kinds || {});
    }
    if (isFitted && before.state !== "fitted") {
      showVerdict(state.verdict);
      find("report").src = address("table/report", { at: Date.now() }); // not a stored one
    }
    say(STATUS, state.error || describe(state), Boolean(state.error));
    clearTimeout(timer);
    if (isWorking) {
      timer = setTimeout(look, MILLISECONDS_BETWEEN_LOOKS);
    }
  }

  /** Show the answers of a verdict, each with its worst finding; the report has all. */
  function showVerdict(verdict) {
    const answers = verdict ? [verdict.use, verdict.sharing] : [];
    find("verdict").replaceChildren(...answers.map(makeAnswer));
  }

  function makeAnswer({ question, grade, findings }) {
    const badge = document.createElement("strong");
    badge.className = `level is-${grade}`;
    badge.textContent = grade;
    const heading = document.createElement("h3");
    heading.append(`${question} `, badge);
    const reason = document.createElement("p");
    reason.textContent = findings.length ? `${capitalised(findings[0].text)}.` : "";
    const answer = document.createElement("section");
    answer.className = `answer is-${grade}`;
    answer.append(heading, reason);
    return answer;
  }

  function capitalised(text) {
    return text.charAt(0).toUpperCase() + text.slice(1);
  }

  function haveEqualColumns(state, other) {
    return JSON.stringify(state.columns) === JSON.stringify(other.columns);
  }

  /** A state in words. */
  function describe(state) {
    const table = state.rows === undefined ? "" : `${state.name}: ${state.rows} rows. `;
    if (state.state === "reading" || state.state === "fitting") {
      const isReading = state.state === "reading";
      const action = isReading ? `Reading ${state.name}` : `Now ${state.text || "starting"}`;
      const next = state.next ? ` Then ${state.next}.` : "";
      return `${table}${action}: ${Math.round(state.seconds)} s.${next}`;
    }
    if (state.state === "fitted") {
      return `${table}Fitted and measured in ${state.seconds} s.`;
    }
    if (state.columns) {
      return table + (state.note || "Correct what was misunderstood, and fit.");
    }
    return state.note || "The file stays on this computer.";
  }

  /** Ask the server for its state, and show it. */
  async function look() {
    await act("table");
  }
  onOpen.table = look;

  /** Have the server do something, and show the state that it answers. */
  async function act(route, body) {
    try {
      show(await ask(route, body));
    } catch (error) {
      say(STATUS, error.message, true);
    }
  }

  /** List the columns, each with its kind to choose. `kinds` were chosen before. */
  function listColumns(columns, kinds) {
    const names = columns.map(({ column }) => new Option(column, column));
    find("given").replaceChildren(...names);
    const rows = columns.map((column) => makeRow(column, kinds[column.column]));
    find("columns").replaceChildren(...rows);
  }

  /** The row of the list for a column. */
  function makeRow({ column, kind, missing, distinct, note }, chosenKind) {
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", `Kind of ${column}`);
    choice.append(...KINDS.map((name) => new Option(name, name)));
    choice.value = chosenKind || kind;
    choice.dataset.column = column;
    const isCounted = kind !== "identifier" && kind !== "drop";
    const contents = [
      column,
      choice,
      missing ? `${(100 * missing).toFixed(1)} %` : "",
      isCounted ? distinct : "",
      note,
    ];
    const row = document.createElement("tr");
    for (const content of contents) {
      const cell = document.createElement("td");
      cell.append(content);
      row.append(cell);
    }
    return row;
  }

  /** Make the frame as high as the report, so that only the page scrolls. */
  function fitHeight() {
    const page = find("report").contentDocument;
    if (page && page.body && page.body.childElementCount) {
      find("report").style.height = `${page.body.scrollHeight + 4}px`;
    }
  }
  find("report").addEventListener("load", fitHeight);
  addEventListener("resize", fitHeight);

  function upload(file) {
    attempt(STATUS, "Sending it.", async () => {
      checkSize(file, MAX_BYTES);
      show(await ask("table/upload", file, { name: file.name }));
      return find(STATUS).textContent;
    });
  }
  find("csv").addEventListener("change", () => {
    const [file] = find("csv").files;
    if (file) {
      upload(file);
    }
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    find("drop").addEventListener(kind, (event) => {
      event.preventDefault();
      find("drop").classList.toggle("over", kind === "dragover");
      const [file] = event.dataTransfer.files;
      if (kind === "drop" && file) {
        upload(file);
      }
    });
  }

  /** The kinds that the user chose, by column: those that differ from the server's. */
  function chosenKinds() {
    const kinds = {};
    find("columns")
      .querySelectorAll("select")
      .forEach((choice, i) => {
        const column = shown.columns[i];
        if (choice.value !== column.kind || column.refused) {
          kinds[choice.dataset.column] = choice.value;
        }
      });
    return kinds;
  }

  function constraintLines() {
    const lines = find("constraints").value.split("\n");
    return lines.map((line) => line.trim()).filter((line) => line !== "");
  }

  /** The name of the table without its ending. */
  function tableName() {
    return shown.name.replace(/\.[a-z]+$/i, "");
  }

  find("fit").addEventListener("click", () => {
    act("table/fit", {
      columns: chosenKinds(),
      constraints: constraintLines(),
      attack: find("attack").checked,
    });
  });
  find("cancel").addEventListener("click", () => {
    act("table/cancel");
  });
  find("download").addEventListener("click", () => {
    attempt(STATUS, "Drawing.", async () => {
      const n = find("rows").value;
      const given = {};
      if (find("value").value) {
        given[find("given").value] = find("value").value;
      }
      const rows = await ask("table/samples", { n, seed: find("rows-seed").value, given });
      save(rows, `${tableName()}-samples.csv`);
      return `Saved ${n} new rows, ${Math.ceil(rows.size / 1000)} kB.`;
    });
  });
  find("impute").addEventListener("click", () => {
    attempt(STATUS, "Filling.", async () => {
      const rows = await ask("table/imputed", { seed: find("rows-seed").value });
      save(rows, `${tableName()}-filled.csv`);
      return "Saved the table with its missing cells filled.";
    });
  });
})();
