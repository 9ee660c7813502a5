package service_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/gear"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/gearfacts"
)

// gearImage returns the layer of a Gear image that holds the contents.
func gearImage(t testing.TB, contents ...[]byte) []byte {
	t.Helper()
	files := make([]gear.File, len(contents))
	for i, c := range contents {
		files[i] = gear.File{Name: name(c), Size: int64(len(c))}
	}
	return imageOf(t, files...)
}

// stream returns a stream of files.
func stream(t testing.TB, contents ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gear.NewStreamWriter(&out)
	for _, c := range contents {
		if err := w.Begin(gear.StreamFile{Name: name(c), Size: int64(len(c)), Encoding: gear.Plain, Stored: int64(len(c))}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// seen returns in words all that a client of a repository can find out about files.
func (b *bed) seen(repo string, manifest oci.Digest, names ...gear.Name) []string {
	b.t.Helper()
	ctx := context.Background()
	var out []string
	for _, n := range names {
		_, err := b.read(repo, n)
		out = append(out, fmt.Sprint("file: ", err))
	}
	missing, err := b.svc.Missing(ctx, repo, names)
	out = append(out, fmt.Sprint("missing: ", missing, err))
	var buf bytes.Buffer
	b.must(b.svc.Fetch(ctx, repo, names, &buf))
	for r := gear.NewStreamReader(&buf); ; {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		b.must(err)
		out = append(out, fmt.Sprint("fetch: ", it.Missing, it.Failure, it.Size))
	}
	out = append(out, fmt.Sprint("report: ", b.svc.ReportProfile(ctx, repo, manifest, names)))
	profile, err := b.svc.Profile(ctx, repo, manifest)
	return append(out, fmt.Sprint("profile: ", profile, err))
}

// TestOthersFiles tries every way to the files of another repository. The client must see
// the same as for files that do not exist.
func TestOthersFiles(t *testing.T) {
	b := newBed(t, setup{})
	secret, large, staged := []byte("their secret"), content(1, 5<<20), content(2, 1000)
	theirManifest, theirLayer := b.push(theirs, zipped(tarOf(file{"s", secret}, file{"l", large})))
	manifest, _ := b.push(ours, zipped(tarOf(file{"o", []byte("our own")})))
	b.must(b.svc.PutFile(t.Context(), theirs, name(staged), -1, bytes.NewReader(staged)))
	b.wait(theirLayer)
	b.readable(theirs, theirLayer)
	theirIndex, err := b.svc.Layer(t.Context(), theirs, theirLayer)
	b.must(err)
	b.quiet()

	there := b.seen(ours, manifest, name(secret), name(large), name(staged), theirIndex.Name())
	absent := b.seen(ours, manifest, name([]byte("1")), name([]byte("2")), name([]byte("3")), name([]byte("4")))
	if !slices.Equal(there, absent) {
		t.Errorf("files of others: %q\nfiles that are nowhere: %q", there, absent)
	}
	for _, repo := range []string{ours, "new/repo"} {
		_, err := b.svc.Layer(t.Context(), repo, theirLayer)
		_, err2 := b.svc.Layer(t.Context(), repo, oci.SHA256([]byte("nothing")))
		if !oci.HasCode(err, oci.CodeBlobUnknown) || !oci.HasCode(err2, oci.CodeBlobUnknown) {
			t.Errorf("layers of others in %s: %v, nowhere: %v", repo, err, err2)
		}
		if _, err := b.svc.Profile(t.Context(), repo, theirManifest); !oci.HasCode(err, oci.CodeManifestUnknown) {
			t.Errorf("profile of others: %v", err)
		}
		if err := b.svc.ReportProfile(t.Context(), repo, theirManifest, []gear.Name{name(secret)}); !oci.HasCode(err, oci.CodeManifestUnknown) {
			t.Errorf("report on others: %v", err)
		}
	}
	// A client that has the content may upload it, and then has access.
	before := b.status()
	for _, c := range [][]byte{secret, []byte("nobody's")} {
		b.must(b.svc.PutFile(t.Context(), ours, name(c), int64(len(c)), bytes.NewReader(c)))
		if got, err := b.read(ours, name(c)); err != nil || !bytes.Equal(got, c) {
			t.Errorf("our own upload: %q, %v", got, err)
		}
	}
	if n := b.status().Packs - before.Packs; n != 2 {
		t.Errorf("%d packs were written for two uploads: one was known, and the time it takes tells", n)
	}
	if _, err := b.read(ours, name(large)); err == nil {
		t.Error("their other file can be read now")
	}
}

// TestGearImageOfOthers pushes a Gear image whose index names files of another
// repository. The image gives access to none of them and does not reveal whether they
// exist.
func TestGearImageOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	secret, own := []byte("their secret"), []byte("our own")
	for _, how := range []string{"as a blob and a manifest", "small", "followed", "asked for"} {
		t.Run(how, func(t *testing.T) {
			answers := map[string]string{}
			for _, what := range []string{"theirs", "nowhere"} {
				b := newBed(t, setup{})
				_, l := b.push(theirs, zipped(tarOf(file{"s", secret})))
				_, o := b.push(ours, zipped(tarOf(file{"o", own})))
				b.wait(l)
				b.wait(o)
				guess := secret
				if what == "nowhere" {
					guess = []byte("their regret") // has the same length
				}
				image := gearImage(t, guess, own)
				if how == "followed" { // too large to be kept in the catalogue
					image = zippedLong(image)
				}
				d := b.pushBlob(ours, image)
				switch how {
				case "asked for":
					_, _ = b.svc.Layer(t.Context(), ours, d)
				case "followed":
					b.quiet()
					_, err := b.svc.Layer(t.Context(), ours, d)
					answers[what] += fmt.Sprintf("first %v; ", err)
				default:
					b.pushManifest(ours, d)
				}
				b.eventually("an answer", func() bool {
					_, err := b.svc.Layer(t.Context(), ours, d)
					var p *gear.PendingError
					return errors.As(err, &p) && p.RetryAfter == 0
				})
				b.quiet()
				_, err := b.svc.Layer(t.Context(), ours, d)
				_, fileErr := b.read(ours, name(guess))
				st := b.status()
				answers[what] += fmt.Sprintf("%v; %v; %d, %d, %d, %d", err, fileErr, st.Layers, st.Files, st.Waiting, st.Failed)
			}
			if answers["theirs"] != answers["nowhere"] {
				t.Errorf("of theirs: %s\nof nowhere: %s", answers["theirs"], answers["nowhere"])
			}
		})
	}
}

// zippedLong returns a gzip stream of more than 16 KiB, whatever the length of b. An
// extra field in the header makes it that long.
func zippedLong(b []byte) []byte {
	z, extra := zipped(b), make([]byte, 40_000)
	z[3] |= 1 << 2 // FEXTRA
	return slices.Concat(z[:10], binary.LittleEndian.AppendUint16(nil, uint16(len(extra))), extra, z[10:])
}

// TestGrants follows the layer of a Gear image from its push to its deletion.
func TestGrants(t *testing.T) {
	const third = "third/app"
	a, c := []byte("first file"), []byte("second file")
	image := gearImage(t, a, c)
	d := oci.SHA256(image)
	b := newBed(t, setup{})
	m1, l := b.push(theirs, zipped(tarOf(file{"a", a}, file{"c", c})))
	b.wait(l)
	m2, _ := b.push(theirs, image)
	b.wait(d)
	b.quiet()
	b.readable(theirs, d)
	foreign := func(repo string) {
		t.Helper()
		b.quiet()
		b.pending(repo, d, "the Gear image holds files")
		for _, f := range [][]byte{a, c} {
			if _, err := b.read(repo, name(f)); !oci.HasCode(err, oci.CodeBlobUnknown) {
				t.Errorf("%s reads a file of others: %v", repo, err)
			}
		}
	}
	// Uploading the same bytes to another repository gives no access, even if it has some
	// of the files.
	b.push(ours, image)
	foreign(ours)
	b.must(b.svc.PutFile(t.Context(), ours, name(a), -1, bytes.NewReader(a)))
	b.pushManifest(ours, d)
	b.pending(ours, d, "the Gear image holds files")
	if _, err := b.read(ours, name(c)); err == nil {
		t.Error("one file gave the other")
	}
	// A mount gives no more access than the source repository has.
	mount := func(to, from string) {
		t.Helper()
		_, err := b.reg.MountBlob(t.Context(), to, from, d)
		b.must(err)
	}
	mount(third, ours)
	foreign(third)
	mount(third, theirs)
	b.readable(third, d)
	// A repository that has all the files from elsewhere may use the image.
	_, l2 := b.push(ours, zipped(tarOf(file{"x", a}, file{"y", c})))
	b.wait(l2)
	b.pushManifest(ours, d)
	b.quiet()
	b.readable(ours, d)
	// After deletion and a new push, access is checked again: third has lost it.
	b.must(b.reg.DeleteBlob(t.Context(), third, d))
	if _, err := b.read(third, name(a)); err == nil {
		t.Error("read after the layer was deleted")
	}
	b.push(third, image)
	foreign(third)
	// The same holds when the collector removed the layer. Nothing changes for the
	// others.
	b.must(b.reg.DeleteManifest(t.Context(), theirs, m1))
	b.must(b.reg.DeleteManifest(t.Context(), theirs, m2))
	b.collect()
	b.push(theirs, image)
	foreign(theirs)
	b.readable(ours, d)
}

// TestGrantOfUnknownFirst checks that a Gear image that was useless in one repository
// works at once in another that has its files.
func TestGrantOfUnknownFirst(t *testing.T) {
	a := []byte("a file")
	image := gearImage(t, a)
	d := oci.SHA256(image)
	b := newBed(t, setup{})
	b.push(ours, image)
	b.eventually("the refusal", func() bool { return b.status().Failed == 1 })
	b.quiet()
	_, l := b.push(theirs, zipped(tarOf(file{"a", a})))
	b.wait(l)
	b.push(theirs, image)
	b.wait(d)
	b.quiet()
	b.readable(theirs, d)
	b.pending(ours, d, "the Gear image holds files")
	if st := b.status(); st.Failed != 0 {
		t.Errorf("got %+v", st)
	}
	if l, err := gearfacts.NewLayers(b.cat.DB).Layer(t.Context(), d); err != nil || gear.Name(l.DiffID) != name(image) || !l.Embedded {
		t.Errorf("recorded as %+v (%v)", l, err)
	}
}

// TestMountBeforeConversion mounts the layer of a Gear image while it is still being
// converted.
func TestMountBeforeConversion(t *testing.T) {
	a := []byte("a file")
	image := gearImage(t, a)
	b := newBed(t, setup{})
	_, l := b.push(theirs, zipped(tarOf(file{"a", a})))
	b.wait(l)
	hold := make(chan struct{})
	b.fault(func(op, key string) error {
		if packs(op, key) {
			<-hold
		}
		return nil
	})
	_, d := b.push(theirs, image)
	_, err := b.reg.MountBlob(t.Context(), ours, theirs, d)
	b.must(err)
	close(hold)
	b.wait(d)
	b.eventually("the grant", func() bool { _, err := b.index(ours, d); return err == nil })
	b.readable(ours, d)
}

// TestStaged checks that a file that a client uploaded is visible to its repository only,
// until it expires or an image holds it.
func TestStaged(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{StagedFor: time.Hour}})
	small, large, kept := []byte("small"), content(1, 6<<20), content(2, 2<<20)
	n, err := b.svc.PutFiles(t.Context(), ours, bytes.NewReader(stream(t, small, kept, nil, small)))
	if n != 4 || err != nil {
		t.Fatalf("put %d files: %v", n, err)
	}
	b.must(b.svc.PutFile(t.Context(), ours, name(large), int64(len(large)), bytes.NewReader(large)))
	b.must(b.svc.PutFile(t.Context(), ours, name(nil), 0, bytes.NewReader(nil)))
	missing, err := b.svc.Missing(t.Context(), ours, []gear.Name{name(small), name(large), name(kept), gear.Empty().Name, name([]byte("x"))})
	if want := []bool{false, false, false, false, true}; err != nil || !slices.Equal(missing, want) {
		t.Errorf("missing: got %v (%v), want %v", missing, err, want)
	}
	for _, c := range [][]byte{small, large, kept} {
		if got, err := b.read(ours, name(c)); err != nil || !bytes.Equal(got, c) {
			t.Errorf("read %d bytes: %v", len(got), err)
		}
		if _, err := b.read(theirs, name(c)); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("others read it: %v", err)
		}
	}
	_, d := b.push(ours, gearImage(t, kept))
	b.wait(d)
	b.quiet()
	b.pass(time.Hour + time.Minute)
	b.must(b.files.Housekeep(t.Context()))
	b.readable(ours, d)
	for _, c := range [][]byte{small, large} {
		if _, err := b.read(ours, name(c)); err == nil {
			t.Error("read after its time")
		}
	}
	// A repository that only ever held staged files disappears with them.
	b.must(b.svc.PutFile(t.Context(), "only/staged", name(small), -1, bytes.NewReader(small)))
	b.pass(2 * time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	if _, _, err := b.reg.Tags(t.Context(), "only/staged", "", 1); !oci.HasCode(err, oci.CodeNameUnknown) {
		t.Errorf("the repository is still there: %v", err)
	}
	repos, _, err := b.reg.Repositories(t.Context(), "", 100)
	if want := []string{ours}; err != nil || !slices.Equal(repos, want) {
		t.Errorf("repositories: %q (%v), want %q", repos, err, want)
	}
}

// TestPutRefuses checks that uploads that do not match their description are refused.
func TestPutRefuses(t *testing.T) {
	b := newBed(t, setup{idle: true})
	data := []byte("some bytes")
	put := func(n gear.Name, size int64, body io.Reader) error {
		return b.svc.PutFile(t.Context(), ours, n, size, body)
	}
	bad := stream(t, data)
	bad[len(bad)-12] ^= 1 // a byte of the content
	_, badErr := b.svc.PutFiles(t.Context(), ours, bytes.NewReader(bad))
	cut := stream(t, data, content(1, 5000))
	_, cutErr := b.svc.PutFiles(t.Context(), ours, bytes.NewReader(cut[:len(cut)-3000]))
	_, noneErr := b.svc.PutFiles(t.Context(), ours, bytes.NewReader(nil))
	ro := newBed(t, setup{idle: true, gear: gearregistry.Options{ReadOnly: true}})
	_, roErr := ro.svc.PutFiles(t.Context(), ours, bytes.NewReader(stream(t, data)))
	for what, test := range map[string]struct {
		err  error
		code oci.Code
	}{
		"another name":    {put(name([]byte("x")), -1, bytes.NewReader(data)), oci.CodeDigestInvalid},
		"too short":       {put(name(data), 11, bytes.NewReader(data)), oci.CodeSizeInvalid},
		"too long":        {put(name(data[:5]), 5, bytes.NewReader(data)), oci.CodeSizeInvalid},
		"far too large":   {put(name(data), 1<<60, bytes.NewReader(data)), oci.CodeSizeInvalid},
		"broke off":       {put(name(data), 10, io.MultiReader(bytes.NewReader(data[:5]), errReader{})), oci.CodeBlobUploadInvalid},
		"large broke off": {put(name(data), -1, io.MultiReader(bytes.NewReader(content(1, 5<<20)), errReader{})), oci.CodeBlobUploadInvalid},
		"damaged stream":  {badErr, oci.CodeDigestInvalid},
		"stream cut off":  {cutErr, oci.CodeBlobUploadInvalid},
		"no stream":       {noneErr, oci.CodeBlobUploadInvalid},
		"read-only":       {roErr, oci.CodeUnsupported},
	} {
		if !oci.HasCode(test.err, test.code) {
			t.Errorf("%s: got %v, want %s", what, test.err, test.code)
		}
	}
	b.full()
	var e *oci.Error
	if err := put(name(data), -1, bytes.NewReader(data)); !errors.As(err, &e) || e.Status != 507 {
		t.Errorf("a full store: got %v", err)
	}
	if st := b.status(); st.Files != 0 {
		t.Errorf("something was stored: %+v", st)
	}
}

// TestAccessEnds checks that access to a file ends at once when the only layer that holds
// it is deleted. After a collection it ends when the cached answer expires.
func TestAccessEnds(t *testing.T) {
	b := newBed(t, setup{})
	secret := []byte("a file")
	data := zipped(tarOf(file{"a", secret}))
	d := b.pushBlob(ours, data)
	b.must(b.svc.Queue(t.Context(), ours, []oci.Digest{d}))
	b.pushBlob(theirs, data)
	b.wait(d)
	b.readable(ours, d)
	b.readable(theirs, d)
	b.must(b.reg.DeleteBlob(t.Context(), ours, d))
	if _, err := b.read(ours, name(secret)); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("read after the deletion: %v", err)
	}
	b.readable(theirs, d)
	// The collector removes the other blob, since no manifest names it, and announces
	// nothing.
	b.pass(2 * time.Minute)
	b.readable(theirs, d)
	_, err := b.reg.Collect(t.Context(), registry.CollectOptions{Now: true})
	b.must(err)
	b.pass(31 * time.Second)
	if _, err := b.read(theirs, name(secret)); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("read after the collection: %v", err)
	}
	b.must(b.files.Housekeep(t.Context()))
	if st := b.status(); st.Layers+st.Files != 0 {
		t.Errorf("got %+v", st)
	}
}

// TestHush checks that a refusal takes equally long whether another repository has the
// file or nobody has it.
func TestHush(t *testing.T) {
	b := newBed(t, setup{})
	var files []file
	for i := range 80 {
		files = append(files, file{fmt.Sprint(i), []byte(fmt.Sprint("secret ", i))})
	}
	_, l := b.push(theirs, zipped(tarOf(files...)))
	b.push(ours, zipped(tarOf(file{"o", []byte("our own")})))
	b.wait(l)
	b.quiet()
	var took [2][]time.Duration // for files of theirs, for files of nobody
	const rounds = 40
	for i := range rounds {
		for k, n := range []gear.Name{name(files[i].data), name([]byte(fmt.Sprint("nothing ", i)))} {
			began := time.Now()
			if i%2 == 0 {
				if _, err := b.svc.File(t.Context(), ours, n); !oci.HasCode(err, oci.CodeBlobUnknown) {
					t.Fatalf("got %v", err)
				}
			} else if missing, err := b.svc.Missing(t.Context(), ours, []gear.Name{n}); err != nil || !missing[0] {
				t.Fatalf("got %v, %v", missing, err)
			}
			d := time.Since(began)
			if d < gearregistry.HushStep {
				t.Errorf("a refusal took %v", d)
			}
			took[k] = append(took[k], d)
		}
	}
	for k := range took {
		slices.Sort(took[k])
	}
	a, c := took[0][rounds/2], took[1][rounds/2]
	if diff := (a - c).Abs(); diff > gearregistry.HushStep/2 {
		t.Errorf("the median refusal takes %v of a file of others and %v of one that nobody has", a, c)
	}
	// Many look-ups at once take proportionally more steps.
	var names []gear.Name
	for _, f := range files {
		names = append(names, name(f.data))
	}
	began := time.Now()
	if _, err := b.svc.Missing(t.Context(), ours, names); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 2*gearregistry.HushStep {
		t.Errorf("%d look-ups took %v", len(names), d)
	}
}

// TestRange checks that a range outside the content is refused.
func TestRange(t *testing.T) {
	b := newBed(t, setup{})
	small, large := []byte("0123456789"), content(1, 5<<20)
	_, d := b.push(ours, zipped(tarOf(file{"s", small}, file{"l", large})))
	b.wait(d)
	for _, want := range [][]byte{small, large} {
		c, err := b.svc.File(t.Context(), ours, name(want))
		b.must(err)
		size := c.Size()
		for _, r := range [][2]int64{{0, size}, {3, 4}, {size, 0}, {size - 1, 1}} {
			var buf bytes.Buffer
			if err := c.WriteRange(t.Context(), &buf, r[0], r[1]); err != nil || !bytes.Equal(buf.Bytes(), want[r[0]:r[0]+r[1]]) {
				t.Errorf("%v: got %d bytes, %v", r, buf.Len(), err)
			}
		}
		for _, r := range [][2]int64{{-1, 1}, {0, -1}, {0, size + 1}, {size, 1}, {size + 1, 0}, {1, 1<<63 - 1}} {
			if err := c.WriteRange(t.Context(), io.Discard, r[0], r[1]); err == nil {
				t.Errorf("%v of %d bytes was written", r, size)
			}
		}
		b.must(c.Close())
	}
}

// TestMany pushes, reads, uploads and deletes at the same time.
func TestMany(t *testing.T) {
	b := newBed(t, setup{})
	ctx := t.Context()
	var wg sync.WaitGroup
	for w := range 4 {
		repo := fmt.Sprintf("team%d/app", w)
		wg.Go(func() {
			for i := range 6 {
				shared := file{"shared", content(uint64(i), 30_000)}
				own := file{"own", content(uint64(1000+10*w+i), 20_000)}
				data := zipped(tarOf(shared, own))
				d := oci.SHA256(data)
				if _, err := b.reg.PushBlob(ctx, repo, d, int64(len(data)), bytes.NewReader(data)); err != nil {
					t.Errorf("push: %v", err)
					return
				}
				if err := b.svc.Queue(ctx, repo, []oci.Digest{d}); err != nil {
					t.Errorf("queue: %v", err)
				}
				staged := content(uint64(2000+10*w+i), 500)
				if err := b.svc.PutFile(ctx, repo, name(staged), -1, bytes.NewReader(staged)); err != nil {
					t.Errorf("put: %v", err)
				}
				if err := b.svc.Wait(ctx, d); err != nil {
					t.Errorf("wait: %v", err)
				}
				for _, c := range [][]byte{shared.data, own.data, staged} {
					if got, err := b.read(repo, name(c)); err != nil || !bytes.Equal(got, c) {
						t.Errorf("read: %v", err)
					}
				}
				if i%2 == 1 {
					if err := b.reg.DeleteBlob(ctx, repo, d); err != nil {
						t.Errorf("delete: %v", err)
					}
					if _, err := b.read(repo, name(own.data)); err == nil {
						t.Error("read after the deletion")
					}
				}
			}
		})
	}
	wg.Wait()
	b.quiet()
}

// TestLayerIsHeld checks that a request for an index that is being made waits for it, but
// not for long, and not after its client has left.
func TestLayerIsHeld(t *testing.T) {
	b := newBed(t, setup{})
	reached, release := make(chan struct{}, 1), make(chan struct{})
	defer b.fault(nil)
	b.fault(func(_, key string) error {
		if strings.HasPrefix(key, "slipway/gear/packs/") {
			select {
			case reached <- struct{}{}:
			default:
			}
			<-release
		}
		return nil
	})
	_, d := b.push(ours, layer(1, 5, 3000))
	<-reached
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := b.svc.Layer(ctx, ours, d)
		left <- err
	}()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("whose client left: got %v", err)
	}
	began := time.Now()
	b.pending(ours, d, "")
	if took := time.Since(began); took < time.Second {
		t.Errorf("held for %v only", took)
	}
	held := make(chan error, 1)
	go func() {
		_, err := b.svc.Layer(t.Context(), ours, d)
		held <- err
	}()
	close(release)
	if err := <-held; err != nil {
		t.Errorf("held until the index was there: got %v", err)
	}
	b.readable(ours, d)
}
