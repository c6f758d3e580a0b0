/* What all tabs share: requests to the server, messages, downloads, and the tabs
   themselves. Requests go below the page's own address, which contains the token. */
"use strict";

const App = (() => {
  const MEBIBYTE = 2 ** 20;
  const tabs = [...document.querySelectorAll("[role=tab]")];
  // Functions that tabs set, by their names: they are called when a tab is opened.
  const onOpen = {};

  function find(id) {
    return document.getElementById(id);
  }

  /** The address of a route, with words behind the question mark. */
  function address(route, words = {}) {
    return `api/${route}?${new URLSearchParams(words)}`;
  }

  /** What the server answers: an object, or a Blob if it is not JSON.

      body: an object that is sent as JSON, or a Blob. Throws an Error with the message of
      the server. */
  async function ask(route, body = {}, words = {}) {
    const sent = body instanceof Blob ? body : JSON.stringify(body);
    let response;
    try {
      response = await fetch(address(route, words), { method: "POST", body: sent });
    } catch {
      throw new Error("The server does not answer. Is sliceflow play still running?");
    }
    const type = response.headers.get("Content-Type") || "";
    const isJson = type.startsWith("application/json");
    if (response.ok) {
      return isJson ? response.json() : response.blob();
    }
    if (!isJson) {
      throw new Error(response.statusText);
    }
    const { error, hint } = await response.json();
    throw new Error(hint ? `${error} (${hint})` : error);
  }

  /** Show a message; an error has another color. */
  function say(id, text, isError = false) {
    find(id).textContent = text;
    find(id).classList.toggle("error", isError);
  }

  /** Do something that may fail. `text` is shown meanwhile, then what it returns. */
  async function attempt(id, text, action) {
    say(id, text);
    try {
      const result = await action();
      say(id, result || "");
    } catch (error) {
      say(id, error.message, true);
    }
  }

  /** Have the browser save a Blob as a file. */
  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  /** Throw an Error if a file is larger than a number of bytes. */
  function checkSize(file, maxBytes) {
    if (file.size > maxBytes) {
      const size = (file.size / MEBIBYTE).toFixed(1);
      const limit = maxBytes / MEBIBYTE;
      throw new Error(`${file.name} has ${size} MiB; the limit is ${limit} MiB.`);
    }
  }

  /** The name of a tab: that of "tab-points" is "points". */
  function nameOf(tab) {
    return tab.id.replace("tab-", "");
  }

  function open(tab) {
    for (const other of tabs) {
      const isOpen = other === tab;
      other.setAttribute("aria-selected", isOpen);
      other.tabIndex = isOpen ? 0 : -1;
      find(other.getAttribute("aria-controls")).hidden = !isOpen;
    }
    const name = nameOf(tab);
    history.replaceState(null, "", `#${name}`);
    if (onOpen[name]) {
      onOpen[name]();
    }
  }

  /** Go to the tab beside one: +1 is to the right. */
  function openBeside(tab, direction) {
    const index = tabs.indexOf(tab) + direction + tabs.length;
    const next = tabs[index % tabs.length];
    next.focus();
    open(next);
  }

  for (const tab of tabs) {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") {
        openBeside(tab, 1);
      } else if (event.key === "ArrowLeft") {
        openBeside(tab, -1);
      }
    });
  }

  // Only now have the other scripts set what their tabs do.
  addEventListener("DOMContentLoaded", () => {
    const named = tabs.find((tab) => `#${nameOf(tab)}` === location.hash);
    open(named || tabs[0]);
  });

  return { find, ask, address, say, attempt, save, checkSize, onOpen };
})();
