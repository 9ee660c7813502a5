package dedup

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// WriteText writes the report as tables for people. Sizes are in powers of
// 1000.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d images in %d series; files and chunks compressed singly with zstd, level %d\n", r.Images, len(r.Series), r.Level)
	if r.LeftOut > 0 {
		fmt.Fprintf(&b, "%d images left out, because they cannot be read\n", r.LeftOut)
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "%d references skipped, which are no images for the platform\n", r.Skipped)
	}
	r.textTotal(&b)
	textGroups(&b, "category", r.Categories)
	textGroups(&b, "series", r.Series)
	r.textSizes(&b)
	r.textRedundancy(&b)
	_, err := w.Write(b.Bytes())
	return err
}

func (r *Report) textTotal(b *bytes.Buffer) {
	t := table{{"sharing", "stored", "uncompressed", "objects", "", "saved of none", "of layer"}}
	for _, row := range r.All.Rows {
		line := []string{row.Dedup.String(), bytesText(row.StoredBytes), bytesText(row.RawBytes), thousands(row.Objects), "-" + row.Dedup.objects(), "", ""}
		if row.Dedup > None {
			line[5] = percent(row.SavedOfNone)
		}
		if row.Dedup > Layer {
			line[6] = percent(row.SavedOfLayer)
		}
		t = append(t, line)
	}
	t.write(b)
}

// textGroups writes Table II and Figure 7(a) by group. Savings are relative to the bytes
// of shared layers.
func textGroups(b *bytes.Buffer, kind string, groups []Group) {
	if len(groups) == 0 {
		return
	}
	t := table{{kind, "images", "none", "layer", "file", "chunk", "layers", "files", "chunks", "file saves", "chunk saves"}}
	for _, g := range groups {
		line := []string{g.Name, strconv.Itoa(g.Images)}
		for _, row := range g.Rows {
			line = append(line, bytesText(row.StoredBytes))
		}
		for _, row := range g.Rows[Layer:] {
			line = append(line, thousands(row.Objects))
		}
		t = append(t, append(line, percent(g.Rows[File].SavedOfLayer), percent(g.Rows[Chunk].SavedOfLayer)))
	}
	t.write(b)
}

func (r *Report) textSizes(b *bytes.Buffer) {
	names := sizeClasses()
	t := table{append([]string{"file sizes"}, names[:]...)}
	for _, s := range []struct {
		name  string
		sizes Sizes
	}{{"files of all images", r.Paths}, {"unique files", r.Unique}} {
		count, volume, total := []string{s.name}, []string{"their bytes"}, s.sizes.total()
		for _, c := range s.sizes {
			count = append(count, thousands(c.Files)+" "+share(c.Files, total.Files))
			volume = append(volume, bytesText(c.Bytes)+" "+share(c.Bytes, total.Bytes))
		}
		t = append(t, count, volume)
	}
	t.write(b)
}

func (r *Report) textRedundancy(b *bytes.Buffer) {
	if len(r.Redundancy) == 0 {
		return
	}
	t := table{{"what images need", "images", "needed", "of all they hold", "distinct", "redundant"}}
	for _, x := range r.Redundancy {
		t = append(t, []string{x.Name, strconv.Itoa(x.Images), bytesText(x.NeededBytes), share(x.NeededBytes, x.HeldBytes),
			bytesText(x.DistinctBytes), percent(x.Redundant)})
	}
	t.write(b)
	if r.UsedUnknown > 0 {
		fmt.Fprintf(b, "%d of the paths used are no files of their image\n", r.UsedUnknown)
	}
}

// table is a list of lines of cells. The first cell is aligned left, and the others are
// aligned right. A cell that begins with "-" is aligned left and loses the "-".
type table [][]string

// write writes an empty line and the table.
func (t table) write(b *bytes.Buffer) {
	var width []int
	for _, line := range t {
		for i, cell := range line {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	b.WriteByte('\n')
	for _, line := range t {
		var out strings.Builder
		for i, cell := range line {
			left, isUnit := strings.CutPrefix(cell, "-")
			gap := "  "
			switch {
			case i == 0:
				out.WriteString(pad(cell, width[i]))
				continue
			case isUnit && left != "" && (left[0] < '0' || left[0] > '9'):
				gap, cell = " ", pad(left, width[i]-1)
			default:
				cell = strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)) + cell
			}
			out.WriteString(gap + cell)
		}
		b.WriteString(strings.TrimRight(out.String(), " ") + "\n")
	}
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
}

// bytesText formats bytes for people, in powers of 1000 with three digits.
func bytesText(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1000, 0
	for f >= 999.5 && i < 4 {
		f /= 1000
		i++
	}
	digits := 2
	if f >= 99.95 {
		digits = 0
	} else if f >= 9.995 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %cB", digits, f, "kMGTP"[i])
}

// thousands formats a number with its digits in groups of three.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func share(part, whole int64) string {
	if whole == 0 {
		return percent(0)
	}
	return percent(float64(part) / float64(whole))
}
