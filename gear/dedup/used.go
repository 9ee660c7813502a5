package dedup

import (
	"bytes"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Used says what an image needs for its task.
type Used struct {
	// Image is the image in the form series/version.
	Image string `json:"image"`
	// Files are the paths that are opened in the image. Symbolic links are followed. A
	// path that is not a file of the image, such as /proc/stat, is counted and otherwise
	// ignored.
	Files []string `json:"files"`

	contents []prefix
}

// prefix is the first half of a content's name.
type prefix [16]byte

// ReadUsed reads what images need. r has a JSON value for each image,
//
//	{"image":"nginx/1.26","files":["/usr/sbin/nginx","/etc/nginx/nginx.conf"]}
//
// or one object with all images, which identifies files by content:
//
//	{"nginx/1.26":{"rc":0,"fps":["<the first 32 hex digits of the SHA-256>:<size>"]}}
//
// In the second form, images whose task failed (rc is not 0) are ignored. If an image
// occurs twice, it needs the files of both.
func ReadUsed(r io.Reader) ([]Used, error) {
	byImage := map[string]*Used{}
	dec := json.NewDecoder(r)
	for n := 1; ; n++ {
		var raw map[string]json.RawMessage
		if err := dec.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("value %d: %w", n, err)
		}
		list, err := parseUsed(raw)
		if err != nil {
			return nil, fmt.Errorf("value %d: %w", n, err)
		}
		for _, u := range list {
			all := byImage[u.Image]
			if all == nil {
				all = &Used{Image: u.Image}
				byImage[u.Image] = all
			}
			all.Files = append(all.Files, u.Files...)
			all.contents = append(all.contents, u.contents...)
		}
	}
	out := make([]Used, 0, len(byImage))
	for _, u := range byImage {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Used) int { return strings.Compare(a.Image, b.Image) })
	return out, nil
}

func parseUsed(raw map[string]json.RawMessage) ([]Used, error) {
	if image, ok := raw["image"]; ok {
		var u Used
		if err := json.Unmarshal(image, &u.Image); err != nil {
			return nil, fmt.Errorf("image: %w", err)
		}
		if err := json.Unmarshal(raw["files"], &u.Files); err != nil {
			return nil, fmt.Errorf("files of %s: %w", u.Image, err)
		}
		return []Used{u}, nil
	}
	var list []Used
	for image, b := range raw {
		var result struct {
			Status       int      `json:"rc"`
			Fingerprints []string `json:"fps"`
		}
		if err := json.Unmarshal(b, &result); err != nil {
			return nil, fmt.Errorf("result of %s: %w", image, err)
		}
		if result.Status != 0 {
			continue
		}
		u := Used{Image: image}
		for _, f := range result.Fingerprints {
			digits, _, _ := strings.Cut(f, ":")
			p, err := hex.DecodeString(digits)
			if err != nil || len(p) != len(prefix{}) {
				return nil, fmt.Errorf("result of %s: %q is no fingerprint", image, f)
			}
			u.contents = append(u.contents, prefix(p))
		}
		list = append(list, u)
	}
	return list, nil
}

// NoCategory is the category of a series that has none, if other series have a category.
const NoCategory = "(none)"

// ReadCategories reads the category of each series from CSV lines "series,category". A
// first line with exactly these words is skipped.
func ReadCategories(r io.Reader) (map[string]string, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	in := csv.NewReader(bytes.NewReader(b))
	in.FieldsPerRecord, in.TrimLeadingSpace, in.Comment = 2, true, '#'
	out := map[string]string{}
	for first := true; ; first = false {
		rec, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		series, category := strings.TrimSpace(rec[0]), strings.TrimSpace(rec[1])
		if first && strings.EqualFold(series, "series") && strings.EqualFold(category, "category") {
			continue
		}
		if old, ok := out[series]; ok && old != category {
			return nil, fmt.Errorf("series %s has two categories, %s and %s", series, old, category)
		}
		out[series] = category
	}
}
