// Rank the outputs of several models, without their names, separately for accuracy, preservation and quality.

import { comment } from "./comment.js";
import { button, h } from "./dom.js";
import { dragging } from "./drag.js";
import { Ranking } from "./ranking.js";

export const HINT = "Tap the outputs from best to worst, or drag them. Drop one on another for a tie.";

const CRITERIA = {
  accuracy: "Does it do what the instruction says, in the right place?",
  preservation: "Is everything else unchanged?",
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

const inWords = (groups) => groups.map((group) => group.join(" = ")).join(" > ");

export function summary(answer) {
  return Object.entries(answer.rankings)
    .map(([name, groups]) => `${name} ${inWords(groups)}`)
    .join(" · ");
}

export function panel({ task, item, draft, save, submit, say }) {
  const from = draft ?? item.answer ?? {};
  const labels = item.outputs.map((output) => output.label);
  const rankings = Object.fromEntries(
    task.criteria.map((name) => [name, new Ranking(labels, from.rankings?.[name])]),
  );
  const note = comment(from.comment, () => keepDraft());
  let active = task.criteria.find((name) => !rankings[name].complete) ?? task.criteria[0];

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
      rankings: Object.fromEntries(task.criteria.map((name) => [name, rankings[name].toJSON()])),
      comment: note.value,
    });

  const change = (name, how) => {
    const { activeElement } = document;
    const label = activeElement?.dataset?.label;
    const [here, ranking] = [active, rankings[name]];
    active = name;
    how(ranking);
    if (ranking.complete && here === name)
      active = task.criteria.find((each) => !rankings[each].complete) ?? name;
    keepDraft();
    draw();
    // The chip that had the focus was created again.
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
        "aria-label": rank ? `${label}, rank ${rank} for ${name}. Remove` : `${label}: rank next for ${name}`,
        onclick: () => change(name, (ranking) => (rank ? ranking.remove(label) : ranking.add(label))),
        onkeydown: (event) => {
          const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (!by || !rank || event.shiftKey || event.ctrlKey) return;
          event.preventDefault();
          change(name, (ranking) => ranking.step(label, by));
        },
      },
      label,
    );

  const drawOne = (name) => {
    const ranking = rankings[name];
    const above = task.criteria[task.criteria.indexOf(name) - 1];
    boxes[name].classList.toggle("active", name === active);
    boxes[name].replaceChildren(
      h("h3", {}, name, ranking.complete ? h("span", { class: "tickmark" }, "✓ ranked") : null),
      h("p", { class: "small" }, CRITERIA[name]),
      h(
        "div",
        { class: "line", "data-line": true },
        h("span", { class: "gap", "data-gap": 0 }, ranking.groups.length ? "best" : "best first…"),
        ranking.groups.map((group, at) => [
          h(
            "span",
            { class: "group" },
            group.map((label, k) => [
              k ? h("span", { class: "sign" }, "=") : null,
              chip(name, label, at + 1),
            ]),
          ),
          h("span", { class: "gap", "data-gap": at + 1 }, at + 1 < ranking.groups.length ? "›" : ""),
        ]),
      ),
      h(
        "div",
        { class: "tray", "data-tray": true },
        ranking.rest.map((label) => chip(name, label, 0)),
        ranking.rest.length && ranking.groups.length
          ? button("tie next", "=", () => change(name, (each) => (each.tie = !each.tie)), {
              class: "quiet",
              "aria-pressed": ranking.tie,
            })
          : null,
        above && !ranking.groups.length && rankings[above].complete
          ? button(`same as ${above}`, "K", () => copy(name), { class: "quiet" })
          : null,
      ),
    );
  };

  const draw = () => {
    task.criteria.forEach(drawOne);
    const open = task.criteria.filter((name) => !rankings[name].complete);
    done.disabled = open.length > 0;
    missing.textContent = open.length ? `Still to rank: ${open.join(", ")}` : "All ranked.";
  };

  const copy = (name) => {
    const above = task.criteria[task.criteria.indexOf(name) - 1];
    if (above) change(name, (ranking) => (ranking.groups = rankings[above].toJSON()));
  };

  const finish = () => {
    if (done.disabled) return say(missing.textContent);
    const groups = Object.fromEntries(task.criteria.map((name) => [name, rankings[name].toJSON()]));
    return submit({ kind: "rank", rankings: groups, comment: note.value });
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
    change(name, (ranking) => {
      if (target.dataset.label) ranking.tieWith(label, target.dataset.label);
      else if (target.dataset.gap) ranking.insert(label, Number(target.dataset.gap));
      else if ("tray" in target.dataset) ranking.remove(label);
      else ranking.add(label, false);
    }),
  );
  draw();
  return {
    element,
    keys: [
      ...labels.map((label, at) => [
        label.toLowerCase(),
        at ? null : "Rank next; with Shift: tied with the last",
        (event) => change(active, (ranking) => ranking.add(label, event.shiftKey || ranking.tie)),
        `A–${labels.at(-1)}`,
      ]),
      ["=", "Tie the next with the last", () => change(active, (ranking) => (ranking.tie = !ranking.tie))],
      ["Backspace", "Remove the last one", () => change(active, (ranking) => ranking.undo())],
      ["k", "Same ranking as the criterion above", () => copy(active)],
      ["ArrowUp", "Criterion above", () => go(-1)],
      ["ArrowDown", "Criterion below", () => go(1)],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}
