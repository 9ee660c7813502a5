// What the pages do beyond reading and forms. Everything works without it but live figures.
"use strict";

// Live parts: an element with data-live takes its HTML from the server's events.
for (const part of document.querySelectorAll("[data-live]")) {
  if (!part.dataset.live) continue;
  const events = new EventSource(part.dataset.live);
  let html = null;
  const show = () => { // not under somebody's hands
    if (html !== null && !part.contains(document.activeElement)) { part.innerHTML = html; html = null; }
  };
  events.onmessage = (e) => { html = JSON.parse(e.data); show(); };
  part.addEventListener("focusout", () => setTimeout(show));
  events.addEventListener("done", () => { events.close(); location.reload(); });
  addEventListener("pagehide", () => events.close());
}
