// What must outlive the page: drafts and settings. A browser that forbids storage only forgets.

const PREFIX = "mie-review:";

export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or forbidden
  }
}

export function kept(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** The names that begin so, in order. */
export function keptNames(beginning) {
  try {
    return Object.keys(localStorage)
      .filter((name) => name.startsWith(PREFIX + beginning))
      .map((name) => name.slice(PREFIX.length))
      .sort();
  } catch {
    return [];
  }
}
