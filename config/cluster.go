package config

import (
	"net"
	"net/url"
	"os"
	"regexp"
)

// Cluster configures what servers that share a catalogue and an object store do for each
// other.
type Cluster struct {
	Addr       string `yaml:"addr" doc:"Address on which other servers read what this one has cached, HOST:PORT. Only they should reach it. Empty: each server caches for itself." example:"10.0.0.5:5002"`
	URL        string `yaml:"url" doc:"URL under which the others reach addr, http or https. Empty means http:// and addr. With https the certificate of http.tls is used." example:"http://10.0.0.5:5002"`
	ID         string `yaml:"id" doc:"Name of this server among the others. It must stay the same after a restart. Empty means the host's name." example:"registry-0"`
	Secret     Secret `yaml:"secret" doc:"Secret that all these servers and nobody else know, at least 16 bytes. It signs the requests between them." example:"${file:/run/secrets/cluster}"`
	StrictTags bool   `yaml:"strict_tags" doc:"Asks the catalogue for each tag that is read, so that a new tag is seen at all servers at once. Otherwise another server may answer with the old tag for some milliseconds, and for at most 4s while it cannot reach the catalogue. This key matters with storage.catalog.postgres, even without addr."`
	CAFile     string `yaml:"cafile" doc:"PEM file of the authorities that certify the others. Empty means the system's."`
}

// Enabled reports whether servers read from each other.
func (c *Cluster) Enabled() bool { return c.Addr != "" }

// Where returns the URL under which other servers reach this one.
func (c *Cluster) Where() string {
	if c.URL == "" && c.Addr != "" {
		return "http://" + c.Addr
	}
	return c.URL
}

// Name returns the server's name in the cluster.
func (c *Cluster) Name() string {
	if c.ID != "" {
		return c.ID
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// minClusterSecret is the length of the shortest secret, in bytes: 128 bits.
const minClusterSecret = 16

var clusterID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// clusterValues checks the section cluster, and what it requires of other sections.
func (v *validator) clusterValues(c *Cluster, s *Storage) {
	if !c.Enabled() {
		return
	}
	v.check("cluster.addr", checkAddr("tcp", c.Addr))
	if len(c.Secret) < minClusterSecret {
		v.bad("cluster.secret", "must have at least 16 bytes")
	}
	if !clusterID.MatchString(c.Name()) {
		v.bad("cluster.id", "must be 1 to 64 letters, digits, dots, underscores and hyphens")
	}
	host, _, _ := net.SplitHostPort(c.Addr)
	if ip := net.ParseIP(host); c.URL == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		v.bad("cluster.url", "is missing: cluster.addr does not say where others reach this server")
	} else if u, err := url.Parse(c.Where()); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		v.bad("cluster.url", "must be an http or https URL of host and port only")
	} else if u.Scheme == "https" && !v.c.HTTP.TLS.Enabled() {
		v.bad("cluster.url", "says https, which needs http.tls.certificate and http.tls.key")
	}
	if s.Catalog.Postgres == "" {
		v.bad("cluster.addr", "needs storage.catalog.postgres: servers find each other in the catalogue they share")
	}
}
