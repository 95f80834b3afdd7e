/* On every page: times become relative, with the absolute time and its zone on hover, buttons copy, and
   a double click sends a form once. */
"use strict";
(() => {
  const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]];

  /* Like formatting.duration on the server: at most two units. */
  function duration(seconds) {
    for (const [size, unit, nextSize, nextUnit] of UNITS) {
      if (seconds < size) continue;
      const rest = Math.floor((seconds % size) / nextSize);
      return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
    }
    return `${seconds} s`;
  }

  function relative(at) {
    const seconds = Math.round((Date.now() - at) / 1000);
    if (seconds === 0) return "now";
    return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
  }

  /* The server writes absolute times, which stay without scripts, and where times must be exact. */
  function showTimes() {
    for (const time of document.querySelectorAll(".drq time[datetime]")) {
      const stamp = time.getAttribute("datetime");
      const at = Date.parse(stamp);
      if (Number.isNaN(at)) continue;
      if (time.drqShown !== time.textContent) { // new, or the server has written it again
        const zone = stamp.match(/[+-]\d\d:\d\d$/)?.[0] || "+00:00";
        time.title = `${time.textContent} (UTC${zone === "+00:00" ? "" : zone})`;
      }
      if (!("exact" in time.dataset)) time.textContent = relative(at);
      time.drqShown = time.textContent;
    }
  }

  /* Where the clipboard cannot be used (on a page without TLS), the text is at least selected. */
  async function copy(button) {
    const source = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      getSelection().selectAllChildren(source);
      document.execCommand("copy");
    }
    button.dataset.copy = "done";
  }

  /* On a phone, filters are folded unless one is set; elsewhere they have no summary to unfold them. */
  const phone = matchMedia("(max-width: 767px)");
  function fold() {
    for (const each of document.querySelectorAll("details.drq-fold:not([data-set])")) each.open = !phone.matches;
  }
  phone.addEventListener("change", fold);
  fold();

  /* Between the two clicks of a double click, while the server has not answered yet; and just after an
     update has put another button under the pointer: "Retry" where "Cancel" was. */
  const sent = new WeakSet();
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (sent.has(form) || performance.now() - form.drqChanged < 500) return event.preventDefault();
    sent.add(form);
    setTimeout(() => sent.delete(form), 2000);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button) copy(button);
  });
  document.addEventListener("drq:shown", showTimes);
  setInterval(showTimes, 10000);
  showTimes();
})();
