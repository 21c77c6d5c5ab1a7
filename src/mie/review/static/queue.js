// The queue of answers to send. Each stays in the browser's storage until the server has confirmed it, under a key
// by which the server recognises it. So neither a reload nor a stopped server loses an answer or counts it twice.

import { call, ApiError } from "./api.js";
import { load, store, storedNames } from "./storage.js";
import { fromDataUrl } from "./images.js";

const RETRY = [500, 1000, 2000, 4000, 8000]; // ms

/**
 * Events: "change" (something was added, sent, rejected or delayed), "sent" with {entry, reply}, "delayed" with
 * {entry} once per entry that could not be sent, and "locked" when the session has ended.
 */
export class AnswerQueue extends EventTarget {
  constructor(user) {
    super();
    this.prefix = `out:${user}:`;
    this.memory = new Map(); // used if storage is full or forbidden
    this.count = 0; // entries since the page was opened
    this.tries = 0;
    this.sending = false;
    this.late = false;
    this.rejected = []; // {item, message, answer, mask}
    this.announced = new Set(); // names of entries whose delay was reported
    addEventListener("online", () => this.flush());
    addEventListener("beforeunload", (event) => this.memory.size && event.preventDefault());
  }

  /** The unsent entries, oldest first: {name, path, body, item, mask, message}. */
  waiting() {
    const stored = storedNames(this.prefix).map((name) => ({ name, ...load(name) }));
    const inMemory = [...this.memory].map(([name, entry]) => ({ name, ...entry }));
    return [...stored, ...inMemory].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /**
   * `mask`: a PNG as data URL, to be uploaded before the answer that refers to it; `message`: [done, pending],
   * what to tell the person once the server has confirmed the entry, and while it has not.
   */
  add({ path, body, item, mask = null, message = null }) {
    const stamp = String(Date.now()).padStart(15, "0");
    const number = String((this.count += 1)).padStart(6, "0");
    const key = crypto.randomUUID?.() ?? randomKey();
    const name = `${this.prefix}${stamp}-${number}-${key}`;
    const entry = { path, item, mask, message, body: { key, ...body } };
    if (!store(name, entry)) this.memory.set(name, entry);
    this.emit("change");
    if (this.late) this.announceDelay();
    this.flush();
  }

  async flush() {
    if (this.sending) return;
    this.sending = true;
    clearTimeout(this.timer);
    try {
      for (let entry = this.waiting()[0]; entry; entry = this.waiting()[0]) {
        await this.send(entry);
        this.tries = 0;
        this.late = false;
        this.emit("change");
      }
    } catch (error) {
      this.retryAfter(error);
    } finally {
      this.sending = false;
    }
  }

  async send(entry) {
    let reply;
    try {
      const body = structuredClone(entry.body);
      if (entry.mask) {
        const upload = await call("PUT", `/api/items/${entry.item}/mask`, fromDataUrl(entry.mask));
        body.answer.mask = upload.mask;
      }
      reply = await call("POST", entry.path, body);
    } catch (error) {
      const final = error instanceof ApiError && ![401, 429].includes(error.status) && error.code !== "csrf";
      if (!final) throw error;
      this.remove(entry);
      const nothingToUndo = error.status === 409 && entry.path.endsWith("/undo");
      const { answer } = entry.body;
      if (!nothingToUndo)
        this.rejected.push({ item: entry.item, message: error.message, answer, mask: entry.mask });
      return;
    }
    this.remove(entry);
    this.emit("sent", { entry, reply });
  }

  retryAfter(error) {
    this.late = true;
    if (error instanceof ApiError && (error.status === 401 || error.code === "csrf")) {
      this.emit("locked");
    } else {
      const wait = error.wait ? error.wait * 1000 : RETRY[Math.min(this.tries, RETRY.length - 1)];
      this.tries += 1;
      this.timer = setTimeout(() => this.flush(), wait);
      this.announceDelay();
    }
    this.emit("change");
  }

  announceDelay() {
    for (const entry of this.waiting()) {
      if (this.announced.has(entry.name)) continue;
      this.announced.add(entry.name);
      this.emit("delayed", { entry });
    }
  }

  remove(entry) {
    store(entry.name, null);
    this.memory.delete(entry.name);
    this.announced.delete(entry.name);
  }

  emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

// randomUUID exists only for pages from this machine or over TLS.
function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}
