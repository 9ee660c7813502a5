// Package packages installs what a release consists of where it is meant to be installed:
// the Debian package in a Debian system of its own, with upgrade, removal and purge around
// a server with data and a container that still lacks files; the image in podman, by way
// of the registry that is in it; the tarball by its checksum.
package packages
