package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"example.org/slipway/internal/chart"
)

//go:embed static
var staticFiles embed.FS

// assets are the static files by name. Their addresses contain a hash of their content,
// so that browsers may cache them for ever.
type assets map[string]asset

type asset struct {
	content []byte
	hash    string
	mime    string
}

func loadAssets() (assets, error) {
	a := assets{}
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		a.add(path.Base(name), b)
		return nil
	})
	a.add("chart.css", []byte(chart.CSS()))
	return a, err
}

// add adds a file.
func (a assets) add(name string, content []byte) {
	sum := sha256.Sum256(content)
	a[name] = asset{content: content, hash: hex.EncodeToString(sum[:8]), mime: mime.TypeByExtension(path.Ext(name))}
}

// path returns the address of a file below the page's root.
func (a assets) path(name string) string { return "static/" + a[name].hash + "/" + name }

// serve answers a request for HASH/NAME.
func (a assets) serve(w http.ResponseWriter, r *http.Request, rest string) error {
	hash, name, _ := strings.Cut(rest, "/")
	f, ok := a[name]
	if !ok || hash != f.hash {
		return notFound("There is no file of that name.")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return &problem{status: http.StatusMethodNotAllowed, text: "Files can only be read."}
	}
	h := w.Header()
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Content-Type", f.mime)
	h.Set("Content-Length", strconv.Itoa(len(f.content)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(f.content)
	}
	return nil
}
