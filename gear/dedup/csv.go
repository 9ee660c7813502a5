package dedup

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// WriteCSV writes the report into a directory, which it creates if necessary: table2.csv,
// figure7.csv, sizes.csv and, if it is known what the images need, figure2.csv. Shares
// have four digits and are not in percent.
func (r *Report) WriteCSV(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][][]string{"table2.csv": r.csvTable2(), "figure7.csv": r.csvFigure7(), "sizes.csv": r.csvSizes()}
	if len(r.Redundancy) > 0 {
		files["figure2.csv"] = r.csvFigure2()
	}
	for name, lines := range files {
		var b bytes.Buffer
		if err := csv.NewWriter(&b).WriteAll(lines); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) csvTable2() [][]string {
	lines := [][]string{{"scope", "name", "images", "dedup", "objects", "stored_bytes", "raw_bytes", "saved_of_none", "saved_of_layer"}}
	r.groups(func(kind string, g Group) {
		for _, row := range g.Rows {
			line := []string{kind, g.Name, strconv.Itoa(g.Images), row.Dedup.String(), number(row.Objects), number(row.StoredBytes), number(row.RawBytes), "", ""}
			if row.Dedup > None {
				line[7] = ratio(row.SavedOfNone)
			}
			if row.Dedup > Layer {
				line[8] = ratio(row.SavedOfLayer)
			}
			lines = append(lines, line)
		}
	})
	return lines
}

func (r *Report) csvFigure7() [][]string {
	lines := [][]string{{"scope", "name", "category", "images", "layer_bytes", "file_bytes", "saved"}}
	r.groups(func(kind string, g Group) {
		lines = append(lines, []string{kind, g.Name, g.Category, strconv.Itoa(g.Images),
			number(g.Rows[Layer].StoredBytes), number(g.Rows[File].StoredBytes), ratio(g.Rows[File].SavedOfLayer)})
	})
	return lines
}

func (r *Report) csvSizes() [][]string {
	lines := [][]string{{"size", "paths", "path_bytes", "unique", "unique_bytes"}}
	for i, name := range sizeClasses() {
		lines = append(lines, []string{name, number(r.Paths[i].Files), number(r.Paths[i].Bytes), number(r.Unique[i].Files), number(r.Unique[i].Bytes)})
	}
	return lines
}

func (r *Report) csvFigure2() [][]string {
	lines := [][]string{{"name", "images", "held_bytes", "needed_bytes", "distinct_bytes", "redundant"}}
	for _, x := range r.Redundancy {
		lines = append(lines, []string{x.Name, strconv.Itoa(x.Images), number(x.HeldBytes), number(x.NeededBytes), number(x.DistinctBytes), ratio(x.Redundant)})
	}
	return lines
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func ratio(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }
