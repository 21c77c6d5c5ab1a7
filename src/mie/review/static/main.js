// The entry point: log in, then show the page that the address names.

import { ApiError } from "./api.js";
import { consensusPage } from "./consensus.js";
import { button, h } from "./dom.js";
import { keepAsDraft } from "./feed.js";
import { header } from "./header.js";
import { homePage } from "./home.js";
import { showKeys, useKeys } from "./keys.js";
import { logIn } from "./login.js";
import { peoplePage } from "./people.js";
import { AnswerQueue } from "./queue.js";
import { taskPage } from "./task.js";

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const top = header(document.getElementById("bar"));

const app = {
  /** Show a short message for a few seconds. */
  say(text) {
    notice.replaceChildren(h("p", {}, text));
    clearTimeout(app.fading);
    app.fading = setTimeout(() => notice.replaceChildren(), 4000);
  },
  /** Show a message until it is dismissed. */
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
    if (error instanceof ApiError && error.status === 401) app.locked();
    else
      app.warn(
        error.message || "The server does not respond.",
        button("Try again", null, () => location.reload()),
      );
  },
  /** The session has ended. Unsent answers stay in the browser until the same person logs in again. */
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
    leave = taskPage(main, app, task);
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
  app.me = await logIn(main);
  app.user = app.me.user;
  app.queue = new AnswerQueue(`${app.me.dataset.digest.slice(0, 12)}:${app.user.id}`);
  app.queue.addEventListener("change", () => {
    top.saved(app.queue);
    for (const { item, message, answer, mask } of app.queue.rejected.splice(0)) {
      const kept = answer && keepAsDraft(app.user.id, item, { ...answer, painted: mask });
      const after = kept ? "Your work is kept as a draft: it is there when you open the item again. " : "";
      app.warn(`The server rejected the answer to item ${item}: ${message} ${after}`);
    }
  });
  // Nothing is called saved before the server has confirmed it.
  app.queue.addEventListener("sent", ({ detail }) => detail.entry.message && app.say(detail.entry.message[0]));
  app.queue.addEventListener(
    "delayed",
    ({ detail }) => detail.entry.message && app.say(detail.entry.message[1]),
  );
  app.queue.addEventListener("locked", () => app.locked());
  top.saved(app.queue);
  app.queue.flush();
  useKeys("Everywhere", [
    ["?", "This list", showKeys],
    ["t", "Colours: light, dark, or the system's", () => top.nextTheme()],
    ["h", "All work", () => (location.hash = "#/")],
  ]);
  addEventListener("hashchange", route);
  route();
}

// A one-time link that is opened in a tab that already shows the page.
addEventListener("hashchange", () => location.hash.startsWith("#join=") && location.reload());
begin().catch((error) => app.failed(error));
