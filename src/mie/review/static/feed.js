// The items in order: the answered ones before, the open ones after, both prefetched.

import { get, post, ApiError } from "./api.js";
import { load, store } from "./storage.js";
import { prefetch } from "./images.js";

const AHEAD = 4;

export class Feed extends EventTarget {
  constructor(task, user, queue) {
    super();
    Object.assign(this, { task, user, queue });
    this.items = new Map();
    this.trail = []; // ids of the answered items, oldest answer first
    this.open = []; // ids still to be answered
    this.done = new Set(); // answered here, perhaps not yet confirmed by the server
    this.undone = new Set(); // undone here, likewise
    this.unsent = new Map(); // item -> {answer, repaired} from before a reload, which the server may not know yet
    this.at = 0; // position in the trail; its length stands for the first open item
    this.sent = (event) => this.onSent(event.detail);
    queue.addEventListener("sent", this.sent);
  }

  stop() {
    this.queue.removeEventListener("sent", this.sent);
    clearTimeout(this.timer);
    this.stopped = true;
  }

  async start() {
    const unsent = this.queue.waiting(); // before the history, which may or may not include them
    const history = await get(`/api/tasks/${this.task.kind}/history?limit=100`);
    this.trail = history.items.map((entry) => entry.item).reverse();
    for (const { path, item, body, mask } of unsent) {
      if (path.endsWith("/answers") && body.answer.kind === this.task.kind) {
        this.done.add(item);
        this.unsent.set(item, { answer: body.answer, repaired: mask });
        if (!this.trail.includes(item)) this.trail.push(item);
      } else if (path === `/api/items/${item}/undo`) {
        this.done.delete(item);
        this.unsent.delete(item);
        this.trail = this.trail.filter((id) => id !== item);
      }
    }
    this.at = this.trail.length;
    await this.fill();
  }

  get item() {
    const id = this.at < this.trail.length ? this.trail[this.at] : this.open[0];
    return this.items.get(id) ?? null;
  }

  get reviewing() {
    return this.at < this.trail.length;
  }

  /** Ask for the next items. Those whose answers are still in the queue are returned again, and are left out. */
  async fill() {
    const unsent = this.queue.waiting().length;
    const counted = this.queue.count;
    const asked = (this.asked = {});
    try {
      const reply = await post(`/api/tasks/${this.task.kind}/next`, { count: Math.min(10, AHEAD + unsent) });
      if (this.stopped || asked !== this.asked) return;
      this.down = false;
      const fresh = reply.items.filter((item) => !this.done.has(item.id));
      for (const item of fresh) if (!this.items.has(item.id)) this.items.set(item.id, item);
      // What is on the screen stays; so does what was undone, which the server may not know yet.
      const ids = fresh.map((item) => item.id);
      const stay = this.open.filter((id, at) => this.undone.has(id) || (at === 0 && ids.includes(id)));
      this.open = [...stay, ...ids.filter((id) => !stay.includes(id))];
      if (!unsent && counted === this.queue.count) this.task.progress = reply.progress;
    } catch (error) {
      if (this.stopped || asked !== this.asked) return;
      if (error instanceof ApiError && error.status === 401) this.dispatchEvent(new CustomEvent("locked"));
      this.down = true;
      this.timer = setTimeout(() => this.fill(), error.wait ? error.wait * 1000 : 1500);
    }
    this.dispatchEvent(new CustomEvent("change"));
    for (const id of this.open) await prefetch(this.items.get(id));
    await this.fetchBefore();
  }

  async fetchItem(id) {
    this.items.set(id, { ...(await get(`/api/items/${id}`)), ...this.unsent.get(id) });
  }

  async fetchBefore() {
    const id = this.trail[this.at - 1];
    if (id === undefined) return null;
    if (!this.items.has(id)) {
      try {
        await this.fetchItem(id);
      } catch {
        return null;
      }
    }
    prefetch(this.items.get(id));
    return this.items.get(id);
  }

  async previous() {
    if (this.at === 0 || !(await this.fetchBefore())) return false;
    this.at -= 1;
    this.dispatchEvent(new CustomEvent("change"));
    this.fetchBefore();
    return true;
  }

  async next() {
    if (!this.reviewing) return false;
    this.at += 1;
    const id = this.trail[this.at];
    if (id !== undefined && !this.items.has(id)) await this.fetchItem(id);
    this.dispatchEvent(new CustomEvent("change"));
    return true;
  }

  answer(item, answer, seconds, mask, summary) {
    item.answer = answer;
    item.repaired = mask;
    this.draft(item, null);
    const again = this.trail.includes(item.id);
    this.done.add(item.id);
    this.undone.delete(item.id);
    this.open = this.open.filter((id) => id !== item.id);
    if (again) {
      this.at = Math.min(this.at + 1, this.trail.length);
    } else {
      this.trail.push(item.id);
      this.at = this.trail.length;
      const progress = this.task.progress;
      progress.done += 1;
      if (progress.remaining !== null) progress.remaining = Math.max(0, progress.remaining - 1);
    }
    this.dispatchEvent(new CustomEvent("change"));
    const body = { version: item.version, seconds: Math.min(86400, Math.round(seconds * 1000) / 1000), answer };
    const message = [`Saved: ${summary}`, `Not saved yet: ${summary}. It will be sent when the server responds.`];
    this.queue.add({ path: `/api/items/${item.id}/answers`, body, item: item.id, mask, message });
  }

  /** Undo the answer on the screen, or else the last one, and show its item again. */
  async undo() {
    if (!this.reviewing && !(await this.previous())) return null;
    const item = this.item;
    this.trail.splice(this.at, 1);
    this.at = this.trail.length;
    this.done.delete(item.id);
    this.undone.add(item.id);
    const undone = item.answer;
    item.answer = null;
    this.open = [item.id, ...this.open];
    this.task.progress.done -= 1;
    this.task.progress.remaining += 1;
    if (undone && !load(this.draftName(item))) this.draft(item, { answer: undone });
    this.dispatchEvent(new CustomEvent("change"));
    const message = ["Undone. Answer it again.", "Not undone yet. It will be sent when the server responds."];
    this.queue.add({ path: `/api/items/${item.id}/undo`, body: {}, item: item.id, message });
    return item;
  }

  onSent({ entry, reply }) {
    if (!this.items.has(entry.item) && !this.done.has(entry.item)) return;
    if (reply.progress && this.queue.waiting().length === 0) {
      this.task.progress = reply.progress;
      if (this.open.length < AHEAD) this.fill();
      this.dispatchEvent(new CustomEvent("progress"));
    }
  }

  draftName(item) {
    return draftName(this.user, item.id);
  }

  /** Get or set an unfinished answer; it survives a reload. */
  draft(item, value) {
    if (value === undefined) return load(this.draftName(item));
    store(this.draftName(item), value);
    return value;
  }
}

const draftName = (user, item) => `draft:${user}:${item}`;

/** Keep an answer that was rejected, unless there is a newer draft; false if the browser cannot store it. */
export function keepAsDraft(user, item, answer) {
  return Boolean(load(draftName(user, item))) || store(draftName(user, item), answer);
}
