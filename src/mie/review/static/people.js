// The administrator's page: people, links, figures, downloads.

import { call, get, post } from "./api.js";
import { button, h } from "./dom.js";
import { figuresLine, figuresTable } from "./figures.js";

export function peoplePage(main, app) {
  const people = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "People" });
  const links = h("div", {});
  const figures = h("div", { class: "sheets" });
  const name = h("input", { id: "invitee", maxlength: 80, autocomplete: "off" });
  const role = h(
    "select",
    { id: "role" },
    ["rater", "adjudicator", "admin"].map((each) => h("option", { value: each }, each)),
  );
  const made = h("div", { "aria-live": "polite" });

  const run = (promise) => promise.catch((error) => app.failed(error));

  const invite = async (event) => {
    event.preventDefault();
    const { url } = await post("/api/invites", {
      name: name.value.trim() || null,
      role: role.value,
      days: 7,
    });
    const field = h("input", {
      value: url,
      readonly: true,
      "aria-label": "Link",
      onfocus: () => field.select(),
    });
    made.replaceChildren(
      h("p", {}, "Send this link. It works once, within seven days, and will not be shown again."),
      field,
    );
    field.focus();
    await load();
  };

  const load = async () => {
    const [{ users }, { invites }] = await Promise.all([get("/api/users"), get("/api/invites")]);
    people.replaceChildren(
      h(
        "table",
        {},
        h("caption", {}, "People"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Name", "Pseudonym", "Role", "Answers", ""].map((each) => h("th", { scope: "col" }, each)),
          ),
        ),
        h(
          "tbody",
          {},
          users.map((user) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, user.name),
              h("td", {}, user.pseudonym),
              h("td", {}, user.role),
              h("td", {}, String(user.answers)),
              h(
                "td",
                {},
                user.id === app.user.id
                  ? "you"
                  : button(
                      user.active ? "Close account" : "Reopen account",
                      null,
                      () => run(post(`/api/users/${user.id}`, { active: !user.active }).then(load)),
                      { "aria-label": `${user.active ? "Close" : "Reopen"} the account of ${user.name}` },
                    ),
              ),
            ),
          ),
        ),
      ),
    );
    const open = invites.filter((each) => !each.used && !each.expired);
    links.replaceChildren(
      open.length ? h("h2", {}, "Unused links") : "",
      h(
        "ul",
        {},
        open.map((each) =>
          h(
            "li",
            {},
            `${each.name ?? "anybody"} (${each.role}) `,
            button("Withdraw", null, () => run(call("DELETE", `/api/invites/${each.id}`).then(load))),
          ),
        ),
      ),
    );
  };

  const count = async () => {
    for (const task of app.me.tasks) {
      const found = await get(`/api/tasks/${task.kind}/figures`);
      figures.append(
        h(
          "section",
          { class: "card" },
          figuresTable({ ...found, title: task.title }),
          h("div", { class: "figures" }, figuresLine(found)),
          h(
            "p",
            {},
            "Download: ",
            h("a", { href: `/api/export/${task.kind}.csv`, download: "" }, `${task.kind}.csv`),
            " · ",
            h("a", { href: `/api/export/${task.kind}.jsonl`, download: "" }, `${task.kind}.jsonl`),
          ),
        ),
      );
    }
  };

  main.replaceChildren(
    h(
      "div",
      { class: "plain people" },
      h("h1", {}, "People and figures"),
      h(
        "form",
        { class: "invite", onsubmit: (event) => run(invite(event)) },
        h("label", { for: "invitee" }, "Name (leave empty to let them choose it)"),
        name,
        h("label", { for: "role" }, "Role"),
        role,
        h("button", { class: "primary" }, "Create link"),
      ),
      made,
      people,
      links,
      figures,
    ),
  );
  run(load());
  run(count());
  return () => {};
}
