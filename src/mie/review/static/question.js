// Check a question with its key: may it count?

import { panes, questionHeading } from "./answer.js";
import { comment } from "./comment.js";
import { button, h } from "./dom.js";

export { panes };
export const REGION = false;
export const HINT = "Is the question clear, its key right, and every other option wrong? Only then may it count.";

export const summary = (answer) => [answer.decision, answer.reason].filter(Boolean).join(" · ");

export function panel({ task, item, draft, save, submit }) {
  const from = draft ?? item.answer ?? {};
  const note = comment(from.comment, () => save({ ...from, comment: note.value }));
  const give = (decision, reason = null) => submit({ kind: "question", decision, reason, comment: note.value });
  const reasons = h(
    "div",
    { class: "reasons", role: "group", "aria-label": "Reason", hidden: true },
    h("p", {}, "Why? Choosing a reason saves the answer and shows the next question."),
    task.reasons.map((reason, at) => button(reason, String(at + 1), () => give("reject", reason))),
    button("Cancel", "Esc", () => ask(false), { class: "quiet" }),
  );
  const ask = (open) => {
    reasons.hidden = !open;
    reject.setAttribute("aria-expanded", open);
    (open ? reasons.querySelector("button") : reject).focus();
  };
  const reject = button("Reject…", "R", () => ask(reasons.hidden), {
    class: "no",
    "aria-expanded": false,
    "aria-pressed": item.answer?.decision === "reject",
  });
  const { question, key } = item;
  return {
    heading: questionHeading(item),
    element: h(
      "form",
      { class: "answer", onsubmit: (event) => event.preventDefault() },
      question.options.length
        ? h(
            "ul",
            { class: "options" },
            question.options.map(({ letter, text }) =>
              h(
                "li",
                { class: text === key.answer ? "key" : null },
                `${letter}. ${text}`,
                text === key.answer ? h("b", {}, " ✓ key") : null,
              ),
            ),
          )
        : h("p", {}, "Key: ", h("b", {}, key.answer), key.tolerance === null ? null : ` ± ${key.tolerance} ${question.unit}`),
      h("p", { class: "facts small" }, [key.modality, key.submodality, key.anatomy, key.source].filter(Boolean).join(" · ")),
      h(
        "div",
        { class: "decide" },
        button("Accept", "A", () => give("accept"), {
          class: "yes",
          "aria-pressed": item.answer?.decision === "accept",
        }),
        reject,
      ),
      reasons,
      note.element,
    ),
    keys: [
      ["a", "Accept", () => give("accept")],
      ["r", "Reject; then 1–6 for the reason", () => ask(reasons.hidden)],
      ["Escape", null, () => reasons.hidden || ask(false)],
      ["m", "Comment", () => note.focus()],
      ...task.reasons.map((reason, at) => [
        String(at + 1),
        null,
        () => reasons.hidden || give("reject", reason),
      ]),
    ],
  };
}
