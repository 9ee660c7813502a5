package footprint

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// TestCgroupMemory checks that the smallest limit on the way up the hierarchy counts, in both
// cgroup versions.
func TestCgroupMemory(t *testing.T) {
	const none = math.MaxInt64
	for _, tc := range []struct {
		name, groups string
		files        map[string]string
		want         int64
	}{
		{"a unit", "0::/system.slice/slipway.service\n", map[string]string{"system.slice/slipway.service/memory.max": "536870912\n", "system.slice/memory.max": "max\n"}, 512 << 20},
		{"a slice above it", "0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "4096\n"}, 4096},
		{"a container", "0::/\n", map[string]string{"memory.max": "8192\n"}, 8192},
		{"another namespace", "0::/../../x\n", map[string]string{"memory.max": "8192\n"}, 8192},
		{"version 1", "5:cpu:/c\n4:memory:/host/path\n0::/\n", map[string]string{"memory/memory.limit_in_bytes": "12288\n", "cpu/c/memory.max": "1\n"}, 12288},
		{"no limit", "0::/x\n", map[string]string{"x/memory.max": "max\n"}, none},
		{"nothing to read", "", nil, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(root, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/self/cgroup", tc.groups)
			for name, text := range tc.files {
				write("sys/fs/cgroup/"+name, text)
			}
			if got := cgroupMemory(root); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

// TestGoMemory checks that GOMEMLIMIT bounds a cache and that a limit that the program sets does not.
func TestGoMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(100 << 20))
	t.Setenv("GOMEMLIMIT", "100MiB")
	if got := Available(); got != 100<<20 {
		t.Errorf("with GOMEMLIMIT: %d bytes, want 100 MiB", got)
	}
	t.Setenv("GOMEMLIMIT", "")
	if got := Available(); got == 100<<20 {
		t.Error("without GOMEMLIMIT the limit of the moment counts")
	}
}
