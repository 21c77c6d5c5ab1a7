// Begin: who is here, what there is to do, and which page the address names.

import { Refusal } from "./api.js";
import { bar } from "./bar.js";
import { consensusPage } from "./consensus.js";
import { button, h } from "./dom.js";
import { homePage } from "./home.js";
import { showKeys, useKeys } from "./keys.js";
import { Outbox } from "./outbox.js";
import { peoplePage } from "./people.js";
import { enter } from "./session.js";
import { workPage } from "./work.js";

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const top = bar(document.getElementById("bar"));

const app = {
  /** A short message that goes away. */
  say(text) {
    notice.replaceChildren(h("p", {}, text));
    clearTimeout(app.fading);
    app.fading = setTimeout(() => notice.replaceChildren(), 4000);
  },
  /** A message that stays until it is read. */
  warn(text, ...more) {
    clearTimeout(app.fading);
    notice.replaceChildren(
      h(
        "p",
        { class: "error", role: "alert" },
        text,
        ...more,
        button("Dismiss", null, () => notice.replaceChildren()),
      ),
    );
  },
  progress: (task) => top.progress(task),
  failed(error) {
    if (error instanceof Refusal && error.status === 401) app.locked();
    else
      app.warn(
        error.message || "The server does not answer.",
        button("Try again", null, () => location.reload()),
      );
  },
  /** The session has ended: what waits stays in the browser until the same person is back. */
  locked() {
    if (app.leaving) return;
    app.leaving = true;
    location.reload();
  },
};

let leave = null;

function pages() {
  const { can, tasks } = app.me;
  return [
    ["#/", "Work"],
    can.adjudicate && [`#/consensus/${tasks[0].kind}`, "Consensus"],
    can.administer && ["#/people", "People"],
  ].filter(Boolean);
}

function route() {
  leave?.();
  leave = null;
  notice.replaceChildren();
  const [page, kind] = location.hash.replace(/^#\/?/, "").split("/");
  const task = app.me.tasks.find((each) => each.kind === page);
  const judged = app.me.tasks.find((each) => each.kind === kind);
  if (task) {
    top.page(task.title, pages(), "");
    top.progress(task);
    leave = workPage(main, app, task);
  } else if (page === "consensus" && judged && app.me.can.adjudicate) {
    top.page("Consensus", pages(), pages()[1][0]);
    leave = consensusPage(main, app, judged);
  } else if (page === "people" && app.me.can.administer) {
    top.page("People", pages(), "#/people");
    leave = peoplePage(main, app);
  } else {
    top.page("", pages(), "#/");
    leave = homePage(main, app);
  }
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

async function begin() {
  app.me = await enter(main);
  app.user = app.me.user;
  app.outbox = new Outbox(`${app.me.dataset.digest.slice(0, 12)}:${app.user.id}`);
  app.outbox.addEventListener("change", () => {
    top.saved(app.outbox);
    for (const { item, message } of app.outbox.refused.splice(0))
      app.warn(`The answer to sample ${item} was not taken: ${message} `);
  });
  app.outbox.addEventListener("locked", () => app.locked());
  top.saved(app.outbox);
  app.outbox.flush();
  useKeys("Everywhere", [
    ["?", "This list", showKeys],
    ["t", "Light, dark, or as the system", () => top.nextTheme()],
    ["h", "All work", () => (location.hash = "#/")],
  ]);
  addEventListener("hashchange", route);
  route();
}

// A link that is opened where the page already is.
addEventListener("hashchange", () => location.hash.startsWith("#join=") && location.reload());
begin().catch((error) => app.failed(error));
