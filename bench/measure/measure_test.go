package measure

import (
	"os"
	"testing"
	"time"
)

func TestMeter(t *testing.T) {
	before, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for end := time.Now().Add(30 * time.Second); err == nil && after-before < time.Millisecond && time.Now().Before(end); {
		after, err = CPUTime(os.Getpid())
	}
	if err != nil || after-before < time.Millisecond {
		t.Errorf("CPU time went from %s to %s, %v", before, after, err)
	}
	pids, err := Family(os.Getppid())
	if err != nil || len(pids) < 2 {
		t.Errorf("children of the parent: %v, %v; this process is one", pids, err)
	}
	got, err := busyTime([]byte("cpu  10 20 30 4000 5000 1 2 3 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"))
	if err != nil || got != 660*time.Millisecond {
		t.Errorf("busy time %s, %v, want 660ms", got, err)
	}
	rss, peak, err := residentSet([]byte("Name:\tx\nVmHWM:\t    20 kB\nVmRSS:\t    10 kB\n"))
	if err != nil || rss != 10<<10 || peak != 20<<10 {
		t.Errorf("resident set %d, peak %d, %v", rss, peak, err)
	}
	if _, _, err := residentSet([]byte("Name:\tx\n")); err == nil {
		t.Error("a status without a resident set was accepted")
	}
}

func TestMountOf(t *testing.T) {
	const info = "1 0 8:1 / / rw - ext4 /dev/root rw\n2 1 0:5 / /tmp rw shared:3 - tmpfs none rw\n3 1 8:2 / /var/tmp rw - xfs /dev/sdb rw\n"
	for path, want := range map[string]string{
		"/tmp/x": "tmpfs on none", "/tmp": "tmpfs on none", "/tmpfoo": "ext4 on /dev/root", "/var/tmp/a": "xfs on /dev/sdb",
	} {
		if got := mountOf(info, path); got != want {
			t.Errorf("%s lies on %q, want %q", path, got, want)
		}
	}
}

func TestFigures(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 0.012345: "0.0123", 1.5: "1.50", 99.95: "100.0", 12345: "12345", 0.35: "0.350"} {
		if got := Figure(f); got != want {
			t.Errorf("Figure(%v) = %s, want %s", f, got, want)
		}
	}
	for _, tt := range []struct {
		in   []float64
		want string
	}{
		{nil, "-"}, {[]float64{2}, "2.00"}, {[]float64{3, 1, 2}, "2.00 (1.00 to 3.00)"}, {[]float64{4, 1, 2, 3}, "2.50 (1.00 to 4.00)"},
	} {
		if got := SpreadOf(tt.in).String(); got != tt.want {
			t.Errorf("spread of %v is %s, want %s", tt.in, got, tt.want)
		}
	}
}

func TestReplace(t *testing.T) {
	m := Marks{"<!-- begin -->", "<!-- end -->"}
	doc, err := m.Replace("before\n"+m.Begin+"\nold\n"+m.End+"\nafter\n", "new")
	if want := "before\n" + m.Begin + "\n\nnew\n\n" + m.End + "\nafter\n"; err != nil || doc != want {
		t.Errorf("document %q, %v, want %q", doc, err, want)
	}
	if _, err := m.Replace("no marks", "new"); err == nil {
		t.Error("a document without marks was accepted")
	}
}
