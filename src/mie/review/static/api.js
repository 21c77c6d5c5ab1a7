// Calls to the server. It may reject a request (ApiError) or not respond (NetworkError).

export class ApiError extends Error {
  constructor(status, code, message, wait = 0) {
    super(message);
    Object.assign(this, { status, code, wait });
  }
}

export class NetworkError extends Error {}

let csrf = "";

export function useToken(token) {
  csrf = token;
}

/** Send and receive JSON. A Blob is sent as PNG. */
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
      signal: AbortSignal.timeout(raw ? 180000 : 20000), // a large mask over a slow line
    });
    text = await response.text();
  } catch (error) {
    throw new NetworkError(error.message);
  }
  const reply = parsed(text);
  if (response.ok) return reply;
  // Sent by a proxy if the server behind it is down.
  if (response.status >= 500) throw new NetworkError(`${response.status}`);
  const error = reply?.error ?? { code: "invalid", message: response.statusText };
  throw new ApiError(
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
