// Decoded pictures, so that the next sample is there at once. The oldest are let go.

const MOST = 60; // 4 MB each at 1024 x 1024
const decoded = new Map(); // url -> promise of an ImageBitmap

export function picture(url) {
  const found = decoded.get(url) ?? load(url);
  decoded.delete(url); // so that it becomes the newest
  decoded.set(url, found);
  for (const oldest of decoded.keys()) {
    if (decoded.size <= MOST) break;
    decoded.delete(oldest);
  }
  return found;
}

function load(url) {
  const wanted = blobOf(url)
    // The values in the file, not what a colour profile makes of them.
    .then((blob) => createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" }));
  wanted.catch(() => decoded.delete(url)); // so that it is asked for again
  return wanted;
}

async function blobOf(url) {
  if (url.startsWith("data:")) return fromDataUrl(url);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`the picture was not sent (${response.status})`);
  return response.blob();
}

/** The page's own policy lets `fetch` ask nobody but the server. */
export function fromDataUrl(url) {
  const bytes = Uint8Array.from(atob(url.split(",")[1]), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

/** The address of a copy that is sharp enough until somebody zooms in. */
export function displayed(url, size) {
  return url && Math.max(...size) > 1024 ? `${url}&side=1024` : url;
}

/** All that is needed to show an item, in the order of need. */
export function prefetch(item) {
  const copies = [item.images.input, item.images.reference, ...item.outputs.map((o) => o.image)];
  const turns = item.turns.flatMap((turn) => [turn.input, turn.output, turn.reference]);
  const masks = [...item.proposals.map((p) => p.image), item.images.mask];
  const urls = [...[...copies, ...turns].map((url) => displayed(url, item.size)), ...masks];
  return Promise.allSettled(urls.filter(Boolean).map(picture));
}
