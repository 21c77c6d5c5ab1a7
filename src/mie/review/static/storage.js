// Values that survive a reload: drafts, settings, unsent answers. A browser without storage merely forgets them.

const PREFIX = "mie-review:";

/** Store a value, or remove it if it is null; false if the browser's storage is full or forbidden. */
export function store(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function load(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** The names that start with `prefix`, sorted. */
export function storedNames(prefix) {
  try {
    return Object.keys(localStorage)
      .filter((name) => name.startsWith(PREFIX + prefix))
      .map((name) => name.slice(PREFIX.length))
      .sort();
  } catch {
    return [];
  }
}
