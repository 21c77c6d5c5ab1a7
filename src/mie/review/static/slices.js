// The slices of a volume: a slider, keys and the wheel move all images through them together.

import { h } from "./dom.js";
import { displayed, image, keep } from "./images.js";

const AT_ONCE = 4; // images that are loaded ahead at the same time

/** Returns {element, keys, stop()}; null for an item that is no volume. Call when the images are visible. */
export function slices(viewer, item) {
  if (!item.volume) return null;
  const { index, slices: count } = item.volume;
  const urlOf = (at) => (url) => url.replace("/images/", `/images/slice${at}-`);
  const addresses = (at) => [...viewer.panes.map((pane) => pane.base ?? pane.url), viewer.maskBase ?? viewer.mask];
  let at = index;
  let turned = 0;
  let stopped = false;

  const slider = h("input", {
    type: "range",
    min: 0,
    max: count - 1,
    value: index,
    "aria-label": "Slice",
    oninput: () => go(Number(slider.value)),
  });
  const readout = h("output", { class: "readout" });
  const element = h("div", { class: "slices", role: "group", "aria-label": "Slices" }, "Slice", slider, readout);

  const tell = () => {
    slider.value = at;
    readout.textContent = `${at + 1} of ${count}`;
    slider.setAttribute("aria-valuetext", readout.textContent);
  };
  const go = async (to) => {
    at = Math.max(0, Math.min(count - 1, to));
    tell();
    const started = performance.now();
    await viewer.swap(urlOf(at), `slice ${at + 1} of ${count}`);
    element.dataset.ms = (performance.now() - started).toFixed(1);
    element.dataset.at = at;
  };

  viewer.scrolled = (by) => {
    turned += by / 60;
    const whole = Math.trunc(turned);
    turned -= whole;
    if (whole) go(at + Math.sign(whole) * Math.min(3, Math.abs(whole)));
  };

  // From the middle outwards, so that the first steps are quick too.
  const ahead = async () => {
    const order = [...Array(count).keys()].sort((a, b) => Math.abs(a - index) - Math.abs(b - index));
    const urls = order.flatMap((n) => addresses(n).filter(Boolean).map(urlOf(n)));
    keep(urls.length + 60, item.size[0] * item.size[1]);
    const load = async () => {
      while (urls.length && !stopped) await image(displayed(urls.shift(), item.size)).catch(() => null);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, load));
    if (!stopped) element.dataset.loaded = "true";
  };
  tell();
  ahead();

  return {
    element,
    keys: [
      ["ArrowUp", "Slice before", () => go(at - 1)],
      ["ArrowDown", "Slice after", () => go(at + 1)],
      ["PageUp", "Ten slices back", () => go(at - 10)],
      ["PageDown", "Ten slices on", () => go(at + 10)],
      ["Home", "First slice", () => go(0)],
      ["End", "Last slice", () => go(count - 1)],
    ],
    stop() {
      stopped = true;
      viewer.scrolled = null;
      element.remove();
    },
  };
}
