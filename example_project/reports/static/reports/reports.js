// Follows the reports on the page until each is ready or has failed.
"use strict";

const PAUSE = 300; // ms between a response and the next request
const MAX_FAILURES = 20; // failed requests in a row before it gives up

const panel = document.getElementById("reports");
const news = document.getElementById("news");

function draw(record) {
  const row = panel.querySelector(`[data-record="${record.id}"]`);
  if (!row) return; // requested by someone else since the page was loaded
  if (row.dataset.status !== record.status) {
    news.textContent = `The report of ${record.requested} is ${record.status}.`;
  }
  row.dataset.status = record.status;
  row.querySelector('[data-show="status"]').textContent = record.status;
  row.querySelector('[data-show="note"]').textContent = record.note;
  const link = row.querySelector('[data-show="link"]');
  link.hidden = !record.url;
  if (record.url) link.href = record.url;
}

async function follow(url) {
  let failures = 0;
  while (failures < MAX_FAILURES) {
    try {
      const answer = await fetch(url);
      if (!answer.ok) throw new Error(answer.statusText);
      const { records } = await answer.json();
      failures = 0;
      records.forEach(draw);
      if (records.every((record) => record.ended)) return;
    } catch {
      failures += 1;
      const after = failures < MAX_FAILURES ? "Trying again." : "Reload the page to try again.";
      news.textContent = `The site does not answer. ${after}`;
    }
    await new Promise((resume) => setTimeout(resume, PAUSE * (failures + 1)));
  }
}

if (panel.dataset.url) follow(panel.dataset.url);
