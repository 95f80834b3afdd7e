/* Updates parts of a page: polls the server, one request at a time, or listens to server-sent events
   where the server has them. Pauses while the page is hidden. */
"use strict";
(() => {
  const element = document.getElementById("drq-live");
  if (!element) return;
  const options = JSON.parse(element.textContent);
  const state = document.getElementById("drq-state");
  const WORDS = {
    live: "Live",
    hidden: "Paused while hidden",
    lost: "The server does not answer; retrying",
    out: "You are logged out; reload the page",
    gone: "This no longer exists",
  };
  const LOCAL_ATTRIBUTES = { DETAILS: "open", TIME: "title" }; // attributes that the user or page.js has set
  const RATE_WINDOW = 10000; // ms
  const SILENT_POLLS = 10; // without an event, until a stream counts as broken
  const samples = [];
  let failures = 0;

  function setState(what, problems = 0) {
    const words = WORDS[what] + (problems ? `: ${problems} ${problems === 1 ? "problem" : "problems"}` : "");
    state.dataset.state = what;
    if (state.textContent !== words) state.textContent = words; // screen readers announce every write
  }

  /* Makes `old` like `fresh` without touching what is equal, so that focus and selection are kept. */
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else {
      if (old.name === "csrfmiddlewaretoken") return; // the same token, masked differently
      const isMine = (name) => LOCAL_ATTRIBUTES[old.nodeName] === name;
      for (const name of old.getAttributeNames()) {
        if (!isMine(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
      }
      for (const name of fresh.getAttributeNames()) {
        if (isMine(name)) continue;
        const value = fresh.getAttribute(name);
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      }
      morphChildren(old, fresh);
    }
  }

  /* Elements with the same id are the same element wherever they are, so ticks and focus move along. */
  function morphRows(old, fresh) {
    const rows = [...fresh.children];
    const ids = new Set(rows.map((row) => row.dataset.id));
    const known = new Map();
    for (const row of [...old.children]) {
      if (ids.has(row.dataset.id) && !known.has(row.dataset.id)) known.set(row.dataset.id, row);
      else row.remove();
    }
    let at = old.firstElementChild;
    for (const row of rows) {
      const same = known.get(row.dataset.id);
      known.delete(row.dataset.id);
      if (same) morph(same, row);
      if (same && same === at) at = at.nextElementSibling;
      else old.insertBefore(same || row, at);
    }
  }

  function morphChildren(old, fresh) {
    if (fresh.firstElementChild?.dataset.id) return morphRows(old, fresh);
    const olds = [...old.childNodes];
    const news = [...fresh.childNodes];
    news.forEach((node, at) => (at < olds.length ? morph(olds[at], node) : old.append(node)));
    olds.slice(news.length).forEach((node) => node.remove());
  }

  /* Marks the forms that now do something else, so that page.js ignores a click on what was there before. */
  const sent = ({ name, type }) => ["hidden", "submit"].includes(type) && name !== "csrfmiddlewaretoken";
  function markForms(root, at) {
    for (const form of root.querySelectorAll("form")) {
      const does = [form.action, ...[...form.elements].filter(sent).map((field) => field.value)].join(" ");
      if (form.drqDoes !== does) Object.assign(form, { drqDoes: does, drqChanged: at });
    }
  }

  /* The server has escaped all text, as in the page itself; a template runs no scripts. */
  function show(fragments) {
    const focused = document.activeElement;
    for (const [id, html] of Object.entries(fragments)) {
      const target = document.getElementById(id);
      const template = document.createElement("template");
      template.innerHTML = html;
      if (!target) continue;
      morphChildren(target, template.content);
      markForms(target, performance.now());
    }
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    document.dispatchEvent(new Event("drq:shown"));
  }

  /* Rates need two samples: the current one, and the oldest within the window. */
  function remember(sample) {
    const now = Date.now();
    samples.push([now, sample]);
    while (samples.length > 1 && now - samples[0][0] > RATE_WINDOW) samples.shift();
  }

  async function getJson(address) {
    const response = await fetch(address, {
      headers: { Accept: "application/json" },
      redirect: "manual", // to a login, which may be on another site that does not let scripts in
      signal: AbortSignal.timeout(15000),
    });
    const type = response.headers.get("Content-Type") || "";
    if (response.type === "opaqueredirect" || response.status === 403) throw new Error("out");
    if (response.status === 404) throw new Error("gone");
    if (!response.ok || !type.startsWith("application/json")) throw new Error("lost");
    return response.json();
  }

  /* The token of the forms, masked anew in each answer. After another login in another tab it is a new one, and
     the server refuses the old one: the user would lose the jobs that are selected. */
  function renewTokens(token) {
    for (const field of document.getElementsByName("csrfmiddlewaretoken")) field.value = token;
  }

  function apply(answer) {
    show(answer.fragments);
    if (answer.token) renewTokens(answer.token);
    if (answer.look) remember(answer.look);
    if (answer.level) state.dataset.level = answer.level;
    setState("live", answer.problems);
  }

  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const isVisible = () => document.visibilityState === "visible";
  const visible = () =>
    new Promise((done) => {
      if (isVisible()) return done();
      setState("hidden");
      const check = () => {
        if (!isVisible()) return;
        document.removeEventListener("visibilitychange", check);
        done();
      };
      document.addEventListener("visibilitychange", check);
    });

  /* Ends early when the page is hidden or shown: a page that is shown again asks at once. */
  const pause = (ms) =>
    new Promise((done) => {
      const end = () => {
        clearTimeout(timer);
        document.removeEventListener("visibilitychange", end);
        done();
      };
      const timer = setTimeout(end, ms);
      document.addEventListener("visibilitychange", end);
    });

  function address() {
    const url = new URL(options.url, location.href);
    if (samples.length) url.searchParams.set("look", samples[0][1]);
    return url;
  }

  async function poll() {
    for (;;) {
      await visible();
      try {
        apply(await getJson(address()));
        failures = 0;
      } catch (error) {
        if (error.message === "gone") return setState("gone");
        const isOut = error.message === "out"; // until the user logs in again, perhaps in another tab
        failures = isOut ? 1 : failures + 1;
        setState(isOut ? "out" : "lost");
      }
      await pause(Math.min(options.poll * 2 ** failures, 30000));
    }
  }

  /* If the stream breaks or stays silent before its first event, poll instead: a proxy may hold the events back. */
  function listen() {
    let source = null;
    let received = false;
    let timer;
    const close = () => {
      clearTimeout(timer);
      source.close();
      source = null;
    };
    const pollInstead = () => {
      close();
      document.removeEventListener("visibilitychange", onChange);
      poll();
    };
    /* The server sends an event at every poll. A computer that wakes up may wait on a dead connection for ever. */
    const expectEvent = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        setState("lost");
        if (!received) return pollInstead();
        received = false; // as below
        close();
        open();
      }, SILENT_POLLS * options.poll);
    };
    const open = () => {
      source = new EventSource(options.stream);
      source.onmessage = (event) => {
        received = true;
        expectEvent();
        apply(JSON.parse(event.data));
      };
      source.onerror = () => {
        if (!received || source.readyState !== EventSource.CONNECTING) return pollInstead();
        received = false; // the next one must send something
      };
      expectEvent();
    };
    const onChange = () => {
      if (isVisible() && source === null) return open();
      if (!isVisible() && source !== null) {
        close();
        setState("hidden");
      }
    };
    document.addEventListener("visibilitychange", onChange);
    onChange();
  }

  markForms(document);
  window.drqLive = { getJson, show, sleep, visible, options };
  if (options.stream && window.EventSource) listen();
  else poll();
})();
