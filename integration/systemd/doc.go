// Package systemd installs the Debian package in a Debian that systemd boots, in a container
// of systemd-nspawn, and takes it through its life there: enabled, watched, reloaded,
// restarted, upgraded and downgraded while a container of containerd reads files, stopped,
// removed and purged. It is run by make test-systemd.
package systemd
