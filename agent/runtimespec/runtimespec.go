// Package runtimespec makes the configuration of a container, as programs like runc take it,
// from the configuration of an image.
package runtimespec

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Options say how an image is run.
type Options struct {
	// Root is where its tree is mounted.
	Root string
	// Command replaces the image's arguments, after its entry point. If the image has no
	// entry point, it is the command.
	Command []string
	// Env is added to the image's environment, and WorkingDir replaces the image's.
	Env        []string
	WorkingDir string
	// HostNetwork uses the machine's network. Otherwise there is only loopback.
	HostNetwork bool
}

// capabilities are the usual capabilities of containers.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// New makes the configuration of a container, as defined by the runtime
// specification, from the configuration of an image.
func New(image []byte, o Options) (*specs.Spec, error) {
	var img ocispec.Image
	if err := json.Unmarshal(image, &img); err != nil {
		return nil, fmt.Errorf("configuration of the image: %w", err)
	}
	args := append(slices.Clone(img.Config.Entrypoint), img.Config.Cmd...)
	if len(o.Command) > 0 {
		args = append(slices.Clone(img.Config.Entrypoint), o.Command...)
	}
	if len(args) == 0 {
		return nil, errors.New("the image has no command; name one behind --")
	}
	user, err := userOf(o.Root, img.Config.User)
	if err != nil {
		return nil, err
	}
	env := append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, img.Config.Env...)
	env = append(env, o.Env...)
	s := &specs.Spec{
		Version:  "1.0.2",
		Hostname: "slipway",
		Root:     &specs.Root{Path: o.Root},
		Process: &specs.Process{
			Args: args, Env: env, User: user, Cwd: path.Join("/", cmp.Or(o.WorkingDir, img.Config.WorkingDir)), // as Docker: below / if it is relative
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Mounts: runMounts(),
		Linux:  runLinux(o.HostNetwork),
	}
	if o.HostNetwork {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/etc/resolv.conf", Type: "bind", Source: "/etc/resolv.conf", Options: []string{"rbind", "ro"}})
	}
	return s, nil
}

func runMounts() []specs.Mount {
	m := func(dst, typ, src string, opts ...string) specs.Mount {
		return specs.Mount{Destination: dst, Type: typ, Source: src, Options: opts}
	}
	return []specs.Mount{
		m("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
		m("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
		m("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
		m("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
		m("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
		m("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
	}
}

func runLinux(hostNetwork bool) *specs.Linux {
	l := &specs.Linux{
		Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}},
		Resources:  &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
		MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
			"/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
	if !hostNetwork {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	return l
}

// userOf resolves the USER[:GROUP] of an image as Docker does. Each part is a name or a
// number. Without USER, it is root. Without GROUP, also after a colon, the groups are those
// that the image's /etc/passwd and /etc/group say.
func userOf(root, s string) (specs.User, error) {
	var u specs.User
	if s == "" {
		return u, nil
	}
	name, group, _ := strings.Cut(s, ":")
	name = cmp.Or(name, "0")
	uid, numeric := parseID(name)
	entry, err := findEntry(root, "etc/passwd", 4, func(f []string) bool { return f[0] == name || numeric && f[2] == name })
	switch {
	case err != nil:
		return u, err
	case entry != nil && !numeric:
		var ok bool
		if uid, ok = parseID(entry[2]); !ok {
			return u, fmt.Errorf("user %q has no number in the image's /etc/passwd", name)
		}
	case entry == nil && !numeric:
		return u, fmt.Errorf("the image is to run as user %q, who is not in its /etc/passwd", name)
	}
	u.UID = uid
	if group == "" {
		if entry == nil {
			return u, nil
		}
		u.GID, _ = parseID(entry[3])
		u.AdditionalGids, err = groupsOf(root, entry[0])
		return u, err
	}
	gid, numeric := parseID(group)
	if !numeric {
		entry, err := findEntry(root, "etc/group", 3, func(f []string) bool { return f[0] == group })
		if err != nil {
			return u, err
		}
		if entry == nil {
			return u, fmt.Errorf("the image is to run as group %q, which is not in its /etc/group", group)
		}
		gid, _ = parseID(entry[2])
	}
	u.GID = gid
	return u, nil
}

// groupsOf returns the groups of which the image says that a user is a member.
func groupsOf(root, user string) (gids []uint32, err error) {
	_, err = findEntry(root, "etc/group", 4, func(f []string) bool {
		if gid, ok := parseID(f[2]); ok && slices.Contains(strings.Split(f[3], ","), user) {
			gids = append(gids, gid)
		}
		return false
	})
	return gids, err
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil
}

// maxPasswd bounds how many bytes of such a file are read.
const maxPasswd = 4 << 20

// findEntry looks for a line in a file of the image, split at its colons. It opens the
// file as the container would see it: no link of the image leads outside.
func findEntry(root, file string, fields int, match func([]string) bool) ([]string, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, file, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path.Join("/", file), Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxPasswd {
		return nil, fmt.Errorf("the image's /%s is not a usable file", file)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxPasswd+1) // a group may have thousands of members
	for lines.Scan() {
		if e := strings.Split(lines.Text(), ":"); len(e) >= fields && match(e) {
			return e, nil
		}
	}
	return nil, lines.Err()
}
