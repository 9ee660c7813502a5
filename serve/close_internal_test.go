package serve

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/serve/dataroot"
)

// TestCloseWaits wants the data root to stay locked until nobody uses it any more. Another process
// could open it otherwise.
func TestCloseWaits(t *testing.T) {
	cfg, _, err := config.Parse(strings.NewReader("version: 0.1"), &config.Options{Overrides: []config.Override{
		{Key: "storage.filesystem.rootdirectory", Value: t.TempDir()}, {Key: "http.addr", Value: "127.0.0.1:0"},
		{Key: "log.accesslog.disabled", Value: "true"}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	go s.requests.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-release
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	<-entered
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("Close returned %v while a request was under way", err)
	case <-time.After(100 * time.Millisecond): // long enough for a Close that does not wait
	}
	if _, err := New(t.Context(), cfg, nil); !errors.Is(err, dataroot.ErrInUse) {
		t.Errorf("another server meanwhile: got %v, want ErrInUse", err)
	}
	close(release)
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	if s, err = New(t.Context(), cfg, nil); err != nil {
		t.Fatalf("after Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
