// Choose one of up to three masks, or repair one with brush and eraser.

import { Brush } from "./brush.js";
import { comment } from "./comment.js";
import { button, choice, h, tick } from "./dom.js";
import { picture } from "./pictures.js";

export const HINT = "Which outline fits best? Tap it and save, or repair it with the brush.";
export const OUTLINE = true; // it is what this work is about

export function panes(item) {
  return item.proposals.map(({ id, label, image }, at) => ({
    name: id,
    title: `${at + 1}: ${label}`,
    url: item.images.input,
    mask: image,
  }));
}

export function summary(answer) {
  return (
    { none: "no mask is right", repaired: "repaired mask", source: "the data set's mask" }[answer.choice] ??
    (answer.choice.startsWith("region-") ? `proposed ${answer.choice.replace("-", " ")}` : `${answer.choice} mask`)
  );
}

const uploaded = (item, answer) =>
  `/api/items/${item.id}/images/upload-${answer.mask}?v=${item.version.slice(0, 12)}`;

export function panel({ item, begun, save, submit, viewer, say }) {
  const from = begun ?? item.answer ?? {};
  const note = comment(from.comment, () => keepDraft());
  const ids = item.proposals.map((proposal) => proposal.id);
  let chosen = from.choice === "repaired" ? ids[0] : (from.choice ?? null);
  let brush = null;

  const keepDraft = () =>
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
      ...item.proposals.map(({ id, label }, at) => [id, label, String(at + 1)]),
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
    keepDraft();
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
    button("Back to the proposals", "Esc", () => abandon(), { class: "quiet" }),
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

  // Begins with the chosen proposal, with what was painted before a reload, or with the answer given before.
  const repair = async (name, url = null) => {
    if (brush) return use(name);
    const base =
      url ?? item.proposals.find((proposal) => proposal.id === chosen)?.image ?? item.proposals[0].image;
    const mask = await picture(base);
    if (stopped) return undefined;
    brush = new Brush(mask, item.size, item.classes, () => {
      draw();
      keepDraft();
    });
    brush.onPaint = () => viewer.draw();
    if (from.size) brush.size = from.size;
    await viewer.show({
      panes: [
        {
          name: "repair",
          title: "Paint here · Shift-drag moves · wheel or pinch zooms",
          url: item.images.input,
        },
      ],
      size: item.size,
      grey: item.grey,
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
    keepDraft();
    await viewer.show({
      panes: panes(item),
      size: item.size,
      grey: item.grey,
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
          `Nothing is painted for: ${missing.join(", ")}. If it is not there, go back and choose “None is right”.`,
        );
      return submit({ kind: "mask", choice: "repaired", mask: null, comment: note.value }, brush.toDataUrl());
    }
    if (!chosen) return say("Choose one first.");
    return submit({ kind: "mask", choice: chosen, mask: null, comment: note.value });
  };

  let stopped = false;
  viewer.tapped = (name) => !brush && ids.includes(name) && choose(name);
  draw();
  const ready = () => {
    mark();
    const before =
      begun?.painted ??
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
      ["Escape", "Back to the proposals", abandon],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}
