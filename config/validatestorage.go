package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"example.org/slipway/config/yamlfile"
)

// storageValues checks each value of the section storage by itself.
func (v *validator) storageValues(s *Storage) {
	switch {
	case s.S3 != nil:
		v.s3Values(s.S3)
	case s.Swift != nil:
		v.swiftValues(s.Swift)
	case s.Driver() == "filesystem" && s.FileSystem.RootDirectory == "":
		v.bad("storage.filesystem.rootdirectory", "must not be empty")
	}
	if s.Remote() && s.Directory == "" {
		v.bad("storage.directory", "must not be empty: not everything goes into the object store")
	}
	v.check("storage.catalog.postgres", checkConnection(s.Catalog.Postgres.Reveal()))
	if s.GC.Grace < MinGrace && !s.GC.Short {
		v.bad("storage.gc.grace", "must be at least "+yamlfile.FormatDuration(MinGrace)+", or the blobs of running pushes would go")
	}
	for i, r := range s.ImmutableTags {
		key := fmt.Sprintf("storage.immutable_tags[%d]", i)
		v.patterns(key+".repositories", r.Repositories)
		v.regexps(key+".tags", r.Tags)
	}
	for i, n := range s.Namespaces {
		key := fmt.Sprintf("storage.namespaces[%d].repositories", i)
		if v.patterns(key, n.Repositories); len(n.Repositories) == 0 {
			v.bad(key, "is missing: it is the namespace's name in the metrics")
		}
	}
	for i, q := range s.Quotas {
		key := fmt.Sprintf("storage.quotas[%d]", i)
		v.patterns(key+".repositories", q.Repositories)
		if q.Bytes == 0 && q.Tags == 0 {
			v.bad(key, "limits nothing: set bytes or tags")
		}
		if q.Warn > 1 {
			v.bad(key+".warn", "must be at most 1")
		}
	}
	for i, r := range s.Retention {
		key := fmt.Sprintf("storage.retention[%d]", i)
		v.patterns(key+".repositories", r.Repositories)
		v.regexps(key+".keep_tags", r.KeepTags)
	}
	for key, size := range map[string]*Size{"ram": s.BlobCache.RAM, "large": s.BlobCache.Large} {
		if size != nil && *size < 0 {
			v.bad("storage.blob_cache."+key, "must be at least 0")
		}
	}
	if s.Redirect.Expiry > MaxRedirectExpiry {
		v.bad("storage.redirect.expiry", "must be at most "+yamlfile.FormatDuration(MaxRedirectExpiry)+", the longest an object store signs an address for")
	}
	for i, r := range s.Redirect.Rules {
		key := fmt.Sprintf("storage.redirect.rules[%d]", i)
		v.patterns(key+".repositories", r.Repositories)
		for j, n := range r.Networks {
			if _, err := parseProxy(n); err != nil {
				v.bad(fmt.Sprintf("%s.networks[%d]", key, j), "must be an address (192.0.2.1) or a network (10.0.0.0/8)")
			}
		}
	}
	if s.Prefetch.Precision > 1 {
		v.bad("storage.prefetch.precision", "must be at most 1")
	}
}

func (v *validator) s3Values(s *S3) {
	if e := s.RegionEndpoint; e != "" {
		if !strings.Contains(e, "://") {
			e = "https://" + e
		}
		u, err := url.Parse(e)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
			v.bad("storage.s3.regionendpoint", "must be an http or https URL without a path, or HOST:PORT")
		}
	}
	v.prefix("storage.s3.rootdirectory", s.RootDirectory)
}

// s3Relations checks that required keys are set, and that keys fit together.
func (v *validator) s3Relations(s *S3) {
	if s.Bucket == "" {
		v.bad("storage.s3.bucket", "is missing")
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		v.bad("storage.s3.secretkey", "and storage.s3.accesskey belong together: give both, or neither to use the machine's credentials")
	}
	if s.SessionToken != "" && s.SecretKey == "" {
		v.bad("storage.s3.sessiontoken", "needs storage.s3.accesskey and storage.s3.secretkey")
	}
	if s.KeyID != "" && !s.Encrypt {
		v.bad("storage.s3.keyid", "needs storage.s3.encrypt: true")
	}
}

// swiftRelations checks that required keys are set.
func (v *validator) swiftRelations(s *Swift) {
	for _, f := range []struct{ key, value string }{
		{"authurl", s.AuthURL}, {"username", s.Username}, {"password", s.Password.Reveal()}, {"container", s.Container},
	} {
		if f.value == "" {
			v.bad("storage.swift."+f.key, "is missing")
		}
	}
}

func (v *validator) swiftValues(s *Swift) {
	if s.AuthURL != "" {
		v.check("storage.swift.authurl", checkURL(s.AuthURL))
	}
	if strings.Contains(s.Container, "/") {
		v.bad("storage.swift.container", "must not have a slash")
	}
	if s.AuthVersion > 3 {
		v.bad("storage.swift.authversion", "must be 0, 1, 2 or 3")
	}
	v.prefix("storage.swift.prefix", s.Prefix)
}

// checkConnection rejects a text that is not a connection string, such as a bare password
// or a URL of another kind. The driver would show such a text in full, because it finds
// no password in it to leave out.
func checkConnection(dsn string) error {
	if dsn == "" {
		return nil
	}
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		return nil
	}
	if name, _, ok := strings.Cut(dsn, "="); ok && !strings.Contains(name, ":") && len(strings.Fields(name)) == 1 {
		return nil
	}
	return errors.New("must be postgres://USER@HOST/DATABASE, or words like host=HOST dbname=DATABASE")
}

// prefix checks the prefix of the keys of objects.
func (v *validator) prefix(key, prefix string) {
	for seg := range strings.SplitSeq(strings.Trim(prefix, "/"), "/") {
		if seg == "" && strings.Trim(prefix, "/") == "" {
			return
		}
		if seg == "" || seg == "." || seg == ".." || strings.ContainsFunc(seg, func(r rune) bool {
			return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=+-", r)
		}) {
			v.bad(key, "must be words of letters, digits and ._=+- with slashes between")
			return
		}
	}
}

// storageRelations checks that keys of the section storage fit together.
func (v *validator) storageRelations(s *Storage) {
	v.oneDriver(s)
	if s.S3 != nil {
		v.s3Relations(s.S3)
	}
	if s.Swift != nil {
		v.swiftRelations(s.Swift)
	}
	remote := s.Remote()
	if s.Catalog.Postgres != "" && !remote {
		v.bad("storage.catalog.postgres", "needs storage.s3 or storage.swift: a directory belongs to one server, whose catalogue is in it")
	}
	if s.BlobCache.SSD > 0 && bool(s.InMemory) && s.BlobCache.Directory == "" {
		v.bad("storage.blob_cache.directory", "is missing: with storage.inmemory there is no data directory to put it in")
	}
	for i, r := range s.Retention {
		if r.KeepNewest == 0 && len(r.KeepTags) == 0 && r.KeepYounger == 0 && r.KeepPulledWithin == 0 {
			v.bad(fmt.Sprintf("storage.retention[%d]", i), "keeps nothing, so it would remove every tag: set one of its keep_ keys")
		}
	}
}

// oneDriver checks that a file selects one storage driver. The filesystem driver is the
// default, so it counts only if it has a section.
func (v *validator) oneDriver(s *Storage) {
	var chosen []string
	for _, d := range []struct {
		key string
		on  bool
	}{
		{"storage.inmemory", bool(s.InMemory)}, {"storage.s3", s.S3 != nil}, {"storage.swift", s.Swift != nil},
		{"storage.filesystem", v.places.Has("storage.filesystem")},
	} {
		if d.on {
			chosen = append(chosen, d.key)
		}
	}
	if len(chosen) > 1 {
		last := chosen[len(chosen)-1]
		v.bad(last, "stands beside "+chosen[0]+": choose one storage driver")
	}
}

// defaultRoot is the default directory for content and for local data: see the tags of
// Storage and FileSystem.
const defaultRoot = "/var/lib/registry"

// storageWarnings warns of what is valid in the section storage but hardly intended.
func (v *validator) storageWarnings(s *Storage, warn func(key, reason string)) {
	if s.S3 != nil && s.S3.SkipVerify {
		warn("storage.s3.skipverify", "whoever is between this server and the object store can read and change everything")
	}
	if s.Swift != nil && s.Swift.InsecureSkipVerify {
		warn("storage.swift.insecureskipverify", "whoever is between this server and the object store can read and change everything")
	}
	if dir := filepath.Clean(s.Directory); !s.Remote() && dir != defaultRoot && dir != filepath.Clean(s.FileSystem.RootDirectory) {
		warn("storage.directory", "has no effect: it is for s3 and swift, and with filesystem everything is in its rootdirectory")
	}
	redirects := s.Redirect.Mode != "never"
	for _, r := range s.Redirect.Rules {
		redirects = redirects || r.Mode != "never"
	}
	switch {
	case !redirects:
	case s.Redirect.Disable:
		warn("storage.redirect.disable", "outweighs storage.redirect.mode and rules: nobody is sent to the object store")
	case !s.Remote():
		warn("storage.redirect", "has no effect: the driver "+s.Driver()+" has nowhere to send clients to")
	}
}
