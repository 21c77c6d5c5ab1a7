// Live figures of a task: how much is done, how far raters agree, or why that is unknown.

import { duration, h } from "./dom.js";

const two = (value) => value.toFixed(2);
const interval = ({ low, high }) => (low === null ? "" : `${two(low)}–${two(high)}, `);

export function figuresLine(found) {
  const { accept_rate: rate, agreement } = found;
  const facts = [
    ["answers", `${found.answers_done} of ${found.answers_wanted}`],
    ["disagreements", `${found.items_disagreeing}`],
    rate ? ["accepted", `${two(rate.value)} (${interval(rate)}n ${rate.n})`] : null,
    agreement.krippendorff_alpha !== null
      ? ["Krippendorff α", `${two(agreement.krippendorff_alpha)} (n ${agreement.n})`]
      : null,
    agreement.kendall_w !== null ? ["Kendall W", `${two(agreement.kendall_w)} (n ${agreement.n})`] : null,
    agreement.reason ? ["agreement", agreement.reason] : null,
    found.seconds_left ? ["left", duration(found.seconds_left)] : null,
  ];
  return h(
    "dl",
    {},
    facts.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

export function figuresTable(found) {
  return h(
    "table",
    {},
    h("caption", {}, found.title),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["Rater", "Done", "Seconds each", "Accepted"].map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    h(
      "tbody",
      {},
      found.raters.map(({ rater, done, seconds_per_answer: seconds, accept_rate: accepted }) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, rater),
          h("td", {}, String(done)),
          h("td", {}, seconds === null ? "–" : seconds.toFixed(1)),
          h("td", {}, accepted === null || accepted === undefined ? "–" : two(accepted)),
        ),
      ),
    ),
  );
}
