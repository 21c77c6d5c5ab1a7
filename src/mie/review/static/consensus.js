// The adjudicator's page: the raters' answers side by side, and the decision that settles an item.

import { get } from "./api.js";
import { button, h, plural } from "./dom.js";
import { figuresLine } from "./figures.js";
import { useKeys } from "./keys.js";
import { prefetch } from "./images.js";
import { toolbar } from "./toolbar.js";
import { Viewer } from "./viewer.js";
import { heading, KINDS, regionOf } from "./task.js";

const WHICH = [
  ["disagreement", "items with disagreement"],
  ["answered", "all answered items"],
  ["settled", "settled items"],
];

export function consensusPage(main, app, task) {
  const kind = KINDS[task.kind];
  const stage = h("div", { class: "stage" });
  const viewer = new Viewer(stage);
  const tools = toolbar(viewer, kind.OUTLINE);
  const figures = h("div", { class: "figures" });
  const instruction = h("div", {});
  const side = h("section", { class: "panel", "aria-label": "Answers and decision" });
  const which = h(
    "select",
    { id: "which", onchange: () => load() },
    WHICH.map(([value, label]) => h("option", { value }, label)),
  );
  const back = button("Previous", "←", () => go(at - 1));
  const ahead = button("Next", "→", () => go(at + 1));
  const place = h("p", { class: "place", "aria-live": "polite" });
  const empty = h("p", { class: "plain", hidden: true });
  const page = h(
    "div",
    { class: `work consensus ${task.kind}` },
    h("section", { class: "look", "aria-label": "Sample" }, instruction, tools.element, stage),
    side,
  );
  const kinds = app.me.tasks.map((each) =>
    h(
      "a",
      { href: `#/consensus/${each.kind}`, "aria-current": each.kind === task.kind ? "page" : null },
      each.title,
    ),
  );
  main.replaceChildren(
    h(
      "div",
      { class: "consensus-bar" },
      h("nav", { "aria-label": "Kinds of work" }, kinds),
      h("span", { class: "which" }, h("label", { for: "which" }, "Show "), which),
      figures,
    ),
    page,
    empty,
  );
  page.hidden = true;

  let listed = [];
  let after = null;
  let at = 0;
  let current = null;
  let release = null;
  let gone = false;

  const load = async () => {
    try {
      const page = await get(`/api/tasks/${task.kind}/consensus?only=${which.value}&limit=200`);
      if (gone) return;
      listed = page.items;
      after = page.after;
      const unsettled = listed.findIndex((entry) => !entry.settled);
      await go(Math.max(0, unsettled));
      const found = await get(`/api/tasks/${task.kind}/figures`);
      figures.replaceChildren(figuresLine(found));
    } catch (error) {
      app.failed(error);
    }
  };

  const more = async () => {
    const page = await get(`/api/tasks/${task.kind}/consensus?only=${which.value}&limit=200&after=${after}`);
    listed.push(...page.items);
    after = page.after;
  };

  const go = async (to) => {
    if (to >= listed.length && after !== null) await more();
    at = Math.max(0, Math.min(listed.length - 1, to));
    if (!listed.length) return nothing();
    const detail = await fetched(at);
    if (gone) return undefined;
    draw(detail);
    if (listed[at + 1])
      fetched(at + 1).then(
        (next) => prefetch(next.item),
        () => {},
      );
    return undefined;
  };

  const cache = new Map();
  const fetched = (number) => {
    const { item } = listed[number];
    if (!cache.has(item)) cache.set(item, get(`/api/tasks/${task.kind}/consensus/${item}`));
    cache.get(item).catch(() => cache.delete(item));
    return cache.get(item);
  };

  const nothing = () => {
    release?.();
    release = null;
    page.hidden = true;
    empty.hidden = false;
    empty.textContent =
      which.value === "disagreement"
        ? "The raters agree on every item, so there is nothing to settle."
        : "There is nothing here yet.";
  };

  const draw = ({ item, answers, consensus }) => {
    release?.();
    current?.stop?.();
    page.hidden = false;
    empty.hidden = true;
    viewer.paint = null;
    const entry = listed[at];
    place.textContent = `${at + 1} of ${listed.length}${after === null ? "" : "+"}${entry.settled ? " · settled" : ""}`;
    back.disabled = at === 0;
    ahead.disabled = at + 1 >= listed.length && after === null;
    const settle = (answer, mask = null) => {
      app.queue.add({
        path: `/api/items/${item.id}/consensus`,
        body: { version: item.version, answer },
        item: item.id,
        mask,
        message: [
          `Settled: ${kind.summary(answer)}`,
          `Not settled yet: ${kind.summary(answer)}. It will be sent when the server responds.`,
        ],
      });
      entry.settled = true;
      cache.set(
        item.id,
        Promise.resolve({ item, answers, consensus: { answer, by: app.user.pseudonym, repaired: mask } }),
      );
      go(Math.min(at + 1, listed.length - 1));
    };
    const undo = () => {
      app.queue.add({
        path: `/api/items/${item.id}/consensus/undo`,
        body: {},
        item: item.id,
        message: ["Decision undone.", "Not undone yet. It will be sent when the server responds."],
      });
      entry.settled = false;
      cache.set(item.id, Promise.resolve({ item, answers, consensus: null }));
      go(at);
    };
    const decided = { ...item, answer: consensus?.answer ?? null, repaired: consensus?.repaired };
    const seen = viewer.show({
      panes: withRaters(kind, item, answers),
      size: item.size,
      grey: item.grey,
      geometry: item.geometry,
      ...regionOf(kind, item),
      pair: kind.pair?.(item),
    });
    current = kind.panel({
      task,
      item: decided,
      viewer,
      draft: null,
      save: () => {},
      submit: settle,
      say: app.say,
    });
    instruction.replaceChildren(current.heading ?? heading(item));
    side.replaceChildren(
      place,
      h("h2", {}, plural(answers.length, "answer")),
      h(
        "ul",
        { class: "answers" },
        answers.map((entry) => answerRow(kind, entry, () => settle({ ...entry.answer, comment: "" }))),
      ),
      ...(consensus
        ? [h("p", { class: "place" }, `Settled by ${consensus.by}: ${kind.summary(consensus.answer)}`)]
        : []),
      h("h2", {}, consensus ? "Change the decision" : "Or decide yourself"),
      current.element,
      h(
        "nav",
        { class: "pager", "aria-label": "Samples" },
        back,
        ahead,
        consensus ? button("Undo", "U", undo) : null,
      ),
    );
    release = useKeys("Decide", [
      ...current.keys,
      ["ArrowLeft", "Previous sample", () => go(at - 1)],
      ["ArrowRight", "Next sample", () => go(at + 1)],
      ["u", "Undo the decision", () => consensus && undo()],
    ]);
    tools.refresh();
    const here = current;
    seen.then(() => {
      if (here !== current) return;
      tools.refresh();
      here.ready?.();
      page.dataset.shown = item.id;
    });
  };

  const leave = useKeys("Viewing", tools.keys);
  load();
  return () => {
    gone = true;
    release?.();
    current?.stop?.();
    leave();
    viewer.stop();
  };
}

function answerRow(kind, { rater, answer }, adopt) {
  return h(
    "li",
    {},
    h("b", {}, rater),
    h("span", {}, kind.summary(answer)),
    answer.comment ? h("q", {}, answer.comment) : null,
    button("Adopt", null, adopt, { "aria-label": `Adopt the answer of ${rater}` }),
  );
}

/** For masks: who chose which, and the repaired masks beside the proposals. */
function withRaters(kind, item, answers) {
  const panes = kind.panes(item);
  if (item.kind !== "mask") return panes;
  const by = (id) =>
    answers
      .filter(({ answer }) => answer.choice === id)
      .map(({ rater }) => rater)
      .join(", ");
  const repaired = answers.filter(({ answer }) => answer.choice === "repaired");
  return [
    ...panes.map((pane) => ({
      ...pane,
      title: `${pane.title}${by(pane.name) ? ` · ${by(pane.name)}` : ""}`,
    })),
    ...repaired.map(({ rater, mask_image: mask }) => ({
      name: `by-${rater}`,
      title: `repaired by ${rater}`,
      url: item.images.input,
      mask,
    })),
  ];
}
