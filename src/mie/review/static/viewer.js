// Images side by side, under a slider, blinking, or as their difference; all move and zoom together.

import { h } from "./dom.js";
import { drawFrame } from "./drawing.js";
import { listen } from "./gestures.js";
import { displayed, image } from "./images.js";
import { regions, windowed } from "./pixels.js";

export const MODES = [
  ["side", "Side by side"],
  ["slider", "Slider"],
  ["blink", "Blink"],
  ["difference", "Difference"],
];
const WHOLE = { centre: 127.5, width: 255 };
const BLINK = 700; // ms; flashing three times a second or more can trigger seizures

export class Viewer extends EventTarget {
  /** `stage`: an element that gets one figure per pane. */
  constructor(stage) {
    super();
    this.stage = stage;
    this.mode = "side";
    this.cut = 0.5;
    this.outline = false;
    this.opacity = 0;
    this.levelling = false;
    this.paint = null; // a Brush while somebody paints
    this.scrolled = null; // called with how far the wheel was turned, where an item is a volume
    this.tapped = null; // called with the name of a pane that was tapped
    this.panes = [];
    this.look = { zoom: 1, x: 0.5, y: 0.5 };
    this.window = { ...WHOLE };
    listen(stage, this);
    new ResizeObserver(() => this.layout()).observe(stage);
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.blinking = setInterval(
      () => this.mode === "blink" && !this.still && !document.hidden && this.flip(),
      BLINK,
    );
  }

  stop() {
    clearInterval(this.blinking);
  }

  /**
   * panes: [{name, title, url, mask?}]; size: [width, height] of the frame that all are drawn into;
   * geometry: {left, right, mm_per_pixel, slice} or null; mask, classes: the region; pair: the names that slider,
   * blink and difference compare; same: keep zoom and window. Resolves when all images are visible.
   */
  async show({ panes, size, grey, geometry = null, mask = null, classes = [], pair, same = false }) {
    Object.assign(this, { size, grey, geometry, classes, mask, maskBase: null });
    this.alike = panes.every((pane) => pane.url === panes[0].url); // only the outlines differ
    this.pair = pair ?? [panes[0].name, panes.at(-1).name];
    if (!same) {
      this.look = { zoom: 1, x: 0.5, y: 0.5 };
      this.window = { ...WHOLE };
    }
    this.flipped = false;
    this.hovered = null;
    const turn = (this.turn = {});
    const loaded = await Promise.allSettled(panes.map((pane) => image(displayed(pane.url, size))));
    if (turn !== this.turn) return;
    this.panes = panes.map((pane, at) => ({
      ...pane,
      bitmap: loaded[at].value ?? null,
      full: Math.max(...size) <= 1024,
    }));
    this.build();
    this.loadRegions(turn);
  }

  /** Show other images in the same panes: another slice of a volume. Zoom, window and mode stay. */
  async swap(urlOf, slice) {
    const turn = (this.turn = {});
    const wanted = this.panes.map((pane) => urlOf((pane.base ??= pane.url)));
    const loaded = await Promise.allSettled(wanted.map((url) => image(displayed(url, this.size))));
    if (turn !== this.turn) return;
    this.panes.forEach((pane, at) => {
      const bitmap = loaded[at].value ?? null;
      Object.assign(pane, { url: wanted[at], bitmap, windowedAt: null, regions: null });
    });
    this.maskBase ??= this.mask;
    this.mask = this.maskBase && urlOf(this.maskBase);
    this.difference = null;
    for (const { marks } of this.frames) if (marks?.slice) marks.slice.textContent = slice;
    this.draw();
    await this.loadRegions(turn);
  }

  async loadRegions(turn) {
    for (const pane of this.panes) {
      const url = pane.mask ?? this.mask;
      if (!url || !this.classes.length) continue;
      try {
        pane.regions = await regionsOf(url, this.classes);
      } catch {
        continue; // show the image without its outline
      }
      if (turn !== this.turn) return;
      this.draw();
    }
  }

  pane(name) {
    return this.panes.find((pane) => pane.name === name);
  }

  setMode(mode) {
    this.mode = mode;
    this.flipped = false;
    this.build();
    this.tell();
  }

  setPair(pair) {
    this.pair = pair;
    this.difference = null;
    this.build();
    this.tell();
  }

  flip() {
    this.flipped = !this.flipped;
    this.draw();
  }

  build() {
    const [a, b] = this.pair.map((name) => this.pane(name));
    this.difference = null;
    const wanted =
      this.mode === "side" || this.alike || !a || !b
        ? this.panes.map((pane) => ({ title: pane.title, pane, current: pane.current }))
        : [{ title: "", a, b }];
    this.frames = wanted.map((frame) => ({ ...frame, ...figure(frame, this.geometry) }));
    this.stage.replaceChildren(...this.frames.map((frame) => frame.element));
    this.layout();
  }

  /** Choose the number of columns that makes the images largest. */
  layout() {
    if (!this.frames?.length) return;
    const { clientWidth: wide, clientHeight: high } = this.stage;
    const n = this.frames.length;
    const shape = this.size[0] / this.size[1];
    const scale = (columns) => Math.min(wide / columns / shape, high / Math.ceil(n / columns) - 26);
    const columns = [...Array(n).keys()]
      .map((k) => k + 1)
      .reduce((best, k) => (scale(k) > scale(best) ? k : best), 1);
    this.stage.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      for (const frame of this.frames ?? []) drawFrame(this, frame);
    });
  }

  /** The image of a pane with the current window applied. */
  source(pane) {
    if (!pane.bitmap || (this.window.width === 255 && this.window.centre === 127.5)) return pane.bitmap;
    const key = `${this.window.centre} ${this.window.width}`;
    if (pane.windowedAt !== key) {
      pane.windowed = windowed(pane.bitmap, this.window);
      pane.windowedAt = key;
    }
    return pane.windowed;
  }

  // Zoomed in beyond the resolution of the smaller copy: fetch the full image.
  sharpen(scale) {
    for (const pane of this.panes) {
      if (pane.full || !pane.bitmap || (pane.bitmap.width / this.size[0]) * 1.2 > scale) continue;
      pane.full = true;
      image(pane.url).then(
        (bitmap) => {
          Object.assign(pane, { bitmap, windowedAt: null });
          this.difference = null;
          this.draw();
        },
        () => (pane.full = false),
      );
    }
  }

  /** The position of the frame in a canvas, in CSS pixels. */
  place(canvas) {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const scale = Math.min(width / this.size[0], height / this.size[1]) * this.look.zoom;
    const left = width / 2 - this.look.x * this.size[0] * scale;
    const top = height / 2 - this.look.y * this.size[1] * scale;
    return { scale, left, top };
  }

  inImage(canvas, x, y) {
    const { scale, left, top } = this.place(canvas);
    return [(x - left) / scale, (y - top) / scale];
  }

  moved(canvas, dx, dy) {
    const { scale } = this.place(canvas);
    this.lookAt(
      this.look.zoom,
      this.look.x - dx / scale / this.size[0],
      this.look.y - dy / scale / this.size[1],
    );
  }

  /** Zoom by a factor around (x, y), by default around the middle. */
  zoomed(canvas, factor, x, y) {
    canvas ??= this.frames?.[0]?.canvas;
    if (!canvas) return;
    x ??= canvas.clientWidth / 2;
    y ??= canvas.clientHeight / 2;
    const before = this.inImage(canvas, x, y);
    const zoom = Math.max(1, Math.min(40, this.look.zoom * factor));
    this.look.zoom = zoom;
    const after = this.inImage(canvas, x, y);
    this.lookAt(
      zoom,
      this.look.x + (before[0] - after[0]) / this.size[0],
      this.look.y + (before[1] - after[1]) / this.size[1],
    );
  }

  lookAt(zoom, x, y) {
    const inside = (at) => (zoom === 1 ? 0.5 : Math.max(0, Math.min(1, at)));
    this.look = { zoom, x: inside(x), y: inside(y) };
    this.draw();
    this.tell();
  }

  /** Zoom to the region, with some of its surroundings. */
  locate() {
    const found = (this.panes.find((pane) => pane.regions)?.regions ?? []).filter((region) => region.box);
    if (!found.length) return;
    const edge = (at, most) =>
      most(...found.map(({ box, width, height }) => box[at] / (at % 2 ? height : width)));
    const [left, top] = [edge(0, Math.min), edge(1, Math.min)];
    const [right, bottom] = [edge(2, Math.max), edge(3, Math.max)];
    const zoom = Math.max(1, Math.min(8, 1 / (1.6 * Math.max(right - left, bottom - top, 0.01))));
    this.lookAt(zoom, (left + right) / 2, (top + bottom) / 2);
  }

  pan(dx, dy) {
    this.lookAt(this.look.zoom, this.look.x + dx / this.look.zoom, this.look.y + dy / this.look.zoom);
  }

  reset() {
    this.window = { ...WHOLE };
    this.difference = null;
    this.lookAt(1, 0.5, 0.5);
  }

  /** Change the window: sideways its width, up and down its centre. */
  levelled(dx, dy) {
    const width = Math.max(2, Math.min(510, this.window.width + dx));
    this.window = { width, centre: Math.max(0, Math.min(255, this.window.centre + dy / 2)) };
    this.difference = null;
    this.draw();
    this.tell();
  }

  // The position of the slider is a share of the frame, so that it stays put in the image when zoomed.
  cutPlace(canvas) {
    const { scale, left } = this.place(canvas);
    return Math.max(0, Math.min(canvas.clientWidth, left + this.cut * this.size[0] * scale));
  }

  cutFrom(canvas, x) {
    return this.inImage(canvas, x, 0)[0] / this.size[0];
  }

  setCut(cut) {
    this.cut = Math.max(0, Math.min(1, cut));
    this.draw();
    this.tell();
  }

  hover(canvas, x, y) {
    this.hovered = canvas && { canvas, x, y };
    if (this.paint) this.draw();
  }

  tell() {
    this.dispatchEvent(new CustomEvent("change"));
  }
}

const MOST_OUTLINES = 200;
const outlines = new Map(); // the most recent ones, by URL

async function regionsOf(url, classes) {
  if (!outlines.has(url)) {
    outlines.set(url, regions(await image(url), classes));
    if (outlines.size > MOST_OUTLINES) outlines.delete(outlines.keys().next().value);
  }
  return outlines.get(url);
}

function figure({ title, pane }, geometry) {
  const caption = h("figcaption", {}, title);
  const canvas = h("canvas", { role: "img", "aria-label": title });
  const marks = geometry ? marksOf(geometry) : null;
  const element = h(
    "figure",
    { "data-pane": pane?.name },
    caption,
    h("div", { class: "frame" }, canvas, marks ? Object.values(marks) : null),
  );
  return { element, canvas, caption, marks };
}

/** The patient's sides, the slice and a scale bar; `drawFrame` moves them with the image. */
function marksOf({ left, right, slice, mm_per_pixel: mm }) {
  const sides = { R: "patient's right", L: "patient's left", A: "anterior", P: "posterior" };
  const mark = (name, text, title = null) => text && h("span", { class: `mark ${name}`, title }, text);
  return {
    left: mark("left", left, sides[left]),
    right: mark("right", right, sides[right]),
    slice: mark("slice", slice),
    scale: mm ? h("span", { class: "mark scale" }) : null,
  };
}
