// Decoded images, so that the next sample appears at once. The least recently used are dropped.

const MOST = 60; // 4 MB each at 1024 x 1024
let most = MOST;
const decoded = new Map(); // url -> promise of an ImageBitmap

export function image(url) {
  const bitmap = decoded.get(url) ?? load(url);
  decoded.delete(url); // so that it moves to the end
  decoded.set(url, bitmap);
  for (const oldest of decoded.keys()) {
    if (decoded.size <= most) break;
    decoded.delete(oldest);
  }
  return bitmap;
}

/** Keep the slices of a volume: so many images of so many pixels, up to 512 MB. */
export function keep(images, pixels) {
  most = Math.max(MOST, Math.min(images, Math.floor(2 ** 27 / Math.max(1, pixels))));
}

function load(url) {
  const wanted = blobOf(url)
    // The values in the file, without a colour profile.
    .then((blob) => createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" }));
  wanted.catch(() => decoded.delete(url)); // so that it is requested again
  return wanted;
}

async function blobOf(url) {
  if (url.startsWith("data:")) return fromDataUrl(url);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`the image was not sent (${response.status})`);
  return response.blob();
}

/** The page's security policy does not let `fetch` read a data URL. */
export function fromDataUrl(url) {
  const bytes = Uint8Array.from(atob(url.split(",")[1]), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

/** The address of a smaller copy, sharp enough until somebody zooms in. */
export function displayed(url, size) {
  return url && Math.max(...size) > 1024 ? `${url}&side=1024` : url;
}

/** Load all images of an item, the most important first. */
export function prefetch(item) {
  const copies = [item.images.input, item.images.reference, ...item.outputs.map((o) => o.image)];
  const turns = item.turns.flatMap((turn) => [turn.input, turn.output, turn.reference]);
  const masks = [...item.proposals.map((p) => p.image), item.images.mask];
  const urls = [...[...copies, ...turns].map((url) => displayed(url, item.size)), ...masks];
  return Promise.allSettled(urls.filter(Boolean).map(image));
}
