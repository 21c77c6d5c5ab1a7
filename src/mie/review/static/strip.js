// A conversation as a film strip: each turn's sentence, its truth, the output, and where the two differ.

import { button, h } from "./dom.js";
import { image } from "./images.js";
import { difference } from "./pixels.js";

const FULL = 128; // grey levels that have the brightest colour, on every strip alike
const SIDE = 256; // pixels of a copy

const copy = (url, size) => (Math.max(...size) > SIDE ? `${url}&side=${SIDE}` : url);

/** {element, mark(at)}: `look(at)` is called with the turn that was chosen, -1 for all; `mark` shows which it is. */
export function filmStrip(item, look) {
  const start = h(
    "li",
    {},
    button("All turns", null, chosen(-1, look)),
    still("Start", "First image", item.turns[0].input, item.size),
  );
  const turns = item.turns.map((turn, at) => column(item, turn, at, look));
  const element = h(
    "div",
    { class: "scroll strip", role: "region", "aria-label": "Film strip", tabindex: "0" },
    h("ol", { class: "turns" }, start, turns),
  );
  const mark = (at) => {
    [start, ...turns].forEach((each, place) => {
      const here = place === at + 1;
      each.querySelector("button").setAttribute("aria-pressed", String(here));
      if (here) each.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  };
  return { element, mark };
}

/** After a click, keys work on the answer again; whoever came by the keyboard stays on the button. */
const chosen = (at, look) => (event) => {
  if (event.detail) event.currentTarget.blur();
  look(at);
};

function column(item, turn, at, look) {
  const words = h("span", {}, h("b", {}, `Turn ${at + 1} `), turn.prompt);
  const name = `turn ${at + 1}`;
  return h(
    "li",
    {},
    button(words, null, chosen(at, look)),
    turn.reference ? still("Truth", `Truth of ${name}`, turn.reference, item.size) : null,
    still("Output", `Output of ${name}`, turn.output, item.size),
    turn.reference ? apart(turn, name, item.size) : null,
  );
}

function still(title, alt, url, size) {
  return h("figure", {}, h("figcaption", {}, title), h("img", { alt, src: copy(url, size) }));
}

function apart({ reference, output }, name, size) {
  const canvas = h("canvas", { role: "img", "aria-label": `Difference of ${name}` });
  const draw = ([truth, made]) => {
    const heat = difference(truth, made, FULL).canvas;
    Object.assign(canvas, { width: heat.width, height: heat.height });
    canvas.getContext("2d").drawImage(heat, 0, 0);
    canvas.dataset.drawn = "true";
  };
  // An image that does not come leaves its place empty; the stage says so.
  Promise.all([reference, output].map((url) => image(copy(url, size)))).then(draw, () => {});
  return h("figure", {}, h("figcaption", {}, "Difference"), canvas);
}
