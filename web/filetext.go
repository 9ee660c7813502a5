package web

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.org/slipway/oci"
)

// showName writes somebody's text so that all of it is seen: what is no UTF-8, steers a
// terminal or turns the direction of text is written as its number.
func showName(s string) string {
	plain := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

// image is what the pages of files need of a manifest.
type image struct {
	Digest oci.Digest
	Config oci.Descriptor   `json:"config"`
	Layers []oci.Descriptor `json:"layers"`
	// Manifests are those of an index.
	Manifests []oci.Descriptor `json:"manifests"`
	// Platform is the one that was chosen of an index's.
	Platform string `json:"-"`
	// Platforms are those to choose from.
	Platforms []string `json:"-"`
}

func parseManifest(m *oci.Manifest) (*image, error) {
	i := &image{Digest: m.Digest}
	if err := json.Unmarshal(m.Bytes, i); err != nil {
		return nil, &noFiles{Title: "Not an image", Text: "The manifest is of a form that this page does not know."}
	}
	return i, nil
}

// platformName is a platform as os/architecture, with the variant if there is one.
func platformName(d *oci.Descriptor) string {
	p := d.Platform
	if p == nil || p.OS == "" || p.OS == "unknown" {
		return ""
	}
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}

// choose returns the manifest of an index for a platform; without one for linux/amd64,
// or the first there is.
func (i *image) choose(platform string) (d oci.Digest, name string, all []string, err error) {
	for k := range i.Manifests {
		m := &i.Manifests[k]
		p := platformName(m)
		if p == "" {
			continue
		}
		all = append(all, p)
		if d == "" && platform == "" || p == platform || platform == "" && p == "linux/amd64" && name != "linux/amd64" {
			d, name = m.Digest, p
		}
	}
	switch {
	case len(all) == 0:
		return "", "", nil, &noFiles{Title: "Not an image", Text: "This index names no image of a platform."}
	case d == "":
		return "", "", nil, &noFiles{Title: "No such platform", Text: "This image is for " + showName(strings.Join(all, ", ")) + "; there is none for " + showName(platform) + "."}
	}
	return d, name, all, nil
}
