/* Shows the next due times of a periodic job in its form, before it is saved. */
"use strict";
(() => {
  const button = document.getElementById("drq-preview-button");
  if (!button) return;
  const shown = document.getElementById("drq-preview");

  async function preview(event) {
    event.preventDefault();
    try {
      const request = { method: "POST", body: new FormData(button.form), redirect: "manual" };
      const reply = await fetch(button.formAction, request);
      if (reply.type === "opaqueredirect") throw new Error("You are logged out; reload the page");
      if (!reply.ok) throw new Error(`${reply.status} ${reply.statusText}`);
      shown.innerHTML = await reply.text();
    } catch (error) {
      shown.textContent = String(error);
    }
  }

  button.addEventListener("click", preview);
})();
