// Logging in: by a one-time link, or by name and password.

import { get, post, ApiError, useToken } from "./api.js";
import { h } from "./dom.js";

/** Return the profile of the person who is logged in; show a form until somebody is. */
export async function logIn(main) {
  const token = /^#join=(.+)$/.exec(location.hash)?.[1];
  const me = token ? await join(main, token) : await existingSession(main);
  useToken(me.csrf);
  return me;
}

async function existingSession(main, problem = "") {
  try {
    return await get("/api/me");
  } catch (error) {
    if (error instanceof ApiError) return login(main, problem);
    await pause(main);
    return existingSession(main, problem);
  }
}

async function pause(main) {
  main.replaceChildren(
    h("div", { class: "plain" }, h("h1", {}, "The server does not respond"), h("p", {}, "Trying again…")),
  );
  await new Promise((resolve) => setTimeout(resolve, 1500));
}

async function join(main, token) {
  let name = null;
  let password = null;
  let problem = "";
  for (;;) {
    try {
      const me = await post("/api/join", { token, name, password });
      history.replaceState(null, "", "/");
      return me;
    } catch (error) {
      if (!(error instanceof ApiError)) {
        await pause(main);
        continue;
      }
      if (error.status === 410) {
        history.replaceState(null, "", "/");
        return existingSession(main, "This link has been used or has expired. Ask for a new one, or log in.");
      }
      if (error.status !== 422) throw error;
      problem = error.code === "name_needed" ? "" : error.message;
    }
    const input = await form(main, {
      title: "Welcome",
      problem,
      text: "Other raters see neither your name nor your answers. With a password you can log in again without a link.",
      action: "Start",
      password: {
        label: "Password (optional, 10 characters or more)",
        autocomplete: "new-password",
        minlength: 10,
      },
    });
    name = input.name;
    password = input.password || null;
  }
}

async function login(main, problem) {
  for (;;) {
    const input = await form(main, {
      title: "Log in",
      problem,
      text: "Or open the link that you were sent.",
      action: "Log in",
      password: { label: "Password", autocomplete: "current-password", required: true },
    });
    try {
      return await post("/api/login", input);
    } catch (error) {
      problem = error instanceof ApiError ? error.message : "The server does not respond.";
    }
  }
}

function form(main, { title, text, problem, action, password }) {
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
        { class: "plain login", onsubmit },
        h("h1", {}, title),
        problem ? h("p", { class: "error", role: "alert" }, problem) : null,
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
