package view

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// OverlayOptions are the parts of an overlay.
type OverlayOptions struct {
	// Lower are the directories of the tree, the topmost first. There is at least one.
	// The mounted image is the last, unless Metacopy is set: without Metacopy, the files
	// of an image above other trees could not be opened.
	Lower []string
	// Data are the directories with the contents, in the order in which they are
	// searched. They are not shown.
	Data []string
	// Upper receives what is written. Work is for the kernel: it is empty and on the same
	// file system. Set both or neither. Without them the overlay is read-only.
	Upper, Work string
	// ReadOnly makes the mount read-only even if it has an upper directory.
	ReadOnly bool
	// NoSuid disables set-user-id programs and file capabilities. NoDev disables devices.
	NoSuid, NoDev bool
	// Metacopy sets metacopy=on and redirect_dir=on. Kernels before 6.16 need this to
	// find data, and it allows images to lie above other trees. The upper directory then
	// holds files without their data and directories that are elsewhere. Only this
	// overlay understands them.
	Metacopy bool
	// Volatile saves the upper directory every sync. After a crash of the machine the
	// upper directory is useless. It cannot be mounted again before its work directory is
	// removed.
	Volatile bool
	// UserXattr makes the overlay store its marks in user.overlay.*, for a user
	// namespace. Images of Compile have theirs in trusted.overlay.*.
	UserXattr bool
}

// maxString is the length in bytes of the longest string that fsconfig(2) accepts.
const maxString = 255

// maxOptions is the length of the longest list of options that mount(2) accepts: one page
// with a final NUL.
const maxOptions = 4095

// option is a mount option. It has no '=' if it has no value.
type option struct {
	key, value string
	path       bool // the value is a path, verbatim
}

// settings returns the options that apply to every way of mounting. Defaults are set
// explicitly, because distributions and module parameters change them.
func (o *OverlayOptions) settings() []option {
	var opts []option
	add := func(key, value string) { opts = append(opts, option{key: key, value: value}) }
	switch {
	case o.UserXattr:
		// The kernel refuses these two together with userxattr.
		add("userxattr", "")
	case o.Metacopy:
		add("metacopy", "on")
		add("redirect_dir", "on")
	default:
		add("metacopy", "off")
		add("redirect_dir", "follow")
	}
	if o.Upper != "" {
		add("index", "off")
	}
	if o.Volatile {
		add("volatile", "")
	}
	return opts
}

func (o *OverlayOptions) check() error {
	switch {
	case len(o.Lower) == 0:
		return errors.New("there is no lower directory")
	case (o.Upper == "") != (o.Work == ""):
		return errors.New("upper and work directory go together")
	case o.Metacopy && o.UserXattr:
		return errors.New("metacopy and userxattr exclude each other")
	}
	for _, dirs := range [][]string{o.Lower, o.Data} {
		for _, dir := range dirs {
			if dir == "" {
				return errors.New("a directory has no name")
			}
		}
	}
	return nil
}

// Overlay mounts an overlay at a directory. Only the kernel bounds the number of lower
// directories: it accepts 500. On older kernels all directories must fit in one page.
// This concerns two cases: Linux before 6.7, which first accepts data-only and many lower
// directories one by one, and Linux before 6.13 if a path is longer than 255 bytes.
func Overlay(dir string, o OverlayOptions) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dir, err)
	}
	err := o.mountByParts(dir)
	if errors.Is(err, errUnknownParts) {
		err = o.mountByPage(dir)
	}
	if err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dir, err)
	}
	return nil
}

// errUnknownParts says that the kernel does not accept directories one by one.
var errUnknownParts = errors.New("not known to the kernel")

// mountByParts passes the directories to the kernel one by one.
func (o *OverlayOptions) mountByParts(dir string) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return errUnknownParts
	}
	if err != nil {
		return fmt.Errorf("open file system: %w", err)
	}
	defer unix.Close(fs)
	opts := []option{{key: "source", value: "overlay"}}
	for _, d := range o.Lower {
		opts = append(opts, option{"lowerdir+", d, true})
	}
	for _, d := range o.Data {
		opts = append(opts, option{"datadir+", d, true})
	}
	if o.Upper != "" {
		opts = append(opts, option{"upperdir", o.Upper, true}, option{"workdir", o.Work, true})
	}
	opts = append(opts, o.settings()...)
	for _, opt := range opts {
		if err := configure(fs, opt); err != nil {
			return err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return explain(fs, err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, o.attributes())
	if err != nil {
		return explain(fs, err)
	}
	defer unix.Close(mount)
	return unix.MoveMount(mount, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// configure sets one option.
func configure(fs int, o option) error {
	err := set(fs, o)
	if err == nil {
		return nil
	}
	err = explain(fs, err)
	if strings.HasSuffix(o.key, "+") && strings.Contains(err.Error(), "Unknown parameter") {
		return errUnknownParts
	}
	return fmt.Errorf("option %s=%s: %w", o.key, o.value, err)
}

func set(fs int, o option) error {
	switch {
	case o.value == "":
		return unix.FsconfigSetFlag(fs, o.key)
	case len(o.value) > maxString && o.path:
		fd, err := unix.Open(o.value, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.FsconfigSetFd(fs, o.key, fd)
	case o.key == "upperdir" || o.key == "workdir":
		// The kernel removes backslashes from these two options only.
		return unix.FsconfigSetString(fs, o.key, strings.ReplaceAll(o.value, `\`, `\\`))
	}
	return unix.FsconfigSetString(fs, o.key, o.value)
}

// explain adds the kernel's message to an error.
func explain(fs int, err error) error {
	var said []string
	buf := make([]byte, 4096)
	for range 16 { // the kernel keeps fewer messages
		n, readErr := unix.Read(fs, buf)
		if readErr != nil || n <= 0 {
			break
		}
		// A message is "e overlay: ...". The first letter is the severity.
		said = append(said, strings.TrimSpace(string(buf[min(2, n):n])))
	}
	if len(said) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(said, "; "))
}

// mountByPage passes all options as one string.
func (o *OverlayOptions) mountByPage(dir string) error {
	var b strings.Builder
	b.WriteString("lowerdir=")
	for i, d := range o.Lower {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(escapePath(d))
	}
	for _, d := range o.Data {
		b.WriteString("::")
		b.WriteString(escapePath(d))
	}
	if o.Upper != "" {
		b.WriteString(",upperdir=" + escapePath(o.Upper) + ",workdir=" + escapePath(o.Work))
	}
	for _, opt := range o.settings() {
		b.WriteString("," + opt.key)
		if opt.value != "" {
			b.WriteString("=" + opt.value)
		}
	}
	if b.Len() > maxOptions {
		return fmt.Errorf("the options have %d bytes and this kernel takes %d: %w", b.Len(), maxOptions, unix.E2BIG)
	}
	// The flags of mount(2) have the same values as these attributes.
	return unix.Mount("overlay", dir, "overlay", uintptr(o.attributes()), b.String())
}

// attributes returns the attributes of the mount.
func (o *OverlayOptions) attributes() (attrs int) {
	if o.ReadOnly || o.Upper == "" {
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	if o.NoSuid {
		attrs |= unix.MOUNT_ATTR_NOSUID
	}
	if o.NoDev {
		attrs |= unix.MOUNT_ATTR_NODEV
	}
	return attrs
}

// escapePath returns a path in the form that the options of an overlay need.
func escapePath(path string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(path)
}
