/* The tab Table: what the server says about the table, until the next change. */
"use strict";

(() => {
  const { find, ask, address, say, attempt, save, checkSize, opened } = App;
  const MOST = 64 * 2 ** 20; // bytes of an uploaded table
  const KINDS = ["continuous", "integer", "boolean", "category", "ordered", "datetime", "identifier", "constant", "drop"];
  const WORKING = ["reading", "fitting"];
  let shown = {}, timer = 0;

  /** Show a state, and look again while something is under way. */
  function show(state) {
    const before = shown;
    shown = state;
    const { name, rows, columns, text, error, note, seconds, next } = state, working = WORKING.includes(state.state);
    find("working").hidden = !working;
    find("understood").hidden = !columns;
    find("fitted").hidden = state.state !== "fitted";
    find("fit").disabled = working;
    find("progress").value = state.state === "reading" ? 0 : state.stage || 0;
    if (columns && JSON.stringify(columns) !== JSON.stringify(before.columns)) list(columns, state.kinds || {});
    if (state.state === "fitted" && before.state !== "fitted") find("report").src = address("table/report", { at: Date.now() });
    const about = name && rows !== undefined ? `${name}: ${rows} rows. ` : "";
    if (error) say("table-status", error, true);
    else if (working) say("table-status", `${about}${state.state === "reading" ? `Reading ${name}` : `Now ${text || "starting"}`}: ${Math.round(seconds)} s.${next ? ` Then ${next}.` : ""}`);
    else if (state.state === "fitted") say("table-status", `${about}Fitted and measured in ${seconds} s.`);
    else if (columns) say("table-status", `${about}${note || "Correct what was misunderstood, and fit."}`);
    else say("table-status", note || "The file stays on this computer.");
    clearTimeout(timer);
    if (working) timer = setTimeout(look, 400);
  }
  const look = () => ask("table").then(show, (error) => say("table-status", error.message, true));
  opened.table = look;

  function list(columns, kinds) {
    find("given").replaceChildren(...columns.map(({ column }) => new Option(column, column)));
    find("columns").replaceChildren(...columns.map(({ column, kind, missing, distinct, note }) => {
      const row = document.createElement("tr"), choice = document.createElement("select");
      choice.setAttribute("aria-label", `Kind of ${column}`);
      choice.append(...KINDS.map((k) => new Option(k, k)));
      choice.value = kinds[column] || kind;
      choice.dataset.column = column;
      const counted = kind === "identifier" || kind === "drop" ? "" : distinct;
      const cells = [column, choice, missing ? `${(100 * missing).toFixed(1)} %` : "", counted, note];
      row.append(...cells.map((content) => {
        const cell = document.createElement("td");
        cell.append(content);
        return cell;
      }));
      return row;
    }));
  }

  // As high as the report, so that only the page scrolls.
  const fitHeight = () => {
    const page = find("report").contentDocument;
    if (page && page.body && page.body.childElementCount) find("report").style.height = `${page.body.scrollHeight + 4}px`;
  };
  find("report").addEventListener("load", fitHeight);
  addEventListener("resize", fitHeight);

  const upload = (file) => attempt("table-status", "Sending it.", async () => {
    checkSize(file, MOST);
    show(await ask("table/upload", file, { name: file.name }));
    return find("table-status").textContent;
  });
  find("csv").addEventListener("change", () => find("csv").files.length && upload(find("csv").files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    find("drop").addEventListener(kind, (event) => {
      event.preventDefault();
      find("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) upload(event.dataTransfer.files[0]);
    });
  }

  const stem = () => shown.name.replace(/\.[a-z]+$/i, "");
  const act = async (name, body) => {
    try {
      show(await ask(name, body));
    } catch (error) {
      say("table-status", error.message, true);
    }
  };
  find("fit").addEventListener("click", () => {
    const changed = [...find("columns").querySelectorAll("select")]
      .filter((choice, i) => choice.value !== shown.columns[i].kind || shown.columns[i].refused);
    const constraints = find("constraints").value.split("\n").map((line) => line.trim()).filter(Boolean);
    act("table/fit", { columns: Object.fromEntries(changed.map((choice) => [choice.dataset.column, choice.value])), constraints });
  });
  find("cancel").addEventListener("click", () => act("table/cancel"));
  find("download").addEventListener("click", () => attempt("table-status", "Drawing.", async () => {
    const n = find("rows").value, given = find("value").value ? { [find("given").value]: find("value").value } : {};
    const rows = await ask("table/samples", { n, seed: find("rows-seed").value, given });
    save(rows, `${stem()}-samples.csv`);
    return `Saved ${n} new rows, ${Math.ceil(rows.size / 1000)} kB.`;
  }));
  find("impute").addEventListener("click", () => attempt("table-status", "Filling.", async () => {
    save(await ask("table/imputed", { seed: find("rows-seed").value }), `${stem()}-filled.csv`);
    return "Saved the table with its missing cells filled.";
  }));
})();
