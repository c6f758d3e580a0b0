/* Tabs, requests, and the GIF of the points. The server is asked below the page's own address, which
   has the token. */
"use strict";

const App = (() => {
  const find = (id) => document.getElementById(id);
  const address = (name, words = {}) => `api/${name}?${new URLSearchParams(words)}`;

  /** The server's answer; an Error has its message, or the library's. */
  async function ask(name, body = {}, words = {}) {
    const raw = body instanceof Blob;
    let answer;
    try {
      answer = await fetch(address(name, words), { method: "POST", body: raw ? body : JSON.stringify(body) });
    } catch {
      throw new Error("The server does not answer. Is sliceflow play still running?");
    }
    const json = (answer.headers.get("Content-Type") || "").startsWith("application/json");
    if (answer.ok) return json ? answer.json() : answer.blob();
    const { error, hint } = json ? await answer.json() : { error: answer.statusText };
    throw new Error(hint ? `${error} (${hint})` : error);
  }

  /** Say something; an error in another colour. */
  function say(id, text, bad = false) {
    find(id).textContent = text;
    find(id).classList.toggle("error", bad);
  }

  /** Do something that may fail, with what is said meanwhile. */
  async function attempt(id, text, action) {
    say(id, text);
    try {
      say(id, (await action()) || "");
    } catch (error) {
      say(id, error.message, true);
    }
  }

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function checkSize(file, most) {
    if (file.size > most) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MiB; the limit is ${most / 2 ** 20} MiB.`);
  }

  // Tabs

  const tabs = [...document.querySelectorAll("[role=tab]")], opened = {};
  function open(tab) {
    for (const other of tabs) {
      other.setAttribute("aria-selected", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
      find(other.getAttribute("aria-controls")).hidden = other !== tab;
    }
    const name = tab.id.slice(4);
    history.replaceState(null, "", `#${name}`);
    if (opened[name]) opened[name]();
  }
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      open(next);
    });
  }
  addEventListener("DOMContentLoaded", () => open(tabs.find((tab) => `#${tab.id.slice(4)}` === location.hash) || tabs[0]));

  return { find, ask, address, say, attempt, save, checkSize, opened };
})();
