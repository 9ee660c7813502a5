package yamlfile

// fate says what happens to a key of Distribution that has no meaning here.
type fate int

const (
	// ignored means that the key changes nothing that a client or an operator relies on.
	//lint:ignore U1000 it is what a key is if nothing is said of it
	ignored fate = iota
	// refused means that it would be dangerous or surprising to continue without the key.
	refused
	// refusedAlways is refused even for an empty key, because its presence alone selects
	// something.
	refusedAlways
)

// foreignKey is a key of Distribution's configuration without a field here. It is never
// reported if its value requests nothing (node.inert).
type foreignKey struct {
	path   string
	fate   fate
	why    string
	silent []string // values that are in effect here anyway
	// trigger is the entry that makes a refused section matter, if it is set.
	trigger string
}

const (
	notHere   = " is not in this version; the drivers are filesystem, s3, swift and inmemory"
	ownCopies = "ignored: an upload is written to its place in parts of chunksize"
)

// foreignKeys lists all foreign keys. Anything may be below them.
var foreignKeys = []foreignKey{
	{path: "log.hooks", why: "log hooks are not supported: collect the log on standard error instead"},
	{path: "log.reportcaller", why: "ignored: log lines do not name their place in the source"},

	{path: "storage.azure", fate: refusedAlways, why: "storage driver azure" + notHere},
	{path: "storage.gcs", fate: refusedAlways, why: "storage driver gcs" + notHere + "; s3 reaches Google Cloud Storage with an interoperability key"},
	{path: "storage.oss", fate: refusedAlways, why: "storage driver oss" + notHere},
	{path: "storage.s3.v4auth", fate: refused, silent: []string{"true", "yes", "on"}, why: "requests are always signed by version 4"},
	{path: "storage.s3.multipartcopychunksize", why: ownCopies},
	{path: "storage.s3.multipartcopymaxconcurrency", why: ownCopies},
	{path: "storage.s3.multipartcopythresholdsize", why: ownCopies},
	{path: "storage.s3.useragent", why: "ignored: requests name Slipway"},
	{path: "storage.s3.usedualstack", fate: refused, why: "is not supported; name a dual-stack endpoint as regionendpoint"},
	{path: "storage.s3.accelerate", fate: refused, why: "is not supported; leave it out"},
	{path: "storage.s3.objectacl", fate: refused, silent: []string{"private"}, why: "objects get no access list of their own; the bucket's policy says who reads them"},
	{path: "storage.s3.loglevel", why: "ignored: requests to the store are counted by metrics and not logged"},
	{path: "storage.s3.logs3apirequests", why: "ignored: requests to the store are counted by metrics and not logged"},
	{path: "storage.s3.logs3apiresponseheaders", why: "ignored: requests to the store are counted by metrics and not logged"},
	{path: "storage.swift.rootdirectory", why: "ignored, as by Distribution's driver: the key is prefix"},
	{path: "storage.swift.tempurlcontainerkey", why: "ignored: the container's key signs temporary URLs where it has one"},
	{path: "storage.swift.tempurlmethods", why: "ignored: temporary URLs are for reading only"},
	{path: "storage.maintenance.uploadpurging.interval", why: "ignored: old uploads are looked for every minute, which costs one query"},
	{path: "storage.maintenance.uploadpurging.dryrun", fate: refused, silent: []string{"false"}, why: "purging has no dry run here: set storage.maintenance.uploadpurging.enabled to false to keep old uploads"},
	{path: "storage.filesystem.maxthreads", why: "ignored: file operations need no limit of their own; http.ratelimit bounds the load"},
	{path: "storage.cache.blobdescriptor", silent: []string{"inmemory"}, why: "ignored: descriptors are always kept in memory"},
	{path: "storage.cache.layerinfo", silent: []string{"inmemory"}, why: "ignored: descriptors are always kept in memory"},
	{path: "storage.cache.blobdescriptorsize", why: "ignored: storage.memory is the one budget of the memory cache"},
	{path: "storage.tag.concurrencylimit", why: "ignored: the tags of a manifest are found without walking the repository"},

	{path: "auth.none", silent: []string{"none"}, why: "ignored: it is what holds when no other key stands below auth"},
	{path: "auth.silly", fate: refusedAlways, why: "the silly provider checks no password and is not supported; use htpasswd or token"},

	{path: "http.tls.letsencrypt", fate: refused, why: "certificates are not fetched from Let's Encrypt in this version; give http.tls.certificate and http.tls.key, or let a proxy in front do it"},

	{path: "validation.enabled", silent: []string{"true", "yes", "on"}, why: "deprecated and ignored"},
	{path: "middleware", fate: refused, why: "middleware is not supported; without it clients would reach other content, or other hosts, than meant"},
	{path: "policy", fate: refused, why: "repository class policies are not supported, and leaving them out would accept what they forbid"},
	{path: "redis", why: "ignored: no Redis is needed; what Distribution keeps there is kept in memory"},
	{path: "reporting", why: "ignored: errors are not reported to Bugsnag or New Relic"},
	{path: "compatibility", why: "ignored: there is no signing key; manifests of schema 1 are neither made nor converted"},
}

// alias is a short or an old name of a key.
type alias struct{ from, to, doc string }

// aliasRoot is the one alias whose target depends on the storage driver.
const aliasRoot = "storage.root"

// aliases are resolved while a layer is read. So a flag with one name overrides a file
// with the other name.
var aliases = []alias{
	{aliasRoot, "storage.filesystem.rootdirectory", "Short for filesystem.rootdirectory, and with s3 and swift for storage.directory."},
	{"storage.s3aws", "storage.s3", "Another name of s3."},
	{"loglevel", "log.level", "Deprecated: write log.level."},
}

// scalarForms are sections that may be given as one word that names their only entry, as
// in REGISTRY_AUTH=htpasswd. The word replaces the rival entries, and leaves the rest of
// the section unchanged.
var scalarForms = map[string][]string{
	"auth":    {"htpasswd", "token", "silly", "none"},
	"storage": {"filesystem", "inmemory", "s3", "s3aws", "swift", "azure", "gcs", "oss"},
}

// aliasOf returns the key for which path is another name, or path itself.
func aliasOf(path string) string {
	for _, a := range aliases {
		if a.from == path {
			return a.to
		}
	}
	return path
}

// foreign finds the foreign key with a path.
func foreign(path string) (foreignKey, bool) {
	for _, k := range foreignKeys {
		if k.path == path {
			return k, true
		}
	}
	return foreignKey{}, false
}

// judge reports a foreign key.
func (k foreignKey) judge(n *Node, at Place, r *Report) {
	for _, s := range k.silent {
		if n.Kind == scalarNode && n.text == s {
			return
		}
	}
	// "enabled: false" does request something: it tries to switch validation off. The
	// warning says that this does not work.
	if k.path == "validation.enabled" {
		r.AddWarning(at, k.path, "deprecated and ignored: validation stays on; write validation.disabled: true to switch it off")
		return
	}
	switch {
	case k.fate == refusedAlways:
		r.AddProblem(at, k.path, k.why)
	case n.inert() || k.trigger != "" && n.Kind == DictNode && (n.Child(k.trigger) == nil || n.Child(k.trigger).inert()):
	case k.fate == refused:
		r.AddProblem(at, k.path, k.why)
	default:
		r.AddWarning(at, k.path, k.why)
	}
}
