// Slices of volumes: all panes of a volume show the same slice, in the same window.
"use strict";

// A picture from disk may not be read back from a canvas, so the window is a filter: contrast after
// brightness gives contrast * brightness * v + (1 - contrast) / 2, for any slope and offset.
function filterOf(level, width) {
  const low = level - width / 2;
  const contrast = Math.max(0.01, 1 + (2 * low) / width);
  return width >= 255 ? "none" : `brightness(${255 / width / contrast}) contrast(${contrast})`;
}

function load(url) {
  const picture = new Image();
  picture.src = url;
  return picture.decode().then(() => picture);
}

class Volume {
  constructor(element) {
    this.element = element;
    const data = element.dataset;
    for (const name of ["slices", "across", "height", "width"]) this[name] = Number(data[name]);
    this.step = Number(data.step);
    this.slider = element.querySelector(".at");
    this.at = Number(data.start);
    this.panes = [...element.querySelectorAll("figure")].map((figure) => ({
      canvas: figure.querySelector("canvas"),
      sheet: figure.dataset.sheet,
      outline: figure.dataset.outline,
    }));
    element.addEventListener("input", (event) => {
      if (event.target === this.slider) this.go(Number(this.slider.value));
      else this.draw();
    });
    element.addEventListener("change", () => this.draw());
    element.addEventListener("keydown", (event) => this.key(event));
    const area = element.querySelector(".panes");
    area.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    area.addEventListener("pointerdown", () => element.focus({ preventScroll: true }));
    this.turned = 0;
  }

  async load() {
    for (const pane of this.panes) {
      pane.picture = await load(pane.sheet);
      if (pane.outline) pane.lines = await load(pane.outline);
    }
    this.go(this.at);
    this.element.dataset.loaded = "true";
  }

  key(event) {
    if (event.target !== this.element && event.target !== this.slider) return;
    const steps = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    const ends = { Home: 0, End: this.slices - 1 };
    const to = event.key in ends ? ends[event.key] : event.key in steps ? this.at + steps[event.key] : null;
    if (to === null || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.go(to);
  }

  wheel(event) {
    if (event.ctrlKey) return; // the browser's own zoom
    // At either end the page scrolls on.
    const end = event.deltaY < 0 ? this.at === 0 : this.at === this.slices - 1;
    if (end) return;
    event.preventDefault();
    // A touch pad sends many small steps, a wheel a few large ones.
    this.turned += event.deltaMode === 0 ? event.deltaY / 40 : event.deltaY;
    const whole = Math.trunc(this.turned);
    this.turned -= whole;
    if (whole) this.go(this.at + Math.sign(whole) * Math.min(3, Math.abs(whole)));
  }

  go(at) {
    this.at = Math.max(0, Math.min(this.slices - 1, at));
    this.slider.value = this.at;
    const place = `${this.at + 1} of ${this.slices}`;
    this.slider.setAttribute("aria-valuetext", place);
    this.element.querySelector("output").textContent = `${place}, ${(this.at * this.step).toFixed(1)} mm`;
    this.draw();
  }

  draw() {
    const started = performance.now();
    const value = (name) => Number(this.element.querySelector(name).value);
    const filter = filterOf(value(".level"), value(".width"));
    const lines = this.element.querySelector("input.outline").checked;
    const [x, y] = [(this.at % this.across) * this.width, Math.floor(this.at / this.across) * this.height];
    for (const pane of this.panes) {
      if (!pane.picture) continue;
      const context = pane.canvas.getContext("2d");
      const part = [x, y, this.width, this.height, 0, 0, this.width, this.height];
      context.clearRect(0, 0, this.width, this.height);
      context.filter = filter;
      context.drawImage(pane.picture, ...part);
      context.filter = "none";
      if (lines && pane.lines) context.drawImage(pane.lines, ...part);
    }
    this.element.dataset.ms = (performance.now() - started).toFixed(2);
  }
}

for (const element of document.querySelectorAll(".volume")) {
  const volume = new Volume(element);
  const details = element.closest("details");
  if (!details || details.open) volume.load();
  else details.addEventListener("toggle", () => volume.panes[0].picture || volume.load());
}
