package oci

import (
	"errors"
	"net"
	"path"
	"strconv"
	"strings"
)

// HostPattern names registries by their hosts: ghcr.io, *.example.com,
// registry.example.com:5000, http://127.0.0.1:5000.
type HostPattern struct {
	host, port string // port is "" for the usual port of https, and "*" for any
	scheme     string // "": the usual one
}

// ParseHostPattern reads a pattern. In the host, * stands for any number of characters,
// including dots. As the port, it stands for any port. Without a port, the pattern is for
// https on its usual port. http:// may precede a host without *.
func ParseHostPattern(s string) (HostPattern, error) {
	var p HostPattern
	rest, plain := strings.CutPrefix(s, "http://")
	host, port, hasPort := strings.Cut(rest, ":")
	p.host = strings.ToLower(host)
	if plain {
		p.scheme = "http"
	}
	switch n, err := strconv.Atoi(port); {
	case strings.Contains(rest, "://"):
		return p, errors.New("is a URL; write the host only, which is asked by https")
	case hasPort && port != "*" && (err != nil || n < 1 || n > 65535 || port != strconv.Itoa(n)):
		return p, errors.New("has a port that is neither * nor a number from 1 to 65535")
	case hasPort && port != "443":
		p.port = port
	}
	switch {
	case p.host == "" || strings.Trim(p.host, "abcdefghijklmnopqrstuvwxyz0123456789.-*") != "" || strings.Contains(p.host, ".."):
		return p, errors.New("is not a host such as ghcr.io, *.example.com or registry.example.com:5000")
	case plain && p.Wild():
		return p, errors.New("has http:// before a host with *: only a host that is written out may be spoken to in clear")
	}
	return p, nil
}

// Wild reports whether the pattern stands for more hosts than one.
func (p HostPattern) Wild() bool { return strings.Contains(p.host, "*") }

// Broad reports whether the pattern leaves open who owns the hosts, because its last two
// labels contain a *.
func (p HostPattern) Broad() bool {
	labels := strings.Split(p.host, ".")
	return strings.Contains(strings.Join(labels[max(0, len(labels)-2):], "."), "*")
}

// Match reports whether a host in lower case and its port, "" for the usual one, fit
// the pattern.
func (p HostPattern) Match(host, port string) bool {
	if p.port != port && p.port != "*" {
		return false
	}
	ok, err := path.Match(p.host, host) // a host has no slash
	return ok && err == nil
}

// URL returns the URL of a registry whose host matches the pattern. The scheme is http if
// the pattern says so, or if the host is this machine.
func (p HostPattern) URL(host, port string) string {
	scheme := p.scheme
	if ip := net.ParseIP(host); scheme == "" && (host == "localhost" || ip != nil && ip.IsLoopback()) {
		scheme = "http" // as Docker and containerd do
	}
	if scheme == "" {
		scheme = "https"
	}
	if port != "" {
		host = net.JoinHostPort(host, port)
	}
	return scheme + "://" + host
}
