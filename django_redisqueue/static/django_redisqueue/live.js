/* Keeps parts of a page fresh: asks, waits for the answer, and asks again after a while; or listens
   to a stream of events where the server has one. Stands still while the page cannot be seen. */
"use strict";
(() => {
  const element = document.getElementById("drq-live");
  if (!element) return;
  const options = JSON.parse(element.textContent);
  const state = document.getElementById("drq-state");
  const WORDS = {
    live: "Live",
    hidden: "Paused while hidden",
    lost: "The server does not answer; trying again",
    out: "You were logged out; reload the page",
  };
  const LOOKS = 10000; // ms that rates are taken over
  const looks = [];
  let failures = 0;

  function say(what) {
    if (state.dataset.state === what) return; // a screen reader hears changes only
    state.dataset.state = what;
    state.textContent = WORDS[what];
  }

  /* Makes `old` like `fresh` and touches nothing that is the same, so that focus and selection stay. */
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else {
      if (old.name === "csrfmiddlewaretoken") return; // another mask of the same
      for (const name of old.getAttributeNames()) {
        if (!fresh.hasAttribute(name)) old.removeAttribute(name);
      }
      for (const name of fresh.getAttributeNames()) {
        const value = fresh.getAttribute(name);
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      }
      morphChildren(old, fresh);
    }
  }

  function morphChildren(old, fresh) {
    const olds = [...old.childNodes];
    const news = [...fresh.childNodes];
    news.forEach((node, at) => (at < olds.length ? morph(olds[at], node) : old.append(node)));
    olds.slice(news.length).forEach((node) => node.remove());
  }

  /* The server has escaped all text, as for the page itself; a template runs no scripts. */
  function show(fragments) {
    for (const [id, html] of Object.entries(fragments)) {
      const place = document.getElementById(id);
      const template = document.createElement("template");
      template.innerHTML = html.trim();
      if (place) morphChildren(place, template.content);
    }
  }

  /* Rates are made of two looks: this one, and the oldest of the last ten seconds. */
  function remember(look) {
    const now = Date.now();
    looks.push([now, look]);
    while (looks.length > 1 && now - looks[0][0] > LOOKS) looks.shift();
  }

  async function ask(address) {
    const response = await fetch(address, {
      headers: { Accept: "application/json" },
      signal: AbortSignal.timeout(15000),
    });
    const type = response.headers.get("Content-Type") || "";
    if (response.redirected || response.status === 403) throw new Error("out");
    if (!response.ok || !type.startsWith("application/json")) throw new Error("lost");
    return response.json();
  }

  function take(answer) {
    show(answer.fragments);
    if (answer.look) remember(answer.look);
    say("live");
  }

  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const seen = () => document.visibilityState === "visible";
  const visible = () =>
    new Promise((done) => {
      if (seen()) return done();
      say("hidden");
      const look = () => {
        if (!seen()) return;
        document.removeEventListener("visibilitychange", look);
        done();
      };
      document.addEventListener("visibilitychange", look);
    });

  function address() {
    const url = new URL(options.url, location.href);
    if (looks.length) url.searchParams.set("look", looks[0][1]);
    return url;
  }

  async function poll() {
    for (;;) {
      await visible();
      try {
        take(await ask(address()));
        failures = 0;
      } catch (error) {
        if (error.message === "out") return say("out");
        failures += 1;
        say("lost");
      }
      await sleep(Math.min(options.poll * 2 ** failures, 30000));
    }
  }

  /* A stream that breaks before it has said anything is given up for polling. */
  function listen() {
    let source = null;
    let heard = false;
    const open = () => {
      source = new EventSource(options.stream);
      source.onmessage = (event) => {
        heard = true;
        take(JSON.parse(event.data));
      };
      source.onerror = () => {
        if (heard && source.readyState === EventSource.CONNECTING) return;
        source.close();
        document.removeEventListener("visibilitychange", turn);
        poll();
      };
    };
    const turn = () => {
      if (seen() && source === null) return open();
      if (!seen() && source !== null) {
        source.close();
        source = null;
        say("hidden");
      }
    };
    document.addEventListener("visibilitychange", turn);
    turn();
  }

  window.drqLive = { ask, show, sleep, visible, options };
  if (options.stream && window.EventSource) listen();
  else poll();
})();
