// The toolbar above the images, and its keys.

import { button, choice, h, keycap, tick } from "./dom.js";
import { load, store } from "./storage.js";
import { MODES } from "./viewer.js";

/**
 * Returns {element, keys, refresh()}. Mode, outline and opacity stay the same from sample to sample; where the
 * work is about the outline (`forced`) it is shown at first.
 */
export function toolbar(viewer, forced = false) {
  const settings = load("look") ?? {};
  viewer.mode = settings.mode ?? "side";
  viewer.outline = forced || (settings.outline ?? false);
  viewer.opacity = settings.opacity ?? 0;
  const save = () =>
    store("look", {
      mode: viewer.mode,
      outline: forced ? settings.outline : viewer.outline,
      opacity: viewer.opacity,
    });

  const setMode = (mode) => {
    viewer.setMode(mode);
    save();
  };
  const modes = choice("View", "view-mode", MODES, viewer.mode, setMode, { class: "choice bare" });
  modes.querySelector(".row").append(keycap("V"));

  const cut = h("input", {
    type: "range",
    min: 0,
    max: 100,
    "aria-label": "Position of the slider",
    oninput: () => viewer.setCut(cut.value / 100),
  });
  const cutting = h("span", { class: "tool" }, cut);
  const flip = button("Swap", "X", () => viewer.flip());
  const pairs = [0, 1].map((at) =>
    h("select", {
      "aria-label": at ? "Compare with" : "Compare",
      onchange: (event) => {
        const pair = [...viewer.pair];
        pair[at] = event.target.value;
        viewer.setPair(pair);
      },
    }),
  );
  const pairing = h("span", { class: "tool" }, pairs[0], h("span", { "aria-hidden": "true" }, "–"), pairs[1]);

  const level = button("Window", "W", () => toggleLevel(), {
    "aria-pressed": false,
    title: "Drag on an image: sideways for contrast, up and down for brightness. Also with the right mouse button.",
  });
  const readout = h("output", { class: "readout", "aria-label": "Zoom and window" });
  const toggleLevel = () => {
    viewer.levelling = !viewer.levelling;
    viewer.draw();
    viewer.tell();
  };

  const outline = h("input", {
    type: "checkbox",
    checked: viewer.outline,
    onchange: () => setOutline(outline.checked),
  });
  const setOutline = (on) => {
    viewer.outline = outline.checked = on;
    viewer.draw();
    save();
  };
  const opacity = h("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 5,
    value: viewer.opacity * 100,
    oninput: () => setOpacity(opacity.value / 100),
  });
  const setOpacity = (value) => {
    viewer.opacity = Math.max(0, Math.min(1, value));
    opacity.value = viewer.opacity * 100;
    viewer.draw();
    save();
  };
  const region = h(
    "span",
    { class: "tool" },
    h("label", { class: "check" }, outline, "Outline", keycap("O")),
    h("label", { class: "check" }, "Fill", opacity),
  );

  const zoom = h(
    "span",
    { class: "tool zoom", role: "group", "aria-label": "Zoom" },
    button("−", null, () => viewer.zoomed(null, 1 / 1.4), {
      "aria-label": "Zoom out",
      title: "Zoom out (−)",
    }),
    button("Fit", null, () => viewer.reset(), { title: "Fit the image, reset the window (0)" }),
    button("+", null, () => viewer.zoomed(null, 1.4), { "aria-label": "Zoom in", title: "Zoom in (+)" }),
  );
  const locate = button("Region", "L", () => viewer.locate(), { title: "Zoom to the region" });
  const element = h(
    "div",
    { class: "tools", role: "group", "aria-label": "Viewing tools" },
    modes,
    cutting,
    flip,
    pairing,
    zoom,
    locate,
    level,
    region,
    readout,
  );

  const refresh = () => {
    tick(modes, viewer.mode);
    cutting.hidden = viewer.mode !== "slider";
    flip.hidden = viewer.mode !== "blink";
    cut.value = viewer.cut * 100;
    pairing.hidden = viewer.mode === "side" || viewer.panes.length < 3;
    pairs.forEach((select, at) => {
      const names = viewer.panes.map((pane) => pane.name).join();
      if (select.dataset.names !== names) {
        select.dataset.names = names;
        select.replaceChildren(...viewer.panes.map((pane) => h("option", { value: pane.name }, pane.title)));
      }
      select.value = viewer.pair?.[at] ?? "";
    });
    if (!viewer.grey) viewer.levelling = false;
    level.hidden = !viewer.grey;
    level.setAttribute("aria-pressed", viewer.levelling);
    region.hidden = locate.hidden = !viewer.classes?.length;
    modes.hidden = viewer.panes.length < 2 || viewer.alike;
    const { centre, width } = viewer.window;
    const parts = [
      viewer.look.zoom > 1 ? `${viewer.look.zoom.toFixed(1)}×` : "",
      width === 255 && centre === 127.5 ? "" : `W ${Math.round(width)} L ${Math.round(centre)}`,
    ];
    readout.textContent = parts.filter(Boolean).join(" · ");
  };
  viewer.addEventListener("change", refresh);

  const step = (by) => {
    const at = MODES.findIndex(([mode]) => mode === viewer.mode);
    setMode(MODES[(at + by + MODES.length) % MODES.length][0]);
  };
  const keys = [
    ["v", "Next view: side by side, slider, blink, difference", (event) => step(event.shiftKey ? -1 : 1)],
    ["x", "Swap the two blinking images", () => viewer.flip()],
    [",", "Slider to the left", () => viewer.setCut(viewer.cut - 0.02)],
    [".", "Slider to the right", () => viewer.setCut(viewer.cut + 0.02)],
    ["=", "Zoom in", () => viewer.zoomed(null, 1.25)],
    ["+", null, () => viewer.zoomed(null, 1.25)],
    ["-", "Zoom out", () => viewer.zoomed(null, 0.8)],
    ["0", "Fit the image, reset the window", () => viewer.reset()],
    ["l", "Zoom to the region", () => viewer.locate()],
    ["Shift+ArrowLeft", "Move the image, with all four arrows", () => viewer.pan(-0.08, 0)],
    ["Shift+ArrowRight", null, () => viewer.pan(0.08, 0)],
    ["Shift+ArrowUp", null, () => viewer.pan(0, -0.08)],
    ["Shift+ArrowDown", null, () => viewer.pan(0, 0.08)],
    ["w", "Window: drag on an image, or Ctrl with the arrows", () => viewer.grey && toggleLevel()],
    ["Ctrl+ArrowLeft", "More contrast; ↑ ↓ for brightness", () => viewer.grey && viewer.levelled(-12, 0)],
    ["Ctrl+ArrowRight", null, () => viewer.grey && viewer.levelled(12, 0)],
    ["Ctrl+ArrowUp", null, () => viewer.grey && viewer.levelled(0, -12)],
    ["Ctrl+ArrowDown", null, () => viewer.grey && viewer.levelled(0, 12)],
    ["o", "Outline of the region", () => setOutline(!viewer.outline)],
    ["[", "Less fill", () => setOpacity(viewer.opacity - 0.1)],
    ["]", "More fill", () => setOpacity(viewer.opacity + 0.1)],
  ];
  return { element, keys, refresh };
}
