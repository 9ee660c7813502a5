package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"example.org/slipway/workload/trace"
)

// Columns is a set of columns of a [Batch]. Time is always there.
type Columns uint32

// These are the columns.
const (
	ColDuration Columns = 1 << iota
	ColSize
	ColMethod
	ColKind
	ColStatus
	ColHost
	ColClient
	ColRepo
	ColNamespace
	ColRef
	ColDigest
	ColAgent
	// AllColumns stands for every column.
	AllColumns = ColAgent<<1 - 1
)

// Query says which requests a scan is about.
type Query struct {
	// Zone is one zone's name.
	Zone string
	// From and To bound the time of arrival: From is included, To is not. Zero is
	// unbounded.
	From, To time.Time
	// Columns are the columns to read; 0 means all of them.
	Columns Columns
}

// bounds returns From and To in microseconds.
func (q *Query) bounds() (from, to int64) {
	const maxMicro = 1<<63 - 1
	from, to = -maxMicro, maxMicro
	if !q.From.IsZero() {
		from = ceilMicro(q.From)
	}
	if !q.To.IsZero() {
		to = ceilMicro(q.To)
	}
	return from, to
}

// ceilMicro returns the first microsecond that is not before t.
func ceilMicro(t time.Time) int64 {
	us := t.UnixMicro()
	if time.UnixMicro(us).Before(t) {
		us++
	}
	return us
}

// zone returns a zone by its name.
func (s *Store) zone(name string) (*zone, error) {
	i := slices.IndexFunc(s.zones, func(z zone) bool { return z.name == name })
	if i < 0 {
		return nil, fmt.Errorf("store %s has no zone %q", s.dir, name)
	}
	return &s.zones[i], nil
}

// Scan calls fn for the requests of one zone in order of time, for at most an hour at
// once. It ends when ctx is done or at the first error of fn, which it returns unchanged.
// Its memory does not depend on the number of requests, but symbols stay until Close.
// Several scans may run at once.
func (s *Store) Scan(ctx context.Context, q Query, fn func(*Batch) error) error {
	z, err := s.zone(q.Zone)
	if err != nil {
		return err
	}
	if q.Columns == 0 {
		q.Columns = AllColumns
	}
	from, to := q.bounds()
	sc := scanner{s: s, cols: q.Columns}
	for i := range z.days {
		d := &z.days[i]
		if d.day+microDay <= from || d.day >= to {
			continue
		}
		if err := sc.day(ctx, z.name, d, from, to, fn); err != nil {
			return err
		}
	}
	return nil
}

// scanner is the state of one scan, with the memory that batches reuse.
type scanner struct {
	s    *Store
	cols Columns
	buf  Batch
	// pairs are the repositories of a group.
	pairs []repoPair
}

// repoPair is a repository and its namespace.
type repoPair struct{ repo, namespace Symbol }

func (sc *scanner) day(ctx context.Context, zone string, d *dayFile, from, to int64, fn func(*Batch) error) error {
	f, pf, err := openParquet(d.path, dayBuffers)
	if err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	defer f.Close()
	groups := pf.RowGroups()
	if len(groups) != len(d.hours) {
		return fmt.Errorf("scan %s: the file has changed since the store was opened", d.path)
	}
	cols, err := columnIndexes(pf, d.path)
	if err != nil {
		return err
	}
	for i, h := range d.hours {
		if err := ctx.Err(); err != nil {
			return err
		}
		if h.Last < from || h.First >= to {
			continue
		}
		check := func(column int) error {
			known, bit := &d.sound[i], uint64(1)<<column
			if known.Load()&bit != 0 {
				return nil
			}
			err := checkChunk(f, pf.Metadata(), i, column)
			if err == nil {
				known.Or(bit)
			}
			return err
		}
		if err := sc.group(groups[i], h, cols, check, d.path); err != nil {
			return err
		}
		b := sc.buf
		b.Zone = zone
		if h.First < from || h.Last >= to {
			lo, _ := slices.BinarySearch(b.Time, from)
			hi, _ := slices.BinarySearch(b.Time, to)
			if lo >= hi {
				continue
			}
			b = b.slice(lo, hi)
		}
		if err := fn(&b); err != nil {
			return err
		}
	}
	return nil
}

// slice returns a part of a batch.
func (b Batch) slice(lo, hi int) Batch {
	return Batch{Zone: b.Zone, Time: b.Time[lo:hi],
		Duration: part(b.Duration, lo, hi), Size: part(b.Size, lo, hi), Method: part(b.Method, lo, hi),
		Kind: part(b.Kind, lo, hi), Status: part(b.Status, lo, hi), Host: part(b.Host, lo, hi),
		Client: part(b.Client, lo, hi), Repo: part(b.Repo, lo, hi), Namespace: part(b.Namespace, lo, hi),
		Ref: part(b.Ref, lo, hi), Digest: part(b.Digest, lo, hi), Agent: part(b.Agent, lo, hi)}
}

func part[T any](s []T, lo, hi int) []T {
	if s == nil {
		return nil
	}
	return s[lo:hi]
}

// columnIndexes finds the columns of a file by their names.
func columnIndexes(pf *parquet.File, path string) (map[string]int, error) {
	out := map[string]int{}
	for i, p := range pf.Schema().Columns() {
		if len(p) == 1 {
			out[p[0]] = i
		}
	}
	for _, c := range rowSchema().Columns() {
		if _, ok := out[c[0]]; !ok {
			return nil, fmt.Errorf("read %s: there is no column %q", path, c[0])
		}
	}
	return out, nil
}

func rowSchema() *parquet.Schema { return parquet.SchemaOf(row{}) }

// group decodes a row group into sc.buf after checking each column.
func (sc *scanner) group(g parquet.RowGroup, h hour, cols map[string]int, check func(column int) error, path string) (err error) {
	defer damaged(&err, path)
	chunks := g.ColumnChunks()
	n := int(h.Rows)
	b := &sc.buf
	read := func(name string, decode func(parquet.ColumnChunk) error) {
		if err != nil {
			return
		}
		column := cols[name]
		if err = check(column); err == nil {
			err = decode(chunks[column])
		}
		if err != nil {
			err = fmt.Errorf("read %s: column %s: %w", path, name, err)
		}
	}
	ints := func(name string, want bool, dst *[]int64) {
		if want {
			read(name, func(c parquet.ColumnChunk) error { return readInts(c, n, dst) })
		}
	}
	syms := func(name string, want Columns, t Table, dst *[]Symbol) {
		if sc.cols&want != 0 {
			read(name, func(c parquet.ColumnChunk) error { return readStrings(c, n, dst, sc.s.tables[t].symbols) })
		}
	}
	ints("time", true, &b.Time)
	ints("duration", sc.cols&ColDuration != 0, &b.Duration)
	ints("size", sc.cols&ColSize != 0, &b.Size)
	syms("host", ColHost, Hosts, &b.Host)
	syms("client", ColClient, Clients, &b.Client)
	syms("ref", ColRef, Refs, &b.Ref)
	syms("digest", ColDigest, Refs, &b.Digest)
	syms("agent", ColAgent, Agents, &b.Agent)
	if sc.cols&(ColRepo|ColNamespace) != 0 {
		read("repo", func(c parquet.ColumnChunk) error { return sc.repos(c, n) })
	}
	if sc.cols&ColMethod != 0 {
		read("method", func(c parquet.ColumnChunk) error { return readStrings(c, n, &b.Method, methods) })
	}
	if sc.cols&ColKind != 0 {
		read("kind", func(c parquet.ColumnChunk) error { return readStrings(c, n, &b.Kind, kinds) })
	}
	if sc.cols&ColStatus != 0 {
		read("status", func(c parquet.ColumnChunk) error { return readStatus(c, n, &b.Status) })
	}
	if err == nil && !slices.IsSorted(b.Time) {
		err = fmt.Errorf("read %s: the rows are not in order of time", path)
	}
	return err
}

func methods(n int, get func(i int) []byte) []Method {
	out := make([]Method, n)
	for i := range out {
		out[i] = ParseMethod(string(get(i)))
	}
	return out
}

func kinds(n int, get func(i int) []byte) []trace.Kind {
	out := make([]trace.Kind, n)
	for i := range out {
		out[i] = parseKind(string(get(i)))
	}
	return out
}

// repos reads repositories and namespaces, which a file has in one column.
func (sc *scanner) repos(c parquet.ColumnChunk, n int) error {
	tab := &sc.s.tables[Repos]
	err := readStrings(c, n, &sc.pairs, func(n int, get func(i int) []byte) []repoPair {
		out := make([]repoPair, n)
		repos := tab.symbols(n, get)
		spaces := tab.symbols(n, func(i int) []byte {
			ns, _, _ := bytes.Cut(get(i), []byte("/"))
			return ns
		})
		for i := range out {
			out[i] = repoPair{repos[i], spaces[i]}
		}
		return out
	})
	if err != nil {
		return err
	}
	b := &sc.buf
	if sc.cols&ColRepo != 0 {
		b.Repo = b.Repo[:0]
		for _, p := range sc.pairs {
			b.Repo = append(b.Repo, p.repo)
		}
	}
	if sc.cols&ColNamespace != 0 {
		b.Namespace = b.Namespace[:0]
		for _, p := range sc.pairs {
			b.Namespace = append(b.Namespace, p.namespace)
		}
	}
	return nil
}
