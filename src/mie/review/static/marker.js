// A point or a box that somebody marks in an image: what the viewer paints with in the place of a brush.

import { canvasOf } from "./pixels.js";

export class PlaceMarker {
  /** `count` 2: a point; 4: a box. `changed` is called with fractions of width and height. */
  constructor([width, height], count, changed) {
    Object.assign(this, { width, height, count, changed });
    this.canvas = canvasOf(width, height);
    this.size = Math.max(2, Math.round(Math.max(width, height) / 60));
  }

  begin(x, y) {
    this.start = [x, y];
    this.move(x, y);
  }

  move(x, y) {
    if (!this.start) return;
    const share = (value, most) => Math.max(0, Math.min(1, value / most));
    const [x0, y0] = [share(this.start[0], this.width), share(this.start[1], this.height)];
    const [x1, y1] = [share(x, this.width), share(y, this.height)];
    const box = [Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1)];
    this.set(this.count === 2 ? [x1, y1] : box);
    this.changed(this.place);
  }

  end() {
    this.start = null;
  }

  cancel() {
    this.start = null;
  }

  set(place) {
    this.place = place;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    if (place.some(Number.isNaN)) return;
    const at = place.map((value, n) => value * (n % 2 ? this.height : this.width));
    for (const [colour, wide] of [
      ["#000", 3],
      ["#ffd166", 1.5],
    ]) {
      context.strokeStyle = colour;
      context.lineWidth = Math.max(1, (wide * Math.max(this.width, this.height)) / 400);
      context.beginPath();
      if (this.count === 2) {
        const arm = 2 * this.size;
        context.moveTo(at[0] - arm, at[1]);
        context.lineTo(at[0] + arm, at[1]);
        context.moveTo(at[0], at[1] - arm);
        context.lineTo(at[0], at[1] + arm);
      } else {
        context.rect(at[0], at[1], at[2] - at[0], at[3] - at[1]);
      }
      context.stroke();
    }
  }
}
