// The page works without this file but for moving the sliders and switching all pictures at once.
"use strict";

function cut(slider) {
  slider.closest(".stage").style.setProperty("--cut", slider.value + "%");
  slider.setAttribute("aria-valuetext", slider.value + "% input, " + (100 - slider.value) + "% output");
}

document.addEventListener("input", (event) => {
  if (event.target.matches(".cut")) cut(event.target);
});

document.addEventListener("change", (event) => {
  const kind = event.target.dataset.all;
  if (!kind) return;
  for (const box of document.querySelectorAll("input.show-" + kind)) box.checked = event.target.checked;
});

// A browser may bring the values of an earlier visit back.
window.addEventListener("pageshow", () => document.querySelectorAll(".cut").forEach(cut));

// A link into a folded part opens it.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
}
window.addEventListener("hashchange", unfold);
unfold();
