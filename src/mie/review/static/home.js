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
          `${app.me.dataset.name}, ${plural(app.me.dataset.samples, "sample")}. Every answer is saved at once; you may stop at any time and go on later.`,
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
      // Not under the hands of somebody who is already choosing.
      if (!gone && !main.contains(document.activeElement?.closest("a, button"))) show();
    },
    () => {},
  );
  return () => (gone = true);
}

/** For whoever came by a link and has no password yet. */
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
      app.warn(error.message || "The server does not answer.");
      return;
    }
    app.me.can.set_password = false;
    form.remove();
    app.say("Your password is set. Log in with your name and password next time.");
  };
  const form = h(
    "form",
    { class: "door", onsubmit: set },
    // A password manager stores the two together.
    h("input", { value: app.user.name, autocomplete: "username", hidden: true, readonly: true }),
    h("h2", {}, "Come back without a link"),
    h("p", {}, `Your link worked once. Set a password to log in again later, as ${app.user.name}.`),
    h("label", { for: "password" }, "Password (10 characters or more)"),
    field,
    h("button", {}, "Set password"),
  );
  return form;
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
