package measure

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Picture is a plot and the name of its file.
type Picture struct {
	File  string
	Chart Chart
}

// WritePictures writes plots into a directory, which it makes if needed.
func WritePictures(dir string, pictures []Picture) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range pictures {
		if err := os.WriteFile(filepath.Join(dir, p.File), []byte(p.Chart.SVG()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Table writes a Markdown table. The first text columns hold text, the others figures.
func Table(w *strings.Builder, text int, head []string, rows [][]string) {
	cell := strings.NewReplacer("\n", " ", "|", `\|`)
	line := func(cells []string) {
		for _, c := range cells {
			w.WriteString("| " + cell.Replace(c) + " ")
		}
		w.WriteString("|\n")
	}
	line(head)
	w.WriteString("|" + strings.Repeat("---|", text) + strings.Repeat("---:|", len(head)-text) + "\n")
	for _, r := range rows {
		line(r)
	}
}

// Megabytes formats a number of bytes as a figure in MB.
func Megabytes(n int64) string { return Figure(float64(n) / 1e6) }

// Save writes results as JSON.
func Save(path string, results any) error {
	b, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// Load reads what Save wrote.
func Load[T any](path string) (*T, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	results := new(T)
	if err := json.Unmarshal(b, results); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return results, nil
}
