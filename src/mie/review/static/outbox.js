// Answers on their way. Each lies in the browser's storage, under a key that the server knows it by, until the
// server has confirmed it; so neither a reload nor a dead server loses one, and none counts twice.

import { call, Refusal } from "./api.js";
import { keep, kept, keptNames } from "./keep.js";
import { fromDataUrl } from "./pictures.js";

const RETRY = [500, 1000, 2000, 4000, 8000];

export class Outbox extends EventTarget {
  constructor(user) {
    super();
    this.prefix = `out:${user}:`;
    this.memory = new Map(); // where storage is full or forbidden
    this.count = 0; // entries since the page was opened
    this.tries = 0;
    this.sending = false;
    this.late = false;
    this.refused = [];
    addEventListener("online", () => this.flush());
    addEventListener("beforeunload", (event) => this.memory.size && event.preventDefault());
  }

  /** What waits, oldest first: {name, path, body, item, mask}. */
  waiting() {
    const stored = keptNames(this.prefix).map((name) => ({ name, ...kept(name) }));
    const held = [...this.memory].map(([name, entry]) => ({ name, ...entry }));
    return [...stored, ...held].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  waitsFor(item) {
    return this.waiting().some((entry) => entry.item === item);
  }

  /** `mask`: a PNG as data URL, to be uploaded before the answer that names it. */
  add({ path, body, item, mask = null }) {
    const stamp = String(Date.now()).padStart(15, "0");
    const number = String((this.count += 1)).padStart(6, "0");
    const key = crypto.randomUUID?.() ?? randomKey();
    const name = `${this.prefix}${stamp}-${number}-${key}`;
    const entry = { path, item, mask, body: { key, ...body } };
    if (!keep(name, entry)) this.memory.set(name, entry);
    this.tell();
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
        this.tell();
      }
    } catch (error) {
      this.failed(error);
    } finally {
      this.sending = false;
    }
  }

  async send(entry) {
    let said;
    try {
      const body = structuredClone(entry.body);
      if (entry.mask) {
        const upload = await call("PUT", `/api/items/${entry.item}/mask`, fromDataUrl(entry.mask));
        body.answer.mask = upload.mask;
      }
      said = await call("POST", entry.path, body);
    } catch (error) {
      const final = error instanceof Refusal && ![401, 429].includes(error.status) && error.code !== "csrf";
      if (!final) throw error;
      this.forget(entry);
      const nothingToUndo = error.status === 409 && entry.path.endsWith("/undo");
      if (!nothingToUndo) this.refused.push({ item: entry.item, message: error.message });
      return;
    }
    this.forget(entry);
    this.dispatchEvent(new CustomEvent("sent", { detail: { entry, said } }));
  }

  failed(error) {
    this.late = true;
    if (error instanceof Refusal && (error.status === 401 || error.code === "csrf")) {
      this.dispatchEvent(new CustomEvent("locked"));
    } else {
      const wait = error.wait ? error.wait * 1000 : RETRY[Math.min(this.tries, RETRY.length - 1)];
      this.tries += 1;
      this.timer = setTimeout(() => this.flush(), wait);
    }
    this.tell();
  }

  forget(entry) {
    keep(entry.name, null);
    this.memory.delete(entry.name);
  }

  tell() {
    this.dispatchEvent(new CustomEvent("change"));
  }
}

// randomUUID exists only where the page came over TLS or from this machine.
function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}
