// Inspect a triplet: accept, reject with a reason, or flag; optionally with scores and a comment.

import { button, h, keycap } from "./dom.js";
import { comment } from "./comment.js";

export const HINT =
  "Does the output do what the instruction says, in the right place, and leave the rest as it was?";

export function panes(item) {
  return [
    { name: "input", title: "Input", url: item.images.input },
    { name: "reference", title: "Output", url: item.images.reference },
  ];
}

export function summary(answer) {
  const scores = Object.entries(answer.scores ?? {}).map(([name, score]) => `${name} ${score}`);
  return [answer.decision, answer.reason, ...scores].filter(Boolean).join(" · ");
}

/** See `task.js` for the arguments and the result of a panel. */
export function panel({ task, item, draft, save, submit }) {
  const from = draft ?? item.answer ?? {};
  const scores = { ...from.scores };
  const note = comment(from.comment, () => save(currentDraft()));
  const currentDraft = () => ({ decision: from.decision, reason: from.reason, scores, comment: note.value });

  const give = (decision, reason = null) =>
    submit({ kind: "inspect", decision, reason, comment: note.value, scores: { ...scores } });

  const reasons = h(
    "div",
    { class: "reasons", role: "group", "aria-label": "Reason", hidden: true },
    h("p", {}, "Why? Choosing a reason saves the answer and shows the next sample."),
    task.reasons.map((reason, at) => button(reason, String(at + 1), () => give("reject", reason))),
    button("Cancel", "Esc", () => ask(false), { class: "quiet" }),
  );
  const ask = (open) => {
    reasons.hidden = !open;
    reject.setAttribute("aria-expanded", open);
    (open ? reasons.querySelector("button") : reject).focus();
  };
  const reject = button("Reject…", "R", () => ask(reasons.hidden), { class: "no", "aria-expanded": false });
  const pressed = (decision) => ({ "aria-pressed": item.answer?.decision === decision });
  reject.setAttribute("aria-pressed", item.answer?.decision === "reject");

  const rows = new Map(task.criteria.map((name) => [name, scoreRow(name, scores, () => save(currentDraft()))]));
  const scored = h(
    "details",
    { class: "scores", open: Object.keys(scores).length > 0 },
    h("summary", {}, "Scores (optional)", keycap("1–5")),
    h("p", { class: "small" }, "1 poor, 5 excellent"),
    [...rows.values()],
  );
  const score = (value) => {
    if (!reasons.hidden) return task.reasons[value - 1] && give("reject", task.reasons[value - 1]);
    const name = task.criteria.find((each) => !(each in scores));
    if (name === undefined || value > 5) return undefined;
    scored.open = true;
    scores[name] = value;
    rows.get(name).querySelectorAll("input")[value - 1].checked = true;
    return save(currentDraft());
  };

  return {
    element: h(
      "form",
      { class: "answer", onsubmit: (event) => event.preventDefault() },
      h(
        "div",
        { class: "decide" },
        button("Accept", "A", () => give("accept"), { class: "yes", ...pressed("accept") }),
        reject,
        button("Flag", "F", () => give("flag"), {
          class: "maybe",
          title: "Not sure: ask for a second opinion",
          ...pressed("flag"),
        }),
      ),
      reasons,
      scored,
      note.element,
    ),
    keys: [
      ["a", "Accept", () => give("accept")],
      ["r", "Reject; then 1–6 for the reason", () => ask(reasons.hidden)],
      ["f", "Flag: ask for a second opinion", () => give("flag")],
      ["Escape", null, () => reasons.hidden || ask(false)],
      ["m", "Comment", () => note.focus()],
      ["1", "Score accuracy, preservation, quality in turn", () => score(1), "1–5"],
      ...["2", "3", "4", "5", "6"].map((key) => [key, null, () => score(Number(key))]),
      [
        "Backspace",
        "Clear the scores",
        () => {
          for (const name of task.criteria) delete scores[name];
          for (const input of scored.querySelectorAll("input")) input.checked = false;
          save(currentDraft());
        },
      ],
    ],
  };
}

function scoreRow(name, scores, changed) {
  return h(
    "fieldset",
    { class: "choice score" },
    h("legend", {}, name),
    h(
      "div",
      { class: "row" },
      [1, 2, 3, 4, 5].map((value) =>
        h(
          "label",
          {},
          h("input", {
            type: "radio",
            name: `score-${name}`,
            value,
            checked: scores[name] === value,
            onchange: () => {
              scores[name] = value;
              changed();
            },
          }),
          h("span", {}, String(value)),
        ),
      ),
    ),
  );
}
