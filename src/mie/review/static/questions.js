// Questions about a dialogue: several turns, each an edit of the previous turn's output.

import { comment } from "./comment.js";
import { button, choice, h, tick } from "./dom.js";
import { filmStrip } from "./strip.js";

export const REGION = false; // each turn has its own
export const HINT =
  "Read the instructions, follow the strip from turn to turn, and answer the questions. Choose a turn to enlarge it.";

const ANSWERS = [
  ["yes", "Yes", "Y"],
  ["no", "No", "N"],
  ["not_applicable", "Does not apply", "X"],
];

/** All turns: the first input, and the output of each. */
export function panes(item) {
  return [
    { name: "start", title: "Start", url: item.turns[0].input },
    ...item.turns.map((turn, at) => ({ name: `turn${at}`, title: `After turn ${at + 1}`, url: turn.output })),
  ];
}

function panesOf(turn, at) {
  return [
    { name: "input", title: `Before turn ${at + 1}`, url: turn.input },
    { name: "output", title: `After turn ${at + 1}`, url: turn.output },
    turn.reference ? { name: "reference", title: "Reference", url: turn.reference } : null,
  ].filter(Boolean);
}

export function summary(answer) {
  return Object.entries(answer.answers)
    .map(([id, value]) => `${id.replaceAll("_", " ")}: ${value.replaceAll("_", " ")}`)
    .join(" · ");
}

export function panel({ task, item, draft, save, submit, viewer, say }) {
  const from = draft ?? item.answer ?? {};
  const answers = { ...from.answers };
  const note = comment(from.comment, () => save({ answers, comment: note.value }));
  const questions = task.questions.filter(({ id }) => item.questions.includes(id));
  let turn = -1; // -1: all of them

  const look = (at) => {
    turn = Math.max(-1, Math.min(item.turns.length - 1, at));
    strip.mark(turn);
    const shown = turn < 0 ? panes(item) : panesOf(item.turns[turn], turn);
    viewer
      .show({
        panes: shown,
        size: item.size,
        grey: item.grey,
        geometry: item.geometry,
        same: true,
        pair: turn < 0 ? undefined : ["input", "output"],
      })
      .then(() => viewer.tell());
  };
  const strip = filmStrip(item, look);

  const boxes = questions.map(({ id, text }) =>
    choice(text, `question-${id}`, ANSWERS, answers[id], (value) => reply(id, value)),
  );
  const done = button("Save", "↵", () => finish(), { class: "primary" });
  const open = () => questions.findIndex(({ id }) => !(id in answers));
  const draw = () => {
    boxes.forEach((box, at) => box.classList.toggle("active", at === open()));
    done.disabled = open() >= 0;
  };
  const reply = (id, value) => {
    answers[id] = value;
    tick(boxes[questions.findIndex((each) => each.id === id)], value);
    save({ answers, comment: note.value });
    draw();
  };
  const replyNext = (value) => open() >= 0 && reply(questions[open()].id, value);
  const finish = () =>
    open() >= 0
      ? say("Answer every question first.")
      : submit({ kind: "questions", answers: { ...answers }, comment: note.value });
  const clear = () => {
    const last = questions.findLast(({ id }) => id in answers);
    if (!last) return;
    delete answers[last.id];
    tick(boxes[questions.indexOf(last)], "");
    save({ answers, comment: note.value });
    draw();
  };

  strip.mark(turn);
  draw();
  return {
    heading: h(
      "div",
      { class: "instruction" },
      h("p", { class: "label" }, "Instructions"),
      strip.element,
      h("p", { class: "facts" }, [item.modality, item.anatomy].filter(Boolean).join(" · ")),
    ),
    element: h(
      "form",
      { class: "answer", onsubmit: (event) => event.preventDefault() },
      boxes,
      note.element,
      done,
    ),
    keys: [
      ["y", "Yes, to the highlighted question", () => replyNext("yes")],
      ["n", "No", () => replyNext("no")],
      ["x", "Does not apply", () => replyNext("not_applicable")],
      ["Backspace", "Clear the last reply", clear],
      ["ArrowUp", "Previous turn", () => look(turn - 1)],
      ["ArrowDown", "Next turn", () => look(turn + 1)],
      ["Enter", "Save", finish],
      ["Ctrl+Enter", null, finish],
      ["m", "Comment", () => note.focus()],
    ],
  };
}
