// Mouse, pen and fingers on the images: drag moves, wheel and pinch zoom, the right button sets the window.

/** Calls `moved`, `zoomed`, `levelled` or `setCut` of the viewer; while it has `paint`, paints instead. */
export function listen(stage, viewer) {
  const pointers = new Map();
  let gesture = null;
  let distance = 0; // how far the pointer has moved since it came down

  const at = (event, canvas) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  stage.addEventListener("contextmenu", (event) => event.preventDefault());

  stage.addEventListener("pointerdown", (event) => {
    const canvas = event.target.closest("canvas");
    if (!canvas) return;
    if (event.pointerType === "mouse") event.preventDefault(); // no selection, no drag image
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 2) {
      if (gesture === "paint") viewer.paint.cancel();
      gesture = "pinch";
    } else if (pointers.size === 1) {
      gesture = gestureFor(event, canvas);
      distance = 0;
      if (gesture === "paint") viewer.paint.begin(...viewer.inImage(canvas, ...at(event, canvas)));
    }
  });

  function gestureFor(event, canvas) {
    if (event.button === 2 || (viewer.levelling && event.button === 0)) return viewer.grey ? "level" : "move";
    if (viewer.paint && event.button === 0 && !event.shiftKey) return "paint";
    if (viewer.mode === "slider" && Math.abs(at(event, canvas)[0] - viewer.cutPlace(canvas)) < 28)
      return "cut";
    return "move";
  }

  stage.addEventListener("pointermove", (event) => {
    const canvas = event.target.closest("canvas");
    if (!canvas) return;
    const place = [event.clientX, event.clientY];
    const before = pointers.get(event.pointerId);
    if (!before) {
      viewer.hover(canvas, ...at(event, canvas));
      return;
    }
    const [dx, dy] = [place[0] - before[0], place[1] - before[1]];
    distance += Math.hypot(dx, dy);
    if (gesture === "pinch") pinch(canvas, event, place);
    else if (gesture === "move") viewer.moved(canvas, dx, dy);
    else if (gesture === "level") viewer.levelled(dx, dy);
    else if (gesture === "cut") viewer.setCut(viewer.cutFrom(canvas, at(event, canvas)[0]));
    else if (gesture === "paint") {
      // Include the points between two frames, so that a fast stroke stays smooth.
      const points = event.getCoalescedEvents?.() ?? [];
      for (const point of points.length ? points : [event]) {
        viewer.paint.move(...viewer.inImage(canvas, ...at(point, canvas)));
      }
      viewer.hover(canvas, ...at(event, canvas));
    }
    pointers.set(event.pointerId, place);
  });

  function pinch(canvas, event, place) {
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (!other) return;
    const before = pointers.get(event.pointerId);
    const apart = (p) => Math.max(1, Math.hypot(p[0] - other[0], p[1] - other[1]));
    const box = canvas.getBoundingClientRect();
    const middle = [(place[0] + other[0]) / 2 - box.left, (place[1] + other[1]) / 2 - box.top];
    viewer.zoomed(canvas, apart(place) / apart(before), ...middle);
    viewer.moved(canvas, (place[0] - before[0]) / 2, (place[1] - before[1]) / 2);
  }

  const ended = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    if (gesture === "paint") viewer.paint?.end();
    if (gesture === "move" && distance < 6) viewer.tapped?.(event.target.closest("figure")?.dataset.pane);
    // A finger that stays down after a pinch neither paints nor jumps.
    gesture = pointers.size ? "move" : null;
  };
  stage.addEventListener("pointerup", ended);
  stage.addEventListener("pointercancel", ended);
  stage.addEventListener("pointerout", () => pointers.size === 0 && viewer.hover(null));

  stage.addEventListener(
    "wheel",
    (event) => {
      const canvas = event.target.closest("canvas");
      if (!canvas) return;
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 33 : 1;
      // Through the slices of a volume; with Ctrl, as everywhere else, nearer and farther.
      if (viewer.scrolled && !event.ctrlKey) return viewer.scrolled(event.deltaY * lines);
      viewer.zoomed(
        canvas,
        Math.exp(-Math.max(-80, Math.min(80, event.deltaY * lines)) / 300),
        ...at(event, canvas),
      );
    },
    { passive: false },
  );

  stage.addEventListener(
    "dblclick",
    (event) => event.target.closest("canvas") && !viewer.paint && viewer.reset(),
  );
}
