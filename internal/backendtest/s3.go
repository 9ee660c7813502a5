package backendtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Server is a server that speaks S3 over plain HTTP.
type S3Server struct {
	// Endpoint is the address, host:port.
	Endpoint string
	// AccessKey and SecretKey have all rights. A change takes effect at the next start of
	// the Daemon, if the server gets them from its command line (S3).
	AccessKey, SecretKey string
	Region               string
	// Daemon is the process of the server. It answers when Ready returns nil.
	Daemon *Daemon
	// Dir is where the server keeps its data.
	Dir string
	// Flags are additional flags of the server from the next start on, for S3 only.
	Flags []string
}

// tool finds a program that scripts/setup.sh installs, or skips the test.
func tool(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("SLIPWAY_TOOLS")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "slipway", "tools")
	}
	if path := filepath.Join(dir, "bin", name); isProgram(path) {
		return path
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	// Debian keeps daemons outside the PATH of an ordinary user.
	if path := filepath.Join("/usr/sbin", name); isProgram(path) {
		return path
	}
	t.Skipf("%s is not installed: scripts/setup.sh test installs it", name)
	return ""
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// S3 starts versitygw on an empty directory.
func S3(t testing.TB) *S3Server {
	t.Helper()
	path := tool(t, "versitygw")
	dir := shortDir(t)
	s := &S3Server{
		Endpoint:  fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		AccessKey: "test", SecretKey: rand.Text(), Region: "us-east-1",
		Dir: filepath.Join(dir, "data"),
	}
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Daemon = start(t, dir, func() *exec.Cmd {
		args := append([]string{"--quiet", "--region", s.Region, "--port", s.Endpoint}, s.Flags...)
		cmd := exec.Command(path, append(args, "posix", s.Dir)...)
		cmd.Dir = dir
		// Keep the keys off the command line, which every user of the machine can read.
		cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
		return cmd
	}, s.Ready)
	return s
}

// Ready returns nil when the server answers.
func (s *S3Server) Ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Endpoint+"/", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// Bucket makes a bucket with a unique name.
func (s *S3Server) Bucket(t testing.TB) string {
	t.Helper()
	c, err := minio.New(s.Endpoint, &minio.Options{
		Creds:  credentials.NewStaticV4(s.AccessKey, s.SecretKey, ""),
		Region: s.Region,
	})
	if err != nil {
		t.Fatal(err)
	}
	name := "b" + strings.ToLower(rand.Text())
	if err := c.MakeBucket(context.Background(), name, minio.MakeBucketOptions{Region: s.Region}); err != nil {
		t.Fatalf("make bucket: %v", err)
	}
	return name
}
