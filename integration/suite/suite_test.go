// Package suite runs the conformance suites of the OCI distribution specification against a fresh
// server, if they are installed.
//
// scripts/setup.sh installs the newer suite. The suite of release 1.1.1 is not a Go module: build
// it from its sources, and name it in SLIPWAY_CONFORMANCE_V1 or put it into the tools directory as
// conformance-v1.1.1.test. SLIPWAY_CONFORMANCE_V2 names another build of the newer suite.
package suite

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/internal/backendtest"
)

// cached configures a cache that is small enough for the suites to reach its limits.
const cached = "  blob_cache: {ram: 1MiB, ssd: 4MiB, large: 512KiB}\n"

// onEveryStore runs a suite against a new registry on each store, and then checks that the stored
// content is whole. settings are added to the registry's configuration.
func onEveryStore(t *testing.T, settings string, suite func(*testing.T, *slipway.Server)) {
	s3 := func(t *testing.T, s *backendtest.S3Server) string {
		return fmt.Sprintf("  s3: {regionendpoint: %q, accesskey: %q, secretkey: %q, region: %q, bucket: %q}\n",
			"http://"+s.Endpoint, s.AccessKey, s.SecretKey, s.Region, s.Bucket(t))
	}
	for _, store := range []struct {
		name   string
		config func(t *testing.T) string // the settings below storage, except the directory's place
	}{
		{"filesystem", func(*testing.T) string { return "" }},
		{"filesystem with a cache", func(*testing.T) string { return cached }},
		{"s3", func(t *testing.T) string { return s3(t, backendtest.S3(t)) }},
		{"s3 with a cache", func(t *testing.T) string { return s3(t, backendtest.S3(t)) + cached }},
		{"rgw with a cache", func(t *testing.T) string { return s3(t, backendtest.RGW(t)) + cached }},
		{"swift with a cache", func(t *testing.T) string {
			s := backendtest.Swift(t)
			return fmt.Sprintf("  swift: {authurl: %q, username: %q, password: %q, container: suite}\n", s.AuthURL, s.User, s.Key) + cached
		}},
		{"s3, cache and PostgreSQL", func(t *testing.T) string {
			db := backendtest.Postgres(t)
			return s3(t, backendtest.S3(t)) + cached + fmt.Sprintf("  catalog: {postgres: %q}\n", db.DSN(db.CreateDatabase(t)))
		}},
	} {
		t.Run(store.name, func(t *testing.T) {
			root := t.TempDir()
			config := "version: 0.1\n" + settings + "storage:\n" + store.config(t)
			if strings.HasPrefix(store.name, "filesystem") {
				config += fmt.Sprintf("  filesystem: {rootdirectory: %q}\n", root)
			} else {
				config += fmt.Sprintf("  directory: %q\n", root)
			}
			s := slipway.Start(t, root, &slipway.Options{Config: config})
			suite(t, s)
			s.Stop()
			file := filepath.Join(t.TempDir(), "config.yml")
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := slipway.Command(t, "fsck", "--config", file); err != nil {
				t.Errorf("fsck: %v; it printed:\n%s", err, out)
			}
		})
	}
}

// TestConformanceV1 runs the suite of release 1.1.1 of the specification. It has 79 specs; 5 of
// them skip themselves, because they are alternatives to others.
func TestConformanceV1(t *testing.T) {
	program := find(t, "SLIPWAY_CONFORMANCE_V1", "conformance-v1.1.1.test")
	onEveryStore(t, "", func(t *testing.T, s *slipway.Server) {
		dir := t.TempDir()
		env := tool.NewEnv(dir,
			"OCI_ROOT_URL=http://"+s.Addr,
			"OCI_NAMESPACE=myorg/myrepo",
			"OCI_CROSSMOUNT_NAMESPACE=myorg/other",
			"OCI_TEST_PULL=1", "OCI_TEST_PUSH=1", "OCI_TEST_CONTENT_DISCOVERY=1", "OCI_TEST_CONTENT_MANAGEMENT=1",
			"OCI_HIDE_SKIPPED_WORKFLOWS=0", "OCI_DEBUG=0", "OCI_REPORT_DIR="+dir)
		run(t, env, program, 74)
	})
}

// sparse lets manifests name content that does not exist. A registry may refuse such manifests, and
// the suite tests them only if it is told to.
const sparse = "validation: {manifests: {blobs: none, indexes: {platforms: none}}}\n"

// TestConformanceV2 runs the rewritten suite at the level of the specification's development
// version, with every optional check, about 1020 in all. Two skip themselves: a mount that names no
// repository, which would reveal private blobs.
func TestConformanceV2(t *testing.T) {
	program := find(t, "SLIPWAY_CONFORMANCE_V2", "conformance")
	onEveryStore(t, sparse, func(t *testing.T, s *slipway.Server) {
		dir := t.TempDir()
		env := tool.NewEnv(dir,
			"OCI_REGISTRY="+s.Addr, "OCI_TLS=disabled", "OCI_VERSION=dev",
			"OCI_REPO1=conformance/repo1", "OCI_REPO2=conformance/repo2",
			"OCI_API_MANIFESTS_TAG_PARAM=true", "OCI_API_BLOBS_UPLOAD_CANCEL=true", "OCI_DATA_SPARSE=true",
			"OCI_API_BLOBS_DIGEST_HEADER=true", "OCI_API_MANIFESTS_DIGEST_HEADER=true",
			"OCI_RESULTS_DIR="+dir, "OCI_LOG=error")
		run(t, env, program, 1000)
	})
}

// find returns the path of a suite's program or skips the test.
func find(t *testing.T, variable, name string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	path := filepath.Join(tool.Dir(), name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("conformance suite not installed: set %s", variable)
	}
	return path
}

// run runs a suite and fails the test for each of its failures. It also fails the test if fewer
// checks passed than must: a suite that stopped early proves nothing.
func run(t *testing.T, env *tool.Env, program string, minPassed int) {
	t.Helper()
	_, err := env.Try(t.Context(), program)
	r, readErr := readJUnit(filepath.Join(env.Dir(), "junit.xml"))
	if readErr != nil {
		t.Fatalf("%v; the suite: %v", readErr, err)
	}
	for _, c := range r.Cases {
		switch c.Status {
		case "passed", "skipped", "disabled":
		default:
			t.Errorf("%s: %s\n%.4000s", c.Name, c.Status, c.Failure+c.SystemErr)
		}
	}
	t.Logf("%d passed, %d failed, %d skipped, %d disabled", r.passed(), r.Failures+r.Errors, r.Skipped, r.Disabled)
	if r.passed() < minPassed || r.Failures+r.Errors > 0 {
		t.Errorf("%d checks passed and %d failed, want at least %d and none", r.passed(), r.Failures+r.Errors, minPassed)
	}
	if err != nil && !t.Failed() {
		t.Errorf("the suite failed without naming a check: %v", err)
	}
}

// report is a test suite of a JUnit report.
type report struct {
	Tests    int `xml:"tests,attr"`
	Failures int `xml:"failures,attr"`
	Errors   int `xml:"errors,attr"`
	Skipped  int `xml:"skipped,attr"`
	Disabled int `xml:"disabled,attr"`
	Cases    []struct {
		Name      string `xml:"name,attr"`
		Status    string `xml:"status,attr"`
		Failure   string `xml:"failure"`
		SystemErr string `xml:"system-err"`
	} `xml:"testcase"`
}

// passed counts the checks that passed. The first suite reports the writing of its own report as
// one more test.
func (r *report) passed() int {
	n := r.Tests - r.Failures - r.Errors - r.Skipped - r.Disabled
	for _, c := range r.Cases {
		if c.Name == "html custom reporter" {
			n--
		}
	}
	return n
}

func readJUnit(path string) (*report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Suites []report `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(doc.Suites) != 1 {
		return nil, fmt.Errorf("%s: %d suites, want 1", path, len(doc.Suites))
	}
	return &doc.Suites[0], nil
}
