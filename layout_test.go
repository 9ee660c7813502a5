package slipway_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "example.org/slipway"

// layout is the architecture: each package, and which packages of this module
// it may import. A change here is a change of the architecture; say why in
// docs/architecture.md.
var layout = map[string][]string{
	"oci":                 {},
	"oci/ocitest":         {"oci"},
	"objstore":            {},
	"objstore/objtest":    {"objstore"},
	"objstore/fsstore":    {"durable", "objstore"},
	"objstore/memstore":   {"objstore"},
	"objstore/s3store":    {"objstore"},
	"objstore/swiftstore": {"objstore"},
	"objstore/remote":     {"objstore"},
	"backendtest":         {},
	"catalog":             {"oci"},
	"cache":               {},
	"cache/policy":        {},
	"cache/tier":          {"cache/policy", "objstore"},
	"cluster":             {"objstore", "oci"},
	"prefetch":            {"cache/policy", "oci"},
	"trace":               {},
	"trace/store":         {"durable", "trace"},
	"trace/synth":         {"durable", "trace", "trace/store"},
	"durable":             {},
	"fleet":               {},
	"auth":                {"oci"},
	"notify":              {"oci"},
	"client":              {"block", "fleet", "oci"},
	"chart":               {},
	"dedup":               {"chart", "oci", "rootfs"},
	"analyze":             {"chart", "trace", "trace/store"},
	"report":              {"chart"},
	"simulate":            {"cache/policy", "chart", "report", "trace", "trace/store", "trace/synth"},
	"rootfs":              {},
	"gear":                {"oci", "rootfs"},
	"filestore":           {"gear", "objstore", "catalog"},
	"gearregistry":        {"oci", "catalog", "filestore", "gear", "rootfs", "registry", "objstore"},
	"gearclient":          {"oci", "client", "gear", "rootfs"},
	"logtest":             {},
	"mounttest":           {},
	"erofs":               {},
	"erofs/geartree":      {"erofs", "gear", "rootfs"},
	"block":               {"gear", "oci"},
	"block/ext4":          {"block", "erofs", "erofs/geartree", "gear"},
	"block/erofslayout":   {"block", "erofs", "erofs/geartree"},
	"block/layouttest":    {"block", "erofs", "erofs/geartree", "gear"},
	"block/chain":         {"block", "block/erofslayout", "block/ext4", "erofs", "erofs/geartree", "gear", "oci", "rootfs"},
	"block/blocktest":     {"block", "block/chain", "gear", "oci", "rootfs"},
	"block/file":          {"block", "durable"},
	"block/rbd":           {"block"},
	"block/loop":          {},
	"block/volfs":         {"block", "durable", "gearfs/fuse"},
	"block/node":          {"block", "block/loop", "durable", "gearfs/view", "oci"},
	"volumeregistry":      {"block", "block/chain", "catalog", "gear", "gearregistry", "oci", "registry"},
	"gearfs/fuse":         {},
	"footprint":           {},
	"gearfs/view":         {"durable", "erofs", "erofs/geartree", "gear", "rootfs"},
	"gearfs/poolfs":       {"gearfs/fuse"},
	"snapshotter":         {"durable", "gearfs/view"},
	"gearfs/cachedir":     {"gear"},
	"gearfs":              {"durable", "gear", "rootfs", "gearfs/view", "gearfs/cachedir", "gearfs/poolfs"},
	"registry":            {"durable", "oci", "objstore", "objstore/fsstore", "catalog", "cache"},
	"replay/content":      {},
	"replay/result":       {"chart", "durable", "trace", "trace/store"},
	"replay/plan":         {"oci", "replay/content", "trace", "trace/store"},
	"replay/send":         {"replay/content", "replay/plan", "replay/result", "trace", "trace/store"},
	"replay":              {"durable", "replay/content", "replay/plan", "replay/result", "replay/send"},
	"mirror/upstream":     {"client", "oci"},
	"mirror":              {"mirror/upstream", "oci", "registry"},
	"mirror/airgap":       {"mirror", "oci"},
	"load/wire":           {},
	"load":                {"chart", "client", "load/wire", "oci", "replay/content", "replay/result", "report"},
	"dashboard":           {},
	"scripts/dashboards":  {"dashboard"},
	"scripts/package":     {},
	"server":              {"block", "fleet", "oci", "auth", "trace"},
	"config":              {"auth", "notify", "oci"},
	"web":                 {"auth", "catalog", "chart", "fleet", "gear", "gearregistry", "mirror", "oci", "registry", "rootfs"},
	// The composition root: the only package that knows concrete drivers.
	"serve": {"oci", "objstore", "objstore/fsstore", "objstore/memstore", "objstore/s3store", "objstore/swiftstore", "objstore/remote",
		"cache/policy", "cache/tier", "catalog", "registry", "server", "auth", "notify", "client", "cluster", "config", "trace", "rootfs", "gear",
		"filestore", "gearregistry", "mirror", "mirror/airgap", "mirror/upstream", "prefetch", "durable",
		"block", "block/file", "block/rbd", "volumeregistry", "web", "fleet", "footprint"},
	"serve/servetest": {"config", "serve"},
	// The composition root of the node side.
	"agent": {"durable", "fleet", "oci", "client", "config", "gear", "gearclient", "gearfs", "gearfs/cachedir", "gearfs/poolfs", "gearfs/view", "snapshotter",
		"block", "block/file", "block/node", "block/rbd", "block/volfs", "footprint"},
	"cmd/slipway": {"block", "volumeregistry", "serve", "agent", "config", "registry", "client", "oci", "dedup", "gear", "gearclient", "gearregistry", "analyze", "simulate", "cache/policy", "trace/store", "trace/synth", "replay", "replay/plan", "replay/result", "trace", "durable", "load", "mirror", "mirror/airgap"},
}

// fence is a third-party module and the only packages that may use it.
type fence struct {
	module string
	where  []string
	why    string
}

var fences = []fence{
	{"modernc.org/sqlite", []string{"catalog"}, "SQL stays behind the catalogue's methods"},
	{"database/sql", []string{"catalog"}, "SQL stays behind the catalogue's methods"},
	{"github.com/jackc/pgx", []string{"catalog", "backendtest"}, "SQL stays behind the catalogue's methods"},
	{"github.com/minio/minio-go", []string{"objstore/s3store", "backendtest"}, "one driver knows S3"},
	{"github.com/ncw/swift", []string{"objstore/swiftstore"}, "one driver knows Swift"},
	{"github.com/pressly/goose", []string{"catalog"}, "migrations belong to the schema"},
	{"github.com/spf13/cobra", []string{"cmd/slipway"}, "the command line is thin"},
	{"github.com/spf13/pflag", []string{"cmd/slipway"}, "the command line is thin"},
	{"oras.land/oras-go", []string{"client"}, "the token flow belongs to the client"},
	{"github.com/coreos/go-oidc", []string{"auth"}, "who asks is decided in one place"},
	{"github.com/golang-jwt/jwt", []string{"auth"}, "who asks is decided in one place"},
	{"golang.org/x/crypto/bcrypt", []string{"auth"}, "who asks is decided in one place"},
	{"go.yaml.in/yaml", []string{"config", "auth", "notify"}, "configuration is read in one place"},
	{"go.opentelemetry.io", []string{"serve"}, "tracing wraps the handler and nothing else knows it"},
	{"github.com/CycloneDX/cyclonedx-go", []string{"scripts/package"}, "what a release consists of is told in one place"},
	{"golang.org/x/crypto/x509roots", []string{"scripts/package"}, "the product trusts whom the system trusts"},
	{"github.com/containerd", []string{"snapshotter", "agent"}, "containerd is met at one place of the node"},
	{"google.golang.org/grpc", []string{"snapshotter", "agent"}, "only containerd speaks it"},
	{"github.com/ceph/go-ceph", []string{"block/rbd"}, "one driver knows Ceph, and only it needs a C compiler"},
	{"github.com/moby/sys/mountinfo", []string{"snapshotter"}, "who else mounts a snapshot is its question"},
	{"github.com/HdrHistogram/hdrhistogram-go", []string{"replay/result"}, "samples are counted in one place"},
	{"github.com/parquet-go/parquet-go", []string{"trace/store", "replay/result"}, "who reads a trace or a result knows its columns, not its file format"},
	{"github.com/ulikunitz/xz", []string{"trace"}, "logs are decompressed in one place"},
	{"net/http/pprof", []string{"serve"}, "it is served on the debug port only"},
	{"testing", []string{"oci/ocitest", "objstore/objtest", "serve/servetest", "mounttest", "backendtest", "block/blocktest", "block/layouttest"}, "test support is not product code"},
}

func TestLayout(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if file != "." && (d.Name() == "testdata" || file == "dist" || strings.HasPrefix(d.Name(), ".") || hasGoMod(file)) {
				return filepath.SkipDir
			}
			return nil
		}
		pkg := path.Dir(filepath.ToSlash(file))
		if pkg == "." || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		seen[pkg] = true
		return checkFile(t, pkg, file)
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range layout {
		if !seen[pkg] {
			t.Errorf("the layout table has package %s, which has no files", pkg)
		}
	}
}

// hasGoMod tells whether a directory is a module of its own.
func hasGoMod(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func checkFile(t *testing.T, pkg, file string) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		return err
	}
	allowed, ok := layout[pkg]
	if !ok {
		t.Errorf("%s: package %s is not in the layout table", file, pkg)
	}
	for _, spec := range f.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if dep, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(allowed, dep) {
			t.Errorf("%s imports %s; the layout allows %s only %v", file, dep, pkg, allowed)
		}
		for _, f := range fences {
			if (imp == f.module || strings.HasPrefix(imp, f.module+"/")) && !slices.Contains(f.where, pkg) {
				t.Errorf("%s imports %s, which only %v may: %s", file, imp, f.where, f.why)
			}
		}
	}
	return nil
}
