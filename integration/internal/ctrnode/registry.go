package ctrnode

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/internal/proc"
)

// RegistryOptions say how a registry keeps volumes.
type RegistryOptions struct {
	// Dir is made for the configuration and the log. It also holds the data unless Root names
	// another directory. Binary is the path of slipway, and Addr is host:port.
	Dir, Root, Binary, Addr string
	// TLS makes the registry speak HTTPS. Nodes that use volumes of a registry on another
	// machine require HTTPS.
	TLS bool
	// Ceph is the path of a cluster's configuration. User and Keyring may make volumes in
	// Pool, in the namespaces Namespace and Clones. Shared is the directory of the file
	// driver, which is used instead of Ceph. Without Ceph and Shared there are no
	// volumes.
	Ceph, User, Keyring, Pool, Namespace, Clones, Shared string
	// FS is ext4, erofs or both; default both.
	FS string
}

// Volumes returns the configuration's section about volumes.
func (o *RegistryOptions) Volumes() string {
	fs := cmp.Or(o.FS, "both")
	switch {
	case o.Ceph != "":
		return fmt.Sprintf("volumes:\n  driver: rbd\n  rbd: {conf: %q, user: %q, keyring: %q, pool: %q, namespace: %q, clones_namespace: %q}\n  build: push\n  fs: %s\n",
			o.Ceph, o.User, o.Keyring, o.Pool, o.Namespace, o.Clones, fs)
	case o.Shared != "":
		return fmt.Sprintf("volumes:\n  driver: file\n  file: {dir: %q}\n  build: push\n  fs: %s\n", o.Shared, fs)
	}
	return ""
}

// nodeUser is the user of nodes that need credentials for Ceph. The registry gives
// credentials only to known users.
const (
	nodeUser     = "node"
	nodePassword = "node-secret"
	nodeEntry    = "node:$2y$04$7aWgrmzguyWGABDcwlExruy1kLO9/SCFKPCTzBQ5XVAImPC0Pfa/i\n" // of htpasswd
)

// Access returns the configuration's section about access: everybody may push and pull, and with
// Ceph nodes may use volumes. It also writes the password file to Dir.
func (o *RegistryOptions) Access() (string, error) {
	if o.Ceph == "" {
		return "", nil
	}
	file := filepath.Join(o.Dir, "htpasswd")
	if err := os.WriteFile(file, []byte(nodeEntry), 0o600); err != nil {
		return "", err
	}
	return fmt.Sprintf("auth:\n  htpasswd: {path: %q}\n  access:\n"+
		"    - {repositories: ['**'], subjects: [anonymous, %s], actions: [pull, push, delete]}\n"+
		"    - {repositories: ['**'], subjects: [%[2]s], actions: [volume, clone]}\n", file, nodeUser), nil
}

// Registry is a running registry.
type Registry struct {
	Addr string
	// CA is the file of the registry's certificate. If it is "", the registry speaks HTTP.
	CA string

	o       RegistryOptions
	id      *identity
	process *proc.Process
}

// StartRegistry starts a registry on its directory, which may be new or used. The caller stops it.
func StartRegistry(ctx context.Context, o RegistryOptions) (*Registry, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	r := &Registry{Addr: o.Addr, o: o, id: &identity{client: http.DefaultClient}}
	config := "version: 0.1\nlog: {level: info, accesslog: {disabled: true}}\nstorage: {delete: {enabled: true}}\nhttp:\n  insecure_open_to_network: true\n"
	if o.TLS {
		host, _, err := net.SplitHostPort(o.Addr)
		if err != nil {
			return nil, err
		}
		if r.id, err = newIdentity(o.Dir, host); err != nil {
			return nil, err
		}
		r.CA = r.id.Certificate
		config += fmt.Sprintf("  tls: {certificate: %q, key: %q}\n", r.id.Certificate, r.id.Key)
	}
	access, err := o.Access()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(o.Dir, "config.yml")
	if err := os.WriteFile(file, []byte(config+access+o.Volumes()), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Binary, "serve", "--config", file, "--root", cmp.Or(o.Root, filepath.Join(o.Dir, "root")), "--addr", o.Addr, "--debug-addr", "127.0.0.1:0")
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.Dir}, o.Dir
	if r.process, err = proc.Launch(cmd, filepath.Join(o.Dir, "log")); err != nil {
		return nil, err
	}
	err = waitFor(ctx, r.process, func(ctx context.Context) error {
		_, err := r.get(ctx, "/v2/")
		return err
	})
	if err != nil {
		defer r.process.Kill()
		return nil, fmt.Errorf("start registry: %w; it printed:\n%s", err, r.process.Log(4096))
	}
	return r, nil
}

// get returns the body of the answer to a request, which must have status 200.
func (r *Registry) get(ctx context.Context, path string) ([]byte, error) {
	scheme := "http://"
	if r.CA != "" {
		scheme = "https://"
	}
	return get(ctx, r.id.client, scheme+r.Addr+path)
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(nodeUser, nodePassword) // ignored by a registry without users
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// Stop ends the registry.
func (r *Registry) Stop() error { return r.process.Stop(stopTimeout) }

// Log returns the end of the registry's output.
func (r *Registry) Log() string { return r.process.Log(4096) }

// VolumeStatus is a registry's answer about an image's volumes.
type VolumeStatus struct {
	State   string         `json:"state"`
	Reason  string         `json:"reason"`
	Records []VolumeRecord `json:"records"`
}

// VolumeRecord says which volumes hold an image (docs/formats/volume.md).
type VolumeRecord struct {
	Version  int    `json:"version"`
	Manifest string `json:"manifest"`
	FS       string `json:"fs"`
	Place    struct {
		Driver, Cluster, Pool, Namespace string
	} `json:"place"`
	Layers []struct {
		Digest, Volume string
		Size, Used     int64
	} `json:"layers"`
	Features []string `json:"features"`
}

// Volume returns the name of the volume with the whole tree.
func (r *VolumeRecord) Volume() string {
	if len(r.Layers) == 0 {
		return ""
	}
	return r.Layers[len(r.Layers)-1].Volume
}

// Volumes asks the registry for the volumes of the image with the given manifest digest.
func (r *Registry) Volumes(ctx context.Context, repo, digest string) (*VolumeStatus, error) {
	return decodeVolumes(r.get(ctx, volumesPath(repo, digest)))
}

// Volumes does what [Registry.Volumes] does, for a registry at an address that speaks HTTP.
func Volumes(ctx context.Context, addr, repo, digest string) (*VolumeStatus, error) {
	return decodeVolumes(get(ctx, http.DefaultClient, "http://"+addr+volumesPath(repo, digest)))
}

func volumesPath(repo, digest string) string { return "/v2/" + repo + "/_slipway/volumes/" + digest }

func decodeVolumes(b []byte, err error) (*VolumeStatus, error) {
	if err != nil {
		return nil, err
	}
	st := &VolumeStatus{}
	return st, json.Unmarshal(b, st)
}

// AwaitBuilt asks until a registry has volumes in all the file systems, and returns its last
// answer.
func AwaitBuilt(ctx context.Context, ask func(context.Context) (*VolumeStatus, error), fs ...string) (*VolumeStatus, error) {
	for {
		st, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		if st.State == "failed" && !strings.Contains(st.Reason, "tried again") {
			return st, fmt.Errorf("volumes are not built: %s", st.Reason)
		}
		if st.has(fs) {
			return st, nil
		}
		select {
		case <-ctx.Done():
			return st, fmt.Errorf("volumes are not built (%s, %d records, %s): %w", st.State, len(st.Records), st.Reason, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (st *VolumeStatus) has(fs []string) bool {
	for _, f := range fs {
		if !slices.ContainsFunc(st.Records, func(r VolumeRecord) bool { return r.FS == f }) {
			return false
		}
	}
	return true
}
