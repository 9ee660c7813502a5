package slipway_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "example.org/slipway"

// groups is the architecture in the large: each directory of the root that holds
// packages, and which others its packages may import. No two of them
// import each other.
var groups = map[string][]string{
	"oci":      {},
	"internal": {},
	"registry": {"oci", "internal", "workload"},
	"gear":     {"oci", "internal", "registry"},
	"node":     {"gear", "internal"},
	"volume":   {"oci", "internal", "registry", "gear", "node"},
	"workload": {"oci", "internal"},
	"scripts":  {"internal"},
	"config":   {"oci", "registry"},
	"web":      {"oci", "internal", "registry", "gear"},
	"serve":    {"oci", "internal", "registry", "gear", "volume", "workload", "config", "web"},
	"agent":    {"oci", "internal", "gear", "node", "volume", "config"},
	"cmd":      {"oci", "internal", "registry", "gear", "volume", "workload", "config", "serve", "agent"},
}

// layout is the architecture in the small: each package, and which packages of this
// module it may import. A change here is a change of the architecture; say why in
// docs/architecture.md.
var layout = map[string][]string{
	// What everybody speaks.
	"oci":                    {},
	"oci/client":             {"oci", "oci/client/wrongserver", "oci/fleet", "oci/peering", "oci/volref", "oci/wire"},
	"oci/client/command":     {"oci/client", "oci/wire"},
	"oci/client/wrongserver": {},
	"oci/fleet":              {},
	"oci/fleet/timeline":     {"oci/fleet"},
	"oci/imagecopy":          {"oci", "oci/client"},
	"oci/model":              {"oci"},
	"oci/ocitest":            {"oci"},
	"oci/peering":            {},
	"oci/volref":             {"oci"},
	"oci/warm":               {"oci"},
	"oci/wire":               {},

	// What serves several groups and no other module.
	"internal/backendtest": {"internal/cephseed"},
	"internal/buffers":     {},
	"internal/cephseed":    {},
	"internal/chart":       {},
	"internal/dashboard":   {},
	"internal/durable":     {},
	"internal/footprint":   {},
	"internal/logtest":     {},
	"internal/mounttest":   {},
	"internal/policy":      {},
	"internal/procstat":    {},
	"internal/reach":       {},
	"internal/report":      {"internal/chart"},
	"internal/systemd":     {},

	// The registry.
	"registry":                      {"oci", "registry/cache", "registry/catalog", "registry/catalog/browse", "registry/catalog/engine", "registry/catalog/gearfacts", "registry/catalog/repair", "registry/manifest", "registry/objstore", "registry/replica", "registry/storage", "registry/upload", "registry/verify"},
	"registry/activity":             {"registry/auth", "registry/auth/patterns"},
	"registry/adopt":                {"oci", "registry/catalog", "registry/catalog/repair", "registry/manifest", "registry/objstore", "registry/storage", "registry/verify"},
	"registry/auth":                 {"oci", "oci/wire", "registry/auth/ldap", "registry/auth/passwords", "registry/auth/patterns", "registry/auth/recent", "registry/auth/signing"},
	"registry/auth/ldap":            {"oci", "oci/wire", "registry/auth/passwords", "registry/auth/recent"},
	"registry/auth/passwords":       {"oci", "registry/auth/recent"},
	"registry/auth/patterns":        {},
	"registry/auth/recent":          {},
	"registry/auth/signing":         {},
	"registry/backup":               {"internal/durable", "oci", "registry", "registry/catalog", "registry/catalog/browse", "registry/catalog/engine", "registry/catalog/gearfacts", "registry/catalog/repair", "registry/catalog/snapshot", "registry/manifest", "registry/objstore", "registry/objstore/fsstore", "registry/replica", "registry/storage", "registry/verify"},
	"registry/cache":                {},
	"registry/cache/tier":           {"internal/policy", "registry/cache/tier/format", "registry/objstore"},
	"registry/cache/tier/format":    {"internal/policy"},
	"registry/catalog":              {"oci", "registry/catalog/engine"},
	"registry/catalog/browse":       {"oci", "registry/catalog", "registry/catalog/engine"},
	"registry/catalog/historyfacts": {"oci", "registry/catalog", "registry/catalog/engine"},
	"registry/catalog/catalogtest":  {"internal/backendtest"},
	"registry/catalog/engine":       {"registry/catalog/engine/pg"},
	"registry/catalog/engine/pg":    {},
	"registry/catalog/gearfacts":    {"oci", "registry/catalog", "registry/catalog/engine"},
	"registry/catalog/repair":       {"oci", "registry/catalog", "registry/catalog/engine"},
	"registry/catalog/snapshot":     {"oci", "registry/catalog", "registry/catalog/engine", "registry/catalog/repair"},
	"registry/catalog/tokenfacts":   {"registry/catalog/engine"},
	"registry/catalog/volumefacts":  {"oci", "registry/catalog/engine"},
	"registry/catalog/warmfacts":    {"registry/catalog/engine"},
	"registry/catalog/webhookfacts": {"registry/catalog/engine"},
	"registry/check":                {"oci", "registry", "registry/catalog", "registry/catalog/repair", "registry/manifest", "registry/objstore", "registry/replica", "registry/storage", "registry/verify"},
	"registry/cluster":              {"oci", "oci/wire", "registry/objstore"},
	"registry/history":              {"oci", "registry/catalog", "registry/catalog/historyfacts", "registry/manifest", "registry/storage"},
	"registry/manifest":             {"oci"},
	"registry/mirror":               {"oci", "registry", "registry/mirror/fill", "registry/mirror/revoked", "registry/mirror/route", "registry/mirror/upstream", "registry/storage"},
	"registry/mirror/airgap":        {"oci"},
	"registry/mirror/fill":          {"oci", "registry/mirror/upstream", "registry/storage", "registry/verify"},
	"registry/mirror/revoked":       {},
	"registry/mirror/route":         {},
	"registry/mirror/upstream":      {"internal/reach", "oci", "oci/client", "oci/wire", "registry/mirror/route"},
	"registry/notify":               {"internal/reach", "oci", "oci/wire", "registry/auth/patterns"},
	"registry/objstore":             {},
	"registry/objstore/fsstore":     {"internal/durable", "registry/objstore"},
	"registry/objstore/memstore":    {"registry/objstore"},
	"registry/objstore/objtest":     {"registry/objstore"},
	"registry/objstore/remote":      {"registry/objstore"},
	"registry/objstore/s3store":     {"oci/wire", "registry/objstore", "registry/objstore/remote"},
	"registry/objstore/swiftstore":  {"oci/wire", "registry/objstore", "registry/objstore/remote"},
	"registry/prefetch":             {"internal/policy", "oci"},
	"registry/quota":                {"oci", "registry/catalog", "registry/storage"},
	"registry/registrytest":         {"oci", "registry", "registry/backup", "registry/catalog", "registry/catalog/gearfacts", "registry/check", "registry/objstore", "registry/objstore/fsstore", "registry/objstore/memstore", "registry/objstore/objtest", "registry/storage"},
	"registry/replica":              {"registry/catalog/engine"},
	"registry/replication":          {"oci", "oci/imagecopy"},
	"registry/retention":            {"oci", "registry", "registry/catalog", "registry/replica", "registry/storage"},
	"registry/server":               {"oci", "oci/fleet", "oci/peering", "oci/volref", "oci/wire", "registry/auth", "registry/server/counts", "registry/server/edge", "registry/server/names", "registry/warming", "workload/trace"},
	"registry/server/counts":        {"oci"},
	"registry/server/edge":          {"oci"},
	"registry/server/names":         {"oci", "registry/server/edge"},
	"registry/signatures":           {"oci", "registry/catalog"},
	"registry/storage":              {"oci", "registry/catalog", "registry/catalog/engine", "registry/objstore", "registry/replica", "registry/verify"},
	"registry/tracker":              {"oci", "oci/peering"},
	"registry/upload":               {"oci", "registry/catalog", "registry/objstore", "registry/replica", "registry/storage", "registry/verify"},
	"registry/verify":               {"oci"},
	"registry/warming":              {"oci", "oci/warm", "registry/catalog/engine", "registry/catalog/warmfacts"},

	// Images by files.
	"gear":                    {"gear/rootfs", "oci"},
	"gear/client":             {"gear", "gear/convert", "gear/rootfs", "gear/upper", "oci", "oci/client"},
	"gear/convert":            {"gear", "gear/rootfs", "oci"},
	"gear/dedup":              {"gear/rootfs", "internal/chart", "oci"},
	"gear/dirfd":              {},
	"gear/export":             {"gear", "gear/dirfd", "gear/rootfs"},
	"gear/filestore":          {"gear", "gear/convert", "gear/filestore/hot", "gear/filestore/packfile", "gear/filestore/parity", "internal/buffers", "registry/catalog", "registry/catalog/engine", "registry/catalog/gearfacts", "registry/objstore"},
	"gear/filestore/hot":      {"gear"},
	"gear/filestore/packfile": {"gear", "registry/catalog/gearfacts"},
	"gear/filestore/parity":   {"gear", "gear/filestore/packfile", "registry/catalog/engine", "registry/catalog/gearfacts", "registry/objstore"},
	"gear/predict":            {"gear", "gear/rootfs"},
	"gear/profile":            {"gear"},
	"gear/rebuild":            {"gear", "gear/rebuild/deflate"},
	"gear/rebuild/deflate":    {},
	"gear/recipes":            {"gear", "gear/filestore", "gear/filestore/parity", "gear/rebuild", "oci", "registry", "registry/catalog", "registry/catalog/gearfacts", "registry/objstore", "registry/storage", "registry/verify"},
	"gear/rootfs":             {},
	"gear/service":            {"gear", "gear/convert", "gear/filestore", "gear/rootfs", "gear/starts", "oci", "registry", "registry/catalog", "registry/catalog/engine", "registry/catalog/gearfacts", "registry/catalog/repair", "registry/objstore", "registry/storage", "registry/upload"},
	"gear/starts":             {"gear", "gear/predict", "gear/profile", "oci", "registry/catalog", "registry/catalog/gearfacts"},
	"gear/treetest":           {"gear", "gear/rootfs"},
	"gear/upper":              {"gear", "gear/dirfd", "gear/rootfs"},

	// Images on a node.
	"node/cachedir":       {"gear", "internal/durable"},
	"node/erofs":          {},
	"node/erofs/geartree": {"gear", "gear/rootfs", "node/erofs"},
	"node/fuse":           {},
	"node/fusetest":       {"internal/mounttest", "node/fuse"},
	"node/gearfs":         {"gear", "gear/predict", "internal/durable", "node/cachedir", "node/gearfs/flow", "node/gearfs/pace", "node/gearfs/starts", "node/gearfs/table", "node/poolfs"},
	"node/gearfs/flow":    {"node/gearfs/pace"},
	"node/gearfs/pace":    {},
	"node/gearfs/starts":  {"gear", "gear/predict"},
	"node/gearfs/table":   {"gear", "node/poolfs"},
	"node/poolfs":         {"node/fuse"},
	"node/snapshotter":    {"internal/durable", "node/view"},
	"node/view":           {"gear", "gear/rootfs", "internal/durable", "node/erofs", "node/erofs/geartree"},

	// Images as block volumes.
	"volume/block":       {"gear", "oci", "oci/volref"},
	"volume/blocktest":   {"gear", "gear/rootfs", "oci", "oci/volref", "volume/block", "volume/chain"},
	"volume/chain":       {"gear", "gear/rootfs", "node/erofs", "node/erofs/geartree", "oci", "oci/volref", "volume/block", "volume/erofslayout", "volume/ext4"},
	"volume/erofslayout": {"node/erofs", "node/erofs/geartree", "volume/block"},
	"volume/ext4":        {"gear", "node/erofs", "node/erofs/geartree", "volume/block"},
	"volume/file":        {"internal/durable", "oci/volref", "volume/block"},
	"volume/layouttest":  {"gear", "node/erofs", "node/erofs/geartree", "volume/block"},
	"volume/loop":        {},
	"volume/node":        {"internal/durable", "node/view", "oci", "oci/volref", "volume/block", "volume/loop"},
	"volume/rbd":         {"oci/volref", "volume/block"},
	"volume/service":     {"gear", "oci", "oci/volref", "registry", "registry/catalog", "registry/catalog/engine", "registry/catalog/volumefacts", "registry/storage", "volume/block", "volume/chain"},
	"volume/volfs":       {"internal/durable", "node/fuse", "oci/volref", "volume/block"},

	// Traces, replays and load.
	"workload/analyze":                      {"internal/chart", "workload/trace", "workload/trace/store"},
	"workload/analyze/external":             {"internal/chart", "workload/analyze", "workload/plugin", "workload/trace/store"},
	"workload/load":                         {"internal/chart", "internal/procstat", "internal/report", "oci", "oci/client", "oci/client/wrongserver", "workload/load/imageset", "workload/load/wire", "workload/replay/result"},
	"workload/load/imageset":                {"oci", "workload/replay/content"},
	"workload/load/wire":                    {},
	"workload/plugin":                       {},
	"workload/replay":                       {"internal/durable", "workload/replay/content", "workload/replay/plan", "workload/replay/result", "workload/replay/send"},
	"workload/replay/content":               {},
	"workload/replay/plan":                  {"oci", "workload/replay/content", "workload/trace", "workload/trace/store"},
	"workload/replay/result":                {"internal/chart", "internal/durable", "workload/trace", "workload/trace/store"},
	"workload/replay/send":                  {"oci/client", "oci/wire", "workload/replay/content", "workload/replay/plan", "workload/replay/result", "workload/trace", "workload/trace/store"},
	"workload/simulate":                     {"internal/chart", "internal/policy", "internal/report", "workload/plugin", "workload/trace", "workload/trace/store", "workload/trace/synth"},
	"workload/simulate/table":               {"workload/simulate"},
	"workload/trace":                        {},
	"workload/trace/figures":                {"workload/trace", "workload/trace/store"},
	"workload/trace/ingest":                 {"workload/trace", "workload/trace/logs", "workload/trace/store"},
	"workload/trace/logs":                   {"workload/trace", "workload/trace/logs/formats", "workload/trace/logs/internal/tenfield", "workload/trace/logs/internal/values"},
	"workload/trace/logs/formats":           {"workload/trace", "workload/trace/logs/internal/tenfield", "workload/trace/logs/internal/values"},
	"workload/trace/logs/internal/tenfield": {"workload/trace", "workload/trace/logs/internal/values"},
	"workload/trace/logs/internal/values":   {},
	"workload/trace/store":                  {"internal/durable", "workload/trace"},
	"workload/trace/synth":                  {"internal/durable", "workload/trace", "workload/trace/store"},
	"workload/trace/tracetest":              {"workload/trace", "workload/trace/store"},

	// The composition roots, and what stands beside them. Only serve and agent know concrete drivers.
	"scripts/dashboards":   {"internal/dashboard"},
	"scripts/package":      {},
	"config":               {"config/yamlfile", "oci", "oci/warm", "registry/auth", "registry/auth/patterns", "registry/notify"},
	"config/yamlfile":      {},
	"web":                  {"gear/service", "internal/chart", "oci", "oci/fleet", "oci/warm", "oci/wire", "registry", "registry/auth", "registry/auth/passwords", "registry/catalog/browse", "registry/check", "registry/mirror", "registry/notify", "registry/quota", "registry/retention", "registry/server/edge", "web/format", "web/images", "web/manage"},
	"web/documents":        {"oci"},
	"web/format":           {},
	"web/images":           {"gear", "gear/rootfs", "oci", "oci/fleet", "oci/fleet/timeline", "registry/catalog", "registry/catalog/browse", "registry/catalog/gearfacts", "registry/signatures", "web/documents", "web/format"},
	"web/manage":           {"oci/fleet", "registry/activity", "registry/auth", "registry/auth/patterns", "registry/notify", "registry/replication", "web/format", "web/images"},
	"serve":                {"config", "gear", "gear/predict", "gear/service", "internal/footprint", "internal/policy", "internal/systemd", "oci", "oci/fleet", "oci/volref", "oci/wire", "registry", "registry/auth", "registry/auth/patterns", "registry/auth/signing", "registry/history", "registry/mirror", "registry/mirror/route", "registry/notify", "registry/objstore", "registry/prefetch", "registry/quota", "registry/replication", "registry/server", "registry/server/edge", "registry/storage", "registry/tracker", "serve/admin", "serve/dataroot", "serve/gate", "serve/mirrors", "serve/page", "volume/service", "web", "web/manage", "workload/trace"},
	"serve/admin":          {"config", "gear/recipes", "gear/service", "oci", "oci/client", "oci/imagecopy", "registry", "registry/activity", "registry/auth", "registry/backup", "registry/catalog", "registry/catalog/engine", "registry/check", "registry/mirror", "registry/mirror/airgap", "registry/notify", "registry/objstore", "registry/quota", "registry/replication", "registry/retention", "registry/server", "serve/dataroot", "serve/gate", "serve/mirrors", "volume/service"},
	"serve/dataroot":       {"config", "gear", "gear/filestore", "gear/recipes", "gear/rootfs", "gear/service", "internal/durable", "internal/footprint", "internal/policy", "oci", "oci/client", "oci/warm", "oci/wire", "registry", "registry/adopt", "registry/auth", "registry/auth/patterns", "registry/backup", "registry/cache/tier", "registry/catalog", "registry/catalog/engine", "registry/catalog/historyfacts", "registry/catalog/repair", "registry/catalog/snapshot", "registry/catalog/tokenfacts", "registry/catalog/webhookfacts", "registry/check", "registry/cluster", "registry/history", "registry/mirror", "registry/notify", "registry/objstore", "registry/objstore/fsstore", "registry/objstore/memstore", "registry/objstore/remote", "registry/objstore/s3store", "registry/objstore/swiftstore", "registry/prefetch", "registry/quota", "registry/replication", "registry/retention", "registry/signatures", "registry/storage", "registry/warming", "serve/gate", "serve/mirrors", "volume/block", "volume/file", "volume/rbd", "volume/service"},
	"serve/gate":           {"oci"},
	"serve/mirrors":        {"config", "oci", "oci/client", "oci/client/command", "oci/wire", "registry", "registry/auth/patterns", "registry/catalog", "registry/mirror", "registry/mirror/airgap", "registry/mirror/upstream", "registry/objstore", "registry/storage", "serve/gate"},
	"serve/page":           {"config", "gear", "gear/service", "oci", "oci/fleet", "oci/warm", "registry", "registry/activity", "registry/auth", "registry/catalog", "registry/catalog/browse", "registry/catalog/gearfacts", "registry/check", "registry/notify", "registry/replication", "registry/retention", "registry/server/edge", "registry/signatures", "serve/dataroot", "serve/gate", "serve/mirrors", "web", "web/images", "web/manage"},
	"serve/servetest":      {"config", "serve"},
	"agent":                {"agent/api", "agent/images", "agent/kubelet", "agent/peers", "agent/registries", "agent/volumeworker", "config", "gear", "internal/footprint", "node/cachedir", "node/gearfs", "node/gearfs/starts", "node/poolfs", "node/snapshotter", "node/view", "oci", "oci/fleet", "oci/fleet/timeline", "oci/warm", "volume/volfs"},
	"agent/api":            {"config", "node/gearfs", "node/gearfs/starts", "node/poolfs", "oci", "oci/client/wrongserver", "oci/volref", "volume/node"},
	"agent/images":         {"agent/api", "agent/registries", "agent/volumeworker", "config", "gear", "gear/client", "gear/export", "gear/rootfs", "internal/durable", "node/cachedir", "node/gearfs", "node/poolfs", "node/snapshotter", "node/view", "oci", "oci/volref", "volume/block", "volume/node", "volume/volfs"},
	"agent/kubelet":        {"agent/registries", "oci/client"},
	"agent/peers":          {"gear", "node/gearfs", "node/gearfs/pace", "oci", "oci/peering"},
	"agent/registries":     {"config", "gear", "gear/client", "gear/predict", "internal/durable", "node/gearfs", "node/gearfs/starts", "oci", "oci/client", "oci/fleet", "oci/peering", "oci/volref", "oci/warm", "oci/wire"},
	"agent/runtimespec":    {},
	"agent/setup":          {"config"},
	"agent/volumeworker":   {"config", "oci/volref", "volume/block", "volume/file", "volume/node", "volume/rbd", "volume/volfs"},
	"cmd/slipway":          {"agent", "cmd/slipway/command", "cmd/slipway/image", "cmd/slipway/node", "cmd/slipway/server", "cmd/slipway/workload", "internal/systemd", "oci/client/wrongserver"},
	"cmd/slipway/command":  {"config", "gear/client", "internal/systemd", "oci", "oci/client", "oci/imagecopy", "serve/admin"},
	"cmd/slipway/image":    {"cmd/slipway/command", "gear/client", "gear/dedup", "gear/export", "gear/rebuild", "gear/recipes", "gear/service", "oci", "oci/client", "oci/model", "oci/volref", "oci/warm", "registry/quota", "serve/admin", "volume/service"},
	"cmd/slipway/node":     {"agent", "agent/api", "agent/kubelet", "agent/runtimespec", "agent/setup", "cmd/slipway/command", "config", "internal/systemd", "oci", "oci/client", "oci/wire"},
	"cmd/slipway/server":   {"cmd/slipway/command", "config", "config/yamlfile", "internal/systemd", "oci", "oci/client", "oci/imagecopy", "registry", "registry/activity", "registry/adopt", "registry/auth", "registry/backup", "registry/check", "registry/mirror", "registry/mirror/airgap", "registry/notify", "registry/replication", "serve", "serve/admin", "serve/dataroot", "serve/mirrors"},
	"cmd/slipway/workload": {"cmd/slipway/command", "internal/durable", "internal/policy", "oci/client", "oci/client/wrongserver", "oci/wire", "serve/admin", "serve/mirrors", "workload/analyze", "workload/analyze/external", "workload/load", "workload/load/imageset", "workload/replay", "workload/replay/plan", "workload/replay/result", "workload/simulate", "workload/simulate/table", "workload/trace/figures", "workload/trace/ingest", "workload/trace/logs", "workload/trace/logs/formats", "workload/trace/store", "workload/trace/synth"},
}

// fence is a third-party module and the only packages that may use it.
type fence struct {
	module string
	where  []string
	why    string
}

var fences = []fence{
	{"modernc.org/sqlite", []string{"registry/catalog/engine"}, "SQL stays behind the catalogue's methods"},
	{"database/sql", []string{"registry/catalog", "registry/catalog/browse", "registry/catalog/engine", "registry/catalog/engine/pg", "registry/catalog/gearfacts", "registry/catalog/historyfacts", "registry/catalog/repair", "registry/catalog/snapshot", "registry/catalog/tokenfacts", "registry/catalog/volumefacts", "registry/catalog/warmfacts", "registry/catalog/webhookfacts", "registry/registrytest"}, "SQL stays behind the catalogue's methods"},
	{"github.com/jackc/pgx", []string{"registry/catalog/engine", "registry/catalog/engine/pg", "internal/backendtest"}, "SQL stays behind the catalogue's methods"},
	{"github.com/minio/minio-go", []string{"registry/objstore/s3store", "internal/backendtest"}, "one driver knows S3"},
	{"github.com/ncw/swift", []string{"registry/objstore/swiftstore"}, "one driver knows Swift"},
	{"github.com/pressly/goose", []string{"registry/catalog/engine"}, "migrations belong to the schema"},
	{"github.com/spf13/cobra", []string{"cmd/slipway", "cmd/slipway/command", "cmd/slipway/image", "cmd/slipway/node", "cmd/slipway/server", "cmd/slipway/workload"}, "the command line is thin"},
	{"github.com/spf13/pflag", []string{"cmd/slipway/command", "cmd/slipway/workload"}, "the command line is thin"},
	{"oras.land/oras-go", []string{"oci/client"}, "the token flow belongs to the client"},
	{"github.com/coreos/go-oidc", []string{"registry/auth"}, "who asks is decided in one place"},
	{"github.com/go-jose/go-jose", []string{"registry/auth", "registry/auth/signing"}, "who asks is decided in one place"},
	{"github.com/golang-jwt/jwt", []string{"registry/auth", "registry/auth/signing"}, "who asks is decided in one place"},
	{"golang.org/x/crypto/bcrypt", []string{"registry/auth/passwords"}, "who asks is decided in one place"},
	{"github.com/go-ldap/ldap", []string{"registry/auth/ldap"}, "who asks is decided in one place"},
	{"go.yaml.in/yaml", []string{"config/yamlfile"}, "configuration is read in one place"},
	{"go.opentelemetry.io", []string{"serve"}, "tracing wraps the handler and nothing else knows it"},
	{"github.com/CycloneDX/cyclonedx-go", []string{"scripts/package"}, "what a release consists of is told in one place"},
	{"golang.org/x/crypto/x509roots", []string{"scripts/package"}, "the product trusts whom the system trusts"},
	{"github.com/containerd", []string{"node/snapshotter"}, "containerd is met at one place of the node"},
	{"google.golang.org/grpc", []string{"node/snapshotter", "agent/kubelet"}, "only containerd and kubelet speak it"},
	{"github.com/ceph/go-ceph", []string{"volume/rbd"}, "one driver knows Ceph, and only it needs a C compiler"},
	{"github.com/moby/sys/mountinfo", []string{"node/snapshotter"}, "who else mounts a snapshot is its question"},
	{"github.com/HdrHistogram/hdrhistogram-go", []string{"workload/replay/result"}, "samples are counted in one place"},
	{"github.com/parquet-go/parquet-go", []string{"workload/trace/store", "workload/replay/result"}, "who reads a trace or a result knows its columns, not its file format"},
	{"github.com/klauspost/reedsolomon", []string{"gear/filestore/parity"}, "who reads a parity file knows the code from its format page"},
	{"github.com/ulikunitz/xz", []string{"workload/trace/logs"}, "logs are decompressed in one place"},
	{"github.com/coreos/go-systemd", []string{"internal/systemd"}, "what systemd is told is in one place"},
	{"net/http/pprof", []string{"serve"}, "it is served on the debug port only"},
	{"testing", []string{"oci/ocitest", "registry/objstore/objtest", "serve/servetest", "internal/mounttest", "internal/backendtest", "gear/treetest", "node/fusetest", "registry/catalog/catalogtest", "registry/registrytest", "volume/blocktest", "volume/layouttest", "workload/trace/tracetest"}, "test support is not product code"},
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

// hasGoMod reports whether a directory is a module of its own.
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
		dep, ours := strings.CutPrefix(imp, module+"/")
		if from, to := group(pkg), group(dep); ours && from != to && !slices.Contains(groups[from], to) {
			t.Errorf("%s imports %s; the layout allows packages of %s only those of %v", file, dep, from, groups[from])
		}
		if ours && !slices.Contains(allowed, dep) {
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

// group is the directory of the root that a package is in.
func group(pkg string) string {
	name, _, _ := strings.Cut(pkg, "/")
	return name
}

// linking are the packages of the module integration that call the product's packages,
// and which. All others meet the built binary with a client of their own, so that a mistake in
// the product's idea of the protocol cannot hide itself.
var linking = map[string][]string{
	"integration":               {"gear", "gear/convert", "gear/export", "gear/rootfs", "node/view", "oci"}, // gear_view_test.go: views beside trees of the conversion
	"integration/cmd/reference": {"config", "oci", "registry/notify"},                                       // the references are made of the code
	"integration/docs":          {"config", "oci"},                                                          // documents are compared with it
	"integration/snapshotter":   {"node/snapshotter"},                                                       // containerd's own suite takes a snapshotter as a Go value
}

// TestIntegrationIsApart checks that no other package of integration calls the product's. All may
// use the servers of internal/backendtest and the seed of Ceph, and the tests of the boards may
// use package dashboard.
func TestIntegrationIsApart(t *testing.T) {
	supports := []string{"internal/backendtest", "internal/cephseed", "internal/dashboard"}
	err := filepath.WalkDir("integration", func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(file))
		for _, spec := range f.Imports {
			dep, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if ours && group(dep) != "integration" && !slices.Contains(supports, dep) && !slices.Contains(linking[pkg], dep) {
				t.Errorf("%s imports %s; only %v may call the product's packages", file, dep, slices.Sorted(maps.Keys(linking)))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
