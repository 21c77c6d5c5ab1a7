// Rank the outputs of several models that nobody names: accuracy, preservation, quality, each for itself.

import { comment } from "./comment.js";
import { button, h } from "./dom.js";
import { dragging } from "./drag.js";
import { Order } from "./order.js";

export const HINT = "Tap from best to worst, or drag. One dropped on another is a tie.";

const ASKS = {
  accuracy: "Done as asked, in the right place?",
  preservation: "Is everything else as it was?",
  quality: "Does it look like a real, clean image?",
};

export function panes(item) {
  return [
    { name: "input", title: "Input", url: item.images.input },
    { name: "reference", title: "Reference", url: item.images.reference },
    ...item.outputs.map(({ label, image }) => ({ name: label, title: label, url: image })),
  ];
}

export const pair = (item) => ["reference", item.outputs[0].label];

export const inWords = (groups) => groups.map((group) => group.join(" = ")).join(" > ");

export function summary(answer) {
  return Object.entries(answer.rankings)
    .map(([name, groups]) => `${name} ${inWords(groups)}`)
    .join(" · ");
}

export function panel({ task, item, begun, save, submit, say }) {
  const from = begun ?? item.answer ?? {};
  const labels = item.outputs.map((output) => output.label);
  const orders = Object.fromEntries(
    task.criteria.map((name) => [name, new Order(labels, from.rankings?.[name])]),
  );
  const note = comment(from.comment, () => keepDraft());
  let active = task.criteria.find((name) => !orders[name].complete) ?? task.criteria[0];

  const boxes = Object.fromEntries(
    task.criteria.map((name) => [
      name,
      h("section", { class: "criterion", "data-criterion": name, "aria-label": name }),
    ]),
  );
  const done = button("Save", "↵", () => finish(), { class: "primary" });
  const missing = h("p", { class: "small", "aria-live": "polite" });

  const keepDraft = () =>
    save({
      rankings: Object.fromEntries(task.criteria.map((name) => [name, orders[name].toJSON()])),
      comment: note.value,
    });

  const change = (name, how) => {
    const { activeElement } = document;
    const label = activeElement?.dataset?.label;
    const [here, order] = [active, orders[name]];
    active = name;
    how(order);
    if (order.complete && here === name)
      active = task.criteria.find((each) => !orders[each].complete) ?? name;
    keepDraft();
    draw();
    // The chip that had the focus was made anew.
    if (label) boxes[name].querySelector(`[data-label="${label}"]`)?.focus();
  };

  const chip = (name, label, rank) =>
    h(
      "button",
      {
        type: "button",
        class: "chip",
        "data-label": label,
        "data-arrows": true,
        "aria-label": rank ? `${label}, rank ${rank} for ${name}. Take it out` : `${label}: next for ${name}`,
        onclick: () => change(name, (order) => (rank ? order.remove(label) : order.add(label))),
        onkeydown: (event) => {
          const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (!by || !rank || event.shiftKey || event.ctrlKey) return;
          event.preventDefault();
          change(name, (order) => order.step(label, by));
        },
      },
      label,
    );

  const drawOne = (name) => {
    const order = orders[name];
    const above = task.criteria[task.criteria.indexOf(name) - 1];
    boxes[name].classList.toggle("active", name === active);
    boxes[name].replaceChildren(
      h("h3", {}, name, order.complete ? h("span", { class: "tickmark" }, "✓ ranked") : null),
      h("p", { class: "small" }, ASKS[name]),
      h(
        "div",
        { class: "line", "data-line": true },
        h("span", { class: "gap", "data-gap": 0 }, order.groups.length ? "best" : "best first…"),
        order.groups.map((group, at) => [
          h(
            "span",
            { class: "group" },
            group.map((label, k) => [
              k ? h("span", { class: "sign" }, "=") : null,
              chip(name, label, at + 1),
            ]),
          ),
          h("span", { class: "gap", "data-gap": at + 1 }, at + 1 < order.groups.length ? "›" : ""),
        ]),
      ),
      h(
        "div",
        { class: "tray", "data-tray": true },
        order.rest.map((label) => chip(name, label, 0)),
        order.rest.length && order.groups.length
          ? button("tie next", "=", () => change(name, (o) => (o.tie = !o.tie)), {
              class: "quiet",
              "aria-pressed": order.tie,
            })
          : null,
        above && !order.groups.length && orders[above].complete
          ? button(`as ${above}`, "K", () => copy(name), { class: "quiet" })
          : null,
      ),
    );
  };

  const draw = () => {
    task.criteria.forEach(drawOne);
    const open = task.criteria.filter((name) => !orders[name].complete);
    done.disabled = open.length > 0;
    missing.textContent = open.length ? `Still to rank: ${open.join(", ")}` : "All ranked.";
  };

  const copy = (name) => {
    const above = task.criteria[task.criteria.indexOf(name) - 1];
    if (above) change(name, (order) => (order.groups = orders[above].toJSON()));
  };

  const finish = () => {
    if (done.disabled) return say(missing.textContent);
    const rankings = Object.fromEntries(task.criteria.map((name) => [name, orders[name].toJSON()]));
    return submit({ kind: "rank", rankings, comment: note.value });
  };

  const go = (by) => {
    const at = task.criteria.indexOf(active) + by;
    active = task.criteria[Math.max(0, Math.min(task.criteria.length - 1, at))];
    draw();
  };

  const element = h(
    "form",
    { class: "answer", onsubmit: (event) => event.preventDefault() },
    Object.values(boxes),
    note.element,
    missing,
    done,
  );
  dragging(element, (label, name, target) =>
    change(name, (order) => {
      if (target.dataset.label) order.tieWith(label, target.dataset.label);
      else if (target.dataset.gap) order.insert(label, Number(target.dataset.gap));
      else if ("tray" in target.dataset) order.remove(label);
      else order.add(label, false);
    }),
  );
  draw();
  return {
    element,
    keys: [
      ...labels.map((label, at) => [
        label.toLowerCase(),
        at ? null : "The next best; with Shift: tied with the last",
        (event) => change(active, (order) => order.add(label, event.shiftKey || order.tie)),
        `A–${labels.at(-1)}`,
      ]),
      ["=", "The next is tied with the last", () => change(active, (order) => (order.tie = !order.tie))],
      ["Backspace", "Take the last one out", () => change(active, (order) => order.undo())],
      ["k", "The same order as for the criterion above", () => copy(active)],
      ["ArrowUp", "Criterion above", () => go(-1)],
      ["ArrowDown", "Criterion below", () => go(1)],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}
