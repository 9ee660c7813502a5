// Package systemd installs the Debian package in a Debian that systemd boots in a systemd-nspawn
// container. It takes the package through its life there: enabled, watched, reloaded, restarted,
// upgraded and downgraded while a container of containerd reads files, stopped, removed and purged.
// make test-systemd runs it.
package systemd
