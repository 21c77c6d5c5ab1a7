// A ranking in progress: groups, best first. Labels in one group are tied; the others are not ranked yet.

export class Ranking {
  constructor(labels, groups = []) {
    this.labels = labels;
    this.groups = groups.map((group) => [...group]);
    this.tie = false; // the next label joins the last group
  }

  get rest() {
    const placed = this.groups.flat();
    return this.labels.filter((label) => !placed.includes(label));
  }

  get complete() {
    return this.rest.length === 0;
  }

  /** Rank a label after all others, or tied with the last. */
  add(label, tied = this.tie) {
    this.remove(label);
    if (tied && this.groups.length) this.groups.at(-1).push(label);
    else this.groups.push([label]);
    this.tie = false;
  }

  remove(label) {
    this.groups = this.groups
      .map((group) => group.filter((each) => each !== label))
      .filter((group) => group.length);
  }

  /** Put a label between two groups: before the group that is now at `place`. */
  insert(label, place) {
    const mark = this.groups[place];
    const alone = mark?.length === 1 && mark[0] === label;
    if (alone) return;
    this.remove(label);
    const at = mark
      ? this.groups.findIndex((group) => group === mark || group.every((each) => mark.includes(each)))
      : this.groups.length;
    this.groups.splice(at < 0 ? this.groups.length : at, 0, [label]);
  }

  tieWith(label, other) {
    if (label === other) return;
    this.remove(label);
    const group = this.groups.find((each) => each.includes(other));
    if (group) group.push(label);
    else this.groups.push([label]);
  }

  /** Move a label one step better (-1) or worse (+1): first out of a tie, then into the next group. */
  step(label, by) {
    const at = this.groups.findIndex((group) => group.includes(label));
    if (at < 0) return;
    if (this.groups[at].length > 1) {
      this.groups[at] = this.groups[at].filter((each) => each !== label);
      this.groups.splice(by < 0 ? at : at + 1, 0, [label]);
    } else if (this.groups[at + by]) {
      this.groups[at + by].push(label);
      this.groups.splice(at, 1);
    }
  }

  undo() {
    const last = this.groups.at(-1);
    if (last) this.remove(last.at(-1));
  }

  toJSON() {
    return this.groups.map((group) => [...group].sort());
  }
}
