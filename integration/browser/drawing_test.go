package browser

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// drawing is a script that returns what the window shows as an SVG, for documents: it is smaller
// than a picture, sharp at every size, and a text in git. Texts keep their places in other fonts.
const drawing = `(async () => {
  const W = innerWidth, H = innerHeight, out = [];
  const n = x => +x.toFixed(1), esc = s => s.replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\"": "&quot;"}[c])).replace(/[\u0000-\u001f\ufffe\uffff]/g, " ");
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true}), known = new Map();
  // color returns a colour as #rrggbb, or "" if it is transparent.
  const color = c => {
    if (!known.has(c)) {
      paint.clearRect(0, 0, 1, 1); paint.fillStyle = c; paint.fillRect(0, 0, 1, 1);
      const d = paint.getImageData(0, 0, 1, 1).data;
      known.set(c, d[3] < 128 ? "" : "#" + [0, 1, 2].map(i => d[i].toString(16).padStart(2, "0")).join(""));
    }
    return known.get(c);
  };
  const write = (s, text, left, right, top, bottom) => {
    if (!text.trim() || left >= W || top >= H || right <= 0 || bottom <= 0) return;
    paint.font = s.fontWeight + " " + s.fontSize + " " + s.fontFamily;
    const m = paint.measureText("x"), high = m.fontBoundingBoxAscent + m.fontBoundingBoxDescent;
    const y = top + (bottom - top - high) / 2 + m.fontBoundingBoxAscent;
    out.push('<text x="' + n(left) + '" y="' + n(y) + '" textLength="' + n(right - left) + '" lengthAdjust="spacingAndGlyphs" font-size="' + n(parseFloat(s.fontSize)) + '"' +
      (+s.fontWeight >= 600 ? ' font-weight="bold"' : "") + (s.fontFamily.includes("mono") ? ' font-family="DejaVu Sans Mono, monospace"' : "") +
      (s.textDecorationLine.includes("underline") ? ' text-decoration="underline"' : "") + ' fill="' + color(s.color) + '">' + esc(text.trim()) + "</text>");
  };
  // lines writes a text node, one text for each line.
  const lines = (node, s) => {
    const range = document.createRange();
    let line = "", left, right, top, bottom;
    const end = () => { if (line) write(s, line, left, right, top, bottom); line = ""; };
    for (let i = 0; i < node.data.length; i++) {
      range.setStart(node, i); range.setEnd(node, i + 1);
      const r = range.getClientRects()[0], c = node.data[i];
      if (!r || !r.width) continue;
      if (line && Math.abs(r.top - top) > 2) end();
      if (!line) { if (!c.trim()) continue; left = r.left; top = r.top; bottom = r.bottom; }
      line += c;
      if (c.trim()) right = r.right;
    }
    end();
  };
  const box = (e, s, r) => {
    const rx = parseFloat(s.borderTopLeftRadius) || 0, fill = color(s.backgroundColor);
    const side = k => parseFloat(s["border" + k + "Width"]) && s["border" + k + "Style"] !== "none" ? color(s["border" + k + "Color"]) : "";
    const [t, b, l, g] = ["Top", "Bottom", "Left", "Right"].map(side), all = t && b && l && g;
    if (fill || all) out.push('<rect x="' + n(r.left) + '" y="' + n(r.top) + '" width="' + n(r.width) + '" height="' + n(r.height) + '"' + (rx ? ' rx="' + Math.min(n(rx), n(r.height / 2)) + '"' : "") +
      ' fill="' + (fill || "none") + '"' + (all ? ' stroke="' + t + '"' : "") + "/>");
    if (!all) for (const [c, x1, y1, x2, y2] of [[t, r.left, r.top, r.right, r.top], [b, r.left, r.bottom, r.right, r.bottom], [l, r.left, r.top, r.left, r.bottom], [g, r.right, r.top, r.right, r.bottom]])
      if (c) out.push('<path d="M' + n(x1) + " " + n(y1) + "L" + n(x2) + " " + n(y2) + '" stroke="' + c + '"/>');
  };
  // control draws what a field shows, which is no text of the page.
  const control = (e, s, r) => {
    const text = e.tagName === "SELECT" ? e.selectedOptions[0]?.text || "" : e.value || e.placeholder || "", ink = color(s.color);
    if (e.type === "radio") out.push('<circle cx="' + n(r.left + r.width / 2) + '" cy="' + n(r.top + r.height / 2) + '" r="' + n(r.width / 2 - 1) + '" fill="none" stroke="' + ink + '"/>' +
      (e.checked ? '<circle cx="' + n(r.left + r.width / 2) + '" cy="' + n(r.top + r.height / 2) + '" r="' + n(r.width / 4) + '" fill="' + ink + '"/>' : ""));
    else if (e.type === "checkbox") out.push('<rect x="' + n(r.left + 1) + '" y="' + n(r.top + 1) + '" width="' + n(r.width - 2) + '" height="' + n(r.height - 2) + '" rx="2" fill="' + (e.checked ? ink : "none") + '" stroke="' + ink + '"/>');
    else if (text && e.type !== "password") {
      paint.font = s.fontSize + " " + s.fontFamily;
      const left = r.left + parseFloat(s.paddingLeft) + 1;
      write(s, text, left, left + Math.min(paint.measureText(text).width, r.width), r.top, r.bottom);
      if (e.tagName === "SELECT") out.push('<path d="M' + n(r.right - 18) + " " + n(r.top + r.height / 2 - 2) + 'l4 4 4-4" fill="none" stroke="' + ink + '"/>');
    }
  };
  // picture puts an SVG of the page into the drawing, with the colours that it has there.
  const picture = (svg, r) => {
    const copy = svg.cloneNode(true), from = [...svg.querySelectorAll("*")], to = [...copy.querySelectorAll("*")];
    from.forEach((e, i) => {
      const s = getComputedStyle(e);
      for (const k of ["fill", "stroke", "fill-opacity", "font-size"]) to[i].setAttribute(k, s.getPropertyValue(k).startsWith("rgb") ? color(s.getPropertyValue(k)) || "none" : s.getPropertyValue(k));
      for (const k of ["class", "id", "style"]) to[i].removeAttribute(k);
    });
    for (const e of copy.querySelectorAll("a,title,desc,script")) e.replaceWith(...e.tagName === "a" ? e.childNodes : []);
    for (const k of ["class", "id", "style", "aria-labelledby", "tabindex"]) copy.removeAttribute(k);
    for (const [k, v] of Object.entries({x: r.left, y: r.top, width: r.width, height: r.height})) copy.setAttribute(k, n(v));
    out.push(new XMLSerializer().serializeToString(copy));
  };
  const walk = async e => {
    const s = getComputedStyle(e), r = e.getBoundingClientRect();
    if (s.display === "none" || s.visibility === "hidden" || s.clipPath !== "none" || r.bottom <= 0 || r.top >= H || r.right <= 0 || r.left >= W) return;
    if (e.tagName === "IMG") {
      const text = await (await fetch(e.src)).text();
      return out.push(text.trim().replace("<svg ", '<svg x="' + n(r.left) + '" y="' + n(r.top) + '" width="' + n(r.width) + '" height="' + n(r.height) + '" '));
    }
    if (e.tagName === "svg") return picture(e, r);
    if (r.width && r.height && e !== document.body) box(e, s, r);
    if (e.tagName === "METER") out.push('<rect x="' + n(r.left) + '" y="' + n(r.top) + '" width="' + n(r.width * Math.min(1, e.value / e.max)) + '" height="' + n(r.height) + '" fill="' + color(getComputedStyle(document.querySelector("a")).color) + '"/>');
    if (["INPUT", "SELECT", "TEXTAREA"].includes(e.tagName)) return control(e, s, r);
    if (e.tagName === "SUMMARY") out.push('<path d="M' + n(r.left + 2) + " " + n(r.top + 7) + 'l7 5-7 5z" fill="' + color(s.color) + '"/>');
    for (const c of e.childNodes) if (c.nodeType === Node.TEXT_NODE) lines(c, s); else if (c.nodeType === Node.ELEMENT_NODE) await walk(c);
  };
  await walk(document.body);
  const paper = color(getComputedStyle(document.documentElement).backgroundColor);
  return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ' + W + " " + H + '" width="' + W + '" height="' + H + '" role="img" font-family="DejaVu Sans, Verdana, sans-serif">\n<title>' + esc(document.title) +
    '</title>\n<rect width="' + W + '" height="' + H + '" fill="' + paper + '"/>\n' + out.join("\n") + '\n<rect x=".5" y=".5" width="' + (W - 1) + '" height="' + (H - 1) + '" fill="none" stroke="#8c959f"/>\n</svg>\n';
})()`

// mostDrawing is how many bytes a drawing for the documents may have.
const mostDrawing = 200 << 10

// TestDrawing draws pages for the documents: they are valid, hold what the window shows, and nothing
// of them runs. With SLIPWAY_DRAWINGS, the drawings of docs/img are made in that directory; they
// show real images if SLIPWAY_CORPUS names some.
func TestDrawing(t *testing.T) {
	s, by := signedRegistry(t)
	tags := pushReal(t, s, by)
	w := open(t, "http://"+s.Addr)
	w.size(1280, 760, "light")
	w.logIn("root", "secret of root")
	for _, page := range []struct{ path, name string }{
		{"/ui/repo/team/redis", "page-repository"}, {fmt.Sprintf("/ui/diff/team/redis?from=%s&to=%s", tags[0], tags[1]), ""}, {"/ui/image/team/hostile:evil", ""}, {"/ui/repo/team/hostile", ""}, {"/ui/tree/team/redis:" + tags[len(tags)-1], "page-files"},
		{"/ui/storage", ""}, {"/ui/", ""},
	} {
		w.visit(page.path)
		svg := w.draw()
		texts, err := textsOf(svg)
		if err != nil {
			t.Errorf("%s: the drawing is no XML: %v", page.path, err)
			continue
		}
		if len(svg) > mostDrawing {
			t.Errorf("%s: the drawing has %d bytes", page.path, len(svg))
		}
		for _, want := range eval[[]string](w, `[...document.querySelectorAll("h1,h2,th,button,label")].filter(e => { const r = e.getBoundingClientRect(); return r.bottom > 0 && r.bottom < innerHeight && r.right < innerWidth && r.width > 2 && e.children.length === 0; }).map(e => e.innerText.trim())`) {
			// A text may be broken into lines.
			if word, _, _ := strings.Cut(want, " "); !strings.Contains(texts, word) {
				t.Errorf("%s: the drawing lacks %q", page.path, want)
			}
		}
		if dir := os.Getenv("SLIPWAY_DRAWINGS"); dir != "" && page.name != "" {
			if err := os.WriteFile(dir+"/"+page.name+".svg", []byte(svg), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(pictures(t)+"/"+fileName(page.path)+".svg", []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w.check("the drawings")
}

// draw returns the window as an SVG.
func (w *window) draw() string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	svg, err := chromedp.Run(ctx, chromedp.Evaluate[string](drawing, chromedp.EvalAwaitPromise))
	if err != nil {
		w.t.Fatal(fmt.Errorf("draw the page: %w", err))
	}
	return svg
}

// textsOf returns the texts of an SVG. It returns an error if it is no XML, or if something in it
// could run.
func textsOf(svg string) (string, error) {
	var texts strings.Builder
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts.String(), nil
		}
		if err != nil {
			return "", err
		}
		switch x := token.(type) {
		case xml.StartElement:
			if x.Name.Local == "script" || x.Name.Local == "foreignObject" || x.Name.Local == "image" || x.Name.Local == "a" {
				return "", fmt.Errorf("an element %s", x.Name.Local)
			}
			for _, a := range x.Attr {
				if strings.HasPrefix(strings.ToLower(a.Name.Local), "on") || a.Name.Local == "href" {
					return "", fmt.Errorf("an attribute %s", a.Name.Local)
				}
			}
		case xml.CharData:
			texts.Write(x)
			texts.WriteByte('\n')
		}
	}
}

// pushReal pushes the images of the series redis of the corpus to team/redis, or others if there is
// no corpus, and returns their tags. The newest is signed, and has a bill of materials.
func pushReal(t *testing.T, s *slipway.Server, by *signer) (tags []string) {
	t.Helper()
	images := map[string]*imagetest.Bundle{}
	for _, im := range realImages(t) {
		b := &imagetest.Bundle{Top: imagetest.NewBlob(im.ManifestType, im.Manifest)}
		for _, d := range append(im.Layers, im.Config) {
			data, err := os.ReadFile(im.Blob(d.Digest))
			if err != nil {
				t.Fatal(err)
			}
			b.Blobs = append(b.Blobs, imagetest.NewBlob(d.MediaType, data))
		}
		images[im.Version], tags = b, append(tags, im.Version)
	}
	if len(tags) == 0 {
		tags = []string{"1", "2"}
		for _, tag := range tags {
			images[tag] = imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{imagetest.NewLayer(imagetest.File{Name: "version", Data: []byte(tag)})})
		}
	}
	for _, tag := range tags {
		push(t, s, "team/redis", tag, images[tag])
	}
	last := images[tags[len(tags)-1]].Top.Descriptor
	signature, tag := by.sign(t, last)
	push(t, s, "team/redis", tag, signature)
	bill := imagetest.Artifact("application/vnd.cyclonedx+json", "application/vnd.cyclonedx+json",
		[]byte(`{"bomFormat":"CycloneDX","specVersion":"1.5","metadata":{},"components":[]}`), &last, nil)
	push(t, s, "team/redis", bill.Top.Digest, bill)
	return tags
}

// realImages returns the images of the series redis of the corpus, if SLIPWAY_CORPUS names one.
func realImages(t *testing.T) (out []*corpus.Image) {
	t.Helper()
	dir := os.Getenv("SLIPWAY_CORPUS")
	if dir == "" {
		return nil
	}
	all, err := corpus.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range all {
		if im.Series == "redis" {
			out = append(out, im)
		}
	}
	return out
}
