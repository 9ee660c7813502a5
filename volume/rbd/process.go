package rbd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// process identifies a process, on this machine and elsewhere: the boot, the pid
// namespace, the pid, and the start time. Leases have it, so that the leases of a dead
// process end at once and not only after their time.
type process struct {
	boot, namespace, pid, began string
}

func thisProcess() (process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, fmt.Errorf("identify this process: %w", err)
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return process{}, fmt.Errorf("identify this process: %w", err)
	}
	p := process{
		boot:      strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", ""),
		namespace: strings.Trim(namespace, "pid:[]"),
		pid:       strconv.Itoa(os.Getpid()),
	}
	if p.began, err = began(p.pid); err != nil {
		return process{}, fmt.Errorf("identify this process: %w", err)
	}
	return p, nil
}

var errEnded = errors.New("the process has ended")

// began returns when a process started, in ticks since boot, or errEnded if it does not
// exist.
func began(pid string) (string, error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if errors.Is(err, fs.ErrNotExist) {
		return "", errEnded
	}
	if err != nil {
		return "", err
	}
	// The name, in brackets, may have anything in it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const state, start = 0, 19
	if len(fields) <= start {
		return "", fmt.Errorf("/proc/%s/stat has %d fields", pid, len(fields))
	}
	if s := string(fields[state]); s == "Z" || s == "X" {
		return "", errEnded
	}
	return string(fields[start]), nil
}

// cookie returns a name for a lease of this process.
func (p process) cookie(unique string) string {
	return strings.Join([]string{p.boot, p.namespace, p.pid, p.began, unique}, ".")
}

// dead reports whether the process that made a cookie ran on this machine and has ended.
func (p process) dead(cookie string) bool {
	f := strings.Split(cookie, ".")
	if len(f) != 5 || f[0] != p.boot || f[1] != p.namespace {
		return false
	}
	if _, err := strconv.ParseUint(f[2], 10, 32); err != nil {
		return false
	}
	at, err := began(f[2])
	if err != nil {
		return errors.Is(err, errEnded)
	}
	return at != f[3]
}
