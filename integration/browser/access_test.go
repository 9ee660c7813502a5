package browser

// accessible is a script that returns what keeps a page from being used with a keyboard, with a
// screen reader, or in bad light: WCAG 2.2 1.1.1, 1.3.1, 1.4.3, 1.4.10, 2.4.1, 2.4.2, 2.4.4, 3.1.1,
// 4.1.1 and 4.1.2, as far as a script can find out. It also returns what a wide window does not
// show although it can be pressed.
const accessible = `(() => {
  const found = [];
  const bad = (what, e) => found.push(what + (e ? ": " + e.outerHTML.slice(0, 160) : ""));
  const seen = e => { const r = e.getBoundingClientRect(), s = getComputedStyle(e); return r.width > 0 && r.height > 0 && s.visibility !== "hidden"; };
  if (!document.documentElement.lang) bad("the page has no language");
  if (!document.title.trim()) bad("the page has no title");
  if (document.querySelectorAll("main").length !== 1) bad("the page has not one main part");
  if (document.querySelectorAll("h1").length !== 1) bad("the page has " + document.querySelectorAll("h1").length + " h1");
  let level = 0;
  for (const h of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
    const n = +h.tagName[1];
    if (n > level + 1) bad("a heading skips a level", h);
    if (!h.textContent.trim()) bad("an empty heading", h);
    level = n;
  }
  const ids = new Set();
  for (const e of document.querySelectorAll("[id]")) { if (ids.has(e.id)) bad("an id is there twice", e); ids.add(e.id); }
  for (const e of document.querySelectorAll("[aria-labelledby],[aria-describedby],label[for]"))
    for (const id of (e.getAttribute("aria-labelledby") || e.getAttribute("aria-describedby") || e.getAttribute("for")).split(/\s+/))
      if (!document.getElementById(id)) bad("it refers to nothing", e);
  const name = e => (e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") || "").split(/\s+/).map(i => document.getElementById(i)?.textContent || "").join(" ")
    || e.textContent || e.title || [...e.querySelectorAll("img[alt]")].map(i => i.alt).join(" ")).trim();
  for (const e of document.querySelectorAll("a[href],button,summary,[role=button]")) if (seen(e) && !name(e)) bad("nothing tells what it does", e);
  for (const e of document.querySelectorAll("input:not([type=hidden]),select,textarea"))
    if (seen(e) && !(e.labels && e.labels.length) && !e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby")) bad("a field without a label", e);
  for (const e of document.querySelectorAll("img")) if (!e.hasAttribute("alt")) bad("a picture without a text", e);
  for (const e of document.querySelectorAll("svg")) if (seen(e) && e.getAttribute("aria-hidden") !== "true" && !e.closest("[aria-hidden=true]") &&
    !e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby") && !e.querySelector("title")) bad("a drawing without a text", e);
  for (const e of document.querySelectorAll("meter,progress")) if (!e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby") && !(e.labels && e.labels.length)) bad("a bar without a label", e);
  for (const e of document.querySelectorAll("table")) {
    if (!e.querySelector("th")) bad("a table without headings", e);
    for (const th of e.querySelectorAll("th")) if (!th.scope) bad("a table's heading without a scope", th);
  }
  for (const e of document.querySelectorAll("[tabindex]")) if (e.tabIndex > 0) bad("it takes the focus out of order", e);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 1) {
    const out = [...document.querySelectorAll("body *")].find(e => seen(e) && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest(".table,pre,svg"));
    bad("the page is " + wide + " px wider than the window", out);
  }
  // In a wide window tables fit, and what can be pressed is there without scrolling a table sideways.
  if (innerWidth >= 1280) for (const e of document.querySelectorAll(".table"))
    if (e.scrollWidth > e.clientWidth + 1) bad("a table of " + e.scrollWidth + " px in a place of " + e.clientWidth, e);
  if (innerWidth >= 1280) for (const e of document.querySelectorAll(".table button,.table input,.table a[href]")) {
    const r = e.getBoundingClientRect(), t = e.closest(".table").getBoundingClientRect();
    if (seen(e) && (e.tagName === "A" ? r.left + 20 : r.right) > t.right + 1) bad("it lies beyond the edge of its table", e);
  }
  // Contrast of texts with their background.
  const rgb = c => { const v = document.createElement("canvas").getContext("2d", {willReadFrequently: true}); v.fillStyle = c; v.fillRect(0, 0, 1, 1); const d = v.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const known = new Map(), color = c => { if (!known.has(c)) known.set(c, rgb(c)); return known.get(c); };
  const light = c => { const f = x => { x /= 255; return x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }; return .2126 * f(c[0]) + .7152 * f(c[1]) + .0722 * f(c[2]); };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const paper = e => { let stack = []; for (; e; e = e.parentElement) { const c = color(getComputedStyle(e).backgroundColor); stack.push(c); if (c[3] === 1) break; } return stack.reverse().reduce((b, a) => over(a, b), [255, 255, 255, 1]); };
  const looked = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || looked.has(e) || e.closest("svg,script,style,.skip,option,[disabled]") || !seen(e)) continue;
    looked.add(e);
    const s = getComputedStyle(e), b = paper(e), f = over(color(s.color), b), x = light(f), y = light(b);
    const ratio = (Math.max(x, y) + .05) / (Math.min(x, y) + .05), size = parseFloat(s.fontSize), big = size >= 24 || size >= 18.66 && +s.fontWeight >= 700;
    if (ratio < (big ? 3 : 4.5) - .02) bad("a contrast of " + ratio.toFixed(2), e);
  }
  return [...new Set(found)].slice(0, 12);
})()`
