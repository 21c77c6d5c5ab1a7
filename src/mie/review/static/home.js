// What there is to do.

import { get, post } from "./api.js";
import { button, duration, h, plural } from "./dom.js";

const WHAT = {
  inspect:
    "Look at an image before and after an edit. Accept it, reject it with a reason, or flag it for somebody else.",
  mask: "Choose which outline fits the structure best, or repair it with a brush.",
  rank: "Put the outputs of several unnamed models in order: accuracy, preservation, quality.",
  questions: "Follow an image through several edits and answer yes or no.",
};

export function homePage(main, app) {
  const show = () =>
    main.replaceChildren(
      h(
        "div",
        { class: "plain home" },
        h("h1", {}, `Welcome, ${app.user.name}`),
        h(
          "p",
          {},
          `${app.me.dataset.name}, ${plural(app.me.dataset.samples, "sample")}. Every answer is saved at once; you may stop at any time and go on later.`,
        ),
        h("div", { class: "cards" }, app.me.tasks.map(card)),
        button("Log out", null, () => logOut(app), { class: "quiet" }),
      ),
    );
  show();
  let gone = false;
  get("/api/me").then(
    (me) => {
      app.me.tasks = me.tasks;
      // Not under the hands of somebody who is already choosing.
      if (!gone && !main.contains(document.activeElement?.closest("a, button"))) show();
    },
    () => {},
  );
  return () => (gone = true);
}

async function logOut(app) {
  if (app.outbox.waiting().length) {
    app.warn("Some answers are not yet saved. Wait until they are, then log out. ");
    return;
  }
  await post("/api/logout").catch(() => {});
  location.reload();
}

function card(task) {
  const { done, remaining, seconds_left: left } = task.progress;
  const total = done + (remaining ?? 0);
  const rest = remaining
    ? `${done} of ${total} done${left ? ` · about ${duration(left)} left` : ""}`
    : `${done} done, nothing left`;
  return h(
    "article",
    { class: "card" },
    h("h2", {}, task.title),
    h("p", {}, WHAT[task.kind]),
    h("progress", { max: total || 1, value: done, "aria-label": `Progress of: ${task.title}` }),
    h("p", { class: "small" }, rest),
    h(
      "a",
      { class: "go primary", href: `#/${task.kind}` },
      done ? "Continue" : "Start",
      h("span", { class: "hidden" }, `: ${task.title}`),
    ),
  );
}
