package web

import (
	"container/list"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"example.org/slipway/auth"
	"example.org/slipway/catalog"
	"example.org/slipway/gear"
	"example.org/slipway/gearregistry"
	"example.org/slipway/oci"
)

// Files is what the pages of images' files read. Nothing of it counts as a pull, asks an
// upstream, or begins a conversion.
type Files interface {
	// Manifest returns a manifest of a repository by tag or digest. Errors:
	// MANIFEST_UNKNOWN.
	Manifest(ctx context.Context, repo, ref string) (oci.Manifest, error)
	// Config returns a blob of at most 4 MiB. Errors: BLOB_UNKNOWN.
	Config(ctx context.Context, repo string, d oci.Digest) ([]byte, error)
	// MayLook and Look are those of gearregistry.Service.
	MayLook(ctx context.Context, repo string, d oci.Digest) error
	Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error)
	// Profile returns which files containers of an image open first.
	Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error)
	// Share and Holders are catalog.Catalog's GearShare and GearHolders.
	Share(ctx context.Context, image oci.Digest, layers []oci.Digest, repo string) (catalog.GearShare, error)
	Holders(ctx context.Context, names []gear.Name, n int) ([][]string, error)
	// Converts tells whether layers of a repository are converted by themselves.
	Converts(repo string) bool
}

const (
	// maxTreeEntries is how many entries the layers of an image may have together for its
	// files to be shown; one of a million takes some 300 MB while it is put together.
	maxTreeEntries = 1_200_000
	// maxTreeLayers is how many layers it may have: what runtimes can stack, and more.
	maxTreeLayers = 512
	// treesBytes is how many bytes of trees are kept; the last one in any case.
	treesBytes = 128 << 20
	// profileFor is how long a tree's profile and what it shares are kept.
	profileFor = time.Minute
)

// trees are the file trees that were shown last. One is put together at a time, so that
// memory is bounded; who asks for the same waits and gets it.
type trees struct {
	making chan struct{}
	mu     sync.Mutex
	byKey  map[string]*list.Element // of *fileTree
	order  *list.List               // the last used first
	bytes  int64
}

func newTrees() *trees {
	return &trees{making: make(chan struct{}, 1), byKey: map[string]*list.Element{}, order: list.New()}
}

func (t *trees) get(key string) *fileTree {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[key]
	if e == nil {
		return nil
	}
	t.order.MoveToFront(e)
	return e.Value.(*fileTree)
}

func (t *trees) put(f *fileTree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey[f.key] != nil {
		return
	}
	t.byKey[f.key] = t.order.PushFront(f)
	t.bytes += f.cost
	for t.bytes > treesBytes && t.order.Len() > 1 {
		old := t.order.Remove(t.order.Back()).(*fileTree)
		delete(t.byKey, old.key)
		t.bytes -= old.cost
	}
}

// noFiles says why the files of an image cannot be shown, and what to do.
type noFiles struct {
	Title, Text, Command string
}

func (e *noFiles) Error() string { return e.Title + ": " + e.Text }

// imageRef is an image as an address names it.
type imageRef struct{ Repo, Ref string }

// parseImage takes REPOSITORY:TAG or REPOSITORY@DIGEST apart.
func parseImage(s string) (imageRef, bool) {
	repo, ref, digest := strings.Cut(s, "@")
	if !digest {
		i := strings.LastIndexByte(s, ':')
		if i < 0 {
			return imageRef{}, false
		}
		repo, ref = s[:i], s[i+1:]
	}
	valid := oci.ValidName(repo) && (digest && oci.ValidDigest(oci.Digest(ref)) || !digest && oci.ValidTag(ref))
	return imageRef{repo, ref}, valid
}

// String is the form that parseImage takes.
func (i imageRef) String() string {
	if oci.IsDigest(i.Ref) {
		return i.Repo + "@" + i.Ref
	}
	return i.Repo + ":" + i.Ref
}

// noImage is the answer for images that are not there, or are somebody else's.
func noImage() error {
	return notFound("There is no such image here, or you may not see it.")
}

// seesRepository tells whether who asks may see the images of a repository. Where it
// does not, the answer has been given, or is the error.
func (q *request) seesRepository(repo string) (bool, error) {
	if q.may(repo, auth.Pull) {
		return true, nil
	}
	if q.h.logins != nil && q.id.Anonymous() {
		return false, q.refuse("Log in to see this repository.")
	}
	return false, noImage()
}

// treeOf returns the files of an image. Errors: *noFiles.
func (h *Handler) treeOf(ctx context.Context, repo string, img *image) (*fileTree, error) {
	f := h.opts.Files
	layers, err := img.gearLayers()
	if err != nil {
		return nil, err
	}
	for _, d := range layers { // also of a tree that is kept: the right to see it may have gone
		if err := f.MayLook(ctx, repo, d); err != nil {
			return nil, h.whyNoFiles(repo, d, err)
		}
	}
	key := treeKey(layers)
	if t := h.trees.get(key); t != nil {
		return t, nil
	}
	select {
	case h.trees.making <- struct{}{}:
		defer func() { <-h.trees.making }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t := h.trees.get(key); t != nil {
		return t, nil
	}
	indexes, entries := make([]*gear.Index, len(layers)), 0
	for i, d := range layers {
		if indexes[i], err = f.Look(ctx, repo, d); err != nil {
			return nil, h.whyNoFiles(repo, d, err)
		}
		if entries += len(indexes[i].Entries); entries > maxTreeEntries {
			return nil, &noFiles{Title: "Too many files", Text: "The layers of this image have more than " + formatCount(maxTreeEntries) + " files, directories and links together, which is more than this page shows."}
		}
	}
	t, err := newFileTree(key, indexes)
	if errors.Is(err, gear.ErrConflict) || errors.Is(err, gear.ErrTooLarge) {
		return nil, &noFiles{Title: "The layers contradict each other", Text: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	t.layers = layers
	h.trees.put(t)
	return t, nil
}

func treeKey(layers []oci.Digest) string {
	var b strings.Builder
	for _, d := range layers {
		b.WriteString(string(d))
		b.WriteByte(' ')
	}
	return b.String()
}

// gearLayers are the layers, the lowest first.
func (i *image) gearLayers() ([]oci.Digest, error) {
	if len(i.Layers) == 0 {
		return nil, &noFiles{Title: "No layers", Text: "This image has no layers, so it has no files."}
	}
	if len(i.Layers) > maxTreeLayers {
		return nil, &noFiles{Title: "Too many layers", Text: "This image has more layers than this page shows, and than containers can be made of."}
	}
	out := make([]oci.Digest, len(i.Layers))
	for k, l := range i.Layers {
		if !gearregistry.IsLayer(l.MediaType) {
			return nil, &noFiles{Title: "Not a file tree", Text: "What this manifest names are not layers of files but of the type " + showName(l.MediaType) + ", as those of charts, signatures and other artifacts are."}
		}
		out[k] = l.Digest
	}
	return out, nil
}

// whyNoFiles puts into words why a layer's index is not there.
func (h *Handler) whyNoFiles(repo string, d oci.Digest, err error) error {
	const again = "slipway convert --all --again --config CONFIG"
	short := shortDigest(string(d))
	var pending *gearregistry.PendingError
	switch {
	case errors.Is(err, gearregistry.ErrNotConverted) && !h.opts.Files.Converts(repo):
		return &noFiles{"Not converted", "Conversion to Gear is off for this repository (gear.convert or gear.rules of the configuration), so the files of layer " + short + " are not known. Whoever runs the registry can convert all layers:", "slipway convert --all --config CONFIG"}
	case errors.Is(err, gearregistry.ErrNotConverted):
		return &noFiles{"Not converted", "Layer " + short + " was stored before conversion to Gear was on, or while it was off. Whoever runs the registry can convert all layers:", "slipway convert --all --config CONFIG"}
	case errors.As(err, &pending) && pending.RetryAfter == 0:
		return &noFiles{"The conversion failed", "Layer " + short + " could not be converted to Gear: " + showName(pending.Reason) + ". Clients pull the image as it was pushed. To have it tried again:", again}
	case errors.As(err, &pending) && pending.Reason != "":
		return &noFiles{"Not converted yet", "Layer " + short + " is tried again soon; the last attempt came to: " + showName(pending.Reason) + ".", ""}
	case errors.As(err, &pending):
		return &noFiles{"Not converted yet", "Layer " + short + " is being converted to Gear, or waits for it. Load this page again in a moment.", ""}
	case oci.HasCode(err, oci.CodeBlobUnknown):
		return &noFiles{"Not all of it is here", "Layer " + short + " is not here. In a mirror it comes with the first pull.", ""}
	}
	return err
}
