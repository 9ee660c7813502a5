package config_test

import (
	"strings"
	"testing"
	"time"

	"example.org/slipway/config"
)

// TestDistributionDrivers reads storage sections like those in Distribution's
// documentation of its drivers.
func TestDistributionDrivers(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "s3",
			text: `version: 0.1
storage:
  s3:
    accesskey: AKIAIOSFODNN7
    secretkey: hush
    region: us-west-1
    regionendpoint: http://myobjects.local
    forcepathstyle: true
    accelerate: false
    bucket: bucketname
    encrypt: true
    keyid: mykeyid
    secure: true
    v4auth: true
    chunksize: 5242880
    multipartcopychunksize: 33554432
    multipartcopymaxconcurrency: 100
    multipartcopythresholdsize: 33554432
    rootdirectory: /s3/object/name/prefix
    usedualstack: false
    loglevel: debug
    storageclass: STANDARD
  redirect: {disable: false}
`,
			want: func(c *config.Config) {
				c.Storage.S3 = &config.S3{
					AccessKey: "AKIAIOSFODNN7", SecretKey: "hush", Region: "us-west-1", RegionEndpoint: "http://myobjects.local",
					ForcePathStyle: true, Bucket: "bucketname", Encrypt: true, KeyID: "mykeyid", Secure: true, ChunkSize: 5 << 20,
					RootDirectory: "/s3/object/name/prefix", StorageClass: "STANDARD",
				}
			},
			warned: []string{
				"c.yml:16 storage.s3.multipartcopychunksize", "c.yml:17 storage.s3.multipartcopymaxconcurrency",
				"c.yml:18 storage.s3.multipartcopythresholdsize", "c.yml:21 storage.s3.loglevel",
			},
		},
		{
			name: "s3 by its other name, from the environment, without keys",
			env:  []string{"REGISTRY_STORAGE=s3aws", "REGISTRY_STORAGE_S3AWS_BUCKET=b", "REGISTRY_STORAGE_S3AWS_REGION=eu-central-1"},
			want: func(c *config.Config) {
				c.Storage.S3 = &config.S3{Bucket: "b", Region: "eu-central-1", Secure: true, ChunkSize: 16 << 20}
			},
		},
		{
			name: "swift",
			text: `version: 0.1
storage:
  swift:
    username: username
    password: hush
    authurl: https://storage.myprovider.com/auth/v1.0
    tenant: tenantname
    tenantid: tenantid
    domain: domain name for Openstack Identity v3 API
    domainid: domain id for Openstack Identity v3 API
    insecureskipverify: true
    region: fr
    container: containername
    rootdirectory: /swift/object/name/prefix
`,
			want: func(c *config.Config) {
				c.Storage.Swift = &config.Swift{
					AuthURL: "https://storage.myprovider.com/auth/v1.0", Username: "username", Password: "hush", Tenant: "tenantname", TenantID: "tenantid",
					Domain: "domain name for Openstack Identity v3 API", DomainID: "domain id for Openstack Identity v3 API", InsecureSkipVerify: true,
					Region: "fr", Container: "containername", ChunkSize: 20 << 20, EndpointType: "public",
				}
			},
			warned: []string{"c.yml:14 storage.swift.rootdirectory", "c.yml:11 storage.swift.insecureskipverify"},
		},
		{
			name: "swift's prefix and temporary URLs",
			text: `version: 0.1
storage: {swift: {username: u, password: p, authurl: "http://h:5000/v3", authversion: 3, endpointtype: internal, container: c, prefix: p,
  secretkey: k, accesskey: a, trustid: t, chunksize: 5M, tempurlcontainerkey: true, tempurlmethods: [GET]}}
`,
			want: func(c *config.Config) {
				c.Storage.Swift = &config.Swift{
					AuthURL: "http://h:5000/v3", AuthVersion: 3, Username: "u", Password: "p", Container: "c", Prefix: "p", SecretKey: "k",
					AccessKey: "a", TrustID: "t", ChunkSize: 5 << 20, EndpointType: "internal",
				}
			},
			warned: []string{"c.yml:3 storage.swift.tempurlcontainerkey", "c.yml:3 storage.swift.tempurlmethods"},
		},
	})
}

func TestCachesAndReplicas(t *testing.T) {
	ram, large := config.Size(2<<30), config.Size(200<<20)
	runFiles(t, []fileCase{
		{
			name: "all of it",
			text: `version: 0.1
storage:
  s3: {bucket: b}
  root: /var/lib/slipway
  catalog: {postgres: "postgres://u:hush@db/slipway", connections: 20}
  blob_cache: {ram: 2GiB, ssd: 200GiB, directory: /mnt/nvme, ram_policy: lru, ssd_policy: s3-fifo, admission: second-touch, write_budget: 1TiB, large: 200MiB, write_through: false}
  prefetch: {mode: algorithm1, lm: 1d, ml: 12h, budget: 1MiB, parallel: 2, precision: -1}
  redirect:
    mode: uncached
    min_size: 10MiB
    expiry: 5m
    rules: [{repositories: [models/**], networks: [10.0.0.0/8, "192.0.2.1"], mode: always}]
cluster: {addr: "0.0.0.0:5002", url: "http://10.0.0.5:5002", id: r0, secret: "0123456789abcdef", strict_tags: true}
`,
			want: func(c *config.Config) {
				s := &c.Storage
				s.S3 = &config.S3{Bucket: "b", Secure: true, ChunkSize: 16 << 20}
				s.Directory = "/var/lib/slipway"
				s.Catalog = config.SharedCatalog{Postgres: "postgres://u:hush@db/slipway", Connections: 20}
				s.BlobCache = config.BlobCache{RAM: &ram, SSD: 200 << 30, Directory: "/mnt/nvme", RAMPolicy: "lru", SSDPolicy: "s3-fifo",
					Admission: "second-touch", WriteBudget: 1 << 40, Large: &large}
				s.Prefetch.Mode, s.Prefetch.LM, s.Prefetch.ML, s.Prefetch.Budget, s.Prefetch.Parallel, s.Prefetch.Precision = "algorithm1", 24*time.Hour, 12*time.Hour, 1<<20, 2, -1
				s.Redirect = config.Redirect{Mode: "uncached", MinSize: 10 << 20, Expiry: 5 * time.Minute,
					Rules: []config.RedirectRule{{Repositories: []string{"models/**"}, Networks: []string{"10.0.0.0/8", "192.0.2.1"}, Mode: "always"}}}
				c.Cluster = config.Cluster{Addr: "0.0.0.0:5002", URL: "http://10.0.0.5:5002", ID: "r0", Secret: "0123456789abcdef", StrictTags: true}
			},
		},
		{
			name: "storage.root means the directory of the driver",
			text: "version: 0.1\nstorage: {s3aws: {bucket: b}, directory: /a}\n",
			env:  []string{"REGISTRY_STORAGE_ROOT=/b"},
			want: func(c *config.Config) {
				c.Storage.S3, c.Storage.Directory = &config.S3{Bucket: "b", Secure: true, ChunkSize: 16 << 20}, "/b"
			},
		},
	})
}

// TestRootFlag checks that the flag --root sets the local directory, whatever the driver.
func TestRootFlag(t *testing.T) {
	for text, want := range map[string]string{
		"storage: {root: /a}":                                  "/x",
		"storage: {filesystem: {rootdirectory: /a}}":           "/x",
		"storage: {s3: {bucket: b}, directory: /a}":            "/x",
		"storage: {swift: {}}":                                 "/x",
		"storage: {inmemory: }":                                "/x",
		"storage: {filesystem: {rootdirectory: /a}, s3: null}": "/x",
	} {
		c, _, err := config.Parse(strings.NewReader("version: 0.1\n"+text), &config.Options{
			Overrides: []config.Override{{Key: "storage.root", Value: "/x"}},
			Env:       []string{"REGISTRY_STORAGE_SWIFT_AUTHURL=http://h", "REGISTRY_STORAGE_SWIFT_USERNAME=u", "REGISTRY_STORAGE_SWIFT_PASSWORD=p", "REGISTRY_STORAGE_SWIFT_CONTAINER=c"}[:boolInt(strings.Contains(text, "swift"))*4],
		})
		if strings.Contains(text, "null") {
			if err == nil {
				t.Errorf("%s: two drivers were accepted", text)
			}
			continue
		}
		if strings.Contains(text, "inmemory") { // it has no directory
			if err == nil || !strings.Contains(err.Error(), "choose one storage driver") {
				t.Errorf("%s: got %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := c.Storage.Root(); got != want {
			t.Errorf("%s: got root %s, want %s", text, got, want)
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

const notConnection = "c.yml:2: storage.catalog.postgres: must be postgres://USER@HOST/DATABASE, or words like host=HOST dbname=DATABASE"

func TestStorageProblems(t *testing.T) {
	runProblems(t, []problemCase{
		{"s3", `storage:
  s3: {accesskey: a, regionendpoint: "ftp://x", keyid: k, chunksize: 1MiB, rootdirectory: "a/../b", usedualstack: true, objectacl: public-read}
  directory: ""`, []string{
			"c.yml:3: storage.s3.usedualstack: is not supported; name a dual-stack endpoint as regionendpoint",
			"c.yml:3: storage.s3.objectacl: objects get no access list of their own; the bucket's policy says who reads them",
			"c.yml:3: storage.s3.chunksize: must be at least 5MiB",
			"c.yml:3: storage.s3.regionendpoint: must be an http or https URL without a path, or HOST:PORT",
			"c.yml:3: storage.s3.rootdirectory: must be words of letters, digits and ._=+- with slashes between",
			"c.yml:4: storage.directory: must not be empty: not everything goes into the object store",
		}},
		{"s3, what belongs together", `storage: {s3: {accesskey: a, keyid: k, sessiontoken: hush}}`, []string{
			"c.yml:2: storage.s3.bucket: is missing",
			"c.yml:2: storage.s3.secretkey: and storage.s3.accesskey belong together: give both, or neither to use the machine's credentials",
			"c.yml:2: storage.s3.sessiontoken: needs storage.s3.accesskey and storage.s3.secretkey",
			"c.yml:2: storage.s3.keyid: needs storage.s3.encrypt: true",
		}},
		{"s3, nothing that only follows from another mistake", `storage: {s3: {buckte: b, accesskey: a, secretkey: "${file:/none}"}}`, []string{
			"c.yml:2: unknown key storage.s3.buckte (did you mean storage.s3.bucket?)",
			"c.yml:2: storage.s3.secretkey: read the file it names: open /none: no such file",
		}},
		{"swift without a place", `storage: {swift: {username: u, password: p, container: c}}`, []string{
			"c.yml:2: storage.swift.authurl: is missing",
		}},
		{"swift", `storage: {swift: {authurl: x, container: a/b, authversion: 7, endpointtype: secret}}`, []string{
			"c.yml:2: storage.swift.endpointtype: must be public, internal or admin",
			"c.yml:2: storage.swift.authurl: must be an http or https URL",
			"c.yml:2: storage.swift.container: must not have a slash",
			"c.yml:2: storage.swift.authversion: must be 0, 1, 2 or 3",
			"c.yml:2: storage.swift.username: is missing",
			"c.yml:2: storage.swift.password: is missing",
		}},
		{"two drivers", `storage: {s3: {bucket: b}, swift: {authurl: "http://h", username: u, password: p, container: c}}`, []string{
			"c.yml:2: storage.swift: stands beside storage.s3: choose one storage driver",
		}},
		{"a shared catalogue beside a directory", `storage:
  filesystem: {rootdirectory: /a}
  directory: /b
  catalog: {postgres: "postgres://u:hush@h/d"}`, []string{
			"c.yml:5: storage.catalog.postgres: needs storage.s3 or storage.swift: a directory belongs to one server, whose catalogue is in it",
		}},
		{"connection string of another kind", `storage: {s3: {bucket: b}, catalog: {postgres: "postgress://u:hu:sh@h/d"}}`, []string{notConnection}},
		{"connection string that is a password", `storage: {s3: {bucket: b}, catalog: {postgres: "hush"}}`, []string{notConnection}},
		{"connection string that was cut", `storage: {s3: {bucket: b}, catalog: {postgres: "hu sh=h/d"}}`, []string{notConnection}},
		{"caches and redirects", `storage:
  s3: {bucket: b}
  blob_cache: {ram: -1, ram_policy: mru, admission: none}
  redirect: {mode: often, expiry: 8d, rules: [{repositories: [A], networks: [unix, nowhere], mode: x}]}
  prefetch: {mode: b, precision: 2, parallel: 0}`, []string{
			"c.yml:4: storage.blob_cache.ram_policy: must be 2q, arc, arc-unit, fifo, gdsf, hyperbolic, lfuda, lhd, lru, s3-fifo, sieve, slru or w-tinylfu",
			"c.yml:4: storage.blob_cache.admission: must be all, second-touch or adaptive",
			"c.yml:6: storage.prefetch.mode: must be off, algorithm1 or manifest",
			"c.yml:6: storage.prefetch.parallel: must be at least 1",
			"c.yml:5: storage.redirect.mode: must be never, uncached, always or large",
			"c.yml:5: storage.redirect.rules[0].mode: must be never, uncached, always or large",
			"c.yml:4: storage.blob_cache.ram: must be at least 0",
			"c.yml:5: storage.redirect.expiry: must be at most 168h, the longest an object store signs an address for",
			"c.yml:5: storage.redirect.rules[0].repositories[0]: matches no repository: it has a character that no repository name has",
			"c.yml:5: storage.redirect.rules[0].networks[0]: must be an address (192.0.2.1) or a network (10.0.0.0/8)",
			"c.yml:5: storage.redirect.rules[0].networks[1]: must be an address (192.0.2.1) or a network (10.0.0.0/8)",
			"c.yml:6: storage.prefetch.precision: must be at most 1",
		}},
		{"cluster", `storage: {s3: {bucket: b}}
cluster: {addr: ":5002", secret: short, id: "a b"}`, []string{
			"c.yml:3: cluster.secret: must have at least 16 bytes",
			"c.yml:3: cluster.id: must be 1 to 64 letters, digits, dots, underscores and hyphens",
			"c.yml:3: cluster.url: is missing: cluster.addr does not say where others reach this server",
			"c.yml:3: cluster.addr: needs storage.catalog.postgres: servers find each other in the catalogue they share",
		}},
		{"cluster with TLS that is not there", `storage: {s3: {bucket: b}, catalog: {postgres: "host=db"}}
cluster: {addr: "10.0.0.5:5002", url: "https://10.0.0.5:5002", secret: 0123456789abcdef}`, []string{
			"c.yml:3: cluster.url: says https, which needs http.tls.certificate and http.tls.key",
		}},
	})
}

func TestStorageWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"storage: {redirect: {mode: always}}":                                             "storage.redirect: has no effect: the driver filesystem has nowhere to send clients to",
		"storage: {s3: {bucket: b}, redirect: {disable: true, rules: [{mode: large}]}}":   "storage.redirect.disable: outweighs storage.redirect.mode and rules: nobody is sent to the object store",
		"storage: {s3: {bucket: b, skipverify: true}, redirect: {mode: never}}":           "storage.s3.skipverify: whoever is between",
		"storage: {s3: {bucket: b}, redirect: {mode: large, rules: [{mode: never}]}}":     "",
		"storage: {s3: {bucket: b}, redirect: {disable: true}, blob_cache: {ssd: 10GiB}}": "",
		"storage: {filesystem: {rootdirectory: /a}, directory: /b}":                       "storage.directory: has no effect",
		"storage: {filesystem: {rootdirectory: /a}, directory: /var/lib/registry}":        "",
	} {
		_, ws, err := parse("version: 0.1\n" + text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		switch {
		case want == "" && len(ws) > 0:
			t.Errorf("%s: warned of %v", text, ws)
		case want != "" && (len(ws) != 1 || !strings.Contains(ws[0].String(), want)):
			t.Errorf("%s: got warnings %v, want %s", text, ws, want)
		}
	}
}

// TestStorageSecrets checks that no secret of a driver, a catalogue or a cluster is ever
// shown.
func TestStorageSecrets(t *testing.T) {
	for _, text := range []string{
		"storage: {s3: {bucket: b, accesskey: a, secretkey: hush, sessiontoken: hush}, catalog: {postgres: \"postgres://u:hush@h/d\"}}\ncluster: {addr: \"127.0.0.1:1\", secret: hushhushhushhush}",
		"storage: {swift: {authurl: \"http://h\", username: u, password: hush, container: c, secretkey: hush, accesskey: hush}}",
	} {
		c, _, err := parse("version: 0.1\n" + text)
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.MarshalJSON()
		if shown := c.String() + string(b); err != nil || strings.Contains(shown, "hush") {
			t.Errorf("%v, a secret is shown:\n%s", err, shown)
		}
	}
}
