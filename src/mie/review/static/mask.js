// Choose one of several masks, shown under blind labels, or repair one with brush and eraser.

import { Brush } from "./brush.js";
import { comment } from "./comment.js";
import { button, choice, h, tick } from "./dom.js";
import { image } from "./images.js";

export const HINT = "Which outline fits best? Tap it and save, or repair it with the brush. The order is random.";
export const OUTLINE = true; // this work is about the outline

export function panes(item) {
  return item.proposals.map(({ id, image }) => ({
    name: id,
    title: `Mask ${id}`,
    url: item.images.input,
    mask: image,
  }));
}

export function summary(answer) {
  return { none: "no mask is right", repaired: "repaired mask" }[answer.choice] ?? `mask ${answer.choice}`;
}

const uploaded = (item, answer) =>
  `/api/items/${item.id}/images/upload-${answer.mask}?v=${item.version.slice(0, 12)}`;

export function panel({ item, draft, save, submit, viewer, say }) {
  const from = draft ?? item.answer ?? {};
  const note = comment(from.comment, () => saveDraft());
  const ids = item.proposals.map((proposal) => proposal.id);
  let chosen = from.choice === "repaired" ? ids[0] : null;
  if ([...ids, "none"].includes(from.choice)) chosen = from.choice; // not a draft of an earlier version
  let brush = null;

  const saveDraft = () =>
    save({
      choice: brush ? "repaired" : chosen,
      painted: brush?.toDataUrl() ?? null,
      size: brush?.size,
      comment: note.value,
    });

  const proposals = choice(
    "Which is best?",
    "proposal",
    [
      ...ids.map((id, at) => [id, `Mask ${id}`, String(at + 1)]),
      ["none", "None is right", "X"],
    ],
    chosen,
    (id) => choose(id),
    { class: "choice stack" },
  );
  const choose = (id) => {
    if (!id) return;
    chosen = id;
    tick(proposals, id);
    mark();
    saveDraft();
    draw();
  };
  const mark = () => {
    for (const figure of viewer.stage.querySelectorAll("figure"))
      figure.classList.toggle("chosen", figure.dataset.pane === chosen);
  };

  const tool = choice(
    "Tool",
    "tool",
    [
      ["brush", "Brush", "B"],
      ["eraser", "Eraser", "E"],
    ],
    "brush",
    (name) => use(name),
  );
  const size = h("input", {
    type: "range",
    min: 1,
    max: Math.round(Math.max(...item.size) / 4),
    id: "brush-size",
    oninput: () => resize(Number(size.value)),
  });
  const sizeText = h("output", {});
  const classes = choice(
    "Paint",
    "class",
    item.classes.map(({ name, value, colour }) => [String(value), `${name} (${colour})`]),
    String(item.classes[0]?.value),
    (value) => (brush.value = Number(value)),
    { class: "choice stack" },
  );
  const undo = button("Undo stroke", "Z", () => step("undo"));
  const redo = button("Redo", "Y", () => step("redo"));
  const repairing = h(
    "div",
    { class: "repair", hidden: true },
    tool,
    h("label", { class: "size", for: "brush-size" }, "Size ", sizeText),
    size,
    item.classes.length > 1 ? classes : null,
    h("div", { class: "pairs" }, undo, redo),
    button("Back to the choices", "Esc", () => abandon(), { class: "quiet" }),
  );
  const start = button("Repair…", "B", () => repair("brush"));
  const done = button("Save", "↵", () => finish(), { class: "primary" });
  const element = h(
    "form",
    { class: "answer", onsubmit: (event) => event.preventDefault() },
    proposals,
    start,
    repairing,
    note.element,
    done,
  );

  const draw = () => {
    repairing.hidden = !brush;
    proposals.hidden = start.hidden = Boolean(brush);
    start.disabled = !item.classes.length;
    done.disabled = !brush && !chosen;
    undo.disabled = !brush?.past.length;
    redo.disabled = !brush?.future.length;
    if (brush) {
      sizeText.textContent = `${brush.size} px`;
      size.value = brush.size;
      tick(tool, brush.erasing ? "eraser" : "brush");
    }
  };

  const use = (name) => {
    brush.erasing = name === "eraser";
    draw();
  };
  const resize = (to) => {
    if (!brush) return;
    brush.size = Math.max(1, Math.min(Number(size.max), to));
    draw();
    viewer.draw();
  };
  const step = (way) => {
    brush?.[way]();
    draw();
  };

  // Start with the chosen mask, with what was painted before a reload, or with the previous answer.
  const repair = async (name, url = null) => {
    if (brush) return use(name);
    const base =
      url ?? item.proposals.find((proposal) => proposal.id === chosen)?.image ?? item.proposals[0].image;
    const mask = await image(base);
    if (stopped) return undefined;
    brush = new Brush(mask, item.size, item.classes, () => {
      draw();
      saveDraft();
    });
    brush.onPaint = () => viewer.draw();
    if (from.size) brush.size = from.size;
    await viewer.show({
      panes: [
        {
          name: "repair",
          title: "Paint here · Shift and drag to move · wheel or pinch to zoom",
          url: item.images.input,
        },
      ],
      size: item.size,
      grey: item.grey,
      geometry: item.geometry,
      classes: item.classes,
      mask: null,
      same: true,
    });
    if (stopped) return undefined;
    viewer.pane("repair").layer = brush;
    viewer.paint = brush;
    use(name);
    viewer.tell();
    return viewer.draw();
  };

  const abandon = async () => {
    if (!brush) return;
    brush = null;
    viewer.paint = null;
    draw();
    saveDraft();
    await viewer.show({
      panes: panes(item),
      size: item.size,
      grey: item.grey,
      geometry: item.geometry,
      classes: item.classes,
      same: true,
    });
    viewer.tell();
    mark();
  };

  const finish = () => {
    if (brush) {
      const missing = brush.missing();
      if (missing.length)
        return say(
          `Nothing is painted for: ${missing.join(", ")}. If the structure is not in the image, go back and choose “None is right”.`,
        );
      return submit({ kind: "mask", choice: "repaired", mask: null, comment: note.value }, brush.toDataUrl());
    }
    if (!chosen) return say("Choose a mask first.");
    return submit({ kind: "mask", choice: chosen, mask: null, comment: note.value });
  };

  let stopped = false;
  viewer.tapped = (name) => !brush && ids.includes(name) && choose(name);
  draw();
  const ready = () => {
    mark();
    const before =
      draft?.painted ??
      (item.answer?.choice === "repaired" ? (item.repaired ?? uploaded(item, item.answer)) : null);
    if (before) repair("brush", before).catch(() => say("The repaired mask could not be shown."));
  };

  return {
    element,
    ready,
    stop: () => {
      stopped = true;
      viewer.paint = viewer.tapped = null;
    },
    keys: [
      ...ids.map((id, at) => [
        String(at + 1),
        at ? null : "Choose this mask",
        () => brush || choose(id),
        `1–${ids.length}`,
      ]),
      ["x", "None is right", () => brush || choose("none")],
      ["b", "Repair with the brush", () => repair("brush")],
      ["e", "Repair with the eraser", () => repair("eraser")],
      ["[", "Smaller brush", () => resize(brush?.size - Math.max(1, Math.round(brush?.size / 6)))],
      ["]", "Larger brush", () => resize(brush?.size + Math.max(1, Math.round(brush?.size / 6)))],
      ["z", "Undo the stroke", () => step("undo")],
      ["Ctrl+z", null, () => step("undo")],
      ["y", "Redo the stroke", () => step("redo")],
      ["Escape", "Back to the choices", abandon],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}
