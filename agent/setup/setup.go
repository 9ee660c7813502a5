// Package setup writes the settings by which containerd, Docker and kubelet use the agent of a
// node.
package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"example.org/slipway/config"
)

// Snapshotter is containerd's name for the agent.
const Snapshotter = "slipway"

// Change is a file that a set-up writes, or a step that the user must take.
type Change struct {
	// File is the file to write. It is empty for a step.
	File string `json:"file,omitempty"`
	// Content is the new content of the file.
	Content string `json:"content,omitempty"`
	// Say says what the change is for, or what to do.
	Say string `json:"say"`
}

// Paths says where the programs of a node keep their settings. Tests use other paths.
type Paths struct {
	Root           string // directory of the node's files; default /
	Containerd     string // default /etc/containerd/config.toml
	ContainerdDir  string // files that containerd imports; default /etc/containerd/conf.d
	Hosts          string // its registries; default /etc/containerd/certs.d
	Docker         string // default /etc/docker/daemon.json
	KubeletDropIn  string // default /etc/systemd/system/kubelet.service.d/10-slipway.conf
	SnapshotterKey string // name of the snapshotter; default slipway
}

// of fills in the paths of a distribution.
func (p *Paths) of(l distribution) {
	def := func(s *string, d string) {
		if *s == "" {
			*s = filepath.Join(p.Root, d)
		}
	}
	def(&p.Containerd, l.config)
	def(&p.ContainerdDir, l.dir)
	def(&p.Hosts, l.hosts)
	def(&p.Docker, "/etc/docker/daemon.json")
	def(&p.KubeletDropIn, "/etc/systemd/system/kubelet.service.d/10-slipway.conf")
	if p.SnapshotterKey == "" {
		p.SnapshotterKey = Snapshotter
	}
}

// defaults fills in the paths of containerd and Docker without Kubernetes.
func (p *Paths) defaults() {
	all := distributions()
	p.of(all[len(all)-1])
}

const managed = "# Written by slipway agent setup; slipway agent setup --undo removes it.\n"

// Containerd returns the changes that make containerd use the agent: a file that its
// configuration imports, and one file for each registry that the agent reaches at another
// place.
func Containerd(cfg *config.Agent, p Paths) []Change {
	p.defaults()
	return append(containerdFiles(cfg, p), Change{Say: fmt.Sprintf("%s must import it: imports = [%q] near its top, then restart containerd", p.Containerd, filepath.Join(p.ContainerdDir, "*.toml"))})
}

// Peers returns what is to do so that other nodes reach the agent, if it gives them files.
func Peers(cfg *config.Agent) []Change {
	if cfg.Peers.Listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(cfg.Peers.Listen)
	if err != nil {
		return nil // such a configuration is refused before
	}
	say := fmt.Sprintf("the firewall must let other nodes reach TCP port %s (peers.listen)", port)
	if a := cfg.Peers.Advertise; a != "" {
		say += fmt.Sprintf(", which they know as %s (peers.advertise)", a)
	}
	return []Change{{Say: say}}
}

func containerdFiles(cfg *config.Agent, p Paths) []Change {
	var b strings.Builder
	fmt.Fprintf(&b, "%sversion = 3\n\n[proxy_plugins.%s]\n  type = \"snapshot\"\n  address = %q\n  capabilities = [\"remap-ids\"]\n",
		managed, p.SnapshotterKey, cfg.Address)
	fmt.Fprintf(&b, "  [proxy_plugins.%s.exports]\n    root = %q\n    enable_remote_snapshot_annotations = \"true\"\n\n",
		p.SnapshotterKey, filepath.Join(cfg.Root, "snapshots"))
	fmt.Fprintf(&b, "[plugins.\"io.containerd.cri.v1.images\"]\n  snapshotter = %q\n  disable_snapshot_annotations = false\n\n", p.SnapshotterKey)
	registries := hosts(cfg, p.Hosts)
	if len(registries) > 0 { // containerd 2.4 does not look in the directory without it
		fmt.Fprintf(&b, "[plugins.\"io.containerd.cri.v1.images\".registry]\n  config_path = %q\n\n", p.Hosts)
		fmt.Fprintf(&b, "[plugins.\"io.containerd.transfer.v1.local\"]\n  config_path = %q\n\n", p.Hosts)
	}
	for _, name := range []string{"overlayfs", p.SnapshotterKey} {
		fmt.Fprintf(&b, "[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\n  platform = %q\n  snapshotter = %q\n  differ = \"walking\"\n\n", "linux/"+runtime.GOARCH, name)
	}
	out := []Change{{File: filepath.Join(p.ContainerdDir, "slipway.toml"), Content: b.String(), Say: "containerd: the agent as snapshotter " + p.SnapshotterKey}}
	return append(out, registries...)
}

// hosts returns containerd's settings for registries whose location differs from their
// name, so that image names stay the same.
func hosts(cfg *config.Agent, dir string) []Change {
	var out []Change
	for i := range cfg.Registries {
		r := &cfg.Registries[i]
		if len(r.URLs) == 1 && r.URLs[0] == "https://"+r.Host && r.Prefix == "" && r.CA == "" && !r.InsecureSkipVerify && r.Certificate == "" {
			continue // containerd does the same by default
		}
		server := "https://" + r.Host
		if r.Host == "docker.io" {
			server = "https://registry-1.docker.io"
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%sserver = %q\n", managed, server)
		for _, u := range r.URLs {
			if r.Prefix != "" {
				u = strings.TrimSuffix(u, "/") + "/v2/" + strings.TrimSuffix(r.Prefix, "/")
			}
			fmt.Fprintf(&b, "\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", u)
			if r.Prefix != "" {
				b.WriteString("  override_path = true\n")
			}
			if r.CA != "" {
				fmt.Fprintf(&b, "  ca = %q\n", r.CA)
			}
			if r.Certificate != "" {
				fmt.Fprintf(&b, "  client = [[%q, %q]]\n", r.Certificate, r.Key)
			}
			if r.InsecureSkipVerify {
				b.WriteString("  skip_verify = true\n")
			}
		}
		out = append(out, Change{File: filepath.Join(dir, r.Host, "hosts.toml"), Content: b.String(), Say: "containerd: images of " + r.Host + " come from " + strings.Join(r.URLs, ", ")})
	}
	return out
}

// Docker returns the changes that make Docker Engine, from version 29, keep images
// with containerd and the agent. It keeps the rest of Docker's configuration.
func Docker(cfg *config.Agent, p Paths) ([]Change, error) {
	p.defaults()
	settings := map[string]any{}
	b, err := os.ReadFile(p.Docker)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case len(bytes.TrimSpace(b)) > 0:
		if err := json.Unmarshal(b, &settings); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Docker, err)
		}
	}
	features, _ := settings["features"].(map[string]any)
	if features == nil {
		features = map[string]any{}
	}
	features["containerd-snapshotter"] = true
	settings["features"], settings["storage-driver"] = features, p.SnapshotterKey
	var mirrors []string
	for i := range cfg.Registries {
		if r := &cfg.Registries[i]; r.Host == "docker.io" && r.Prefix == "" {
			mirrors = append(mirrors, r.URLs...)
		}
	}
	if len(mirrors) > 0 {
		settings["registry-mirrors"] = mirrors
	}
	out, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return nil, err
	}
	changes := []Change{{File: p.Docker, Content: string(out) + "\n", Say: "Docker: images are kept with containerd, by snapshotter " + p.SnapshotterKey}}
	return append(changes, Change{Say: "Docker's containerd needs the agent too (slipway agent setup --containerd); then restart docker"}), nil
}

// backupSuffix is appended to the name of another program's file before it is changed.
const backupSuffix = ".before-slipway"

// Apply writes the files of a set-up. It keeps a copy next to an existing file that is
// not ours, once.
func Apply(changes []Change) error {
	for _, c := range changes {
		if c.File == "" {
			continue
		}
		old, err := os.ReadFile(c.File)
		if err == nil && string(old) == c.Content {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !strings.HasPrefix(string(old), managed) {
			if _, serr := os.Lstat(c.File + backupSuffix); errors.Is(serr, fs.ErrNotExist) {
				if err := writeFile(c.File+backupSuffix, string(old)); err != nil {
					return err
				}
			}
		}
		if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
			return err
		}
		if err := writeFile(c.File, c.Content); err != nil {
			return err
		}
	}
	return nil
}

// Undo reverts what Apply did. It restores files that existed before, and removes the
// others. It leaves a file alone that somebody has changed since, and returns an error.
func Undo(changes []Change) error {
	var errs []error
	for _, c := range changes {
		if c.File == "" {
			continue
		}
		now, err := os.ReadFile(c.File)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		case string(now) != c.Content && !strings.HasPrefix(string(now), managed):
			errs = append(errs, fmt.Errorf("%s was changed since and is left alone", c.File))
			continue
		}
		err = os.Rename(c.File+backupSuffix, c.File)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(c.File)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// writeFile replaces a file. Everybody may read it, like the other files of these
// programs.
func writeFile(name, content string) error {
	tmp := name + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
