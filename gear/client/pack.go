package client

import (
	"bytes"
	"context"
	"io"
	"sync"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

const (
	// packBytes is how many bytes of files are kept in memory until somebody wants them. The
	// rest waits in the registry.
	packBytes = 8 << 20
	// packFile is the size of the largest file of a pack. Programs read parts of larger files.
	packFile = 32 << 20
	// packSkip is how many bytes of files that nobody wants are read before a pack is given
	// up. A new request costs a round trip.
	packSkip = 1 << 20
)

// Pack is a stream with the files that a container of an image opens first, in that order.
// The registry knows these files, so they can be requested together with the image's index,
// which saves a start one round trip. The files are verified like those of any other stream.
type Pack struct {
	cancel context.CancelFunc
	over   chan struct{} // closed when the files that are kept have come

	// body and in belong to the goroutine of Pack until over is closed, and to Deliver then.
	// next is the item that in has begun with.
	body io.ReadCloser
	in   *gear.StreamReader
	next *gear.StreamItem

	// mu guards all fields below. A value in more says that one of them changed.
	mu   sync.Mutex
	more chan struct{}
	kept []keptFile
	came func(n int) // told of bytes that arrive, or nil
}

// keptFile is a file of a pack that waits in memory.
type keptFile struct {
	name    gear.Name
	content []byte
}

// Pack requests the pack of an image. It does not wait for the answer. The caller closes
// the pack.
func (c *Client) Pack(ctx context.Context, repo string, manifest oci.Digest) *Pack {
	ctx, cancel := context.WithCancel(ctx)
	p := &Pack{cancel: cancel, over: make(chan struct{}), more: make(chan struct{}, 1)}
	go func() {
		defer close(p.over)
		var err error
		if p.body, err = client.GearFetchProfile(ctx, c.reg, repo, manifest); err != nil {
			return // the files are requested as if there were no pack
		}
		p.in = gear.NewStreamReader(p)
		p.keep()
	}()
	return p
}

// Read reads from the answer.
func (p *Pack) Read(b []byte) (int, error) {
	n, err := p.body.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.came != nil && n > 0 {
		p.came(n)
	}
	return n, err
}

// keep reads files until they are many or large.
func (p *Pack) keep() {
	for n := int64(0); n < packBytes; {
		it, err := p.in.Next()
		if err != nil {
			return
		}
		if it.Size > packFile {
			p.cancel()
			return
		}
		if it.Size >= gear.LargeFile {
			p.next = it
			return
		}
		if it.Missing || it.Failure != "" {
			continue
		}
		n += it.Size
		p.mu.Lock()
		p.kept = append(p.kept, keptFile{it.Name, bytes.Clone(it.Bytes())})
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
	}
}

// Deliver delivers those of the files that the pack brings, and returns the positions of the
// others. It is called once. An error is one of deliver or of ctx.
func (p *Pack) Deliver(ctx context.Context, files []gear.File, deliver func(i int, content io.Reader) error) (left []int, err error) {
	stop := context.AfterFunc(ctx, p.cancel)
	defer stop()
	p.mu.Lock()
	p.came = func(n int) { gear.Arrived(ctx, n) }
	p.mu.Unlock()
	d := packDelivery{p: p, files: files, want: make(map[gear.Name]int, len(files)), to: deliver}
	for i := range files {
		d.want[files[i].Name] = i
	}
	err = d.run(ctx)
	for i := range files {
		if _, ok := d.want[files[i].Name]; ok {
			left = append(left, i)
		}
	}
	return left, err
}

// packDelivery takes files out of a pack.
type packDelivery struct {
	p       *Pack
	files   []gear.File
	want    map[gear.Name]int // positions of the files that were not delivered
	to      func(i int, content io.Reader) error
	skipped int64
}

func (d *packDelivery) run(ctx context.Context) error {
	p := d.p
	for over := false; !over; {
		select {
		case <-p.more:
		case <-p.over:
			over = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.mu.Lock()
		kept := p.kept
		p.kept = nil
		p.mu.Unlock()
		for _, f := range kept {
			if err := d.one(f.name, int64(len(f.content)), func(to func(io.Reader) error) error { return to(bytes.NewReader(f.content)) }); err != nil {
				return err
			}
		}
	}
	for it := p.next; p.in != nil && len(d.want) > 0 && d.skipped <= packSkip; it = nil {
		var err error
		if it == nil {
			if it, err = p.in.Next(); err != nil {
				return context.Cause(ctx) // the others are requested as if there were no pack
			}
		}
		switch {
		case it.Missing || it.Failure != "":
			continue
		case it.Size > packFile:
			return nil
		case it.Size < gear.LargeFile:
			err = d.one(it.Name, it.Size, func(to func(io.Reader) error) error { return to(bytes.NewReader(it.Bytes())) })
		default:
			err = d.one(it.Name, it.Size, func(to func(io.Reader) error) error { return piped(it, to) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one delivers a file if it is wanted.
func (d *packDelivery) one(name gear.Name, size int64, open func(to func(io.Reader) error) error) error {
	i, ok := d.want[name]
	if !ok || d.files[i].Size != size {
		d.skipped += size
		return nil
	}
	if err := open(func(r io.Reader) error { return d.to(i, r) }); err != nil {
		return err
	}
	delete(d.want, name)
	return nil
}

// Close ends the pack. It may be called again.
func (p *Pack) Close() error {
	p.cancel()
	<-p.over
	if p.body == nil {
		return nil
	}
	return p.body.Close()
}
