// Follows the job on the page by polling its progress.
"use strict";

const PAUSE = 250; // ms between a response and the next request
const MAX_FAILURES = 20; // failed requests in a row before it gives up

const panel = document.getElementById("job");

function show(name, text) {
  for (const place of panel.querySelectorAll(`[data-show="${name}"]`)) {
    place.textContent = text;
  }
}

function draw(state) {
  panel.dataset.status = state.status;
  for (const name of ["language", "status", "done", "total", "note", "error", "share"]) {
    show(name, state[name]);
  }
  const bar = panel.querySelector("progress");
  bar.max = state.total || 1;
  bar.value = state.done;
  const rows = state.rows.map((row) => {
    const line = document.createElement("tr");
    for (const name of ["component", "translated", "fuzzy", "untranslated"]) {
      const cell = document.createElement(name === "component" ? "th" : "td");
      cell.textContent = row[name];
      line.append(cell);
    }
    return line;
  });
  panel.querySelector("tbody").replaceChildren(...rows);
  panel.querySelector("table").hidden = rows.length === 0;
}

async function follow(url) {
  let failures = 0;
  while (failures < MAX_FAILURES) {
    try {
      const answer = await fetch(url);
      const state = await answer.json();
      if (answer.ok) {
        failures = 0;
        draw(state);
        if (state.ended) return;
      } else {
        failures += 1;
        show("error", state.problem);
      }
    } catch {
      failures += 1;
      show("error", "The site does not answer.");
    }
    await new Promise((resume) => setTimeout(resume, PAUSE * (failures + 1)));
  }
}

if (panel && panel.dataset.url) follow(panel.dataset.url);
