// Grade a triplet in four respects, 1 to 3; it passes with 3 in all of them.

import { comment } from "./comment.js";
import { button, choice, h, tick } from "./dom.js";

export { panes } from "./inspect.js";

export const HINT = "3: without fault. 2: a small fault. 1: faulty. One fault is enough to drop the sample.";

const GRADES = [
  ["1", "1"],
  ["2", "2"],
  ["3", "3"],
];

export function summary(answer) {
  return Object.entries(answer.grades)
    .map(([name, grade]) => `${name} ${grade}`)
    .join(" · ");
}

/** See `task.js` for the arguments and the result of a panel. */
export function panel({ task, item, draft, save, submit, say }) {
  const from = draft ?? item.answer ?? {};
  const grades = { ...from.grades };
  const note = comment(from.comment, () => save({ grades, comment: note.value }));
  const boxes = task.questions.map(({ id, text }) =>
    choice(text, `grade-${id}`, GRADES, id in grades ? String(grades[id]) : undefined, (value) =>
      give(id, Number(value)),
    ),
  );
  const done = button("Save", "↵", () => finish(), { class: "primary" });
  const open = () => task.questions.findIndex(({ id }) => !(id in grades));
  const draw = () => {
    boxes.forEach((box, at) => box.classList.toggle("active", at === open()));
    done.disabled = open() >= 0;
  };
  const give = (id, grade) => {
    grades[id] = grade;
    tick(boxes[task.questions.findIndex((each) => each.id === id)], String(grade));
    save({ grades, comment: note.value });
    draw();
  };
  const giveNext = (grade) => open() >= 0 && give(task.questions[open()].id, grade);
  const finish = () =>
    open() >= 0
      ? say("Give all four grades first.")
      : submit({ kind: "grade", grades: { ...grades }, comment: note.value });
  const clear = () => {
    const last = task.questions.findLast(({ id }) => id in grades);
    if (!last) return;
    delete grades[last.id];
    tick(boxes[task.questions.indexOf(last)], "");
    save({ grades, comment: note.value });
    draw();
  };

  draw();
  return {
    element: h(
      "form",
      { class: "answer", onsubmit: (event) => event.preventDefault() },
      boxes,
      note.element,
      done,
    ),
    keys: [
      ["1", "Grade the highlighted question", () => giveNext(1), "1–3"],
      ["2", null, () => giveNext(2)],
      ["3", null, () => giveNext(3)],
      ["Backspace", "Clear the last grade", clear],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}
