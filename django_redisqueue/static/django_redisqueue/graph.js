/* Moves and zooms the graph of a workflow: by dragging, keys, buttons, and the wheel with Ctrl. */
"use strict";
(() => {
  const STEP = 1.25;
  const PAN = 60; // px
  const HEIGHT = 640; // px at most
  let view = null; // the part of the drawing that is shown; null shows it in its own size
  let drag = null;

  const frame = () => document.getElementById("drq-graph");
  const size = (svg) => ({ width: svg.drqWidth, height: svg.drqHeight });

  /* The server writes the size of the drawing with every update; this script decides what part is shown. */
  function show() {
    const svg = frame()?.querySelector("svg");
    if (!svg) return;
    const box = svg.getAttribute("viewBox").split(" ").map(Number);
    if (!svg.drqShown || svg.getAttribute("viewBox") !== svg.drqShown) [, , svg.drqWidth, svg.drqHeight] = box;
    if (!view) return;
    frame().dataset.moved = "";
    const text = `${view.x} ${view.y} ${view.width} ${view.height}`;
    svg.setAttribute("viewBox", text);
    svg.setAttribute("width", "100%");
    svg.setAttribute("height", String(Math.min(HEIGHT, Math.max(160, svg.drqHeight))));
    svg.drqShown = text;
  }

  function current() {
    if (view) return view;
    return { x: frame().scrollLeft, y: frame().scrollTop, width: frame().clientWidth, height: frame().clientHeight };
  }

  function zoom(factor) {
    const old = current();
    const whole = size(frame().querySelector("svg"));
    const width = Math.min(Math.max(old.width / factor, 100), 4 * Math.max(whole.width, frame().clientWidth));
    const height = old.height * (width / old.width);
    view = { x: old.x + (old.width - width) / 2, y: old.y + (old.height - height) / 2, width, height };
    show();
  }

  function fit() {
    view = { x: 0, y: 0, ...size(frame().querySelector("svg")) };
    show();
  }

  function pan(x, y) {
    const old = current();
    const scale = old.width / frame().clientWidth;
    view = { ...old, x: old.x + x * scale, y: old.y + y * scale };
    show();
  }

  const KEYS = {
    ArrowLeft: () => pan(-PAN, 0), ArrowRight: () => pan(PAN, 0), ArrowUp: () => pan(0, -PAN), ArrowDown: () => pan(0, PAN),
    "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), 0: fit,
  };
  const ACTIONS = { in: () => zoom(STEP), out: () => zoom(1 / STEP), fit };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-zoom]");
    if (button) ACTIONS[button.dataset.zoom]();
    if (drag?.isMoved && event.target.closest("#drq-graph")) event.preventDefault(); // no click on a box
    drag = null;
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest("#drq-graph")) return;
    const act = KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey) || !event.target.closest("#drq-graph")) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? STEP : 1 / STEP);
  }, { passive: false });
  document.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.target.closest("#drq-graph svg")) drag = { x: event.clientX, y: event.clientY };
    else drag = null;
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag || !(event.buttons & 1)) return;
    const [x, y] = [drag.x - event.clientX, drag.y - event.clientY];
    if (!drag.isMoved && Math.hypot(x, y) < 4) return;
    pan(x, y);
    drag = { x: event.clientX, y: event.clientY, isMoved: true };
  });
  document.addEventListener("dragstart", (event) => {
    if (event.target.closest("#drq-graph")) event.preventDefault(); // of a box's link
  });
  document.addEventListener("drq:shown", show);
  show();
})();
