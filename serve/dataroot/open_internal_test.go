package dataroot

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/registry/notify"
)

// TestOpenFails checks that Open, wherever it fails, returns no root and leaves none open.
func TestOpenFails(t *testing.T) {
	for name, spoil := range map[string]func(*config.Config){
		"cache":    func(c *config.Config) { c.Storage.BlobCache.SSD, c.Storage.BlobCache.Admission = 1<<20, "nobody" },
		"registry": func(c *config.Config) { c.Storage.ImmutableTags = []config.ImmutableTags{{Tags: []string{"("}}} },
		"gear":     func(c *config.Config) { c.Gear.Rules = []config.GearRule{{Repositories: []string{"NO"}}} },
		"volumes": func(c *config.Config) {
			c.Volumes.Driver, c.Volumes.Rules = "file", []config.VolumesRule{{Repositories: []string{"NO"}}}
		},
		"layers":   func(c *config.Config) { c.Storage.Rebuild.Repositories = []string{"NO"} },
		"webhooks": func(c *config.Config) { c.Notifications.Endpoints = []notify.Endpoint{{Name: "a", URL: ":"}} },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "root")
			cfg, _, err := config.Parse(strings.NewReader("version: 0.1\n"), &config.Options{
				Overrides: []config.Override{{Key: "storage.filesystem.rootdirectory", Value: dir}}})
			if err != nil {
				t.Fatal(err)
			}
			spoil(cfg)
			r, err := Open(t.Context(), cfg, Options{Logger: slog.New(slog.DiscardHandler), Serving: true})
			if err == nil || r != nil {
				t.Errorf("got %v and error %v, want an error alone", r, err)
			}
			if l, err := lockRoot(dir); err != nil {
				t.Error(err)
			} else if err := l.release(); err != nil {
				t.Error(err)
			}
		})
	}
}
