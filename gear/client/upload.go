package client

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/oci/client"
)

// uploadBatch is how many bytes of small files go in one request. It is small so that
// little has to be sent again after a failure.
const uploadBatch = 8 << 20

// uploader uploads to a repository the files that it lacks.
type uploader struct {
	c    *Client
	repo string
	info *client.GearInfo
	z    *zstd.Encoder
	buf  bytes.Buffer
	w    *gear.StreamWriter // nil: nothing is in buf
	raw  []byte
	zip  []byte
	// files and bytes count what was sent, uncompressed. They are reported after each
	// request.
	files int
	bytes int64
	tell  func(files int, bytes int64)
}

var _ convert.Sink = (*uploader)(nil)

func (c *Client) newUploader(ctx context.Context, repo string, tell func(files int, bytes int64)) (*uploader, error) {
	info, err := c.offered(ctx)
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	return &uploader{c: c, repo: repo, info: info, z: z, tell: tell}, nil
}

// Missing implements [convert.Sink].
func (u *uploader) Missing(ctx context.Context, names []gear.Name) ([]bool, error) {
	out := make([]bool, 0, len(names))
	for len(names) > 0 {
		part := names[:min(len(names), u.info.Limits.Names)]
		names = names[len(part):]
		lacks, err := u.c.reg.GearQuery(ctx, u.repo, part)
		if err != nil {
			return nil, fmt.Errorf("ask %s what it lacks: %w", u.repo, err)
		}
		want := make(map[gear.Name]bool, len(lacks))
		for _, n := range lacks {
			want[n] = true
		}
		for _, n := range part {
			out = append(out, want[n])
		}
	}
	return out, nil
}

// Put implements [convert.Sink]. It does not keep content after it returns.
func (u *uploader) Put(ctx context.Context, f gear.File, content convert.Content) error {
	defer content.Release()
	if f.Size >= gear.LargeFile {
		return u.large(ctx, f, io.NewSectionReader(content, 0, f.Size))
	}
	u.raw = append(u.raw[:0], make([]byte, f.Size)...)
	if n, err := content.ReadAt(u.raw, 0); int64(n) < f.Size {
		return fmt.Errorf("read file %x: %w", f.Name, err)
	}
	return u.small(ctx, f.Name, u.raw)
}

// large sends a large file in a separate request. body must be able to seek if it may have to
// be sent again.
func (u *uploader) large(ctx context.Context, f gear.File, body io.Reader) error {
	if err := u.c.reg.GearPutFile(ctx, u.repo, f.Name, f.Size, body); err != nil {
		return fmt.Errorf("upload file %x of %d bytes: %w", f.Name, f.Size, err)
	}
	u.sent(f.Size)
	return nil
}

// small adds a file to the next stream to be sent.
func (u *uploader) small(ctx context.Context, name gear.Name, content []byte) error {
	if u.w == nil {
		u.buf.Reset()
		u.w = gear.NewStreamWriter(&u.buf)
	}
	f := gear.StreamFile{Name: name, Size: int64(len(content)), Encoding: gear.Zstd}
	u.zip = u.z.EncodeAll(content, u.zip[:0])
	stored := u.zip
	if len(stored) >= len(content) {
		stored, f.Encoding = content, gear.Plain
	}
	f.Stored = int64(len(stored))
	if err := u.w.Begin(f, nil); err != nil {
		return err
	}
	if _, err := u.w.Write(stored); err != nil {
		return err
	}
	u.sent(f.Size)
	if u.buf.Len() < uploadBatch {
		return nil
	}
	return u.flush(ctx)
}

func (u *uploader) sent(size int64) {
	u.files, u.bytes = u.files+1, u.bytes+size
	if u.tell != nil {
		u.tell(u.files, u.bytes)
	}
}

// flush sends the files that wait in the buffer.
func (u *uploader) flush(ctx context.Context) error {
	if u.w == nil {
		return nil
	}
	if err := u.w.End(); err != nil {
		return err
	}
	u.w = nil
	if _, err := u.c.reg.GearPutFiles(ctx, u.repo, int64(u.buf.Len()), bytes.NewReader(u.buf.Bytes())); err != nil {
		return fmt.Errorf("upload files to %s: %w", u.repo, err)
	}
	return nil
}

// complete uploads to the repository the files of x that the repository lacks and the
// source has.
func (u *uploader) complete(ctx context.Context, x *gear.Index, src gear.FileSource) error {
	if err := u.flush(ctx); err != nil {
		return err
	}
	var have []gear.File
	var names []gear.Name
	for i := range x.Files {
		if x.Files[i].Size > 0 {
			have, names = append(have, x.Files[i]), append(names, x.Files[i].Name)
		}
	}
	lacks, err := u.Missing(ctx, names)
	if err != nil {
		return err
	}
	var send []gear.File
	for i := range have {
		if lacks[i] {
			send = append(send, have[i])
		}
	}
	if len(send) == 0 {
		return nil
	}
	err = src.Fetch(ctx, send, func(i int, content io.Reader) error {
		if send[i].Size >= gear.LargeFile {
			return u.large(ctx, send[i], content)
		}
		u.raw = append(u.raw[:0], make([]byte, send[i].Size)...)
		if _, err := io.ReadFull(content, u.raw); err != nil {
			return fmt.Errorf("read file %x: %w", send[i].Name, err)
		}
		return u.small(ctx, send[i].Name, u.raw)
	})
	if err != nil {
		return fmt.Errorf("copy files of the base image to %s: %w", u.repo, err)
	}
	return u.flush(ctx)
}
