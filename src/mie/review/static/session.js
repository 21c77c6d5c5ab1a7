// Coming in: by a link that works once, or by name and password.

import { get, post, Refusal, useToken } from "./api.js";
import { h } from "./dom.js";

/** Who is here; shows a form until somebody is. */
export async function enter(main) {
  const token = /^#join=(.+)$/.exec(location.hash)?.[1];
  const me = token ? await join(main, token) : await known(main);
  useToken(me.csrf);
  return me;
}

async function known(main, told = "") {
  try {
    return await get("/api/me");
  } catch (error) {
    if (error instanceof Refusal) return login(main, told);
    await pause(main);
    return known(main, told);
  }
}

async function pause(main) {
  main.replaceChildren(
    h("div", { class: "plain" }, h("h1", {}, "The server does not answer"), h("p", {}, "Trying again…")),
  );
  await new Promise((resolve) => setTimeout(resolve, 1500));
}

async function join(main, token) {
  let name = null;
  let password = null;
  let told = "";
  for (;;) {
    try {
      const me = await post("/api/join", { token, name, password });
      history.replaceState(null, "", "/");
      return me;
    } catch (error) {
      if (!(error instanceof Refusal)) {
        await pause(main);
        continue;
      }
      if (error.status === 410) {
        history.replaceState(null, "", "/");
        return known(main, "This link was used before or has expired. Ask for a new one, or log in.");
      }
      if (error.status !== 422) throw error;
      told = error.code === "name_needed" ? "" : error.message;
    }
    const given = await form(main, {
      title: "Welcome",
      told,
      text: "Who are you? Other raters see neither your name nor your answers. With a password you can come back without a link.",
      action: "Begin",
      password: {
        label: "Password (optional, 10 characters or more)",
        autocomplete: "new-password",
        minlength: 10,
      },
    });
    name = given.name;
    password = given.password || null;
  }
}

async function login(main, told) {
  for (;;) {
    const given = await form(main, {
      title: "Log in",
      told,
      text: "Or open the link that you were given.",
      action: "Log in",
      password: { label: "Password", autocomplete: "current-password", required: true },
    });
    try {
      return await post("/api/login", given);
    } catch (error) {
      told = error instanceof Refusal ? error.message : "The server does not answer.";
    }
  }
}

function form(main, { title, text, told, action, password }) {
  const { label, ...attributes } = password;
  return new Promise((resolve) => {
    const name = h("input", {
      id: "name",
      name: "name",
      required: true,
      maxlength: 80,
      autocomplete: "username",
    });
    const secret = h("input", {
      id: "password",
      name: "password",
      type: "password",
      maxlength: 200,
      ...attributes,
    });
    const onsubmit = (event) => {
      event.preventDefault();
      resolve({ name: name.value.trim(), password: secret.value });
    };
    main.replaceChildren(
      h(
        "form",
        { class: "plain door", onsubmit },
        h("h1", {}, title),
        told ? h("p", { class: "error", role: "alert" }, told) : null,
        h("p", {}, text),
        h("label", { for: "name" }, "Name"),
        name,
        h("label", { for: "password" }, label),
        secret,
        h("button", { class: "primary" }, action),
      ),
    );
    name.focus();
  });
}
