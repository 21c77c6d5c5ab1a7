// The comment field that every kind of work has.

import { h, keycap } from "./dom.js";

let count = 0;

export function comment(text, changed) {
  const id = `comment-${(count += 1)}`;
  const field = h("textarea", {
    id,
    rows: 2,
    maxlength: 2000,
    oninput: changed,
    placeholder: "Please do not enter patients' names",
  });
  field.value = text ?? "";
  return {
    element: h(
      "div",
      { class: "comment" },
      h("label", { for: id }, "Comment (optional)", keycap("M")),
      field,
    ),
    focus: () => field.focus(),
    get value() {
      return field.value.trim();
    },
  };
}
