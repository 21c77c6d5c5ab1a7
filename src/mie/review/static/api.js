// The server, as this page knows it. Errors are of two sorts: it said no, or it did not answer.

export class Refusal extends Error {
  constructor(status, code, message, wait = 0) {
    super(message);
    Object.assign(this, { status, code, wait });
  }
}

export class Unreachable extends Error {}

let csrf = "";

export function useToken(token) {
  csrf = token;
}

/** JSON in, JSON out. A Blob is sent as the PNG that it is. */
export async function call(method, path, body) {
  const headers = {};
  if (method !== "GET" && csrf) headers["X-CSRF-Token"] = csrf;
  const raw = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = raw ? "image/png" : "application/json";
  let response, text;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined || raw ? body : JSON.stringify(body),
      signal: AbortSignal.timeout(20000),
    });
    text = await response.text();
  } catch (error) {
    throw new Unreachable(error.message);
  }
  const said = parsed(text);
  if (response.ok) return said;
  // A proxy whose server is away answers in its place.
  if (response.status >= 500) throw new Unreachable(`${response.status}`);
  const error = said?.error ?? { code: "invalid", message: response.statusText };
  throw new Refusal(
    response.status,
    error.code,
    error.message,
    Number(response.headers.get("Retry-After")) || 0,
  );
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body = {}) => call("POST", path, body);
