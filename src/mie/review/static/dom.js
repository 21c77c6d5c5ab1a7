// Create elements. Text is inserted as text, never as markup.

/** h("button", {class: "primary", onclick: f, "aria-pressed": true}, "Accept", child) */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** A button that shows its key. */
export function button(label, key, onclick, attributes = {}) {
  return h(
    "button",
    { type: "button", "aria-keyshortcuts": key ? ariaKey(key) : null, onclick, ...attributes },
    label,
    key ? keycap(key) : null,
  );
}

export function keycap(key) {
  return h("kbd", { "aria-hidden": "true" }, key);
}

const ariaKey = (key) =>
  ({ "←": "ArrowLeft", "→": "ArrowRight", "↵": "Enter", "↑": "ArrowUp", "↓": "ArrowDown" })[key] ?? key;

/** Labelled radio buttons that look like a row of buttons. `choices`: [[value, label, key]] */
export function choice(legend, name, choices, value, onchange, attributes = {}) {
  return h(
    "fieldset",
    { class: "choice", ...attributes },
    h("legend", {}, legend),
    h(
      "div",
      { class: "row" },
      choices.map(([each, label, key]) =>
        h(
          "label",
          {},
          h("input", {
            type: "radio",
            name,
            value: each,
            checked: each === value,
            onchange: () => onchange(each),
          }),
          h("span", {}, label, key ? keycap(key) : null),
        ),
      ),
    ),
  );
}

/** Check the button of a `choice` without calling its handler. */
export function tick(fieldset, value) {
  for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === value;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return "under a minute";
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
