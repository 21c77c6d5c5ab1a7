// Answer a question about one or more images, without seeing its key.

import { comment } from "./comment.js";
import { button, choice, h, tick } from "./dom.js";
import { PlaceMarker } from "./marker.js";

export const REGION = false;
export const HINT = "Answer from the images alone. There is no way to see the key, and your time is recorded.";

export function panes(item) {
  const several = item.pictures.length > 1;
  return item.pictures.map((url, at) => ({
    name: `image${at}`,
    title: several ? `Image ${at + 1}` : "Image",
    url,
  }));
}

export const summary = (answer) => answer.reply || "cannot tell";

/** The question above the images. */
export function questionHeading({ question }) {
  return h(
    "div",
    { class: "instruction" },
    h("p", { class: "prompt" }, h("span", { class: "label" }, "Question"), question.text),
    question.task ? h("p", { class: "facts" }, question.task) : null,
  );
}

export function panel({ item, draft, save, submit, viewer, say }) {
  const from = draft ?? item.answer ?? {};
  const note = comment(from.comment, () => saveDraft());
  const field = fieldFor(item, viewer, from.reply ?? "", () => {
    saveDraft();
    done.disabled = !field.value();
  });
  const saveDraft = () => save({ reply: field.value(), comment: note.value });
  const finish = () => {
    const reply = field.value();
    if (!reply) return say("Answer first, or say that you cannot tell.");
    return submit({ kind: "answer", reply, comment: note.value });
  };
  const unsure = () => submit({ kind: "answer", reply: "", comment: note.value });
  const done = button("Save", "↵", finish, { class: "primary" });
  done.disabled = !field.value();
  return {
    heading: questionHeading(item),
    element: h(
      "form",
      { class: "answer", onsubmit: (event) => event.preventDefault() },
      field.element,
      button("I cannot tell", "X", unsure, { class: "quiet" }),
      note.element,
      done,
    ),
    ready: () => field.ready?.(),
    stop: () => field.stop?.(),
    keys: [
      ...field.keys,
      ["x", "I cannot tell", unsure],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}

function fieldFor(item, viewer, reply, changed) {
  const kinds = { closed: optionsField, open: textField, number: textField, point: placeField, box: placeField };
  return kinds[item.question.kind](item, viewer, reply, changed);
}

function optionsField({ question }, viewer, reply, changed) {
  let chosen = question.options.some(({ letter }) => letter === reply) ? reply : "";
  const choose = (letter) => {
    chosen = letter;
    tick(box, letter);
    changed();
  };
  const box = choice(
    "Choose one",
    "option",
    question.options.map(({ letter, text }, at) => [letter, `${letter}. ${text}`, String(at + 1)]),
    chosen,
    choose,
    { class: "choice stack" },
  );
  return {
    element: box,
    value: () => chosen,
    keys: question.options.map(({ letter }, at) => [
      String((at + 1) % 10),
      at ? null : "Choose this option",
      () => choose(letter),
      `1–${question.options.length}`,
    ]),
  };
}

function textField({ question }, viewer, reply, changed) {
  const number = question.kind === "number";
  const input = h(number ? "input" : "textarea", {
    id: "reply",
    maxlength: 2000,
    ...(number ? { type: "number", step: "any", inputmode: "decimal" } : { rows: 3 }),
    oninput: changed,
  });
  input.value = reply;
  const label = number ? `Your answer${question.unit ? ` in ${question.unit}` : ""}` : "Your answer, in a few words";
  return {
    element: h("div", { class: "comment" }, h("label", { for: "reply" }, label), input),
    value: () => input.value.trim(),
    keys: [["r", "Write the answer", () => input.focus()]],
  };
}

/** A point or a box: marked in the image, or typed in. */
function placeField(item, viewer, reply, changed) {
  const names = item.question.kind === "point" ? ["x", "y"] : ["left", "top", "right", "bottom"];
  const before = reply ? reply.split(",").map(Number) : [];
  const inputs = names.map((name, at) =>
    h("input", {
      id: `place-${name}`,
      type: "number",
      min: 0,
      max: 1,
      step: 0.001,
      value: before[at] ?? "",
      oninput: () => {
        marker.set(values());
        viewer.draw();
        changed();
      },
    }),
  );
  const values = () => inputs.map((input) => (input.value === "" ? NaN : Number(input.value)));
  const marker = new PlaceMarker(item.size, names.length, (place) => {
    place.forEach((value, at) => (inputs[at].value = value.toFixed(3)));
    viewer.draw();
    changed();
  });
  marker.set(values());
  return {
    element: h(
      "fieldset",
      { class: "places" },
      h("legend", {}, names.length === 2 ? "Click on the place" : "Drag a box around it"),
      h("p", { class: "small" }, "Or give fractions of width and height, from the top left corner."),
      h(
        "div",
        { class: "row" },
        names.map((name, at) => h("label", { for: `place-${name}` }, name, inputs[at])),
      ),
    ),
    value: () => (values().some(Number.isNaN) ? "" : values().join(", ")),
    ready: () => {
      viewer.panes[0].layer = marker;
      viewer.outline = true;
      viewer.paint = marker;
      viewer.draw();
    },
    stop: () => {
      viewer.paint = null;
      viewer.outline = false;
    },
    keys: [],
  };
}
