// The first page: the tasks, and setting a password.

import { get, post } from "./api.js";
import { button, duration, h, plural } from "./dom.js";

const DESCRIPTIONS = {
  inspect:
    "Look at an image before and after an edit. Accept it, reject it with a reason, or flag it for a second opinion.",
  mask: "Choose the outline that fits the structure best, or repair it with a brush.",
  rank: "Rank the outputs of several models, without their names, by accuracy, preservation and quality.",
  grade: "Grade each triplet from 1 to 3 in four respects. Only samples without any fault stay.",
  question: "Read a question with its key and its images. Accept it, or reject it with a reason.",
  answer: "Answer questions about images, without seeing their keys. Your time is recorded.",
  questions: "Follow an image through several edits and answer yes or no to each question.",
};

export function homePage(main, app) {
  const secret = passwordForm(app);
  const show = () =>
    main.replaceChildren(
      h(
        "div",
        { class: "plain home" },
        h("h1", {}, `Welcome, ${app.user.name}`),
        h(
          "p",
          {},
          `${app.me.dataset.name}, ${plural(app.me.dataset.samples, app.me.dataset.noun)}. Every answer is saved at once. You can stop at any time and resume later.`,
        ),
        h("div", { class: "cards" }, app.me.tasks.map(card)),
        app.me.can.set_password ? secret : null,
        button("Log out", null, () => logOut(app), { class: "quiet" }),
      ),
    );
  show();
  let gone = false;
  get("/api/me").then(
    (me) => {
      app.me.tasks = me.tasks;
      // Do not redraw while somebody is about to press a button, or types.
      if (!gone && !main.contains(document.activeElement?.closest("a, button, input"))) show();
    },
    () => {},
  );
  return () => (gone = true);
}

/** A form for people who joined by a link and have no password yet. */
function passwordForm(app) {
  const field = h("input", {
    id: "password",
    type: "password",
    required: true,
    minlength: 10,
    maxlength: 200,
    autocomplete: "new-password",
  });
  const set = async (event) => {
    event.preventDefault();
    try {
      await post("/api/password", { password: field.value });
    } catch (error) {
      app.warn(error.message || "The server does not respond.");
      return;
    }
    app.me.can.set_password = false;
    form.remove();
    app.say("Your password is set. Log in with your name and password next time.");
  };
  const form = h(
    "form",
    { class: "login", onsubmit: set },
    // So that a password manager stores name and password together.
    h("input", { value: app.user.name, autocomplete: "username", hidden: true, readonly: true }),
    h("h2", {}, "Log in without a link"),
    h("p", {}, `Your link works only once. Set a password to log in again later as ${app.user.name}.`),
    h("label", { for: "password" }, "Password (10 characters or more)"),
    field,
    h("button", {}, "Set password"),
  );
  return form;
}

async function logOut(app) {
  if (app.queue.waiting().length) {
    app.warn("Some answers are not yet saved. Wait until they are before you log out. ");
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
    h("p", {}, DESCRIPTIONS[task.kind]),
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
