/* Selects jobs in a list: all on the page at once, with their number. */
"use strict";
(() => {
  const all = document.getElementById("drq-tick-all");
  if (!all) return;
  const shown = document.getElementById("drq-selected");
  const some = document.querySelector("#drq-list input[name=scope][value=some]");
  const boxes = [...document.querySelectorAll("#drq-list input[name=id]")];

  function count() {
    const ticked = boxes.filter((box) => box.checked).length;
    shown.textContent = ticked ? `(${ticked})` : "";
    all.checked = ticked === boxes.length;
    all.indeterminate = ticked > 0 && ticked < boxes.length;
  }

  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    some.checked = true;
    count();
  });
  for (const box of boxes) {
    box.addEventListener("change", () => {
      some.checked = true;
      count();
    });
  }
  count();
})();
