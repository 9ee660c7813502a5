// What the pages do beyond reading and forms. Everything works without it but live figures,
// copy buttons and the place of the head's links.
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

// Where the links of the head scroll, the one of this page is in sight.
const current = document.querySelector("header nav [aria-current]");
const sight = () => current.scrollIntoView({block: "nearest", inline: "center"});
if (current) { sight(); addEventListener("resize", sight); }

// Copy buttons beside commands and tokens, where the browser lets pages copy.
if (navigator.clipboard) for (const pre of document.querySelectorAll("dl.commands pre, pre[aria-label^=Command], pre[data-copy]")) {
  const button = document.createElement("button"), box = document.createElement("div");
  button.type = "button";
  button.className = "plain";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy: " + pre.getAttribute("aria-label"));
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  box.className = "copied";
  pre.replaceWith(box);
  box.append(pre, button);
}
