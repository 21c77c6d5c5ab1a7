// Pixel operations: window and level, difference, outline of a mask.

export function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

export function pixelsOf(source, width = source.width, height = source.height) {
  const context = canvasOf(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(source, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

function asCanvas(pixels) {
  const canvas = canvasOf(pixels.width, pixels.height);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Stretch the displayed values from centre - width / 2 to centre + width / 2 to 0..255, in each channel. */
export function windowed(source, { centre, width }) {
  const low = centre - width / 2;
  const table = Uint8ClampedArray.from({ length: 256 }, (_, value) => ((value - low) / width) * 255);
  const pixels = pixelsOf(source);
  const data = pixels.data;
  for (let at = 0; at < data.length; at += 4) {
    data[at] = table[data[at]];
    data[at + 1] = table[data[at + 1]];
    data[at + 2] = table[data[at + 2]];
  }
  return asCanvas(pixels);
}

/** The largest difference over the channels, as a heat map; white is `full`, or the largest one in the image. */
export function difference(a, b, full = null) {
  const first = pixelsOf(a);
  const second = pixelsOf(b, a.width, a.height).data;
  const data = first.data;
  let most = 0;
  for (let at = 0; at < data.length; at += 4) {
    const gap = Math.max(
      Math.abs(data[at] - second[at]),
      Math.abs(data[at + 1] - second[at + 1]),
      Math.abs(data[at + 2] - second[at + 2]),
    );
    data[at] = gap;
    if (gap > most) most = gap;
  }
  const heat = Array.from({ length: 256 }, (_, level) =>
    hot((full ?? most) ? Math.min(1, level / (full ?? most)) : 0),
  );
  for (let at = 0; at < data.length; at += 4) {
    const colour = heat[data[at]];
    data[at] = colour[0];
    data[at + 1] = colour[1];
    data[at + 2] = colour[2];
  }
  return { canvas: asCanvas(first), most };
}

const hot = (share) =>
  [share * 3, share * 3 - 1, share * 3 - 2].map((part) => Math.max(0, Math.min(1, part)) * 255);

/** For each class of a mask (values in R): its colour, an outline along the edges of pixels, and its fill. */
export function regions(mask, classes) {
  const { data, width, height } = pixelsOf(mask);
  return classes.map(({ value, colour }) => {
    const inside = (x, y) =>
      x >= 0 && y >= 0 && x < width && y < height && data[4 * (y * width + x)] === value;
    const box = extent(data, width, value);
    const path = new Path2D();
    for (let y = 0; y <= height; y++) along(path, width, (x) => inside(x, y) !== inside(x, y - 1), y, true);
    for (let x = 0; x <= width; x++) along(path, height, (y) => inside(x, y) !== inside(x - 1, y), x, false);
    return { colour, path, fill: filled(data, width, height, value, colour), width, height, box };
  });
}

/** [left, top, right, bottom] of a class, or null. */
function extent(data, width, value) {
  let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] !== value) continue;
    const x = (at / 4) % width;
    bottom = Math.floor(at / 4 / width);
    top = Math.min(top, bottom);
    left = Math.min(left, x);
    right = Math.max(right, x);
  }
  return right < 0 ? null : [left, top, right + 1, bottom + 1];
}

// Draw each run of edges on one line of the pixel grid as one stroke.
function along(path, length, isEdge, line, across) {
  let start = -1;
  for (let at = 0; at <= length; at++) {
    const edge = at < length && isEdge(at);
    if (edge && start < 0) start = at;
    if (!edge && start >= 0) {
      path.moveTo(...(across ? [start, line] : [line, start]));
      path.lineTo(...(across ? [at, line] : [line, at]));
      start = -1;
    }
  }
}

export const COLOURS = { red: [255, 0, 0], green: [0, 255, 0], blue: [0, 0, 255] };
// Pure blue is hard to see on black, so outlines use lighter colours.
const LINES = { red: "#ff3b30", green: "#2ee65c", blue: "#5b9bff" };
export const lineOf = (colour) => LINES[colour] ?? LINES.red;

function filled(data, width, height, value, colour) {
  const [red, green, blue] = COLOURS[colour] ?? COLOURS.red;
  const pixels = new ImageData(width, height);
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] === value) pixels.data.set([red, green, blue, 255], at);
  }
  return asCanvas(pixels);
}
