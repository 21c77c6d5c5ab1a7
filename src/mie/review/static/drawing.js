// Draw the images of a viewer on their canvases.

import { difference, lineOf } from "./pixels.js";

/** Draw one figure with the viewer's current zoom, position and window. */
export function drawFrame(viewer, frame) {
  const { canvas, caption } = frame;
  const dense = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width || !height) return;
  if (canvas.width !== Math.round(width * dense)) canvas.width = Math.round(width * dense);
  if (canvas.height !== Math.round(height * dense)) canvas.height = Math.round(height * dense);
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  const { scale, left, top } = viewer.place(canvas);
  const into = () => context.setTransform(scale * dense, 0, 0, scale * dense, left * dense, top * dense);
  into();
  viewer.sharpen(scale * dense);
  context.imageSmoothingEnabled = scale * dense < 8;
  context.imageSmoothingQuality = "high";
  const paint = (pane) => drawPane(viewer, context, pane, scale);
  if (frame.pane) {
    paint(frame.pane);
  } else if (viewer.mode === "slider") {
    const at = viewer.cutPlace(canvas);
    clipped(context, dense, [0, 0, at, height], into, () => paint(frame.a));
    clipped(context, dense, [at, 0, width - at, height], into, () => paint(frame.b));
    context.setTransform(dense, 0, 0, dense, 0, 0);
    drawCut(context, at, height);
    caption.textContent = `left: ${frame.a.title} · right: ${frame.b.title}`;
  } else if (viewer.mode === "blink") {
    const shown = viewer.flipped ? frame.b : frame.a;
    paint(shown);
    caption.textContent = shown.title;
  } else if (frame.a.bitmap && frame.b.bitmap) {
    viewer.difference ??= difference(viewer.source(frame.a), viewer.source(frame.b));
    context.drawImage(viewer.difference.canvas, 0, 0, ...viewer.size);
    drawRegions(viewer, context, frame.a, scale);
    const most = viewer.difference.most;
    caption.textContent = most
      ? `${frame.a.title} against ${frame.b.title}: black is equal, white differs by ${most} of 255`
      : `${frame.a.title} and ${frame.b.title} are equal`;
  }
  if (frame.marks) placeMarks(viewer, frame, { scale, left, top });
  if (!frame.pane) canvas.setAttribute("aria-label", caption.textContent);
  if (viewer.hovered?.canvas === canvas && viewer.paint) drawBrush(viewer, context, dense, scale);
  canvas.style.touchAction =
    viewer.look.zoom === 1 && !viewer.paint && !viewer.levelling && viewer.mode !== "slider"
      ? "pan-y"
      : "none";
  canvas.style.cursor = viewer.paint ? "crosshair" : viewer.levelling ? "ns-resize" : "grab";
}

const LENGTHS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200]; // mm

/** Keep the marks at the visible edges of the image, and the scale bar at a round length. */
function placeMarks(viewer, { canvas, marks }, { scale, left, top }) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const edges = {
    left: Math.max(0, left),
    right: Math.max(0, width - left - viewer.size[0] * scale),
    top: Math.max(0, top),
    bottom: Math.max(0, height - top - viewer.size[1] * scale),
  };
  const put = (mark, sides) => {
    for (const side of mark ? sides : []) mark.style[side] = `${edges[side]}px`;
  };
  put(marks.left, ["left"]);
  put(marks.right, ["right"]);
  put(marks.slice, ["left", "top"]);
  put(marks.scale, ["left", "bottom"]);
  if (!marks.scale) return;
  const perMillimetre = scale / viewer.geometry.mm_per_pixel; // CSS pixels
  const longest = (width - edges.left - edges.right) / 3;
  const length = LENGTHS.findLast((mm) => mm * perMillimetre <= longest);
  marks.scale.hidden = !length;
  marks.scale.textContent = `${length} mm`;
  marks.scale.style.width = `${length * perMillimetre}px`;
}

function drawPane(viewer, context, pane, scale) {
  const source = viewer.source(pane);
  if (source) context.drawImage(source, 0, 0, ...viewer.size);
  else {
    context.fillStyle = "#aab";
    context.font = `${16 / scale}px sans-serif`;
    context.fillText("The image could not be loaded", 12 / scale, 28 / scale);
  }
  drawRegions(viewer, context, pane, scale);
  if (pane.layer && viewer.outline) {
    context.globalAlpha = viewer.opacity || 0.45;
    context.drawImage(pane.layer.canvas, 0, 0, ...viewer.size);
    context.globalAlpha = 1;
  }
}

function drawRegions(viewer, context, pane, scale) {
  for (const region of pane.regions ?? []) {
    if (viewer.opacity > 0) {
      context.globalAlpha = viewer.opacity;
      context.drawImage(region.fill, 0, 0, ...viewer.size);
      context.globalAlpha = 1;
    }
    if (!viewer.outline) continue;
    context.save();
    context.scale(viewer.size[0] / region.width, viewer.size[1] / region.height);
    for (const [colour, wide] of [
      ["rgba(0,0,0,.65)", 3.5],
      [lineOf(region.colour), 1.7],
    ]) {
      context.strokeStyle = colour;
      context.lineWidth = (wide / scale) * (region.width / viewer.size[0]);
      context.stroke(region.path);
    }
    context.restore();
  }
}

function drawBrush(viewer, context, dense, scale) {
  const radius = Math.max(2, (viewer.paint.size / 2) * scale);
  context.setTransform(dense, 0, 0, dense, 0, 0);
  for (const [colour, wide] of [
    ["#000", 3],
    ["#fff", 1.2],
  ]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.beginPath();
    context.arc(viewer.hovered.x, viewer.hovered.y, radius, 0, 7);
    context.stroke();
  }
}

function clipped(context, dense, box, into, paint) {
  context.save();
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.beginPath();
  context.rect(...box);
  context.clip();
  into();
  paint();
  context.restore();
}

function drawCut(context, at, height) {
  for (const [colour, wide] of [
    ["#000", 4],
    ["#fff", 2],
  ]) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = wide;
    context.beginPath();
    context.moveTo(at, 0);
    context.lineTo(at, height);
    context.stroke();
    context.beginPath();
    context.arc(at, height / 2, 9 + wide, 0, 7);
    context.fill();
  }
}
