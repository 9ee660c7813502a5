package serve_test

import (
	"testing"

	"example.org/slipway/registry/check"
	"example.org/slipway/serve/dataroot"
)

// TestFsckProgress checks that the progress of a check counts the packs of Gear files from the
// beginning, so that it does not stand at 100 % while they are read.
func TestFsckProgress(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"by the server": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, setup{yaml: "gear: {convert: sync, settle: {disabled: true}}"})
			for _, tag := range []string{"v1", "v2"} {
				s.pushLayer("team/app", tag, gzLayer(t, tag))
			}
			a, done := openAdmin(t, s.cfg)
			var packBytes int64
			poll(t, "both layers are converted", func() bool {
				st, err := a.GearStatus(t.Context())
				packBytes = st.PackBytes
				return err == nil && st.Layers == 2 && st.Waiting == 0 && packBytes > 0
			})
			if !running {
				done()
				if err := s.stop(); err != nil {
					t.Fatal(err)
				}
				a, done = openAdmin(t, s.cfg)
			}
			defer done()
			var seen []check.Report
			rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, func(r check.Report) { seen = append(seen, r) })
			if err != nil || !rep.Clean() || rep.Bytes != rep.BytesTotal || rep.Bytes <= packBytes {
				t.Fatalf("the check says %+v (%v); the packs have %d bytes", rep, err, packBytes)
			}
			if len(seen) == 0 {
				t.Fatal("there was no progress")
			}
			for _, r := range seen {
				if r.BytesTotal != rep.BytesTotal || r.Bytes > r.BytesTotal {
					t.Errorf("%d of %d bytes were checked, and at the end it was %d", r.Bytes, r.BytesTotal, rep.BytesTotal)
				}
			}
		})
	}
}
