"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const { sheet, rows } = document.body.dataset;
  const count = Number(rows);
  const place = `mie-sheet-${sheet}`;
  const radios = [...document.querySelectorAll("input[name=answer]")];
  // After a reload, a browser that has just started may give back nothing of the first; the second ends with
  // the tab. Some browsers keep nothing for pages from disk; then only the saved file counts.
  const stores = [() => localStorage, () => sessionStorage];
  let answers = recall(); // row -> { answer, reason }
  let row = 1;
  let saved = Object.keys(answers).length === 0;

  function recall() {
    const kept = {};
    for (const store of stores) {
      try {
        Object.assign(kept, JSON.parse(store().getItem(place)));
      } catch {
        // as if it held nothing
      }
    }
    return kept;
  }

  function keep() {
    saved = false;
    const text = JSON.stringify(answers);
    for (const store of stores) {
      try {
        store().setItem(place, text);
      } catch {
        // see above
      }
    }
    tell();
  }

  function tell() {
    const done = Object.values(answers).filter((one) => one.answer).length;
    const state = saved ? "" : "; not yet saved as a file";
    at("progress").textContent = `${done} of ${count} answered${state}`;
  }

  function show(number) {
    row = Math.min(Math.max(number, 1), count);
    const said = answers[row] || { answer: "", reason: "" };
    at("number").textContent = `${row} of ${count}`;
    {% block pictures %}
    at("instruction").textContent = at(`text-${row}`).textContent;
    for (const name of ["before", "after"]) {
      at(name).src = `data:image/png;base64,${at(`${name}-${row}`).textContent}`;
    }
    {% endblock %}
    for (const radio of radios) radio.checked = radio.value === said.answer;
    at("reason").value = said.reason;
    at("previous").disabled = row === 1;
    at("next").disabled = row === count;
  }

  function say(answer) {
    answers[row] = { answer, reason: at("reason").value.trim() };
    for (const radio of radios) radio.checked = radio.value === answer;
    keep();
  }

  {% block answers %}
  function good() {
    say("good");
    show(row + 1);
  }

  function bad() {
    say("bad");
    at("reason").focus();
  }

  {% endblock %}
  function takeBack() {
    delete answers[row];
    keep();
    show(row);
  }

  function nextOpen() {
    for (let step = 1; step <= count; step += 1) {
      const other = ((row - 1 + step) % count) + 1;
      if (!answers[other]?.answer) return show(other);
    }
    return undefined;
  }

  function save() {
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = ["sheet,row,answer,reason"];
    for (let number = 1; number <= count; number += 1) {
      const said = answers[number] || { answer: "", reason: "" };
      lines.push([sheet, number, said.answer, quoted(said.reason)].join(","));
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    link.download = "answers.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    saved = true;
    tell();
  }

  const keys = {
    {%+ block keys %}g: good, b: bad,{% endblock %} n: nextOpen, u: takeBack, s: save,
    ArrowLeft: () => show(row - 1), ArrowRight: () => show(row + 1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === at("reason")) {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      at("reason").blur();
      {% block enter %}
      if (event.key === "Enter") show(row + 1);
      {% endblock %}
      return;
    }
    const arrow = event.key.startsWith("Arrow");
    if (arrow && event.target.type === "radio") return; // there they choose
    const act = keys[arrow ? event.key : event.key.toLowerCase()];
    if (act) {
      event.preventDefault();
      act();
    }
  });
  for (const radio of radios) radio.addEventListener("change", () => say(radio.value));
  at("reason").addEventListener("input", () => {
    answers[row] = { answer: answers[row]?.answer || "", reason: at("reason").value.trim() };
    keep();
  });
  at("form").addEventListener("submit", (event) => event.preventDefault());
  at("previous").addEventListener("click", () => show(row - 1));
  at("next").addEventListener("click", () => show(row + 1));
  at("open").addEventListener("click", nextOpen);
  at("clear").addEventListener("click", takeBack);
  at("save").addEventListener("click", save);
  {% block more %}
  {% endblock %}
  show(1);
  tell();
})();
