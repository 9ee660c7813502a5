package notify

import (
	"testing"
)

func FuzzUnmarshalEvent(f *testing.F) {
	f.Add([]byte(`{"id":"1","time":"2026-01-02T03:04:05Z","action":"push","repo":"a","tag":"v1"}`))
	f.Add([]byte(`{"id":"1","action":"pull","actor":{"Name":"joe"}}`))
	n := &Notifier{}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := unmarshalEvent(b)
		if err != nil {
			return
		}
		for _, format := range []Format{FormatDocker, FormatCloudEvents} {
			if _, _, err := n.encode(e, format); err != nil {
				t.Errorf("%s of %q: %v", format, b, err)
			}
		}
	})
}
