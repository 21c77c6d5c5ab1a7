// The bar at the top: page title, progress, whether everything is saved, colours.

import { button, duration, h, plural } from "./dom.js";
import { load, store } from "./storage.js";
import { showKeys } from "./keys.js";

const THEMES = ["auto", "light", "dark"];

export function header(element) {
  const title = h("p", { class: "title" });
  const meter = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const count = h("span", { class: "count" });
  const progress = h("div", { class: "progress", hidden: true }, meter, count);
  const saved = h("p", { class: "saved", role: "status" });
  const theme = button("", null, () => setTheme(THEMES[(THEMES.indexOf(chosen()) + 1) % 3]), {
    class: "icon theme",
  });
  const keys = button(h("span", {}, "Keys"), "?", showKeys, { class: "icon keys", "aria-label": "Keys" });
  const links = h("nav", { "aria-label": "Pages" });
  element.replaceChildren(
    h("a", { class: "home", href: "#/" }, "mie review"),
    title,
    progress,
    saved,
    links,
    theme,
    keys,
  );

  const chosen = () => load("theme") ?? "auto";
  const setTheme = (name) => {
    store("theme", name === "auto" ? null : name);
    showTheme();
  };
  const showTheme = () => {
    const name = chosen();
    document.documentElement.dataset.theme = name;
    theme.textContent = { auto: "◐", light: "☀", dark: "☾" }[name];
    theme.setAttribute(
      "aria-label",
      `Colours: ${{ auto: "the system's", light: "light", dark: "dark" }[name]}. Change`,
    );
    theme.title = theme.getAttribute("aria-label");
  };
  showTheme();

  return {
    nextTheme: () => theme.click(),
    page(name, pages, here) {
      title.textContent = name;
      document.title = name ? `${name} – mie review` : "mie review";
      progress.hidden = true;
      links.replaceChildren(
        ...pages.map(([href, label]) =>
          h("a", { href, "aria-current": href === here ? "page" : null }, label),
        ),
      );
    },
    progress({ progress: at }) {
      progress.hidden = false;
      const total = at.done + (at.remaining ?? 0);
      meter.max = total || 1;
      meter.value = at.done;
      const left = at.remaining ? duration(at.seconds_left) : "";
      count.textContent = `${at.done} of ${total}${left ? ` · ${left} left` : ""}`;
    },
    saved(queue) {
      const waiting = queue.waiting().length;
      element.classList.toggle("unsaved", waiting > 0 && queue.late);
      saved.dataset.waiting = waiting;
      const text =
        waiting === 0
          ? "Saved"
          : queue.late
            ? `${plural(waiting, "answer")} not yet saved – trying again`
            : "Saving…";
      if (saved.textContent !== text) saved.textContent = text;
      saved.title = waiting
        ? "Stored in this browser until the server confirms it"
        : "The server has confirmed every answer";
    },
  };
}
