// Package servetest starts whole registries for the tests of their clients.
package servetest

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/serve"
)

// Start runs a registry on loopback with an empty directory until the test ends. It returns the
// URL.
func Start(t testing.TB) string {
	t.Helper()
	yaml := "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
	cfg, _, err := config.Parse(strings.NewReader(yaml), &config.Options{Overrides: []config.Override{
		{Key: "storage.filesystem.rootdirectory", Value: filepath.Join(t.TempDir(), "root")}, {Key: "http.addr", Value: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := serve.New(t.Context(), cfg, &serve.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Errorf("stop the server: %v", err)
		}
	})
	return "http://" + s.Addr().String()
}
