// The samples in their order: what was answered behind, what is to be done ahead, both prefetched.

import { get, post, Refusal } from "./api.js";
import { keep, kept } from "./keep.js";
import { prefetch } from "./pictures.js";

const AHEAD = 4;

export class Feed extends EventTarget {
  constructor(task, user, outbox) {
    super();
    Object.assign(this, { task, user, outbox });
    this.items = new Map();
    this.trail = []; // ids, oldest answer first
    this.open = []; // ids still to be answered
    this.done = new Set(); // answered here, perhaps not yet told to the server
    this.taken = new Set(); // taken back here, likewise
    this.at = 0; // place in the trail; its length: the first open item
    this.sent = (event) => this.onSent(event.detail);
    outbox.addEventListener("sent", this.sent);
  }

  stop() {
    this.outbox.removeEventListener("sent", this.sent);
    clearTimeout(this.timer);
    this.stopped = true;
  }

  async start() {
    const history = await get(`/api/tasks/${this.task.kind}/history?limit=100`);
    this.trail = history.items.map((entry) => entry.item).reverse();
    for (const entry of this.outbox.waiting()) {
      if (entry.path.endsWith("/answers")) this.done.add(entry.item);
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

  /** Ask for what comes next. Items whose answers are still on their way come again, and are left out. */
  async fill() {
    const unsent = this.outbox.waiting().length;
    const told = this.outbox.count;
    const asked = (this.asked = {});
    try {
      const said = await post(`/api/tasks/${this.task.kind}/next`, { count: Math.min(10, AHEAD + unsent) });
      if (this.stopped || asked !== this.asked) return;
      this.down = false;
      const fresh = said.items.filter((item) => !this.done.has(item.id));
      for (const item of fresh) if (!this.items.has(item.id)) this.items.set(item.id, item);
      // What is on the screen stays there; so does what was taken back, which the server may not know yet.
      const ids = fresh.map((item) => item.id);
      const stay = this.open.filter((id, at) => this.taken.has(id) || (at === 0 && ids.includes(id)));
      this.open = [...stay, ...ids.filter((id) => !stay.includes(id))];
      if (!unsent && told === this.outbox.count) this.task.progress = said.progress;
    } catch (error) {
      if (this.stopped || asked !== this.asked) return;
      if (error instanceof Refusal && error.status === 401) this.dispatchEvent(new CustomEvent("locked"));
      this.down = true;
      this.timer = setTimeout(() => this.fill(), error.wait ? error.wait * 1000 : 1500);
    }
    this.dispatchEvent(new CustomEvent("change"));
    for (const id of this.open) await prefetch(this.items.get(id));
    await this.fetchBefore();
  }

  async fetchBefore() {
    const id = this.trail[this.at - 1];
    if (id === undefined) return null;
    if (!this.items.has(id)) {
      try {
        this.items.set(id, await get(`/api/items/${id}`));
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
    if (id !== undefined && !this.items.has(id)) this.items.set(id, await get(`/api/items/${id}`));
    this.dispatchEvent(new CustomEvent("change"));
    return true;
  }

  answer(item, answer, seconds, mask) {
    item.answer = answer;
    item.repaired = mask;
    this.draft(item, null);
    const again = this.trail.includes(item.id);
    this.done.add(item.id);
    this.taken.delete(item.id);
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
    const body = { version: item.version, seconds: Math.min(86400, Math.round(seconds * 10) / 10), answer };
    this.outbox.add({ path: `/api/items/${item.id}/answers`, body, item: item.id, mask });
  }

  /** Take back the answer that is shown, or else the last one; it is then on the screen again. */
  async undo() {
    if (!this.reviewing && !(await this.previous())) return null;
    const item = this.item;
    this.trail.splice(this.at, 1);
    this.at = this.trail.length;
    this.done.delete(item.id);
    this.taken.add(item.id);
    const taken = item.answer;
    item.answer = null;
    this.open = [item.id, ...this.open];
    this.task.progress.done -= 1;
    this.task.progress.remaining += 1;
    if (taken && !kept(this.draftName(item))) this.draft(item, { answer: taken });
    this.dispatchEvent(new CustomEvent("change"));
    this.outbox.add({ path: `/api/items/${item.id}/undo`, body: {}, item: item.id });
    return item;
  }

  onSent({ entry, said }) {
    if (!this.items.has(entry.item) && !this.done.has(entry.item)) return;
    if (said.progress && this.outbox.waiting().length === 0) {
      this.task.progress = said.progress;
      if (this.open.length < AHEAD) this.fill();
      this.dispatchEvent(new CustomEvent("progress"));
    }
  }

  draftName(item) {
    return `draft:${this.user}:${item.id}`;
  }

  /** What is begun but not sent; it outlives a reload. */
  draft(item, value) {
    if (value === undefined) return kept(this.draftName(item));
    keep(this.draftName(item), value);
    return value;
  }
}
