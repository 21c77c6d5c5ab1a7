// Drag chips with mouse, pen or finger. A press without movement stays a click.

const FAR = 6; // px

/** Chips have data-label inside [data-criterion]; `drop(label, criterion, target)` is called when one is dropped. */
export function dragging(root, drop) {
  let held = null;

  root.addEventListener("pointerdown", (event) => {
    const chip = event.target.closest("[data-label]");
    if (!chip || event.button !== 0) return;
    held = {
      chip,
      x: event.clientX,
      y: event.clientY,
      id: event.pointerId,
      criterion: chip.closest("[data-criterion]"),
    };
  });

  root.addEventListener("pointermove", (event) => {
    if (!held || event.pointerId !== held.id) return;
    if (!held.ghost) {
      if (Math.hypot(event.clientX - held.x, event.clientY - held.y) < FAR) return;
      held.ghost = held.chip.cloneNode(true);
      held.ghost.removeAttribute("data-label");
      held.ghost.classList.add("ghost");
      held.ghost.setAttribute("aria-hidden", "true");
      document.body.append(held.ghost);
      held.chip.classList.add("lifted");
      root.setPointerCapture(event.pointerId);
    }
    held.ghost.style.left = `${event.clientX}px`;
    held.ghost.style.top = `${event.clientY}px`;
    mark(under(event));
  });

  const under = (event) => {
    const found = document.elementFromPoint(event.clientX, event.clientY);
    const target = found?.closest("[data-label], [data-gap], [data-tray], [data-line]");
    return target && target !== held.chip && held.criterion.contains(target) ? target : null;
  };

  const mark = (target) => {
    for (const each of root.querySelectorAll(".target")) if (each !== target) each.classList.remove("target");
    target?.classList.add("target");
  };

  const end = (event, isDropped) => {
    if (!held || event.pointerId !== held.id) return;
    const { chip, ghost, criterion } = held;
    if (ghost) {
      const target = under(event);
      ghost.remove();
      mark(null);
      chip.classList.remove("lifted");
      // Ignore the click event that follows a drag.
      addEventListener("click", stop, { capture: true, once: true });
      setTimeout(() => removeEventListener("click", stop, { capture: true }), 0);
      if (isDropped && target) drop(chip.dataset.label, criterion.dataset.criterion, target);
    }
    held = null;
  };
  root.addEventListener("pointerup", (event) => end(event, true));
  root.addEventListener("pointercancel", (event) => end(event, false));
}

function stop(event) {
  event.stopPropagation();
  event.preventDefault();
}
