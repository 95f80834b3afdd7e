/* Selects jobs in a list that changes while it is shown: by their ids, so that a selection stays when
   rows move, and when a row goes to another page. */
"use strict";
(() => {
  const form = document.getElementById("drq-list");
  if (!form) return;
  const selected = new Set();
  const elsewhere = document.createElement("span"); // the inputs of those on other pages
  elsewhere.hidden = true;
  form.append(elsewhere);
  const boxes = () => [...form.querySelectorAll("input[type=checkbox][name=id]")];

  function hiddenInput(id) {
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name: "id", value: id });
    return input;
  }

  function show() {
    const here = boxes();
    for (const box of here) box.checked = selected.has(box.value);
    const ids = new Set(here.map((box) => box.value));
    const others = [...selected].filter((id) => !ids.has(id));
    elsewhere.replaceChildren(...others.map(hiddenInput));
    const shown = document.getElementById("drq-selected");
    const more = others.length ? `, ${others.length} not in this list now` : "";
    if (shown) shown.textContent = selected.size ? `(${selected.size}${more})` : "";
    const all = document.getElementById("drq-tick-all");
    const ticked = selected.size - others.length;
    if (all) all.checked = here.length > 0 && ticked === here.length;
    if (all) all.indeterminate = ticked > 0 && ticked < here.length;
  }

  form.addEventListener("change", (event) => {
    const box = event.target;
    const changed = box.id === "drq-tick-all" ? boxes() : boxes().filter((each) => each === box);
    if (!changed.length) return;
    for (const each of changed) {
      if (box.checked) selected.add(each.value);
      else selected.delete(each.value);
    }
    if (box.id === "drq-tick-all" && !box.checked) selected.clear();
    form.querySelector("input[name=scope][value=some]").checked = true;
    show();
  });
  for (const box of boxes()) if (box.checked) selected.add(box.value); // restored by the browser
  document.addEventListener("drq:shown", show);
  show();
})();
