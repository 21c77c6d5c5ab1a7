// The page of a task: the instruction, the images, and the panel for the answer.
//
// A kind of work is a module with HINT, panes(item), summary(answer) and panel(options), and optionally pair(item),
// OUTLINE and REGION. A panel gets {task, item, draft (or null), save(draft), submit(answer, mask), viewer, say(text)}
// and returns {element, keys}, and optionally heading (instead of the default one), ready() for when the images are
// visible, and stop(). It may show other panes through `viewer`.

import { button, h, plural } from "./dom.js";
import { Feed } from "./feed.js";
import * as grade from "./grade.js";
import * as inspect from "./inspect.js";
import { useKeys } from "./keys.js";
import * as mask from "./mask.js";
import * as questions from "./questions.js";
import * as rank from "./rank.js";
import { slices } from "./slices.js";
import { toolbar } from "./toolbar.js";
import { Viewer } from "./viewer.js";

export const KINDS = { inspect, mask, rank, questions, grade };

/** The mask and its classes, if all panes share one. */
export const regionOf = (kind, item) =>
  kind.REGION === false ? {} : { mask: item.images.mask, classes: item.classes };

/** Instruction, description and other facts about a sample. */
export function heading(item) {
  const facts = [item.modality, item.anatomy, item.target, item.task].filter(Boolean);
  return h(
    "div",
    { class: "instruction" },
    h("p", { class: "prompt" }, h("span", { class: "label" }, "Instruction"), item.prompt),
    item.description ? h("p", { class: "description" }, item.description) : null,
    h("p", { class: "facts" }, facts.join(" · ")),
  );
}

export function taskPage(main, app, task) {
  const kind = KINDS[task.kind];
  const feed = new Feed(task, app.user.id, app.queue);
  const stage = h("div", { class: "stage" });
  const viewer = new Viewer(stage);
  const tools = toolbar(viewer, kind.OUTLINE);
  const instruction = h("div", {});
  const side = h("section", { class: "panel", "aria-label": "Your answer" });
  const back = button("Previous", "←", () => feed.previous());
  const ahead = button("Next", "→", () => feed.next());
  const undo = button("Undo", "U", () => undoLast());
  const place = h("p", { class: "place", "aria-live": "polite" });
  const pager = h("nav", { class: "pager", "aria-label": "Samples" }, back, ahead, undo);
  const page = h(
    "div",
    { class: `work ${task.kind}` },
    h("section", { class: "look", "aria-label": "Sample" }, instruction, tools.element, stage),
    side,
  );
  const empty = h("div", { class: "plain" });
  main.replaceChildren(page, empty);

  let shown = null;
  let current = null;
  let stack = null; // the slices of a volume
  let releases = [];
  const clock = stopwatch();

  const release = () => {
    for (const each of releases) each();
    releases = [];
    current?.stop?.();
    current = null;
    stack?.stop();
    stack = null;
  };

  const undoLast = async () => {
    if (!(await feed.undo())) app.say("There is no answer to undo.");
  };

  const submit =
    (item) =>
    (answer, mask = null) => {
      if (shown !== item.id) return; // a second press of the same key
      shown = null;
      feed.answer(item, answer, clock.seconds(), mask, kind.summary(answer));
    };

  const render = () => {
    const item = feed.item;
    app.progress(task);
    back.disabled = feed.at === 0;
    ahead.disabled = !feed.reviewing;
    undo.disabled = feed.trail.length === 0;
    page.hidden = !item;
    empty.hidden = Boolean(item);
    if (!item) {
      release();
      shown = null;
      empty.replaceChildren(...nothingLeft(feed, pager));
      return;
    }
    const words = feed.reviewing
      ? `Answered ${feed.at + 1} of ${feed.trail.length}: ${item.answer ? kind.summary(item.answer) : ""}`
      : "";
    place.textContent = words;
    place.hidden = !words;
    if (shown === item.id) return;
    shown = item.id;
    release();
    clock.start();
    const draft = feed.draft(item);
    viewer.paint = null;
    const seen = viewer.show({
      panes: kind.panes(item),
      size: item.size,
      grey: item.grey,
      geometry: item.geometry,
      ...regionOf(kind, item),
      pair: kind.pair?.(item),
    });
    current = kind.panel({
      task,
      item,
      viewer,
      draft: draft?.answer ?? draft,
      save: (value) => feed.draft(item, value),
      submit: submit(item),
      say: app.say,
    });
    instruction.replaceChildren(current.heading ?? heading(item));
    side.replaceChildren(place, h("p", { class: "hint" }, kind.HINT), current.element, pager);
    releases = [useKeys("This work", current.keys)];
    tools.refresh();
    const here = current;
    seen.then(() => {
      if (here !== current) return;
      tools.refresh();
      here.ready?.();
      stack = slices(viewer, item);
      if (stack) {
        stage.before(stack.element);
        releases.push(useKeys("Slices", stack.keys));
      }
      page.dataset.shown = item.id; // the images are visible
    });
  };

  feed.addEventListener("change", render);
  feed.addEventListener("progress", () => app.progress(task));
  feed.addEventListener("locked", () => app.locked());
  const leave = [
    useKeys("Viewing", tools.keys),
    useKeys("Samples", [
      ["ArrowLeft", "Previous sample", () => feed.previous()],
      ["ArrowRight", "Next sample", () => feed.next()],
      ["u", "Undo the last answer", undoLast],
      ["Ctrl+z", null, undoLast],
    ]),
  ];
  empty.replaceChildren(h("p", {}, "Loading…"));
  page.hidden = true;
  feed.start().catch((error) => app.failed(error));

  return () => {
    release();
    for (const each of leave) each();
    feed.stop();
    viewer.stop();
  };
}

function nothingLeft(feed, pager) {
  if (feed.down) {
    return [
      h("h1", {}, "The server does not respond"),
      h("p", {}, "Your answers are stored in this browser and will be sent when it responds again."),
    ];
  }
  return [
    h("h1", {}, "Nothing left for you here"),
    h("p", {}, `You have answered ${plural(feed.task.progress.done, "item")}. Thank you.`),
    pager,
    h("p", {}, h("a", { href: "#/", class: "go" }, "All work")),
  ];
}

/** Counts the seconds while the page is visible. */
function stopwatch() {
  let start = 0;
  let before = 0;
  const now = () => performance.now() / 1000;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) before += now() - start;
    else start = now();
  });
  return {
    start() {
      start = now();
      before = 0;
    },
    seconds: () => before + (document.hidden ? 0 : now() - start),
  };
}
