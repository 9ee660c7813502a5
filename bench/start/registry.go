package start

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

// registry is the one Slipway that all systems pull from. It runs in the namespace. Its data stays
// from one run to the next, with everything that was pushed, converted, optimised and recorded.
type registry struct {
	net     *network
	binary  string
	root    string
	config  string
	process *proc.Process
}

func startRegistry(ctx context.Context, net *network, binary, root string) (*registry, error) {
	r := &registry{net: net, binary: binary, root: root, config: filepath.Join(net.dir, "registry.yml")}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(r.config, []byte("version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\nhttp: {insecure_open_to_network: true}\n"), 0o600); err != nil {
		return nil, err
	}
	cmd := net.command(binary, "serve", "--config", r.config, "--root", root, "--addr", net.address(registryPort), "--debug-addr", fmt.Sprintf("127.0.0.1:%d", debugPort))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + net.dir}
	var err error
	if r.process, err = proc.Launch(cmd, filepath.Join(net.dir, "registry.log")); err != nil {
		return nil, err
	}
	net.children = append(net.children, r.process)
	return r, waitFor(ctx, r.process, func() error { _, err := r.get(ctx, http.MethodGet, "/v2/", ""); return err })
}

// host returns the address that pulls use over a link with the given round trip.
func (r *registry) host(rttMs int) string {
	if rttMs > 0 {
		return r.net.address(delayedPort)
	}
	return r.net.address(registryPort)
}

// heldHost returns the address behind the proxy that holds a connection.
func (r *registry) heldHost() string { return r.net.address(heldPort) }

// ref returns the reference of an image for a system at a host.
func ref(host string, im *corpus.Image, s *system) string {
	return host + "/" + im.Repo() + ":" + im.Version + s.suffix
}

// get makes a request and returns the headers of the answer. Any status but 200 is an error.
func (r *registry) get(ctx context.Context, method, path, accept string) (http.Header, error) {
	h, _, err := r.read(ctx, method, path, accept)
	return h, err
}

// read is like get, with the body of the answer.
func (r *registry) read(ctx context.Context, method, path, accept string) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.net.address(registryPort)+path, nil)
	if err != nil {
		return nil, nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s %s: status %s", method, path, resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	return resp.Header, b, err
}

const anyManifest = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.index.v1+json"

// has returns the digest of a tag, or "" if the tag does not exist.
func (r *registry) has(ctx context.Context, im *corpus.Image, suffix string) string {
	h, err := r.get(ctx, http.MethodHead, "/v2/"+im.Repo()+"/manifests/"+im.Version+suffix, anyManifest)
	if err != nil {
		return ""
	}
	return h.Get("Docker-Content-Digest")
}

// push pushes an image of the corpus to the registry, unless it is there.
func (r *registry) push(ctx context.Context, im *corpus.Image) error {
	if r.has(ctx, im, "") == im.Digest {
		return nil
	}
	return run(ctx, filepath.Join(tool.Dir(), "crane"), "push", "--insecure", im.Dir, ref(r.host(0), im, plain()))
}

// converted waits until all layers have their Gear index.
func (r *registry) converted(ctx context.Context) error {
	for {
		cmd := exec.CommandContext(ctx, r.binary, "status", "--json", "--config", r.config, "--root", r.root)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.net.dir}
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("slipway status: %w", err)
		}
		var st struct {
			Waiting, Failed int64
			Active          []json.RawMessage
		}
		if err := json.Unmarshal(out, &st); err != nil {
			return err
		}
		if st.Failed > 0 {
			return fmt.Errorf("%d layers could not be converted", st.Failed)
		}
		if st.Waiting == 0 && len(st.Active) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// indexBytes returns the size on the wire of the indexes of an image's layers.
func (r *registry) indexBytes(ctx context.Context, im *corpus.Image) (n int64, err error) {
	for _, l := range im.Layers {
		h, err := r.get(ctx, http.MethodHead, "/v2/"+im.Repo()+"/_slipway/gear/layers/"+l.Digest, "")
		if err != nil {
			return 0, err
		}
		var size int64
		if _, err := fmt.Sscan(h.Get("Content-Length"), &size); err != nil {
			return 0, err
		}
		n += size
	}
	return n, nil
}

// optimise makes the stargz image: its optimizer runs the first task and puts what the task reads
// first into the layers. Services get their requests meanwhile.
func (b *bench) optimise(ctx context.Context, im *corpus.Image) error {
	s := b.system(stargzName)
	if b.registry.has(ctx, im, s.suffix) != "" {
		return nil
	}
	task, err := taskOf(im, firstTask)
	if err != nil {
		return err
	}
	b.Logf("optimising %s for stargz", im)
	return b.rewrite(ctx, im, s, func(n *node, source, target string) error { return b.watchAndRewrite(ctx, n, task, source, target) })
}

// convert makes the image for stargz that an optimizer without a task makes: nothing in it is
// put first.
func (b *bench) convert(ctx context.Context, im *corpus.Image, s *system) error {
	if b.registry.has(ctx, im, s.suffix) != "" {
		return nil
	}
	b.Logf("converting %s for stargz", im)
	return b.rewrite(ctx, im, s, func(n *node, source, target string) error {
		return quietly(n.command(ctx, filepath.Join(b.o.rivals, "ctr-remote"), "image", "convert", "--oci", "--estargz", source, target))
	})
}

// rewrite pulls an image on a node of its own, has another one made from it, and pushes that.
func (b *bench) rewrite(ctx context.Context, im *corpus.Image, s *system, do func(n *node, source, target string) error) (err error) {
	n, err := startNode(ctx, b.NewDir(), plain(), []string{b.registry.host(0)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	source, target := ref(b.registry.host(0), im, plain()), ref(b.registry.host(0), im, s)
	if err := n.pull(ctx, source); err != nil {
		return err
	}
	if err := do(n, source, target); err != nil {
		return err
	}
	return quietly(n.command(ctx, filepath.Join(b.o.rivals, "ctr-remote"), "image", "push", "--plain-http", target))
}

// watchAndRewrite runs stargz's optimizer.
func (b *bench) watchAndRewrite(ctx context.Context, n *node, task tasks.Task, source, target string) error {
	period := servicePeriod
	if task.Probe == nil {
		period = commandPeriod
	}
	args := []string{"image", "optimize", "--oci", "--period", fmt.Sprint(int(period.Seconds()))}
	if len(task.Args) > 0 {
		list, err := json.Marshal(task.Args)
		if err != nil {
			return err
		}
		args = append(args, "--args", string(list))
	}
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := make(chan error, 1)
	if task.Probe != nil {
		go func() { asked <- askSample(watched, n, task) }()
	} else {
		asked <- nil
	}
	err := quietly(n.command(ctx, filepath.Join(b.o.rivals, "ctr-remote"), append(args, source, target)...))
	cancel()
	if asked := <-asked; err == nil && asked != nil {
		err = fmt.Errorf("the optimizer's container of %s: %w", source, asked)
	}
	return err
}

// These are the times for which stargz's optimizer watches a container. A service has opened its
// files long before; a command ends by itself.
const (
	servicePeriod = 20 * time.Second
	commandPeriod = 2 * time.Minute
)

// askSample makes a task's requests to the first container of a node.
func askSample(ctx context.Context, n *node, task tasks.Task) error {
	for {
		out, _ := n.ctr(ctx, "task", "ls").Output() // fails while there is none
		for l := range strings.Lines(string(out)) {
			f := strings.Fields(l)
			var pid int
			if len(f) != 3 || f[2] != "RUNNING" {
				continue
			}
			if _, err := fmt.Sscan(f[1], &pid); err != nil {
				continue
			}
			dial, done, err := tasks.DialIn(pid)
			if err != nil {
				return err
			}
			defer done()
			answer, err := task.Probe(ctx, dial)
			if err != nil {
				return err
			}
			return task.Check(answer)
		}
		select {
		case <-ctx.Done():
			return errors.New("it never ran")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
