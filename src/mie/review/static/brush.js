// A mask that is painted with brush and eraser: pixel values, a coloured layer, strokes that can be undone.

import { canvasOf, COLOURS, pixelsOf } from "./pixels.js";

export class Brush {
  /** `mask`: a bitmap of grey values; `classes`: [{value, colour}]; `changed` is called after each stroke. */
  constructor(mask, [width, height], classes, changed) {
    Object.assign(this, { width, height, classes, changed });
    const grey = pixelsOf(mask, width, height).data;
    this.values = Uint8Array.from({ length: width * height }, (_, at) => grey[4 * at]);
    this.canvas = canvasOf(width, height);
    this.context = this.canvas.getContext("2d");
    this.colours = new Map(
      classes.map(({ value, colour }) => [value, [...(COLOURS[colour] ?? COLOURS.red), 255]]),
    );
    this.value = classes[0].value;
    this.erasing = false;
    this.size = Math.max(3, Math.round(Math.max(width, height) / 40));
    this.past = [];
    this.future = [];
    this.colour(0, 0, width, height);
  }

  begin(x, y) {
    this.before = this.values.slice();
    this.last = [x, y];
    this.move(x, y);
  }

  /** Set all pixels whose centre is at most half the brush size from the path of the brush. */
  move(x, y) {
    if (!this.before) return;
    const [x0, y0] = this.last;
    const radius = this.size / 2;
    const left = Math.max(0, Math.floor(Math.min(x0, x) - radius));
    const top = Math.max(0, Math.floor(Math.min(y0, y) - radius));
    const right = Math.min(this.width, Math.ceil(Math.max(x0, x) + radius));
    const bottom = Math.min(this.height, Math.ceil(Math.max(y0, y) + radius));
    const [dx, dy] = [x - x0, y - y0];
    const long = dx * dx + dy * dy;
    const value = this.erasing ? 0 : this.value;
    for (let py = top; py < bottom; py++) {
      for (let px = left; px < right; px++) {
        const [cx, cy] = [px + 0.5 - x0, py + 0.5 - y0];
        const share = long ? Math.max(0, Math.min(1, (cx * dx + cy * dy) / long)) : 0;
        const [ex, ey] = [cx - share * dx, cy - share * dy];
        if (ex * ex + ey * ey <= radius * radius) this.values[py * this.width + px] = value;
      }
    }
    this.last = [x, y];
    if (right > left && bottom > top) this.colour(left, top, right - left, bottom - top);
    this.onPaint?.();
  }

  end() {
    if (!this.before) return;
    this.past.push(this.before);
    if (this.past.length > 50) this.past.shift();
    this.future = [];
    this.before = null;
    this.changed();
  }

  /** A second finger came down, so this is not a stroke. */
  cancel() {
    if (!this.before) return;
    this.set(this.before);
    this.before = null;
  }

  undo() {
    this.step(this.past, this.future);
  }

  redo() {
    this.step(this.future, this.past);
  }

  step(from, to) {
    if (!from.length) return;
    to.push(this.values);
    this.set(from.pop());
    this.changed();
  }

  set(values) {
    this.values = values;
    this.colour(0, 0, this.width, this.height);
    this.onPaint?.();
  }

  colour(left, top, width, height) {
    const pixels = new ImageData(width, height);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const colour = this.colours.get(this.values[(top + y) * this.width + left + x]);
        if (colour) pixels.data.set(colour, 4 * (y * width + x));
      }
    }
    this.context.putImageData(pixels, left, top);
  }

  /** Names of the classes that have no pixel. */
  missing() {
    return this.classes.filter(({ value }) => !this.values.includes(value)).map(({ name }) => name);
  }

  /** The mask as a grey PNG in a data URL. */
  toDataUrl() {
    const canvas = canvasOf(this.width, this.height);
    const pixels = new ImageData(this.width, this.height);
    this.values.forEach((value, at) => pixels.data.set([value, value, value, 255], 4 * at));
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas.toDataURL("image/png");
  }
}
