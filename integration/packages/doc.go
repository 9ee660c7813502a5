// Package packages installs the parts of a release where they are meant to be installed. The Debian
// package goes into a separate Debian system, with upgrade, removal and purge around a server with
// data and a container that still lacks files. The image runs in podman, and is pulled from the
// registry inside it. The tarball is verified by its checksum.
package packages
