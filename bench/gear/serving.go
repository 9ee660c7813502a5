package gear

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/integration/bench/measure"
)

// Serving is the cost of serving files, beside nginx.
type Serving struct {
	Run   Run           `json:"run"`
	Cases []ServingCase `json:"cases"`
}

// ServingCase is one kind of request, to both servers.
type ServingCase struct {
	Case string `json:"case"`
	// Files is the number of files to choose from.
	Files int `json:"files"`
	// Needed is the average number of bytes that the chunks of a range take in the pack.
	Needed  float64  `json:"needed,omitempty"`
	Slipway []Sample `json:"slipway"`
	Nginx   []Sample `json:"nginx,omitempty"`
}

const (
	servingClients = 10
	fetchClients   = 4
	fetchFiles     = 1000
	fetchSets      = 20
	fetchLargest   = 64 << 10 // maximum size of a file of a fetch, in bytes
	mostFiles      = 5000     // maximum number of files to choose from
	servingSlice   = time.Second
	rangeLen       = 64 << 10
	caseFetch      = "fetch of 1,000 files"
	caseShuffled   = "fetch of 1,000 files, in an order of chance"
	caseRange      = "range of 64 KiB in a large file"
)

func caseGet(kib int) string { return fmt.Sprintf("GET of %d KiB", kib) }

// fileAt is a file, and a repository that shows it.
type fileAt struct {
	repo string
	name gear.Name
	size int64
}

func (f *fileAt) digest() string { return "sha256:" + hex.EncodeToString(f.name[:]) }

func runServing(b *bench, ctx context.Context) error {
	began := time.Now()
	l, err := b.load(ctx)
	if err != nil {
		return err
	}
	web, err := startNginx(ctx, b.NewDir())
	if err != nil {
		return err
	}
	defer b.drop(web)
	if err := os.Chmod(web.dir, 0o755); err != nil {
		return err
	}
	out := &Serving{}
	for _, kib := range []int{4, 16} {
		c, err := b.singles(ctx, l, web, kib)
		if err != nil {
			return fmt.Errorf("%s: %w", caseGet(kib), err)
		}
		out.Cases = append(out.Cases, *c)
	}
	for _, cas := range []string{caseFetch, caseShuffled} {
		c, err := b.fetches(ctx, l, web, cas)
		if err != nil {
			return fmt.Errorf("%s: %w", cas, err)
		}
		out.Cases = append(out.Cases, *c)
	}
	c, err := b.ranges(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", caseRange, err)
	}
	out.Cases = append(out.Cases, *c)
	out.Run = b.since(began)
	b.results.Serving = out
	return nil
}

// choose returns different files of sizes from least to most bytes. They are in the order in which
// layers name them, which is about their order in packs.
func (l *loaded) choose(images []*image, least, most int64) []fileAt {
	var out []fileAt
	seen := map[gear.Name]bool{}
	for _, src := range distinct(images) {
		x := l.indexes[src.Digest]
		for i := range x.Files {
			f := &x.Files[i]
			if f.Size >= least && f.Size <= most && !seen[f.Name] {
				seen[f.Name] = true
				out = append(out, fileAt{src.im.Repo(), f.Name, f.Size})
			}
		}
	}
	return out
}

// inTurns measures two servers in an order that is reversed from round to round.
func (b *bench) inTurns(ctx context.Context, c *ServingCase, clients int, l, web *server, ours, theirs operation) error {
	type turn struct {
		s  *server
		do operation
		to *[]Sample
	}
	turns := []turn{{l, ours, &c.Slipway}, {web, theirs, &c.Nginx}}
	for round := 1; round <= b.Run.Rounds; round++ {
		for _, t := range turns {
			s, err := underLoad(ctx, t.s, clients, servingSlice, t.do)
			if err != nil {
				return fmt.Errorf("%s: %w", t.s.name, err)
			}
			s.Round = round
			*t.to = append(*t.to, s)
			b.Logf("%-24s %d/%d  %-8s %s server CPU ms, %s MB/s, p50 %s ms", c.Case, round, b.Run.Rounds, t.s.name,
				measure.Figure(s.cpuMs()), measure.Figure(s.rate()), measure.Figure(s.P50ms))
		}
		slices.Reverse(turns)
	}
	return nil
}

// singles measures GETs of single files of about the given size in KiB.
func (b *bench) singles(ctx context.Context, l *loaded, web *server, kib int) (*ServingCase, error) {
	size := int64(kib) << 10
	files := l.choose(b.images, size-size/8, size+size/8)
	files = files[:min(mostFiles, len(files))]
	if len(files) == 0 {
		return nil, errors.New("no file has that size")
	}
	c := &ServingCase{Case: caseGet(kib), Files: len(files)}
	dir := filepath.Join(web.static(), fmt.Sprint(kib))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var ours, theirs []string
	for i := range files {
		f := &files[i]
		ours = append(ours, l.gear(f.repo, "files/"+f.digest()))
		theirs = append(theirs, fmt.Sprintf("http://%s/%d/%d", web.addr, kib, i))
		data, err := l.read(ctx, ours[i])
		if err != nil {
			return nil, err
		}
		if sha256.Sum256(data) != f.name {
			return nil, fmt.Errorf("file %s has another content", f.digest())
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o644); err != nil {
			return nil, err
		}
	}
	get := func(s *server, urls []string) operation {
		return func(ctx context.Context, buf []byte, i int) (int64, error) {
			k := rand.New(rand.NewPCG(uint64(i), 4)).IntN(len(urls))
			n, err := s.count(ctx, http.MethodGet, urls[k], nil, nil, http.StatusOK, buf)
			if err == nil && n != files[k].size {
				err = fmt.Errorf("%s: %d bytes, want %d", urls[k], n, files[k].size)
			}
			return n, err
		}
	}
	return c, b.inTurns(ctx, c, servingClients, l.server, web, get(l.server, ours), get(web, theirs))
}

// count reads an answer and returns its length.
func (s *server) count(ctx context.Context, method, url string, header http.Header, body []byte, want int, buf []byte) (int64, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	resp, err := s.do(ctx, want, method, url, header, r, int64(len(body)))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var n int64
	for {
		k, err := resp.Body.Read(buf)
		n += int64(k)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("%s %s: %w", method, url, err)
		}
	}
}

// fetchSet is what a fetch requests.
type fetchSet struct {
	url, static string
	names       []byte
	size        int64 // of the stream
}

// fetches measures streams of many small files, each set of one image.
func (b *bench) fetches(ctx context.Context, l *loaded, web *server, cas string) (*ServingCase, error) {
	var sets []*fetchSet
	octets := http.Header{"Content-Type": {"application/octet-stream"}}
	for i := 0; len(sets) < fetchSets && i < 4*fetchSets; i++ {
		im := b.images[i%len(b.images)]
		s := l.fetchSet(im, cas, rand.New(rand.NewPCG(uint64(i), 5)))
		if s == nil {
			continue
		}
		file := fmt.Sprintf("fetch%d", i)
		s.url, s.static = l.gear(im.Repo(), "fetch"), "http://"+web.addr+"/"+file
		data, err := l.verifiedFetch(ctx, s.url, octets, s.names)
		if err != nil {
			return nil, err
		}
		s.size = int64(len(data))
		if err := os.WriteFile(filepath.Join(web.static(), file), data, 0o644); err != nil {
			return nil, err
		}
		sets = append(sets, s)
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("no image has %d small files", fetchFiles)
	}
	c := &ServingCase{Case: cas, Files: fetchFiles * len(sets)}
	ours := func(ctx context.Context, buf []byte, i int) (int64, error) {
		s := sets[i%len(sets)]
		n, err := l.count(ctx, http.MethodPost, s.url, octets, s.names, http.StatusOK, buf)
		if err == nil && n != s.size {
			err = fmt.Errorf("a stream of %d bytes has %d now", s.size, n)
		}
		return n, err
	}
	theirs := func(ctx context.Context, buf []byte, i int) (int64, error) {
		return web.count(ctx, http.MethodGet, sets[i%len(sets)].static, nil, nil, http.StatusOK, buf)
	}
	return c, b.inTurns(ctx, c, fetchClients, l.server, web, ours, theirs)
}

// fetchSet chooses small files of an image: either neighbours, or any files. It returns nil if
// there are too few.
func (l *loaded) fetchSet(im *image, cas string, r *rand.Rand) *fetchSet {
	files := l.choose([]*image{im}, 1, fetchLargest)
	if len(files) < fetchFiles {
		return nil
	}
	if cas == caseShuffled {
		r.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	} else {
		files = files[r.IntN(len(files)-fetchFiles+1):]
	}
	s := &fetchSet{}
	for _, f := range files[:fetchFiles] {
		s.names = append(s.names, f.name[:]...)
	}
	return s
}

// verifiedFetch fetches files, verifies all of them, and returns the stream.
func (l *loaded) verifiedFetch(ctx context.Context, url string, header http.Header, names []byte) ([]byte, error) {
	resp, err := l.do(ctx, http.StatusOK, http.MethodPost, url, header, bytes.NewReader(names), int64(len(names)))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	r := gear.NewStreamReader(bytes.NewReader(data))
	n := 0
	for ; ; n++ {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if it.Missing || it.Failure != "" || !bytes.Equal(it.Name[:], names[32*n:32*n+32]) {
			return nil, fmt.Errorf("file %x is missing in the stream: %s", it.Name, it.Failure)
		}
	}
	if n != len(names)/32 {
		return nil, fmt.Errorf("the stream has %d files of %d", n, len(names)/32)
	}
	return data, nil
}

// Head implements [measure.Part].
func (s *Serving) Head() string { return s.Run.Head() }

// Title implements [measure.Part].
func (s *Serving) Title() string { return "Serving" }

// About implements [measure.Part].
func (s *Serving) About() string {
	return "All images are converted and settled. Ten clients get single files of about the given size, chosen at random; nginx serves the same contents as files. " +
		"A fetch is 1,000 files of at most 64 KiB of one image, either neighbours in the order of its layers or any files in random order, for 4 clients; nginx serves the same stream as one file. " +
		"A range begins at a random offset of a large file in a layer. Bytes read are all bytes that the server's system calls read."
}

// find returns a case, or nil if it was not measured.
func (s *Serving) find(name string) *ServingCase {
	i := slices.IndexFunc(s.Cases, func(c ServingCase) bool { return c.Case == name })
	if i < 0 {
		return nil
	}
	return &s.Cases[i]
}

// ratios divides a figure of Slipway by the same figure of nginx, round by round.
func (c *ServingCase) ratios(of func(*Sample) float64) []float64 {
	if c == nil {
		return nil
	}
	var out []float64
	for i := range min(len(c.Slipway), len(c.Nginx)) {
		out = append(out, of(&c.Slipway[i])/of(&c.Nginx[i]))
	}
	return out
}

// Targets implements [measure.Part].
func (s *Serving) Targets() []measure.Target {
	var out []measure.Target
	for _, kib := range []int{4, 16} {
		out = append(out, measure.TargetOf("serving", "CPU of "+caseGet(kib)+", slipway / nginx", 2, false, s.find(caseGet(kib)).ratios((*Sample).cpuMs)))
	}
	for _, cas := range []string{caseFetch, caseShuffled} {
		c := s.find(cas)
		out = append(out,
			measure.TargetOf("serving", cas+", MB/s, slipway / nginx", 0.8, true, c.ratios((*Sample).rate)),
			measure.TargetOf("serving", cas+", bytes per CPU second, slipway / nginx", 0.8, true,
				c.ratios(func(x *Sample) float64 { return 1 / x.cpuPerGB() })))
	}
	var read []float64
	if c := s.find(caseRange); c != nil && c.Needed > 0 {
		for _, x := range c.Slipway {
			read = append(read, float64(x.Read)/float64(x.Ops)/c.Needed)
		}
	}
	return append(out, measure.TargetOf("serving", "bytes read for a "+caseRange+" / those of its chunks", 1.1, false, read))
}

// Write implements [measure.Part].
func (s *Serving) Write(w *strings.Builder) {
	var rows [][]string
	for i := range s.Cases {
		c := &s.Cases[i]
		for _, x := range []struct {
			name string
			list []Sample
		}{{"slipway", c.Slipway}, {"nginx", c.Nginx}} {
			if len(x.list) == 0 {
				continue
			}
			of := func(f func(*Sample) float64) measure.Spread {
				var v []float64
				for k := range x.list {
					v = append(v, f(&x.list[k]))
				}
				return measure.SpreadOf(v)
			}
			read := "-"
			if x.list[0].Read > 0 {
				read = measure.Figure(of(func(x *Sample) float64 { return float64(x.Read) / float64(x.Ops) / 1024 }).Median)
			}
			rows = append(rows, []string{c.Case, x.name, fmt.Sprint(c.Files), of((*Sample).cpuMs).String(), of((*Sample).rate).String(),
				measure.Figure(of((*Sample).cpuPerGB).Median), measure.Figure(of(func(x *Sample) float64 { return x.P50ms }).Median),
				measure.Figure(of(func(x *Sample) float64 { return x.P99ms }).Median), read,
				measure.Figure(of(func(x *Sample) float64 { return float64(x.PeakRSS) / 1e6 }).Max), of(func(x *Sample) float64 { return x.OtherCPUs }).String()})
		}
	}
	measure.Table(w, 2, []string{"case", "server", "files", "server CPU ms", "MB/s", "CPU s/GB", "p50 ms", "p99 ms", "KiB read", "peak RSS MB", "other CPUs"}, rows)
}

// Pictures implements [measure.Part].
func (s *Serving) Pictures() []measure.Picture { return nil }
