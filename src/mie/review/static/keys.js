// Keyboard shortcuts, and the dialog that lists them.

import { h } from "./dom.js";

const layers = [];

/**
 * keys: [["a", "Accept", action], ...], optionally with the key as it is listed, such as "1–5".
 * The last layer added has precedence. Returns a function that removes it.
 */
export function useKeys(title, keys) {
  const layer = { title, keys };
  layers.push(layer);
  return () => {
    const at = layers.indexOf(layer);
    if (at >= 0) layers.splice(at, 1);
  };
}

const NAMES = {
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Enter: "↵ Enter",
  Escape: "Esc",
  " ": "Space",
  "=": "+ or =",
};

const typing = (target) =>
  target.closest?.("textarea, input:not([type=radio], [type=checkbox], [type=range])") ?? null;

// Keys that a focused control handles itself.
function isHandledByControl({ key, target, ctrlKey, metaKey }) {
  if (typing(target)) return !(key === "Enter" && (ctrlKey || metaKey));
  if (key === "Enter" || key === " ") return Boolean(target.closest?.("button, a, summary, select"));
  if (key.startsWith("Arrow")) return Boolean(target.closest?.("input, select, [data-arrows]"));
  return false;
}

// After a click on a control, the arrow keys move between the samples again.
addEventListener("click", ({ detail, target }) => {
  if (detail > 0 && target.matches?.("input:is([type=radio], [type=checkbox], [type=range])")) target.blur();
});

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]:not([data-keys])"))
    return;
  const command = event.ctrlKey || event.metaKey;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (typing(event.target) && key === "Escape") {
    event.target.blur();
    return;
  }
  if (isHandledByControl(event)) return;
  const wanted = command ? `Ctrl+${key}` : event.shiftKey && event.key.length > 1 ? `Shift+${key}` : key;
  for (const layer of [...layers].reverse()) {
    const found = layer.keys.find(([name]) => name === wanted);
    if (found) {
      event.preventDefault();
      found[2](event);
      return;
    }
  }
});

/** Show the list of all keys. */
export function showKeys() {
  if (document.querySelector("dialog.keys")) return;
  const seen = new Set();
  const parts = [...layers].reverse().map((layer) => {
    const rows = layer.keys.filter(([key, label]) => label && !seen.has(key) && seen.add(key));
    return (
      rows.length > 0 &&
      h(
        "section",
        {},
        h("h3", {}, layer.title),
        h(
          "dl",
          {},
          rows.map(([key, label, , listed]) =>
            h("div", {}, h("dt", {}, h("kbd", {}, listed ?? shown(key))), h("dd", {}, label)),
          ),
        ),
      )
    );
  });
  const dialog = h(
    "dialog",
    { class: "keys", "aria-labelledby": "keys-title", onclose: () => dialog.remove() },
    h("h2", { id: "keys-title", tabindex: -1, autofocus: true }, "Keys"),
    h("div", { class: "columns" }, parts),
    h("form", { method: "dialog" }, h("button", { class: "primary" }, "Close")),
  );
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "?") return;
    event.preventDefault();
    dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

function shown(key) {
  return key
    .split(/(?<=Ctrl\+|Shift\+)/)
    .map((part) => NAMES[part] ?? (part.length === 1 ? part.toUpperCase() : part))
    .join("");
}
