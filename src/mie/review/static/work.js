// One kind of work on the screen: what was asked, the pictures, and the panel where it is answered.
//
// A kind is a module with HINT, panes(item), summary(answer) and panel(given), perhaps pair(item), OUTLINE, REGION.
// `given` is {task, item, begun (a draft or null), save(draft), submit(answer, mask), viewer, say(text)}; a panel
// gives back {element, keys}, perhaps asked (in place of the heading), ready() once the pictures are there, and
// stop(). It may show other panes through `viewer`.

import { button, h } from "./dom.js";
import { Feed } from "./feed.js";
import * as inspect from "./inspect.js";
import { useKeys } from "./keys.js";
import * as mask from "./mask.js";
import * as questions from "./questions.js";
import * as rank from "./rank.js";
import { tools } from "./tools.js";
import { Viewer } from "./viewer.js";

export const KINDS = { inspect, mask, rank, questions };

/** The mask and its classes, where one holds for all panes. */
export const regionOf = (kind, item) =>
  kind.REGION === false ? {} : { mask: item.images.mask, classes: item.classes };

/** Instruction, description and what else is known of a sample. */
export function heading(item) {
  const facts = [item.modality, item.anatomy, item.target, item.task].filter(Boolean);
  return h(
    "div",
    { class: "asked" },
    h("p", { class: "prompt" }, h("span", { class: "label" }, "Instruction"), item.prompt),
    item.description ? h("p", { class: "description" }, item.description) : null,
    h("p", { class: "facts" }, facts.join(" · ")),
  );
}

export function workPage(main, app, task) {
  const kind = KINDS[task.kind];
  const feed = new Feed(task, app.user.id, app.outbox);
  const stage = h("div", { class: "stage" });
  const viewer = new Viewer(stage);
  const looking = tools(viewer, kind.OUTLINE);
  const asked = h("div", {});
  const side = h("section", { class: "panel", "aria-label": "Your answer" });
  const back = button("Previous", "←", () => feed.previous());
  const ahead = button("Next", "→", () => feed.next());
  const undo = button("Undo", "U", () => takeBack());
  const place = h("p", { class: "place", "aria-live": "polite" });
  const walk = h("nav", { class: "walk", "aria-label": "Samples" }, back, ahead, undo);
  const page = h(
    "div",
    { class: `work ${task.kind}` },
    h("section", { class: "look", "aria-label": "Sample" }, asked, looking.element, stage),
    side,
  );
  const empty = h("div", { class: "plain" });
  main.replaceChildren(page, empty);

  let shown = null;
  let current = null;
  let releases = [];
  const clock = stopwatch();

  const release = () => {
    for (const each of releases) each();
    releases = [];
    current?.stop?.();
    current = null;
  };

  const takeBack = async () => {
    const item = await feed.undo();
    app.say(item ? "Taken back. Answer it anew." : "There is nothing to take back.");
  };

  const submit =
    (item) =>
    (answer, mask = null) => {
      if (shown !== item.id) return; // a second press of the same key
      shown = null;
      app.say(`Saved: ${kind.summary(answer)}`);
      feed.answer(item, answer, clock.seconds(), mask);
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
      empty.replaceChildren(...nothing(feed, app, walk));
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
    const begun = feed.draft(item);
    viewer.paint = null;
    const seen = viewer.show({
      panes: kind.panes(item),
      size: item.size,
      grey: item.grey,
      ...regionOf(kind, item),
      pair: kind.pair?.(item),
    });
    current = kind.panel({
      task,
      item,
      viewer,
      begun: begun?.answer ?? begun,
      save: (draft) => feed.draft(item, draft),
      submit: submit(item),
      say: app.say,
    });
    asked.replaceChildren(current.asked ?? heading(item));
    side.replaceChildren(place, h("p", { class: "hint" }, kind.HINT), current.element, walk);
    releases = [useKeys("This work", current.keys)];
    looking.refresh();
    const here = current;
    seen.then(() => {
      if (here !== current) return;
      looking.refresh();
      here.ready?.();
      page.dataset.shown = item.id; // the pictures are there
    });
  };

  feed.addEventListener("change", render);
  feed.addEventListener("progress", () => app.progress(task));
  feed.addEventListener("locked", () => app.locked());
  const leave = [
    useKeys("Looking", looking.keys),
    useKeys("Samples", [
      ["ArrowLeft", "Previous sample", () => feed.previous()],
      ["ArrowRight", "Next sample", () => feed.next()],
      ["u", "Undo: take back the last answer", takeBack],
      ["Ctrl+z", null, takeBack],
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

function nothing(feed, app, walk) {
  if (feed.down) {
    return [
      h("h1", {}, "The server does not answer"),
      h("p", {}, "Your answers are kept in this browser and will be sent as soon as it is back."),
    ];
  }
  return [
    h("h1", {}, "Nothing left for you here"),
    h("p", {}, `You have answered ${feed.task.progress.done}. Thank you.`),
    walk,
    h("p", {}, h("a", { href: "#/", class: "go" }, "All work")),
  ];
}

/** Seconds that somebody looked: a hidden page does not count. */
function stopwatch() {
  let begun = 0;
  let before = 0;
  const now = () => performance.now() / 1000;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) before += now() - begun;
    else begun = now();
  });
  return {
    start() {
      begun = now();
      before = 0;
    },
    seconds: () => before + (document.hidden ? 0 : now() - begun),
  };
}
