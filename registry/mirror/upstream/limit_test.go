package upstream_test

import (
	"testing"

	"example.org/slipway/registry/mirror/upstream"
)

func TestLimitString(t *testing.T) {
	for _, tt := range []struct {
		limit upstream.Limit
		want  string
	}{
		{upstream.Limit{}, ""},
		{upstream.Limit{Known: true, Total: 100, Remaining: 76}, "76 of 100 pulls left"},
		{upstream.Limit{Known: true, Total: 100}, "0 of 100 pulls left"},
		{upstream.Limit{Known: true, Total: -1, Remaining: 76}, "76 pulls left"},
		{upstream.Limit{Known: true, Total: 100, Remaining: -1}, "at most 100 pulls"},
		{upstream.Limit{Known: true, Total: -1, Remaining: -1}, ""},
	} {
		if got := tt.limit.String(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.limit, got, tt.want)
		}
	}
}
