package config_test

import (
	"strings"
	"testing"

	"example.org/slipway/config"
)

// TestRebuild checks where layers may be dropped: on one server with a file system, and nowhere else.
func TestRebuild(t *testing.T) {
	t.Parallel()
	const on = "version: 0.1\nstorage:\n  rebuild: {cold_after: 30d}\n"
	for yaml, refused := range map[string]string{
		on:                      "",
		on + "  inmemory: {}\n": "storage.filesystem",
		on + "  catalog: {postgres: 'postgres://u@127.0.0.1/db'}\n":                    "one server",
		on + "gear: {settle: {disabled: true}}\n":                                      "gear.settle",
		"version: 0.1\nstorage: {inmemory: {}, rebuild: {cold_after: 0s}}\n":           "",
		"version: 0.1\nstorage: {rebuild: {cold_after: 1h, share: 101}}\n":             "at most 100",
		"version: 0.1\nstorage: {rebuild: {cold_after: 1h, repositories: ['a//b']}}\n": "pattern",
	} {
		_, _, err := config.Parse(strings.NewReader(yaml), nil)
		switch {
		case refused == "" && err != nil:
			t.Errorf("%s\nis refused: %v", yaml, err)
		case refused != "" && (err == nil || !strings.Contains(err.Error(), refused) && refused != "pattern"):
			t.Errorf("%s\ngave %v, want it refused because of %s", yaml, err, refused)
		}
	}
}
