package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

// Status is the state of an agent.
type Status struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Root    string    `json:"root"`
	// Tier is how images are mounted. Reasons says what became of each tier that was
	// tried.
	Tier    string   `json:"tier"`
	Reasons []string `json:"reasons"`
	// Snapshotter is the socket for containerd.
	Snapshotter string        `json:"snapshotter"`
	Mounts      []MountStatus `json:"mounts"`
	Pool        poolfs.Stats  `json:"pool"`
	// Volumes is nil if none are configured.
	Volumes *VolumesStatus `json:"volumes,omitempty"`
	gearfs.Status
}

// MountStatus is an image mounted without containerd.
type MountStatus struct {
	Image string `json:"image"`
	Dir   string `json:"dir"`
	Upper string `json:"upper,omitempty"`
	Chain string `json:"chain"`
	// Way is gear or volume. Clone reports whether it is a clone of the volume.
	Way   string `json:"way,omitempty"`
	Clone bool   `json:"clone,omitempty"`
	// Mapped reports whether this is not a directory but an image that slipway volume map
	// keeps as a volume.
	Mapped bool `json:"mapped,omitempty"`
}

// ProfileAnswer is the known start-up profile of an image.
type ProfileAnswer struct {
	Image string         `json:"image"`
	Chain string         `json:"chain"`
	Files []ProfileEntry `json:"files"`
	Bytes int64          `json:"bytes"`
	// Donor is the manifest of the image from which files were inherited, if any were.
	Donor string `json:"donor,omitempty"`
}

// ProfileEntry is a file of a profile.
type ProfileEntry struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	// From says why the file is expected to be opened: own, series, closure or vote.
	From string `json:"from"`
}

const (
	apiMount   = "/v1/mount"
	apiUmount  = "/v1/umount"
	apiStatus  = "/v1/status"
	apiProfile = "/v1/profile"
	apiVerify  = "/v1/verify"
	// maxRequest and maxAPI bound how many bytes of a request and of an answer are read.
	maxRequest = 1 << 20
	maxAPI     = 64 << 20
)

func (a *Agent) apiHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+apiStatus, answer(func(r *http.Request, _ struct{}) (Status, error) { return a.status(r.Context()), nil }))
	mux.HandleFunc("POST "+apiMount, answer(func(r *http.Request, req MountRequest) (*MountAnswer, error) { return a.mounts.mount(r.Context(), req) }))
	mux.HandleFunc("POST "+apiUmount, answer(func(_ *http.Request, req MountRequest) (struct{}, error) { return struct{}{}, a.mounts.umount(req.Dir) }))
	mux.HandleFunc("POST "+apiStop, answer(func(_ *http.Request, req StopRequest) (struct{}, error) { return struct{}{}, a.stop(req) }))
	mux.HandleFunc("GET "+apiExplain, answer(func(r *http.Request, _ struct{}) (Explanation, error) {
		return a.explain(r.Context(), r.URL.Query().Get("image"))
	}))
	mux.HandleFunc("GET "+apiProfile, answer(func(r *http.Request, _ struct{}) (*ProfileAnswer, error) {
		return a.profile(r.URL.Query().Get("image"))
	}))
	mux.HandleFunc("DELETE "+apiProfile, answer(func(r *http.Request, _ struct{}) (struct{}, error) {
		return struct{}{}, a.dropProfile(r.URL.Query().Get("image"))
	}))
	mux.HandleFunc("POST "+apiMap, answer(func(r *http.Request, req MapRequest) (*MapAnswer, error) { return a.mounts.mapVolume(r.Context(), req) }))
	mux.HandleFunc("POST "+apiUnmap, answer(func(_ *http.Request, req MapRequest) (struct{}, error) {
		return struct{}{}, a.mounts.unmapVolume(req.Image)
	}))
	mux.HandleFunc("POST "+apiVerify, answer(func(r *http.Request, _ struct{}) (VerifyAnswer, error) { return a.verify(r.Context()) }))
	return mux
}

// answer makes a handler from a function that takes and returns JSON.
func answer[In, Out any](do func(*http.Request, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if r.Method == http.MethodPost {
			err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&in)
			if err != nil && !errors.Is(err, io.EOF) {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		out, err := do(r, in)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, gearfs.ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out) // the caller is gone
		}
	}
}

func (a *Agent) status(ctx context.Context) Status {
	s := Status{PID: os.Getpid(), Started: a.began, Root: a.cfg.Root, Tier: a.support.Tier.String(), Reasons: a.support.Reasons,
		Snapshotter: a.cfg.Address, Pool: a.poolStats(), Volumes: a.volumes.status(ctx), Status: a.files.Status()}
	for _, m := range a.mounts.list() {
		s.Mounts = append(s.Mounts, MountStatus(m))
	}
	return s
}

// poolStats returns the counters of the pool; they are zero without a pool.
func (a *Agent) poolStats() (s poolfs.Stats) {
	if a.pool != nil {
		s = a.pool.Stats()
	}
	return s
}

// find returns an image by its name, by the beginning of its chain ID, or by a container.
// If a tag has moved, it returns the image that was pulled last.
func (a *Agent) find(name string) (gearfs.ImageStatus, error) {
	st, _ := a.files.Summary()
	for _, c := range st.Containers {
		if name != "" && (c.ID == name || strings.HasSuffix(c.ID, "/"+name) || c.ID == "mount:"+name) {
			name = c.Chain
		}
	}
	last := newest(st.Images, name)
	for _, m := range a.mounts.list() {
		if last == nil && m.Image == name { // known by the name of another image with the same layers
			last = newest(st.Images, m.Chain)
		}
	}
	if last == nil {
		return gearfs.ImageStatus{}, notHere(name, st.Images)
	}
	return a.files.Image(last.Chain)
}

// newest returns the image with a name that was added last, or nil.
func newest(images []gearfs.ImageStatus, name string) (last *gearfs.ImageStatus) {
	for i := range images {
		img := &images[i]
		named := img.Ref == name || img.Chain == name || len(name) >= 8 && strings.HasPrefix(strings.TrimPrefix(img.Chain, "sha256:"), name)
		if named && (last == nil || img.Added.After(last.Added)) {
			last = img
		}
	}
	return last
}

// notHere returns an error that says that an image is not on this node, and how to name
// the images that are.
func notHere(name string, images []gearfs.ImageStatus) error {
	here := "none is here now"
	if len(images) > 0 {
		var refs []string
		for i := range images {
			refs = append(refs, cmp.Or(images[i].Ref, images[i].Chain))
		}
		slices.Sort(refs)
		refs = slices.Compact(refs)
		more := ""
		if n := len(refs) - mostNamed; n > 0 {
			refs, more = refs[:mostNamed], fmt.Sprintf(" and %d more", n)
		}
		here = "here are " + strings.Join(refs, ", ") + more
	}
	return fmt.Errorf("no image or container %q is on this node: an image is here while containerd has it or it is mounted, and is named as it was pulled or mounted, with its registry and tag, or by its chain ID or container; %s: %w",
		name, here, fs.ErrNotExist)
}

// mostNamed is how many images an error lists.
const mostNamed = 20

func (a *Agent) profile(image string) (*ProfileAnswer, error) {
	img, err := a.find(image)
	if err != nil {
		return nil, err
	}
	p, err := a.files.Profile(img.Chain)
	if err != nil {
		return nil, err
	}
	x, err := a.files.Index(img.Chain)
	if err != nil {
		return nil, err
	}
	paths := make(map[gear.Name]string, len(x.Files))
	sizes := make(map[gear.Name]int64, len(x.Files))
	for i := range x.Entries {
		if e := &x.Entries[i]; e.File >= 0 {
			f := &x.Files[e.File]
			if _, ok := paths[f.Name]; !ok {
				paths[f.Name], sizes[f.Name] = e.Path, f.Size
			}
		}
	}
	out := &ProfileAnswer{Image: img.Ref, Chain: img.Chain, Files: []ProfileEntry{}, Donor: p.Donor}
	for _, f := range p.Files {
		out.Files = append(out.Files, ProfileEntry{fmt.Sprintf("sha256:%x", f.Name), paths[f.Name], sizes[f.Name], f.From.String()})
		out.Bytes += sizes[f.Name]
	}
	return out, nil
}

func (a *Agent) dropProfile(image string) error {
	img, err := a.find(image)
	if err != nil {
		return err
	}
	return a.files.SetProfile(img.Chain, nil)
}

// VerifyAnswer says what a check of the cache found.
type VerifyAnswer struct {
	Files   int `json:"files"`
	Damaged int `json:"damaged"`
}

func (a *Agent) verify(ctx context.Context) (v VerifyAnswer, err error) {
	v.Files, v.Damaged, err = a.cache.Verify(ctx, nil)
	return v, err
}

// Caller calls the API of an agent on this machine.
type Caller struct{ http *http.Client }

// ErrNoAgent is in the chain of an error if no agent answers.
var ErrNoAgent = errors.New("no agent is running here")

// NewCaller returns a Caller of the agent with a configuration.
func NewCaller(cfg *config.Agent) *Caller {
	socket := filepath.Join(cfg.Run, "agent.sock")
	return &Caller{&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", ErrNoAgent, err)
		}
		return c, err
	}}}}
}

// Status returns the state of the agent.
func (c *Caller) Status(ctx context.Context) (s Status, err error) {
	return s, c.call(ctx, http.MethodGet, apiStatus, nil, &s)
}

// Mount asks the agent to mount an image at a directory.
func (c *Caller) Mount(ctx context.Context, req MountRequest) (m MountAnswer, err error) {
	return m, c.call(ctx, http.MethodPost, apiMount, req, &m)
}

// Umount unmounts the image at a directory.
func (c *Caller) Umount(ctx context.Context, dir string) error {
	return c.call(ctx, http.MethodPost, apiUmount, MountRequest{Dir: dir}, nil)
}

// Profile returns the profile of an image or container.
func (c *Caller) Profile(ctx context.Context, image string) (p ProfileAnswer, err error) {
	return p, c.call(ctx, http.MethodGet, apiProfile+"?image="+url.QueryEscape(image), nil, &p)
}

// DropProfile makes this node forget a profile.
func (c *Caller) DropProfile(ctx context.Context, image string) error {
	return c.call(ctx, http.MethodDelete, apiProfile+"?image="+url.QueryEscape(image), nil, nil)
}

// Verify makes the agent read every file of the cache and compare it with its name.
func (c *Caller) Verify(ctx context.Context) (v VerifyAnswer, err error) {
	return v, c.call(ctx, http.MethodPost, apiVerify, nil, &v)
}

// Ready waits until the agent answers, for no longer than an agent may take to start.
// Errors: ErrNoAgent.
func (c *Caller) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	_, err := c.Status(ctx)
	return err
}

const readyWithin = 30 * time.Second

// stateOf returns an error that says in what state an agent is that does not answer.
func stateOf(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, ErrNoAgent), errors.Is(err, fs.ErrPermission):
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("the agent is running and does not answer, as its worker is busy or does not start; its log tells why: %w", err)
	case ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)):
		return fmt.Errorf("the agent's worker ended before it answered, and the next one starts; its log tells why: %w", err)
	}
	return fmt.Errorf("ask the agent: %w", err)
}

func (c *Caller) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return stateOf(ctx, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAPI))
	if err != nil {
		return stateOf(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(b)))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	return nil
}
