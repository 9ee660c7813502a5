package documents

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	// MaxChartBytes is how many bytes of a chart's archive are worth reading.
	MaxChartBytes = 16 << 20
	// maxUnpacked is how many bytes are unpacked of an archive, and maxEntries is how
	// many files are looked at.
	maxUnpacked, maxEntries = 64 << 20, 10_000
	// maxFile is how much of a file of a chart is shown.
	maxFile = 256 << 10
)

// Chart is what a Helm chart says about itself.
type Chart struct {
	Name, Version, AppVersion, Description, Home, KubeVersion, Type string
	Deprecated                                                      bool
	Keywords, Sources, Maintainers                                  []string
	Dependencies                                                    []string
}

// ReadChart reads the config of a chart, which is its Chart.yaml in JSON.
func ReadChart(config []byte) (*Chart, error) {
	var in struct {
		Name, Version, AppVersion, Description, Home, KubeVersion, Type string
		Deprecated                                                      bool
		Keywords, Sources                                               []string
		Maintainers                                                     []struct{ Name, Email, URL string }
		Dependencies                                                    []struct{ Name, Version, Repository string }
	}
	if err := json.Unmarshal(config, &in); err != nil {
		return nil, ErrUnknown
	}
	c := &Chart{Name: clip(in.Name), Version: clip(in.Version), AppVersion: clip(in.AppVersion), Description: clip(in.Description), Home: clip(in.Home),
		KubeVersion: clip(in.KubeVersion), Type: clip(in.Type), Deprecated: in.Deprecated, Keywords: clipped(in.Keywords), Sources: clipped(in.Sources)}
	var people, needs []string
	for _, m := range in.Maintainers {
		people = append(people, joinWords(m.Name, firstOf(m.Email, m.URL)))
	}
	for _, d := range in.Dependencies {
		needs = append(needs, joinWords(joinWords(d.Name, d.Version), d.Repository))
	}
	c.Maintainers, c.Dependencies = clipped(people), clipped(needs)
	return c, nil
}

// clipped returns the first texts of a list, each shortened.
func clipped(list []string) []string {
	const most = 50
	var out []string
	for _, s := range list[:min(len(list), most)] {
		out = append(out, clip(s))
	}
	return out
}

// ChartFiles are the files of a chart that people read. They are empty if the chart does
// not have them. Each is cut to 256 KiB, and the Cut fields say so.
type ChartFiles struct {
	Readme, Values       string
	ReadmeCut, ValuesCut bool
}

var errTooLarge = errors.New("the archive unpacks to too much")

// ReadChartFiles reads README.md and values.yaml at the top of a chart's archive, which is
// a tar compressed with gzip. If the archive ends early or is too large, it returns what
// it found before.
func ReadChartFiles(archive io.Reader) (f ChartFiles, err error) {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return f, err
	}
	bounded := &io.LimitedReader{R: z, N: maxUnpacked}
	t := tar.NewReader(bounded)
	for range maxEntries {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return f, nil
		case err != nil && bounded.N <= 0:
			return f, errTooLarge
		case err != nil:
			return f, err
		}
		_, name, _ := strings.Cut(strings.TrimPrefix(h.Name, "./"), "/")
		if h.Typeflag != tar.TypeReg || name != "README.md" && name != "values.yaml" {
			continue
		}
		text, cut, err := readText(t)
		if err != nil {
			return f, err
		}
		if name == "README.md" {
			f.Readme, f.ReadmeCut = text, cut
		} else {
			f.Values, f.ValuesCut = text, cut
		}
		if f.Readme != "" && f.Values != "" {
			return f, nil
		}
	}
	return f, errTooLarge
}

func readText(r io.Reader) (text string, cut bool, err error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return "", false, err
	}
	if cut = len(b) > maxFile; cut {
		b = b[:maxFile]
	}
	text = string(b)
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\ufffd")
	}
	return text, cut, nil
}
